//! Text: not writable, its alias gone, every class of failed check caught, keys and calls switched.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::arch::global_asm;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Test, caught_in, expect_cfi_failure, fail_within_report, probe_write, run_in_nmi};
use lsm::fold::{All, First};
use text_patching::kcfi::{Form, TRAP_UD2, TRAP_UDB};

use crate::cpu::{irq, percpu};
use crate::ensure;
use crate::memory::KernelRights;
use crate::text::cfi::{self, CfiReport};
use crate::text::static_branch::{
    self, StaticKey, id, static_branch_likely, static_branch_unlikely,
};
use crate::text::static_call::{self, Callee, StaticCall};
use crate::text::text_poke::{self, late_range, text_range};
use crate::text::vdso;

pub(super) const TESTS: &[Test] = &[
    Test { name: "text::not_writable", run: not_writable },
    Test { name: "text::alias_is_gone", run: alias_is_gone },
    Test { name: "text::window_keeps_to_its_range", run: late_text_is_not_executable },
    Test { name: "cfi::good_calls_pass", run: good_calls_pass },
    Test { name: "cfi::wrong_type", run: wrong_type },
    Test { name: "cfi::tail_call", run: tail_call },
    Test { name: "cfi::call_to_data", run: call_to_data },
    Test { name: "cfi::call_to_user_memory", run: call_to_user_memory },
    Test { name: "cfi::call_to_non_canonical", run: call_to_non_canonical },
    Test { name: "cfi::corrupted_vtable", run: corrupted_vtable },
    Test { name: "cfi::warn_mode_goes_on", run: warn_mode_goes_on },
    Test { name: "cfi::unmapped_preamble", run: unmapped_preamble },
    Test { name: "cfi::return_address_is_not_covered", run: return_address },
    Test { name: "cfi::landing_pads", run: landing_pads },
    Test { name: "cfi::in_an_interrupt", run: in_an_interrupt },
    Test { name: "cfi::in_an_nmi", run: in_an_nmi },
    Test { name: "boot::secrets", run: secrets },
    Test { name: "static_key::both_ways", run: key_both_ways },
    Test { name: "static_key::refused_where_not_listed", run: not_listed },
    Test { name: "static_call::all_targets", run: call_all_targets },
    Test { name: "static_call::refuses", run: call_refuses },
    Test { name: "int3::site_is_executed_between_rounds", run: between_rounds },
    Test { name: "cfi::in_an_nmi_while_patching", run: fails_between_rounds },
];

fn not_writable() -> Result<(), String> {
    let text = text_range();
    let alias = |at: u64| at - crate::cpu::kernel_base() + crate::cpu::direct_map_base();
    let tables = crate::text::sites::tables().as_ptr() as u64;
    let function = not_writable as *const () as u64;
    let vdso = [vdso::code_range().start, vdso::data_range().start];
    let places = [text.start, function, text.end - 1, late_range().start, tables];
    for at in places.into_iter().chain(vdso) {
        ensure!(!probe_write(at), "{at:#x} can be written");
        ensure!(!probe_write(alias(at)), "the alias of {at:#x} can be written");
    }
    static DATA: AtomicU64 = AtomicU64::new(7);
    ensure!(probe_write((&raw const DATA) as u64), "the probe cannot even write data");
    Ok(())
}

fn alias_is_gone() -> Result<(), String> {
    use text_patching::Text;
    let alias = crate::memory::text_alias();
    ensure!(!probe_write(alias), "the alias is writable before");
    let page = late_range().end - crate::cpu::PAGE_SIZE as u64;
    let window = text_poke::open_for_test(page);
    ensure!(text_poke::is_alias_mapped(), "a window without an alias");
    ensure!(probe_write(alias), "the alias cannot be written while the window is open");
    ensure!(crate::memory::kernel_rights(alias) == READ_WRITE, "wrong rights");
    let mut byte = [0];
    ensure!(window.read(page, &mut byte).is_ok() && byte == [0xcc], "the write did not arrive");
    drop(window);
    ensure!(!probe_write(alias), "the alias is still writable");
    ensure!(!text_poke::is_alias_mapped(), "the alias is still mapped");
    ensure!(text_poke::boot_window().is_none(), "the boot pass's door is open");
    Ok(())
}

