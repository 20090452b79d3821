//! Guests that really run, where the CPU can run any (`-cpu EPYC`): a few instructions on memory of
//! an address space that is made for the test.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;

use virt::exit::{Entered, Exit, Io, Vmrun, Windows};
use virt::regs::{System, attribute, cr, flags, gpr, seg};

use super::Test;
use crate::ensure;
use crate::memory::frame::Frame;
use crate::memory::{PageKind, PageTable, Prot};
use crate::vmrun::{self, Hardware, NestedSpace, Slot, amd};

/// The tests.
pub(super) const TESTS: &[Test] = &[
    Test { name: "vmrun::halt", run: halt },
    Test { name: "vmrun::registers_and_ports", run: registers_and_ports },
    Test { name: "vmrun::memory_leaves_with_its_space", run: memory_leaves_with_its_space },
    Test { name: "vmrun::a_guest_that_is_gone", run: a_guest_that_is_gone_is_not_told },
    Test { name: "vmrun::nothing_of_the_host", run: nothing_of_the_host },
    Test { name: "vmrun::the_hosts_state_is_a_lost_guest", run: the_hosts_state_is_a_lost_guest },
];

const RWX: Prot = Prot::all();
/// Where the guest's page is in its own memory, and in the space's.
const GUEST: u64 = 0x1000;
const USER: u64 = 0x40_0000;

struct Guest {
    cpu: Hardware,
    table: PageTable,
    space: Arc<NestedSpace>,
}

/// A guest in real mode at the first byte of `code`; None where no guest can run.
fn guest(code: &[u8]) -> Result<Option<Guest>, String> {
    if vmrun::ability().is_none() {
        // QEMU's emulation has SVM on every model of AMD's, and on the one that has everything.
        ensure!(!crate::cpu::is_emulated(), "no SVM under emulation");
        // The CPU that Bochs has has VMX.
        ensure!(crate::cpu::cpuid(1, 0)[2] & 1 << 5 == 0, "VMX is there, and no guest can run");
        return Ok(None);
    }
    let mut table = PageTable::new().map_err(|_| "no memory")?;
    let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
    frame.write(0, code);
    table.map(USER, frame, RWX, PageKind::Anonymous).map_err(|_| "no memory")?;
    let space = NestedSpace::new(&mut table).map_err(|_| "no memory")?;
    let slot = Slot { guest: GUEST, user: USER, bytes: 4096 };
    space.set_slots(vec![slot]).map_err(|_| "no memory")?;
    let mut cpu = Hardware::new(space.clone()).map_err(|_| "no memory")?;
    let mut system = System::reset();
    system.segments[seg::CS].base = 0;
    system.segments[seg::CS].selector = 0;
    cpu.set_system(&system);
    cpu.set_rip(GUEST);
    cpu.set_rflags(flags::FIXED);
    Ok(Some(Guest { cpu, table, space }))
}

impl Guest {
    /// Runs to the next exit of the guest's own; memory is mapped when it is missed.
    fn run(&mut self) -> Result<Exit, String> {
        for _ in 0..1000 {
            match self.cpu.enter(Windows::default(), &mut || false) {
                Entered::Left(Exit::Host) => {}
                Entered::Left(Exit::NestedFault { address, write, .. })
                    if self.space.map(&self.table, address, write).is_ok() => {}
                Entered::Left(exit) => return Ok(exit),
                Entered::Busy => return Err(String::from("nobody was busy")),
            }
        }
        Err(String::from("a thousand exits without end"))
    }
}

/// Bits of a guest's table entry.
const PRESENT_AND_WRITABLE: u64 = 3;

