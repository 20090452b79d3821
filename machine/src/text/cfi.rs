//! kCFI on this machine: the rewrite at boot, and what happens when a check fails.
//!
//! At boot ([`boot_pass`]) the whole image is verified against the tables that objtool has
//! written, then brought into the form that `cfi=` asks for, with hashes that are this boot's
//! secret, and with thunks taken out where `mitigations` wants none; and verified again.
//!
//! A failed check arrives as #UD ([`on_undefined`]), and as #PF or #GP where the hash itself
//! cannot be read ([`on_fault`]). Both run in whatever context made the call, NMI included: they
//! take no lock but the log's, which the panic path opens by force, and they read the callee's
//! hash only where a walk of the page tables says that it can be read. A failure within a report
//! is fatal.
//!
//! With FineIBT the callee's landing pad finds a wrong type (#UD, [`on_undefined`]), the CPU a
//! branch to no landing pad (#CP, [`on_control_protection`]), and paging one to what is no code
//! ([`on_fault`]).
//!
//! Neighbours: `text_patching::{boot, trap, options}` decide, `text_poke` writes, `panic` prints.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use entry::PtRegs;
use formats::params;
use text_patching::boot::BootPlan;
use text_patching::fineibt;
use text_patching::kcfi::Form;
use text_patching::options::{self, CfiOptions, Ignored};
use text_patching::preamble::Seed;
use text_patching::return_site::Return;
use text_patching::site_table::{SiteTables, TableError};
use text_patching::tail::Via;
use text_patching::trap::{self, Cause, CfiFailure};

use crate::cpu::sealed::sealed;
use crate::cpu::sync::Once;
use crate::cpu::{self, cr, features, linked, msr, percpu};
use crate::text::text_poke::{self, LiveText};
use crate::text::{call_depth, late_text};
use crate::{memory, panic};

sealed! {
    static TABLES: Once<SiteTables<'static>> = Once::new();
    static PLAN: Once<BootPlan> = Once::new();
    static WARN: AtomicBool = AtomicBool::new(false);
}
/// Failed checks since boot, with `cfi=warn`.
static FAILURES: AtomicU64 = AtomicU64::new(0);
/// Most failures that get a line in the log.
const LINES_MAX: u64 = 16;

/// The image's tables; `None` in an image that objtool has not finished.
pub(crate) fn tables() -> Option<SiteTables<'static>> {
    TABLES.get().copied()
}

/// What the boot pass did: late text gets the same.
pub(crate) fn plan() -> Option<BootPlan> {
    PLAN.get().copied()
}

/// How many checks have failed; only with `cfi=warn` can it be more than 0.
pub fn failures() -> u64 {
    FAILURES.load(Ordering::Relaxed)
}

/// Whether checks are made and their failures can be told.
#[cfg(feature = "ktest")]
pub(crate) fn is_on() -> bool {
    plan().is_some_and(|plan| plan.form != Form::Off)
}

/// Whether callees check.
pub(crate) fn is_fineibt() -> bool {
    plan().is_some_and(|plan| plan.form == Form::FineIbt)
}

/// Whether this CPU looks for landing pads.
#[cfg(feature = "ktest")]
pub(crate) fn tracks_branches() -> bool {
    cpu::read_cr4() & cr::CR4_CET != 0 && cpu::rdmsr(msr::S_CET) & cr::S_CET_ENDBR != 0
}

/// A function that nobody takes the address of.
#[cfg(feature = "ktest")]
pub(crate) fn sealed_function() -> Option<u64> {
    let is_sealed = |entry: &text_patching::site_table::FunctionEntry| {
        entry.hash == text_patching::preamble::POISON
    };
    tables()?.functions().iter().find(is_sealed).map(|entry| entry.function)
}

/// The hash that callers of the function at `target` must have; `None`: there is none to be read.
#[cfg(feature = "ktest")]
pub(crate) fn hash_of_callee(target: u64) -> Option<u32> {
    if is_fineibt() {
        return fineibt::decode_landing_pad(&LiveText, target).ok();
    }
    read_hash(target.wrapping_add_signed(tables()?.disp().into()))
}

/// Whether tests survive failed checks: `WARN` is sealed.
#[cfg(feature = "ktest")]
static WARN_IN_TEST: AtomicBool = AtomicBool::new(false);