/// Says this boot's secrets, for the command line to compare two boots: the hash of one type, and
/// the generator's next word.
fn secrets() -> Result<(), String> {
    let hash = hash_before(black_box(add_one as Right) as usize as u64).ok_or("no hash")?;
    crate::log!("secret hash of a type {hash:#x}");
    crate::log!("secret random word {:#x}", crate::device::entropy::random_u64());
    for (area, base) in crate::boot::kaslr::places() {
        crate::log!("secret place of {area} {base:#x}");
    }
    Ok(())
}

fn late_text_is_not_executable() -> Result<(), String> {
    let last = late_range().end - 1;
    let rights = crate::memory::kernel_rights(last);
    ensure!(rights == READ_ONLY, "unused late text has rights {rights:?}");
    Ok(())
}

/// Rights of plain data, and of constants.
const READ_WRITE: KernelRights =
    KernelRights { present: true, write: true, exec: false, user: false };
pub(super) const READ_ONLY: KernelRights = KernelRights { write: false, ..READ_WRITE };

pub(super) type Right = extern "C" fn(u64) -> u64;

#[inline(never)]
pub(super) extern "C" fn add_one(value: u64) -> u64 {
    value + 1
}

#[inline(never)]
pub(super) extern "C" fn wrong(a: u64, b: u64, c: u64) -> u64 {
    a * b * c
}

#[inline(never)]
fn call(function: Right) -> u64 {
    black_box(black_box(function)(41)) + 1
}

/// A call that is the last thing its caller does, so that it is a jump.
#[inline(never)]
pub(super) extern "C" fn call_last(function: Right, value: u64) -> u64 {
    function(value)
}

/// A pointer of the wrong kind, as an attacker would put it where a right one was.
pub(super) fn forged(address: u64) -> Right {
    // SAFETY: unsound on purpose: the check behind the call is what is tested, and it is not made.
    unsafe { core::mem::transmute::<u64, Right>(black_box(address)) }
}

pub(super) fn fits(report: Option<CfiReport>, target: u64, readable: bool) -> Result<(), String> {
    ensure!(cfi::tables().is_some(), "this image was not finished");
    let report = report.ok_or("no failed check")?;
    ensure!(report.target == target, "{report}: wrong target");
    ensure!(text_range().contains(&report.site), "{report}: wrong site");
    ensure!(report.expected != 0, "{report}: no expected type");
    // Where callees check, a type is found only at a landing pad.
    let is_pad = !cfi::is_fineibt() || hash_before(target).is_some();
    let readable = readable && is_pad;
    ensure!(report.found.is_some() == readable, "{report}: wrong about the type found");
    ensure!(report.found != Some(report.expected), "{report}: the type is right");
    let found = readable.then(|| hash_before(target)).flatten();
    ensure!(report.found == found, "{report}: but there is {found:x?}");
    Ok(())
}

/// The hash where a check of a call to `target` looks.
fn hash_before(target: u64) -> Option<u32> {
    cfi::hash_of_callee(target)
}

/// A call of type [`Right`] that fails: the type that was expected is that of such functions, and
/// the trap was at S+13 in the optimised form, at S+12 in the compiler's.
fn fails_as_right(target: u64, f: impl FnOnce()) -> Result<(), String> {
    let (report, offset) = caught_in(f).ok_or("no failed check")?;
    let expected = hash_before(black_box(add_one as Right) as usize as u64);
    ensure!(Some(report.expected) == expected, "{report}: but {expected:x?} was compiled");
    let wanted = match cfi::plan().map(|plan| plan.form) {
        Some(Form::Opt) => TRAP_UDB,
        // At the callee.
        Some(Form::FineIbt) => 0,
        _ => TRAP_UD2,
    };
    ensure!(offset == wanted, "{report}: the trap was at S+{offset}");
    fits(Some(report), target, true)
}