impl Guest {
    /// Puts it into 64-bit mode, where `there` is `cpuid` behind `nop`, on tables that begin where
    /// the host's do; CR3.
    fn on_tables_like_the_hosts(&mut self, there: u64) -> Result<u64, String> {
        let cr3 = crate::cpu::read_cr3();
        // Of all four levels, and the code.
        let pages: [u64; 5] = core::array::from_fn(|n| (cr3 & !0xfff) + 4096 * n as u64);
        let mut slots = vec![];
        for (n, &page) in pages.iter().enumerate() {
            let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
            match pages.get(n + 1) {
                Some(next) => {
                    let index = there >> (39 - 9 * n) & 511;
                    let entry = next | PRESENT_AND_WRITABLE;
                    frame.write(8 * index as usize, &entry.to_le_bytes());
                }
                None => frame.write((there & 0xfff) as usize - 1, &[0x90, 0x0f, 0xa2]),
            }
            let user = USER + 4096 * (1 + n as u64);
            self.table.map(user, frame, RWX, PageKind::Anonymous).map_err(|_| "no memory")?;
            slots.push(Slot { guest: page, user, bytes: 4096 });
        }
        self.space.set_slots(slots).map_err(|_| "no memory")?;
        let mut system = System::reset();
        system.segments[seg::CS].attributes |= attribute::LONG;
        system.cr0 = cr::CR0_PE | cr::CR0_PG | cr::CR0_ET;
        (system.cr3, system.cr4) = (cr3, cr::CR4_PAE);
        system.efer = cr::EFER_LME | cr::EFER_LMA;
        self.cpu.set_system(&system);
        Ok(cr3)
    }
}

/// A guest that never leaves by itself: `jmp` to itself.
pub struct Spinning(Guest);

impl Spinning {
    /// None where no guest can run.
    pub fn new() -> Result<Option<Spinning>, String> {
        Ok(guest(&[0xeb, 0xfe])?.map(Spinning))
    }

    /// Runs it while `goes_on`, which is asked before each entry.
    pub fn run_while(&mut self, mut goes_on: impl FnMut() -> bool) -> Result<(), String> {
        loop {
            match self.0.cpu.enter(Windows::default(), &mut || !goes_on()) {
                Entered::Left(Exit::Host) => {}
                Entered::Left(Exit::NestedFault { address, write, .. })
                    if self.0.space.map(&self.0.table, address, write).is_ok() => {}
                Entered::Left(exit) => return Err(alloc::format!("it left by {exit:?}")),
                Entered::Busy => return Ok(()),
            }
        }
    }
}

fn halt() -> Result<(), String> {
    let Some(mut guest) = guest(&[0xf4])? else { return Ok(()) };
    let exit = guest.run()?;
    ensure!(exit == Exit::Halt, "{exit:?}");
    ensure!(guest.cpu.rip() == GUEST, "left at {:#x}", guest.cpu.rip());
    Ok(())
}

/// Every general register goes in and comes out, and what the host has stays.
fn registers_and_ports() -> Result<(), String> {
    // Each register but RSP is counted up by an instruction of 16-bit code with a 32-bit operand;
    // then `out dx, al`.
    let mut code = vec![];
    for number in [0u8, 1, 2, 3, 5, 6, 7] {
        code.extend([0x66, 0x40 + number]);
    }
    code.push(0xee);
    let Some(mut guest) = guest(&code)? else { return Ok(()) };
    let values: [u64; 16] = core::array::from_fn(|n| 0x1000 + n as u64);
    *guest.cpu.gprs() = values;
    let exit = guest.run()?;
    let port = 0x1000 + gpr::RDX as u16 + 1;
    let next_rip = GUEST + code.len() as u64;
    let expected = Io { port, size: 1, is_in: false, is_string: false, next_rip };
    ensure!(exit == Exit::Io(expected), "{exit:?}");
    for (n, (after, before)) in guest.cpu.gprs().iter().zip(values).enumerate() {
        let added = u64::from(n < 8 && n != gpr::RSP);
        ensure!(*after == before + added, "register {n}: {after:#x}, was {before:#x}");
    }
    Ok(())
}