/// Sets whether a failed check is survived; returns what was set before.
#[cfg(feature = "ktest")]
pub(crate) fn set_warn(warn: bool) -> bool {
    WARN_IN_TEST.swap(warn, Ordering::SeqCst)
}

/// Whether the flag of `cfi=warn` can be written by one store: what an attacker would try first.
#[cfg(feature = "ktest")]
pub(crate) fn warn_can_be_set() -> bool {
    crate::ktest::probe_write(WARN.as_ptr() as u64)
}

/// Whether a failed check is survived.
fn is_survived() -> bool {
    #[cfg(feature = "ktest")]
    if WARN_IN_TEST.load(Ordering::SeqCst) {
        return true;
    }
    WARN.load(Ordering::Relaxed)
}

/// The state of the checks, as one line.
pub fn describe() -> &'static str {
    let Some(plan) = plan() else { return "CFI: Using standard kCFI" };
    CfiOptions { form: plan.form, rand: plan.seed != Seed::new(0), ..CfiOptions::auto(true) }
        .describe()
}

/// Verifies and rewrites the image's text. On the first CPU, before the others start, with
/// interrupts masked. `via` and `returns`: how indirect branches and returns go; `random` makes the
/// hashes this boot's.
pub(crate) fn boot_pass(command_line: &str, via: Via, returns: Return, random: u64) {
    let value = params::find(command_line, "cfi").unwrap_or("");
    let mut options = options::parse(value, features().ibt, |word, why| match why {
        Ignored::Unknown => crate::log!("warning: CFI: ignoring unknown option {word}"),
        Ignored::NotBuilt => crate::log!("warning: CFI: {word} is not built"),
        Ignored::NoIbt => {
            crate::log!("warning: CFI: {word} needs indirect branch tracking: ignored");
        }
    });
    let counts = matches!(via, Via::Counted { .. });
    if counts && options.form == Form::FineIbt {
        crate::log!("CFI: calls are counted in the room of landing pads: callers check");
        options.form = Form::Opt;
    }
    WARN.store(options.warn, Ordering::Relaxed);
    match SiteTables::parse(crate::text::sites::tables()) {
        Ok(tables) => {
            // A seed that changes something: 0 would keep the hashes.
            let is_random = options.rand && options.form != Form::Off;
            let seed = Seed::new(if is_random { (random as u32).max(1) } else { 0 });
            let plan = BootPlan { form: options.form, seed, via, returns };
            rewrite(*TABLES.call_once(|| tables), &options, plan);
            if counts {
                call_depth::boot_pass(options.debug);
            }
        }
        Err(TableError::NotFilled) => {
            crate::log!("CFI: Using standard kCFI; no site tables in this image, text stays");
        }
        Err(error) => panic!("site tables: {error}"),
    }
    if options.warn {
        crate::log!("CFI: mismatch non-fatal!");
    }
}

fn rewrite(tables: SiteTables<'static>, options: &CfiOptions, plan: BootPlan) {
    let mut window = text_poke::boot_window().expect("the boot pass comes before the door closes");
    let start = cpu::rdtsc_ordered();
    let checked = plan.check(&LiveText, tables).unwrap_or_else(|anomaly| panic!("text: {anomaly}"));
    let done = checked.apply(&mut window);
    let cycles = cpu::rdtsc_ordered() - start;
    drop(window);
    let done = done.unwrap_or_else(|broken| panic!("text is broken: {}", broken.found));
    PLAN.call_once(|| plan);
    crate::log!("{}", options.describe());
    if options.debug {
        // Not the thunk's address: programs read the log.
        let via = match plan.via {
            Via::Thunk => "Thunk",
            Via::Direct => "Direct",
            Via::Lfence => "Lfence",
            Via::Aligned(_) => "Aligned",
            Via::Counted { .. } => "Counted",
        };
        crate::log!(
            "CFI: verified {} checks, {} functions and {} thunked returns, {} stores, {cycles} \
             cycles, via {via}",
            done.checks,
            done.functions,
            done.returns,
            done.stores
        );
    }
}