fn good_calls_pass() -> Result<(), String> {
    let before = cfi::failures();
    ensure!(call(add_one) == 43 && call_last(black_box(add_one), 1) == 2, "wrong result");
    ensure!(cfi::failures() == before, "a good call was counted as a failure");
    Ok(())
}

fn wrong_type() -> Result<(), String> {
    let target = wrong as *const () as u64;
    let before = cfi::failures();
    let mut result = 0;
    fails_as_right(target, || result = call(forged(target)))?;
    ensure!(result == 1, "execution did not go on behind the call: {result}");
    ensure!(cfi::failures() == before + 1, "not counted once");
    Ok(())
}

/// With FineIBT: the CPU tracks branches, and stops one to a function that has no landing pad, to a
/// function's own first byte, and into the middle of one. (A branch to INT3 it lets pass.)
fn landing_pads() -> Result<(), String> {
    if !cfi::is_fineibt() {
        ensure!(!cfi::tracks_branches(), "branches are tracked, and nothing lands");
        crate::log!("callers check: the CPU does not track branches, or was not to");
        return Ok(());
    }
    ensure!(cfi::tracks_branches(), "branches are not tracked");
    let (pad, before) = (text_patching::fineibt::LANDING, cfi::failures());
    let good = add_one as *const () as u64;
    let sealed = cfi::sealed_function().ok_or("no function is sealed")?;
    // What a caller aims at is 16 bytes before its target.
    let targets = [sealed, good + pad, good + pad + 1, good + 1];
    for target in targets {
        let report =
            expect_cfi_failure(|| _ = call(forged(target))).ok_or("nothing was stopped")?;
        ensure!(report.found.is_none(), "{report}: there is a landing pad");
        ensure!(report.target == target, "{report}: but {target:#x} was called");
        ensure!(Some(report.expected) == hash_before(good), "{report}: wrong type");
    }
    ensure!(cfi::failures() == before + targets.len() as u64, "not counted once each");
    good_calls_pass()
}

fn tail_call() -> Result<(), String> {
    let target = wrong as *const () as u64;
    let mut result = 1;
    fails_as_right(target, || result = call_last(forged(target), 5))?;
    ensure!(result == 0, "execution did not go on behind the caller: {result}");
    Ok(())
}

fn call_to_data() -> Result<(), String> {
    static DATA: [AtomicU64; 4] = [const { AtomicU64::new(0x9090_9090_9090_9090) }; 4];
    let target = (&raw const DATA[2]) as u64;
    fits(expect_cfi_failure(|| _ = call(forged(target))), target, true)
}

fn call_to_user_memory() -> Result<(), String> {
    for target in [0x40_0000, 0] {
        fits(expect_cfi_failure(|| _ = call(forged(target))), target, false)?;
    }
    Ok(())
}

fn call_to_non_canonical() -> Result<(), String> {
    let target = 0x8000_0000_0000_1000;
    fits(expect_cfi_failure(|| _ = call(forged(target))), target, false)
}

/// The function itself is mapped, the page before it is not: only the preamble cannot be read.
fn unmapped_preamble() -> Result<(), String> {
    let page = crate::memory::text_alias();
    for target in [text_range().start, page] {
        let hash = target - 15;
        let readable = crate::memory::peek(hash).is_some();
        ensure!(!readable || target != page, "the page before {target:#x} is mapped");
        fits(expect_cfi_failure(|| _ = call(forged(target))), target, readable)?;
    }
    Ok(())
}

#[inline(never)]
extern "C" fn bump(by: &AtomicU64, _: u64) -> u64 {
    by.fetch_add(1, Ordering::SeqCst)
}

