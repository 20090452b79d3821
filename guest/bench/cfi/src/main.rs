//! limen-bench-cfi: what the forms of a checked indirect call cost on this CPU, in ring 3.
//!
//! The sequences come from `text_patching`, byte for byte. First every trap is provoked once and
//! must name the right address and register; then all variants are timed side by side in random
//! code layouts. Figures of one layout, or of a loop that is not pinned, mean nothing here: branch
//! predictors see addresses. In an emulator there is no predictor and the cycles are void.
//!
//! Reading order: code.rs (what is generated), exec.rs (how it is run), measure.rs, report.rs,
//! plot.rs, reach.rs (what must hold).

use limen_bench_cfi::code::{self, Guard, VARIANTS, row};
use limen_bench_cfi::exec::{self, Mapped, with_trap};
use limen_bench_cfi::measure::{self, Plan};
use limen_bench_cfi::{plot, reach, report, warn_if_busy};
use text_patching::kcfi::{Form, TAIL, TRAP_UD2, TRAP_UDB};

const HELP: &str = "\
usage: limen-bench-cfi [--tiny] [--json] [--svg FILE] [--like HEX]
  --tiny      a few calls only: shows that everything works, not what it costs
  --json      one JSON object instead of the table
  --svg FILE  also draw cycles over call sites
  --like HEX  20 bytes of a checked call in a kernel image: measure exactly these
exit status: 0 the reach is met, 1 it is not, 2 wrong arguments";

fn main() -> std::process::ExitCode {
    let mut plan = Plan::full();
    let (mut as_json, mut svg) = (false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--tiny" => plan = Plan::tiny(),
            "--json" => as_json = true,
            "--svg" if svg.is_none() => match args.next() {
                Some(path) => svg = Some(path),
                None => return wrong_usage(),
            },
            "--like" if args.next().is_some_and(|hex| like(&hex)) => {}
            _ => return wrong_usage(),
        }
    }
    warn_if_busy();
    exec::pin();
    check_traps();
    let ticks_per_cycle = measure::ticks_per_cycle();
    let mut points = Vec::new();
    for &(sites, targets) in &plan.points {
        eprintln!("{sites} sites, {targets} targets");
        points.push(measure::point(&plan, sites, targets, ticks_per_cycle));
    }
    if as_json {
        println!("{}", report::json(&points, ticks_per_cycle));
    } else {
        print!("{}", report::table(&points));
        println!(
            "\n{ticks_per_cycle:.3} ticks per core cycle, {} layouts, best of {} rounds in each",
            plan.layouts, plan.rounds
        );
    }
    let reach = reach::judge(&points);
    if !as_json {
        reach.iter().for_each(|line| println!("{line}"));
    }
    if let Some(path) = svg
        && let Err(error) = draw(&path, &points)
    {
        eprintln!("--svg {path}: {error}");
        return std::process::ExitCode::from(2);
    }
    let met = plan.is_tiny() || reach.iter().all(|line| line.met);
    std::process::ExitCode::from(u8::from(!met))
}

fn wrong_usage() -> std::process::ExitCode {
    eprintln!("{HELP}");
    std::process::ExitCode::from(2)
}

fn draw(path: &str, points: &[measure::Point]) -> Result<(), Box<dyn std::error::Error>> {
    Ok(std::fs::write(path, plot::svg(points)?)?)
}

/// Takes the sequence from an image's bytes; false if it cannot be measured.
fn like(hex: &str) -> bool {
    let digits = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(digits).collect();
    let Some(Ok(site)) = bytes.map(<[u8; 20]>::try_from) else { return false };
    let result = code::be_like(&site);
    if let Err(why) = &result {
        eprintln!("{why}");
    }
    result.is_ok()
}

/// Every check must trap on a target of another type, at the address that the kernel's handler
/// expects and with the target in r11; going on at the call must run the target exactly once.
fn check_traps() {
    for variant in VARIANTS {
        let Guard::Check(form) = variant.guard else {
            continue;
        };
        let generated = row(variant, 1, 1, 0);
        let mut mapped = Mapped::new(&generated);
        let good = mapped.run(0);
        assert_eq!(good, 1, "{}: a good call traps or is lost", variant.name);
        // The site's own row has no preamble 16 bytes in: the function after the prefix is the
        // target, and one byte further on the "hash" is another word. `ff c6 c3` counts in esi.
        let site = mapped.base() + generated.sites[0] as u64;
        let target = mapped.base() + generated.targets[0] as u64 + 1;
        let (calls, trap) = with_trap(site + TAIL, || mapped.run_with(target));
        let offset = if form == Form::Opt { TRAP_UDB } else { TRAP_UD2 };
        assert_eq!((trap.rip, trap.r11), (site + offset, target), "{}", variant.name);
        assert_eq!((trap.count, calls), (1, 1), "{}: not exactly once", variant.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_trap_where_the_kernel_expects_it() {
        check_traps();
    }

    #[test]
    fn all_variants_do_the_same_work() {
        let plan = Plan::tiny();
        for (sites, targets) in [(1, 1), (64, 4), (7, code::TARGETS_MAX)] {
            let point = measure::point(&plan, sites, targets, 1.0);
            assert_eq!(point.work, (plan.calls.div_ceil(sites) * sites) as u64);
        }
    }

    #[test]
    fn reports_have_every_variant() {
        let plan = Plan::tiny();
        let points = [measure::point(&plan, 1, 1, 1.0), measure::point(&plan, 16, 1, 1.0)];
        let table = report::table(&points);
        let json = report::json(&points, 1.0);
        assert!(json["reach"].is_array());
        for variant in VARIANTS {
            assert!(table.contains(variant.name));
            assert!(json["points"][0]["variants"][variant.name]["cycles"]["median"].is_number());
        }
    }

    #[test]
    fn layouts_differ_and_repeat() {
        let bytes = |layout| row(VARIANTS[2], 32, 2, layout).bytes;
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
    }
}