/// A page that leaves the address space leaves the guest; one that becomes read-only, too.
fn memory_leaves_with_its_space() -> Result<(), String> {
    // inc byte [0x1800]; hlt; jmp back
    let code = [0xfe, 0x06, 0x00, 0x18, 0xf4, 0xeb, 0xf9];
    let Some(mut guest) = guest(&code)? else { return Ok(()) };
    let exit = guest.run()?;
    ensure!(exit == Exit::Halt, "{exit:?}");
    guest.cpu.set_rip(GUEST);
    let read_only = RWX - Prot::WRITE;
    guest.table.set_prot(USER, read_only);
    let exit = guest.run()?;
    let is_write = matches!(exit, Exit::NestedFault { address: 0x1800, write: true, .. });
    ensure!(is_write, "read-only: {exit:?}");
    guest.table.set_prot(USER, RWX);
    let exit = guest.run()?;
    ensure!(exit == Exit::Halt, "writable again: {exit:?}");
    let mut byte = [0];
    let frame = guest.table.lookup(USER).ok_or("the page is gone")?.frame;
    frame.read(0x800, &mut byte);
    ensure!(byte == [2], "counted to {}", byte[0]);
    guest.table.unmap(USER, USER + 4096, USER..USER + 4096);
    guest.cpu.set_rip(GUEST);
    let exit = guest.run()?;
    ensure!(matches!(exit, Exit::NestedFault { .. }), "unmapped: {exit:?}");
    Ok(())
}

/// While a guest has translations nothing is unmapped beside others; of a guest that is gone nobody
/// is told.
fn a_guest_that_is_gone_is_not_told() -> Result<(), String> {
    let Some(Guest { cpu, mut table, space }) = guest(&[0xf4])? else { return Ok(()) };
    let other = NestedSpace::new(&mut table).map_err(|_| "no memory")?;
    let shared = || table.try_unmap(USER + 4096, USER + 8192);
    let with_two = shared();
    drop((cpu, space));
    let with_one = shared();
    drop(other);
    let with_none = shared();
    ensure!(!with_two && !with_one && with_none, "{with_two} {with_one} {with_none}");
    Ok(())
}

/// Instructions that would act on the host are exits.
fn nothing_of_the_host() -> Result<(), String> {
    // VMCALL, or VMMCALL: on the other's CPUs each is #UD by itself.
    let is_intel = matches!(vmrun::ability(), Some(vmrun::Ability::Vmx(_)));
    let hypercall = [0x0f, 0x01, if is_intel { 0xc1 } else { 0xd9 }];
    for (code, expected) in [
        (&[0x0f, 0xa2][..], Exit::Cpuid),
        (&[0x0f, 0x32], Exit::ReadMsr),
        (&[0x0f, 0x30], Exit::WriteMsr),
        (&[0x0f, 0x09], Exit::CacheFlush),
        (&[0x0f, 0x08], Exit::CacheFlush),
        (&hypercall, Exit::Hypercall),
        (&[0x0f, 0x21, 0xc0], Exit::DebugRegister { number: 0, write: false }),
        (&[0x0f, 0x23, 0xf8], Exit::DebugRegister { number: 7, write: true }),
    ] {
        let Some(mut guest) = guest(code)? else { return Ok(()) };
        // An MSR of the host's: the base of its local APIC.
        guest.cpu.gprs()[gpr::RCX] = 0x1b;
        let exit = guest.run()?;
        ensure!(exit == expected, "{code:x?}: {exit:?}");
        ensure!(guest.cpu.rip() == GUEST, "{code:x?} was executed");
    }
    Ok(())
}

/// What a CPU says that leaves its own state for the guest's: here the guest itself goes where the
/// host is behind VMRUN, on tables whose address is that of the host's. One that was put there is
/// none.
fn the_hosts_state_is_a_lost_guest() -> Result<(), String> {
    let Some(vmrun::Ability::Svm(_)) = vmrun::ability() else { return Ok(()) };
    let there = amd::behind_vmrun();
    for (rip, expected) in [(there - 1, Exit::Lost), (there, Exit::Cpuid)] {
        let Some(mut guest) = guest(&[])? else { return Ok(()) };
        let cr3 = guest.on_tables_like_the_hosts(there)?;
        guest.cpu.set_rip(rip);
        let exit = guest.run()?;
        ensure!(exit == expected, "from {rip:#x}: {exit:?}");
        let (is_lost, left) = (exit == Exit::Lost, (guest.cpu.rip(), guest.cpu.system().cr3));
        ensure!(left == if is_lost { (0, 0) } else { (there, cr3) }, "left at {left:x?}");
    }
    Ok(())
}