/// `cfi=warn`: reported, counted, and the callee runs once.
fn warn_mode_goes_on() -> Result<(), String> {
    if !cfi::is_on() {
        return Err("no checks to fail".into());
    }
    let calls = AtomicU64::new(0);
    let pointer = black_box(bump as extern "C" fn(&AtomicU64, u64) -> u64);
    ensure!(pointer(&calls, 0) == 0, "the right type does not arrive");
    let target = pointer as *const () as u64;
    let argument = (&raw const calls) as u64;
    let before = cfi::failures();
    let warned = cfi::set_warn(true);
    let result = call_last(forged(target), argument);
    cfi::set_warn(warned);
    let (calls, failures) = (calls.load(Ordering::SeqCst), cfi::failures() - before);
    ensure!((result, calls, failures) == (1, 2, 1), "{result} {calls} {failures}: not once");
    Ok(())
}

global_asm!(
    r#"
    .pushsection .text.ktest_smash, "ax", @progbits
    .globl ktest_smash
    .type ktest_smash, @function
    ktest_smash: # (rdi: where to return to) -> 0, or 1 from there
        xor %eax, %eax
        push %rdi
        jmp __x86_return_thunk
        int3
    .globl ktest_smashed
    ktest_smashed:
        mov $1, %eax
        jmp __x86_return_thunk
        int3
    .size ktest_smash, . - ktest_smash
    .popsection
    "#,
    options(att_syntax)
);

/// Returns to another place than its call came from, if it is let. 1: it was.
pub(super) fn smash() -> u64 {
    unsafe extern "C" {
        fn ktest_smash(to: u64) -> u64;
        static ktest_smashed: u8;
    }
    // SAFETY: `ktest_smashed` returns to the caller like any end of the function.
    unsafe { ktest_smash((&raw const ktest_smashed) as u64) }
}

/// Return addresses are checked by shadow stacks alone, and where there are none this says so.
fn return_address() -> Result<(), String> {
    if crate::cpu::shadow_stack::is_on() {
        return Ok(());
    }
    follow_changed_return()
}

fn follow_changed_return() -> Result<(), String> {
    let result = smash();
    ensure!(result == 1, "the return went elsewhere: {result}");
    crate::log!("backward edge: a changed return address is followed, not covered by kCFI");
    Ok(())
}

trait Shape {
    fn area(&self, scale: u64) -> u64;
}
struct Square(u64);
struct Circle(u64);
impl Shape for Square {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        self.0 * self.0 * scale
    }
}
impl Shape for Circle {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        self.0 * 3 * scale
    }
}

fn corrupted_vtable() -> Result<(), String> {
    let shapes: [Box<dyn Shape>; 2] = [Box::new(Square(2)), Box::new(Circle(2))];
    let sum: u64 = shapes.iter().map(|shape| black_box(shape).area(1)).sum();
    ensure!(sum == 10, "wrong result");
    let target = wrong as *const () as u64;
    fits(expect_cfi_failure(call_corrupted_vtable), target, true)
}

/// Calls a method through a vtable in which an attacker has changed a word.
fn call_corrupted_vtable() {
    let good: &dyn Shape = &Square(2);
    // SAFETY: a reference to a trait object is two words, data and vtable.
    let [data, vtable] = unsafe { core::mem::transmute::<&dyn Shape, [u64; 2]>(good) };
    // SAFETY: a vtable is drop, size, align and one word for each method.
    let mut words = unsafe { (vtable as *const [u64; 4]).read() };
    words[3] = wrong as *const () as u64;
    // SAFETY: unsound on purpose, as `forged`; the words live longer than the call.
    let bad: &dyn Shape = unsafe { core::mem::transmute([data, words.as_ptr() as u64]) };
    _ = black_box(bad).area(1);
}