/// Has this CPU look for landing pads, if callees check. Behind the boot pass, and when entries
/// land on theirs.
pub(crate) fn init_cpu() {
    if !is_fineibt() {
        return;
    }
    let cr4 = cpu::read_cr4() | cr::CR4_CET;
    let shadow = if cpu::shadow_stack::is_on() { cr::S_CET_SHADOW_STACK } else { 0 };
    // SAFETY: CPUID reports IBT, and so the register is there. What it says of shadow stacks stays
    // as it is, and CR4.CET says that it is asked only where they are, or when every target of an
    // indirect branch has its landing pad.
    unsafe { cpu::wrmsr(msr::S_CET, cr::S_CET_ENDBR | shadow) };
    // SAFETY: every target of an indirect branch has its landing pad, which the boot pass has
    // verified, and so have the entries.
    unsafe { cpu::write_cr4(cr4) };
    let is_on =
        cpu::read_cr4() & cr::CR4_CET != 0 && cpu::rdmsr(msr::S_CET) == cr::S_CET_ENDBR | shadow;
    assert!(is_on, "CFI: this CPU does not look for landing pads");
}

/// What was found out about a failed check.
#[derive(Clone, Copy, Debug)]
pub struct CfiReport {
    /// Start of the check.
    pub site: u64,
    /// Where the call was to go.
    pub target: u64,
    /// The hash that the callee should have.
    pub expected: u32,
    /// The hash that it has; `None` if it cannot be read, or there is no landing pad.
    pub found: Option<u32>,
}

impl core::fmt::Display for CfiReport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "CFI failure at {:#x} (target: {:#x}; expected type: {:#010x}; ",
            linked(self.site),
            linked(self.target),
            self.expected
        )?;
        match self.found {
            Some(hash) => write!(f, "found: {hash:#010x})"),
            None if is_fineibt() => write!(f, "no landing pad there)"),
            None => write!(f, "no type can be read there)"),
        }
    }
}

/// A failed check, as a trap has found it.
pub(crate) struct Failed {
    pub(crate) report: CfiReport,
    /// How far behind the check's start the trap was; 0 where it was not in the check.
    #[cfg_attr(not(feature = "ktest"), expect(dead_code, reason = "tests ask"))]
    pub(crate) offset: u64,
    /// The call or jump, which was not made; `None`: it was, and its target is left as by RET.
    #[cfg_attr(not(feature = "ktest"), expect(dead_code, reason = "tests leave calls out"))]
    pub(crate) call: Option<u64>,
    /// Where a machine that only warns goes on; `None`: nowhere.
    resume: Option<u64>,
}

/// A #UD of the kernel. True: it was a failed check, and the machine goes on at the call.
pub(crate) fn on_undefined(regs: &mut PtRegs) -> bool {
    if let Some((function, wants)) =
        find(regs.rip, |tables| trap::on_landing_pad(regs.rip, tables, &LiveText))
    {
        // The pad has subtracted what it wants from what the caller expected.
        let expected = (regs.rax as u32).wrapping_add(wants);
        let report = CfiReport { found: Some(wants), ..landed(regs, function, expected) };
        return handle(regs, Failed { report, offset: 0, call: None, resume: Some(function) });
    }
    find(regs.rip, |tables| trap::on_undefined(regs.rip, tables, &LiveText))
        .is_some_and(|failure| before_call(regs, &failure))
}

/// A #CP of the kernel: an indirect branch has found no landing pad. True: as [`on_undefined`].
pub(crate) fn on_control_protection(regs: &mut PtRegs) -> bool {
    if !is_fineibt() {
        return false;
    }
    let report = landed(regs, target_of(regs, regs.rip), regs.rax as u32);
    let resume = Some(regs.rip);
    handle(regs, Failed { report, offset: 0, call: None, resume })
}

/// A #PF or #GP of the kernel that no exception table entry explains; `is_fetch`: of an
/// instruction. True: as [`on_undefined`].
pub(crate) fn on_fault(regs: &mut PtRegs, is_fetch: bool) -> bool {
    if is_fineibt() {
        return on_bad_target(regs, is_fetch);
    }
    find(regs.rip, |tables| trap::on_bad_read(regs.rip, tables, &LiveText))
        .is_some_and(|failure| before_call(regs, &failure))
}

