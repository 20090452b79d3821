//! A small VMM on the rust-vmm crates, unmodified: judges /dev/kvm.
//!
//! `limen-vmm test [FILTER [BUT...]]` runs guests of a few instructions each and says, as
//! `guest/tests` does, `test NAME ... ok` or `FAILED`; `limen-vmm list` has their names. On a host
//! whose KVM does not work it says so and fails. `limen-vmm vmscape KIND [FILTER]` does the same
//! for what is flushed behind guests. `limen-vmm branches` and `ticks` need no KVM, `limen-vmm
//! boot` boots a kernel, `limen-vmm bench` measures, `limen-vmm fuzz` asks for anything at any
//! time.

mod bench;
mod boot;
mod branches;
mod capabilities;
mod hostile;
mod machine;
mod races;
mod tests;
mod vmscape;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("fuzz") => hostile::command(&words[1..]),
        Some("bench") => bench::command(&words[1..]),
        Some("boot") => boot::command(&words[1..]),
        Some("list") => tests::list(),
        Some("vmscape-list") => {
            vmscape::list();
            ExitCode::SUCCESS
        }
        Some("vmscape") => {
            let word = |n: usize| words.get(n).map_or("", String::as_str);
            vmscape::run_all(word(1), word(2))
        }
        Some("branches") => end(&branches::command()),
        Some("ticks") => end(&branches::ticks()),
        Some("test") => tests::run_all(&words[1..]),
        _ => {
            eprintln!(
                "usage: limen-vmm test [FILTER [BUT...]] | list | vmscape KIND [FILTER]\n\
                 | branches | ticks | boot --kernel ELF ... | bench ...\n\
                 | fuzz [--seed N] [--seconds S]"
            );
            ExitCode::from(2)
        }
    }
}

fn end(result: &machine::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("limen-vmm: {why}");
            ExitCode::FAILURE
        }
    }
}