/// Does what a program has asked for: a call that must be stopped, or a loop. `user` is an address
/// of the program's code. False: no such fault. Reports name it as the place of the fault.
#[inline(never)]
pub fn provoke(fault: &[u8]) -> bool {
    static DATA: AtomicU64 = AtomicU64::new(0);
    let wrong = wrong as *const () as u64;
    match fault {
        b"wrong-type" => _ = call(forged(wrong)),
        b"tail-call" => _ = call_last(forged(wrong), 1),
        b"data" => _ = call(forged((&raw const DATA) as u64)),
        b"user-code" => _ = call(forged(crate::task::user_ip())),
        b"null" => _ = call(forged(0)),
        b"non-canonical" => _ = call(forged(0x8000_0000_0000_1000)),
        b"unmapped-preamble" => _ = call(forged(crate::memory::text_alias())),
        b"vtable" => call_corrupted_vtable(),
        b"in-nmi" => _ = run_in_nmi(fail_once),
        b"in-interrupt" => _ = run_in_interrupt(),
        b"in-report" => fail_within_report(),
        b"return-address" => return follow_changed_return().is_ok(),
        b"loop" => spin(),
        b"masked-loop" => {
            let _irq = crate::cpu::sync::IrqGuard::new();
            spin();
        }
        _ => return false,
    }
    true
}

/// Never ends.
fn spin() {
    while black_box(true) {
        core::hint::spin_loop();
    }
}

pub(super) fn fail_once() {
    _ = call(forged(wrong as *const () as u64));
}

