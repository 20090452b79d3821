//! Shadow stacks: that they are on where they were chosen, that nothing else is taken for one, and
//! that a return which no call made is stopped. Where there are none the tests say so and pass: the
//! level `bochs` has them.

use alloc::string::String;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Test, probe_write, run_in_nmi};
use crate::cpu::PAGE_SIZE;
use crate::cpu::shadow_stack::{self, BUSY};
use crate::ensure;
use crate::entry::shadow_stack::{IS_EXPECTED, interrupt_token};
use crate::memory::for_each_shadow_page;
use crate::memory::shadow_stack::read;
use crate::memory::stack::{self, KernelStack};

pub(super) const TESTS: &[Test] = &[
    Test { name: "shadow_stack::of_what_runs", run: of_what_runs },
    Test { name: "shadow_stack::no_store_changes_it", run: no_store },
    Test { name: "shadow_stack::no_other_page_is_one", run: no_other_page },
    Test { name: "shadow_stack::a_used_one_begins_anew", run: begins_anew },
    Test { name: "shadow_stack::an_nmi_has_its_own", run: nmi_has_its_own },
    Test { name: "shadow_stack::a_changed_return_is_stopped", run: changed_return },
];

/// Whether there are any; else says so.
fn are_there() -> bool {
    if !shadow_stack::is_on() {
        crate::log!("no shadow stacks on this machine");
    }
    shadow_stack::is_on()
}

fn of_what_runs() -> Result<(), String> {
    if !are_there() {
        ensure!(shadow_stack::ssp() == 0, "the CPU has one all the same");
        return Ok(());
    }
    let ssp = shadow_stack::ssp();
    ensure!(stack::is_shadow_stack(ssp), "{ssp:#x} is in no shadow stack");
    let token = ssp | (PAGE_SIZE as u64 - 8);
    ensure!(read(token) == token | BUSY, "{:#x} at its end", read(token));
    Ok(())
}

fn no_store() -> Result<(), String> {
    if are_there() {
        let ssp = shadow_stack::ssp();
        ensure!(!probe_write(ssp), "a store to the shadow stack was done");
    }
    Ok(())
}

/// A page that is dirty and cannot be written is one of shadow stack, whatever it was meant for.
fn no_other_page() -> Result<(), String> {
    let (mut count, mut odd) = (0, None);
    for_each_shadow_page(|at| {
        count += 1;
        if !stack::is_shadow_stack(at) {
            odd = Some(at);
        }
    });
    ensure!(odd.is_none(), "{odd:x?} counts as shadow stack");
    ensure!((count > 0) == shadow_stack::is_on(), "{count} pages of shadow stack");
    Ok(())
}

fn begins_anew() -> Result<(), String> {
    if !are_there() {
        return Ok(());
    }
    let used = KernelStack::new().map_err(|_| "no memory")?;
    used.begin_shadow(0x1234);
    let token = used.shadow_token();
    drop(used);
    // This CPU's next stack is the one that it has got back last.
    let again = KernelStack::new().map_err(|_| "no memory")?;
    ensure!(again.shadow_token() == token, "another stack");
    ensure!(read(token) == token, "its token is {:#x}", read(token));
    let words = (1..PAGE_SIZE as u64 / 8).map(|n| read(token - 8 * n));
    ensure!(words.sum::<u64>() == 0, "words of the last thread are left");
    Ok(())
}

/// SSP in the handler of an NMI, and its token then.
static IN_NMI: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
const NMI_STACK: usize = 2;

fn look_in_nmi() {
    IN_NMI[0].store(shadow_stack::ssp(), Ordering::SeqCst);
    IN_NMI[1].store(read(interrupt_token(NMI_STACK)), Ordering::SeqCst);
}

fn nmi_has_its_own() -> Result<(), String> {
    if !are_there() {
        return Ok(());
    }
    let token = interrupt_token(NMI_STACK);
    for round in 0..3 {
        ensure!(read(token) == token, "{round}: {:#x} before the NMI", read(token));
        ensure!(run_in_nmi(look_in_nmi), "the NMI did not come");
        let [ssp, inside] = IN_NMI.each_ref().map(|word| word.load(Ordering::SeqCst));
        ensure!((token - PAGE_SIZE as u64..token).contains(&ssp), "it has run on {ssp:#x}");
        ensure!(inside == token | BUSY, "{inside:#x} in the NMI");
    }
    ensure!(read(token) == token, "{:#x} behind the NMI", read(token));
    Ok(())
}

/// Runs `f`, which pushes a word before it returns; whether that return was stopped.
fn is_stopped(f: impl FnOnce()) -> bool {
    IS_EXPECTED.store(true, Ordering::SeqCst);
    f();
    !IS_EXPECTED.swap(false, Ordering::SeqCst)
}

fn changed_return() -> Result<(), String> {
    if !are_there() {
        return Ok(());
    }
    let mut result = 0;
    ensure!(is_stopped(|| result = super::text::smash()), "the return was not stopped");
    ensure!(result == 0, "the return went elsewhere: {result}");
    Ok(())
}