/// With FineIBT nothing reads the callee's hash: a call of what is no code arrives there (#PF), and
/// one of a non-canonical address faults itself (#GP), or in the thunk that branches for it: then,
/// too, the return address is on the stack.
fn on_bad_target(regs: &mut PtRegs, is_fetch: bool) -> bool {
    let target = target_of(regs, regs.r11);
    let is_in_thunk = regs.rip == super::thunk::aligned_thunk() && !is_fetch;
    if regs.rip == regs.r11 && is_fetch || is_in_thunk {
        let report = landed(regs, target, regs.rax as u32);
        return handle(regs, Failed { report, offset: 0, call: None, resume: None });
    }
    let Some(site) = find(regs.rip, |tables| trap::check_at_call(regs.rip, tables)) else {
        return false;
    };
    let report = CfiReport { site, target, expected: regs.rax as u32, found: None };
    handle(regs, Failed { report, offset: regs.rip - site, call: Some(regs.rip), resume: None })
}

/// What was called, when the CPU is at `rip`: FineIBT's callers aim before the function.
fn target_of(regs: &PtRegs, rip: u64) -> u64 {
    if rip == regs.r11 { rip.wrapping_add(fineibt::LANDING) } else { rip }
}

/// A report of a call that has arrived at `target`: whose it was, the return address tells, unless
/// it was a jump at a function's end, of which it tells the caller's caller.
fn landed(regs: &PtRegs, target: u64, expected: u32) -> CfiReport {
    let mut bytes = [0; 8];
    for (at, byte) in (regs.rsp..).zip(&mut bytes) {
        *byte = memory::peek(at).unwrap_or(0);
    }
    let behind = u64::from_le_bytes(bytes);
    let site = find(behind, |tables| trap::check_before(behind, tables)).unwrap_or(behind);
    CfiReport { site, target, expected, found: None }
}

/// Asks the image's tables, then those of late text.
fn find<T>(rip: u64, ask: impl Fn(&SiteTables<'_>) -> Option<T>) -> Option<T> {
    tables().and_then(|tables| ask(&tables)).or_else(|| late_text::find(rip, &ask))
}

/// CPUs that are reporting a failure, one bit each: a failure within a report is not reported
/// again.
static REPORTING: AtomicU32 = AtomicU32::new(0);

/// A check that the caller makes, before its call.
fn before_call(regs: &mut PtRegs, failure: &CfiFailure) -> bool {
    let target = register(regs, failure.register);
    let found = match failure.cause {
        Cause::Mismatch => read_hash(failure.hash_address(target)),
        Cause::Unreadable => None,
    };
    let report = CfiReport { site: failure.site, target, expected: failure.expected, found };
    let (offset, at) = (regs.rip - failure.site, Some(failure.resume));
    handle(regs, Failed { report, offset, call: at, resume: at })
}

fn handle(regs: &mut PtRegs, failed: Failed) -> bool {
    let report = failed.report;
    let me = 1 << percpu::cpu_id();
    let nested = REPORTING.fetch_or(me, Ordering::SeqCst) & me != 0;
    if !is_survived() || nested {
        panic::at(format_args!("{report}"), regs);
    }
    let number = FAILURES.fetch_add(1, Ordering::Relaxed);
    #[cfg(feature = "ktest")]
    let claimed = crate::ktest::claim(regs, &failed);
    #[cfg(not(feature = "ktest"))]
    let claimed = false;
    if !claimed {
        let Some(resume) = failed.resume else { panic::at(format_args!("{report}"), regs) };
        // An NMI may have interrupted the log's own lock holder: then the count must do.
        if number < LINES_MAX
            && crate::cpu::log::try_write(format_args!("limen: warning: {report}"))
        {
            panic::backtrace_of(regs);
        }
        regs.rip = resume;
    }
    REPORTING.fetch_and(!me, Ordering::SeqCst);
    true
}

/// The register with this hardware number.
fn register(regs: &PtRegs, number: u8) -> u64 {
    match number {
        0 => regs.rax,
        1 => regs.rcx,
        2 => regs.rdx,
        3 => regs.rbx,
        5 => regs.rbp,
        6 => regs.rsi,
        7 => regs.rdi,
        8 => regs.r8,
        9 => regs.r9,
        10 => regs.r10,
        11 => regs.r11,
        13 => regs.r13,
        14 => regs.r14,
        15 => regs.r15,
        _ => 0,
    }
}

/// The hash at `at`, an attacker's address, without any risk of a fault.
fn read_hash(at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    for (at, byte) in (at..=at.checked_add(3)?).zip(&mut bytes) {
        *byte = memory::peek(at)?;
    }
    Some(u32::from_le_bytes(bytes))
}