/// Fails a check in an interrupt of this CPU; whether it came.
fn run_in_interrupt() -> bool {
    static DONE: AtomicBool = AtomicBool::new(false);
    DONE.store(false, Ordering::SeqCst);
    let handler = || {
        fail_once();
        DONE.store(true, Ordering::SeqCst);
    };
    let Some(vector) = irq::allocate(Box::new(handler)) else { return false };
    crate::cpu::apic::send_ipi(percpu::cpu_id(), vector);
    for _ in 0..100_000_000_u64 {
        if DONE.load(Ordering::SeqCst) {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

fn in_an_interrupt() -> Result<(), String> {
    let mut came = false;
    let report = expect_cfi_failure(|| came = run_in_interrupt());
    ensure!(came, "the interrupt did not come");
    fits(report, wrong as *const () as u64, true)
}

fn in_an_nmi() -> Result<(), String> {
    let mut came = false;
    let report = expect_cfi_failure(|| came = run_in_nmi(fail_once));
    ensure!(came, "the NMI did not come");
    fits(report, wrong as *const () as u64, true)
}

struct Key;
impl StaticKey for Key {
    const ID: u32 = id::KTEST;
}
struct LikelyKey;
impl StaticKey for LikelyKey {
    const ID: u32 = id::KTEST_LIKELY;
}

/// What the text says about the key.
#[inline(never)]
pub fn read_key() -> bool {
    static_branch_unlikely::<Key>()
}

/// What the text says about the key that is on at boot.
#[inline(never)]
pub fn read_likely_key() -> bool {
    static_branch_likely::<LikelyKey>()
}

/// Switches both keys.
pub fn flip_key(on: bool) -> Result<(), String> {
    static_branch::set::<Key>(on).map_err(|e| format!("{e:?}"))?;
    static_branch::set::<LikelyKey>(on).map_err(|e| format!("{e:?}"))
}

fn key_both_ways() -> Result<(), String> {
    ensure!(!read_key() && read_likely_key(), "wrong values at boot");
    for on in [true, true, false, false, true] {
        flip_key(on)?;
        ensure!(read_key() == on && read_likely_key() == on, "the keys are not {on}");
    }
    static_branch::set::<Key>(false).map_err(|e| format!("{e:?}"))
}

fn not_listed() -> Result<(), String> {
    use text_patching::jump_label::{JMP32, NOP5};
    use text_patching::{Code, Patch};
    unsafe extern "C" {
        static ktest_unlisted: u8;
    }
    let at = (&raw const ktest_unlisted) as u64;
    let new = Code::with_imm32(&[JMP32], 0);
    let mut patches = [Patch::whole(at, Code::new(&NOP5), new)].into_iter();
    let result = text_poke::switch(|_, _| patches.next().map(Ok));
    ensure!(result.is_err(), "a nop that no table lists was patched");
    Ok(())
}

global_asm!(
    r#"
    .pushsection .text.ktest_unlisted, "ax", @progbits
    .globl ktest_unlisted
    .type ktest_unlisted, @function
    ktest_unlisted:
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        jmp __x86_return_thunk
        int3
    .size ktest_unlisted, . - ktest_unlisted
    .popsection
    "#,
    options(att_syntax)
);

/// A call of the tests, with these callees.
macro_rules! ktest_call {
    ($name:ident: $args:ty, $fold:ty, $($callee:path),+) => {
        struct $name;
        impl StaticCall for $name {
            type Args<'a> = $args;
            type Fold = $fold;
            const CALLEES: &'static [Callee<Self>] = &[$($callee),+];
            const ATTACHABLE: u32 = u32::MAX;
        }
    };
}
extern "C" fn gives_one(value: &i32) -> i32 {
    value + 1
}
extern "C" fn gives_two(value: &i32) -> i32 {
    value + 2
}
extern "C" fn count(by: &AtomicU64) {
    by.fetch_add(1, Ordering::Relaxed);
}
extern "C" fn count_ten(by: &AtomicU64) {
    by.fetch_add(10, Ordering::Relaxed);
}
extern "C" fn refuses(_: &i32) -> i32 {
    -1
}

ktest_call!(Number: i32, First<0>, gives_one, gives_two);
ktest_call!(Count: AtomicU64, All, count, count_ten);
ktest_call!(Unsupported: i32, First<-95>, refuses);

/// Binds a call of the tests.
fn bind<C: StaticCall>(bound: &[Option<usize>]) -> Result<(), String> {
    static_call::bind_for_tests::<C>(bound).map(|_| ()).map_err(|error| format!("{error}"))
}

/// Calls the static call with 0: 1 or 2, or 0.
#[inline(never)]
pub fn read_call() -> u64 {
    black_box(static_call::call::<Number>(black_box(&0))) as u64
}

/// Calls it as the last thing: a jump.
#[inline(never)]
extern "C" fn read_call_last(value: &i32) -> i32 {
    static_call::call::<Number>(value)
}

#[inline(never)]
extern "C" fn unsupported_last(value: &i32) -> i32 {
    static_call::call::<Unsupported>(value)
}

/// Points the static call at the function that adds `to`: 1, 2, or 0 for nobody.
pub fn flip_call(to: u64) -> Result<(), String> {
    bind::<Number>(&[(to != 0).then(|| to as usize - 1)])
}

fn call_all_targets() -> Result<(), String> {
    for to in [2, 1, 0, 2, 0, 1] {
        flip_call(to)?;
        ensure!(read_call() == to, "the call gives {}, not {to}", read_call());
        let last = read_call_last(black_box(&0));
        ensure!(last as u64 == to, "the tail call does not give {to}");
    }
    let counter = AtomicU64::new(0);
    let steps: [(&[Option<usize>], u64); 6] = [
        (&[Some(0)], 1),
        (&[Some(1)], 10),
        (&[], 0),
        (&[Some(1), Some(0)], 11),
        (&[None, Some(0)], 1),
        (&[None, None], 0),
    ];
    let mut expected = 0;
    for (bound, adds) in steps {
        bind::<Count>(bound)?;
        static_call::call::<Count>(&counter);
        expected += adds;
        let calls = counter.load(Ordering::Relaxed);
        ensure!(calls == expected, "{bound:?}: {calls}, not {expected}");
    }
    for (bound, answer) in [(Some(0), -1), (None, -95), (Some(0), -1)] {
        bind::<Unsupported>(&[bound])?;
        let seen =
            [static_call::call::<Unsupported>(black_box(&0)), unsupported_last(black_box(&0))];
        ensure!(seen == [answer; 2], "{bound:?}: {seen:?}, not {answer}");
    }
    Ok(())
}

/// Callees that do not exist, twice the same, more than there are.
fn call_refuses() -> Result<(), String> {
    for bound in [&[Some(2)][..], &[Some(0), Some(0)], &[Some(0), None, Some(1)]] {
        ensure!(bind::<Count>(bound).is_err(), "{bound:?} was bound");
    }
    Ok(())
}

static BETWEEN: AtomicBool = AtomicBool::new(false);
static SEEN: [AtomicU64; 8] = [const { AtomicU64::new(u64::MAX) }; 8];

/// Between two rounds of a switch, on the CPU that switches: the sites are executed there and then.
pub(crate) fn between(round: usize) {
    if FAIL_BETWEEN.load(Ordering::SeqCst) {
        ROUNDS_BETWEEN.fetch_add(1, Ordering::SeqCst);
        fail_once();
        if run_in_nmi(fail_once) {
            NMIS_BETWEEN.fetch_add(1, Ordering::SeqCst);
        }
    }
    if BETWEEN.load(Ordering::SeqCst)
        && let Some(slot) = SEEN.get(round)
    {
        let value =
            u64::from(read_key()) << 8 | read_call() << 4 | read_call_last(black_box(&0)) as u64;
        slot.store(value, Ordering::SeqCst);
    }
}

static FAIL_BETWEEN: AtomicBool = AtomicBool::new(false);
static NMIS_BETWEEN: AtomicU64 = AtomicU64::new(0);
static ROUNDS_BETWEEN: AtomicU64 = AtomicU64::new(0);

/// Checks that fail while this CPU patches, with the site an int3, here and in an NMI.
fn fails_between_rounds() -> Result<(), String> {
    let (before, nmis) = (cfi::failures(), NMIS_BETWEEN.load(Ordering::SeqCst));
    let rounds = ROUNDS_BETWEEN.load(Ordering::SeqCst);
    let mut result = Ok(());
    let report = expect_cfi_failure(|| {
        FAIL_BETWEEN.store(true, Ordering::SeqCst);
        result = flip_call(2).and_then(|()| flip_call(1));
        FAIL_BETWEEN.store(false, Ordering::SeqCst);
    });
    result?;
    let nmis = NMIS_BETWEEN.load(Ordering::SeqCst) - nmis;
    let rounds = ROUNDS_BETWEEN.load(Ordering::SeqCst) - rounds;
    // Each flip changes the chain and then its sites, three rounds for each.
    ensure!(rounds >= 6 && rounds % 3 == 0, "{rounds} rounds");
    ensure!(nmis == rounds, "{nmis} NMIs came in {rounds} rounds");
    ensure!(
        cfi::failures() == before + 2 * rounds,
        "{} checks failed in {rounds} rounds",
        cfi::failures() - before
    );
    ensure!(read_call() == 1, "the switch did not survive it");
    fits(report, wrong as *const () as u64, true)
}

fn between_rounds() -> Result<(), String> {
    let switched = |f: &dyn Fn() -> Result<(), String>| {
        SEEN.iter().for_each(|slot| slot.store(u64::MAX, Ordering::SeqCst));
        BETWEEN.store(true, Ordering::SeqCst);
        let result = f();
        BETWEEN.store(false, Ordering::SeqCst);
        result.map(|()| [0, 1, 2].map(|round: usize| SEEN[round].load(Ordering::SeqCst)))
    };
    static_branch::set::<Key>(false).map_err(|e| format!("{e:?}"))?;
    flip_call(1)?;
    // After the first round every execution takes the int3 and does what the new instruction does.
    let key = |on| static_branch::set::<Key>(on).map_err(|e| format!("{e:?}"));
    let steps: [(&dyn Fn() -> Result<(), String>, u64); 5] = [
        (&|| key(true), 0x111),
        (&|| flip_call(2), 0x122),
        (&|| flip_call(0), 0x100),
        (&|| key(false), 0x000),
        (&|| flip_call(1), 0x011),
    ];
    for (step, expected) in steps {
        let seen = switched(step)?;
        ensure!(seen == [expected; 3], "seen {seen:x?}, expected {expected:x} in each round");
    }
    Ok(())
}
