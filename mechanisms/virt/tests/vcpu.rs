//! The loop of a virtual CPU on scripted exits: what each leads to, the order of events, answers of
//! the VMM, and hostile state.

mod script;

use proptest::prelude::*;
use script::{cpu, world};
use virt::Event;
use virt::exit::{Exit, Io};
use virt::regs::{flags, gpr};
use virt::vcpu::{Interrupts, MpState, Outcome, Signals, is_valid_xcr0};

const HLT: u8 = 0xf4;

fn port(is_in: bool, is_string: bool, next_rip: u64) -> Exit {
    Exit::Io(Io { port: 0x60, size: 1, is_in, is_string, next_rip })
}

#[test]
fn halt_goes_to_a_vmm_with_controllers() {
    let mut cpu = cpu(&[Exit::Halt]);
    let mut world = world(&[HLT]);
    assert_eq!(cpu.run(&mut world), Outcome::Halted);
    assert_eq!(cpu.hardware.rip, 0x101);
    assert_eq!(cpu.mp_state, MpState::Runnable);
}

#[test]
fn halt_waits_in_the_kernel_and_an_interrupt_ends_it() {
    let mut cpu = cpu(&[Exit::Halt, Exit::Shutdown]);
    let mut world = world(&[HLT]);
    cpu.hardware.rflags |= flags::IF;
    world.controller = Some(Interrupts::default());
    assert_eq!(cpu.run(&mut world), Outcome::Interrupted, "a signal ended the wait");
    assert_eq!(cpu.mp_state, MpState::Halted);
    world.controller = Some(Interrupts { ready: true, ..Interrupts::default() });
    assert_eq!(cpu.run(&mut world), Outcome::Shutdown);
    assert_eq!(cpu.hardware.injected, [Event::Interrupt(0x41)]);
}

#[test]
fn interrupts_wait_for_their_window() {
    let mut cpu = cpu(&[Exit::InterruptWindow, Exit::Shutdown]);
    let mut world = world(&[HLT]);
    cpu.pending.external = Some(0x30);
    assert!(!cpu.can_be_interrupted());
    assert_eq!(cpu.run(&mut world), Outcome::Shutdown);
    assert!(cpu.hardware.injected.is_empty(), "interrupts are masked");
    assert!(cpu.hardware.windows.iter().all(|windows| windows.interrupt));
    cpu.hardware.rflags |= flags::IF;
    cpu.hardware.shadow = true;
    cpu.run(&mut world);
    assert!(cpu.hardware.injected.is_empty(), "behind STI");
    cpu.hardware.shadow = false;
    cpu.run(&mut world);
    assert_eq!(cpu.hardware.injected, [Event::Interrupt(0x30)]);
}

#[test]
fn the_vmm_is_told_of_the_window() {
    let mut cpu = cpu(&[]);
    cpu.wants_window = true;
    cpu.hardware.rflags |= flags::IF;
    assert_eq!(cpu.run(&mut world(&[HLT])), Outcome::WindowOpen);
}

/// What was cut short comes first, then exceptions, NMIs, interrupts; one at each entry.
#[test]
fn order_of_events() {
    let mut cpu = cpu(&[Exit::Host, Exit::Host, Exit::Host, Exit::Host]);
    cpu.hardware.rflags |= flags::IF;
    cpu.pending.cut_short = Some(Event::Interrupt(0x20));
    cpu.pending.exception = Some((13, Some(0)));
    cpu.pending.nmis = 1;
    cpu.pending.external = Some(0x30);
    cpu.run(&mut world(&[HLT]));
    let real_mode_has_no_code = Event::Exception(13, None);
    assert_eq!(
        cpu.hardware.injected,
        [Event::Interrupt(0x20), real_mode_has_no_code, Event::Nmi, Event::Interrupt(0x30)]
    );
}

#[test]
fn a_busy_cpu_loses_no_event() {
    let mut cpu = cpu(&[Exit::Shutdown]);
    cpu.hardware.rflags |= flags::IF;
    cpu.pending.exception = Some((3, None));
    let mut world = world(&[HLT]);
    world.busy = [true, true, false].into();
    // The script's hardware gives an event back as the real one does.
    cpu.hardware.cut = Some(Event::Exception(3, None));
    assert_eq!(cpu.run(&mut world), Outcome::Shutdown);
    assert_eq!(cpu.hardware.injected.len(), 2);
    assert!(cpu.hardware.injected.iter().all(|&event| event == Event::Exception(3, None)));
}

/// INT n is executed again, an interrupt is delivered again.
#[test]
fn events_that_were_cut_short() {
    for (event, again) in [
        (Event::Software(0x80), None),
        (Event::Exception(3, None), None),
        (Event::Exception(14, Some(2)), Some(Event::Exception(14, Some(2)))),
        (Event::Interrupt(9), Some(Event::Interrupt(9))),
        (Event::Nmi, Some(Event::Nmi)),
    ] {
        let mut cpu = cpu(&[Exit::Host, Exit::Shutdown]);
        cpu.hardware.cut = Some(event);
        cpu.run(&mut world(&[HLT]));
        assert_eq!(cpu.hardware.injected.first().copied(), again, "{event:?}");
    }
}

#[test]
fn no_nmi_before_the_return_of_the_one_before() {
    let mut cpu = cpu(&[Exit::Host, Exit::NmiReturn, Exit::Host]);
    cpu.pending.nmis = 2;
    cpu.run(&mut world(&[HLT]));
    assert_eq!(cpu.hardware.injected, [Event::Nmi]);
    assert_eq!(cpu.pending.nmis, 1);
    let asked: Vec<bool> = cpu.hardware.windows.iter().map(|windows| windows.nmi).collect();
    assert_eq!(asked, [true, true, false, false], "after IRET was met it must be executed");
    cpu.hardware.rip += 5;
    cpu.run(&mut world(&[HLT]));
    assert_eq!(cpu.hardware.injected, [Event::Nmi, Event::Nmi]);
}

#[test]
fn faults_in_faults() {
    use virt::event::{Combined, combine};
    assert_eq!(combine(13, 14), Combined::Second);
    assert_eq!(combine(14, 13), Combined::DoubleFault);
    assert_eq!(combine(13, 11), Combined::DoubleFault);
    assert_eq!(combine(8, 13), Combined::Shutdown);
    assert_eq!(combine(8, 1), Combined::Second);
    assert_eq!(combine(3, 14), Combined::Second);
}

#[test]
fn ports_are_answered() {
    let mut cpu = cpu(&[port(true, false, 0x102), Exit::Halt]);
    let mut world = world(&[0xe4, 0x60, HLT]);
    cpu.hardware.gprs[gpr::RAX] = 0xffff_ff00;
    let asked = Outcome::Io { is_in: true, size: 1, port: 0x60, count: 1 };
    assert_eq!(cpu.run(&mut world), asked);
    assert_eq!(cpu.hardware.rip, 0x100, "not before the answer");
    cpu.port_data[0] = 0x42;
    assert_eq!(cpu.run(&mut world), Outcome::Halted);
    assert_eq!(cpu.hardware.gprs[gpr::RAX], 0xffff_ff42);
}

/// rep insb of 5 bytes, rep outsb of 3: one exit for all.
#[test]
fn port_strings_are_one_exit() {
    let mut cpu = cpu(&[port(true, true, 0x102), port(false, true, 0x104), Exit::Halt]);
    let mut world = world(&[0xf3, 0x6c, 0xf3, 0x6e, HLT]);
    cpu.hardware.gprs[gpr::RCX] = 5;
    cpu.hardware.gprs[gpr::RDI] = 0x200;
    cpu.hardware.gprs[gpr::RDX] = 0x60;
    let asked = Outcome::Io { is_in: true, size: 1, port: 0x60, count: 5 };
    assert_eq!(cpu.run(&mut world), asked);
    cpu.port_data[..5].copy_from_slice(b"hello");
    cpu.hardware.gprs[gpr::RSI] = 0x202;
    // The next exit is the OUTS; its count is set when the first has ended.
    cpu.hardware.exits[0] = Exit::Host;
    cpu.hardware.exits.push_front(Exit::Host);
    world.leave_after = world.works + 1;
    assert_eq!(cpu.run(&mut world), Outcome::Interrupted);
    assert_eq!(&world.memory[0x200..0x206], b"hello\0");
    assert_eq!((cpu.hardware.rip, cpu.hardware.gprs[gpr::RCX]), (0x102, 0));
    world.leave_after = 1000;
    cpu.hardware.exits = [port(false, true, 0x104)].into();
    cpu.hardware.gprs[gpr::RCX] = 3;
    let told = Outcome::Io { is_in: false, size: 1, port: 0x60, count: 3 };
    assert_eq!(cpu.run(&mut world), told);
    assert_eq!(&cpu.port_data[..3], b"llo");
    assert_eq!((cpu.hardware.rip, cpu.hardware.gprs[gpr::RCX]), (0x104, 0));
}

/// rep movsb from a device to a device: each byte is asked for and told, none twice.
#[test]
fn a_string_between_devices() {
    let fault = Exit::NestedFault { address: 0x8000, write: false, exec: false };
    let mut cpu = cpu(&[fault; 8]);
    let mut world = world(&[0xf3, 0xa4, HLT]);
    cpu.hardware.gprs[gpr::RCX] = 3;
    cpu.hardware.gprs[gpr::RSI] = 0x8000;
    cpu.hardware.gprs[gpr::RDI] = 0x9000;
    for n in 0..3u8 {
        let address = 0x8000 + u64::from(n);
        let asked = Outcome::Mmio { address, data: [0; 8], len: 1, write: false };
        assert_eq!(cpu.run(&mut world), asked);
        cpu.answer_mmio([n + 1, 0, 0, 0, 0, 0, 0, 0]);
        let data = [n + 1, 0, 0, 0, 0, 0, 0, 0];
        let told = Outcome::Mmio { address: address + 0x1000, data, len: 1, write: true };
        assert_eq!(cpu.run(&mut world), told);
    }
    assert_eq!((cpu.hardware.rip, cpu.hardware.gprs[gpr::RCX]), (0x102, 0));
}

/// While the VMM answers, another CPU of the guest changes the code: the answer is not given to the
/// instruction that is there now.
#[test]
fn an_answer_belongs_to_the_instruction_that_asked() {
    let fault = Exit::NestedFault { address: 0x8000, write: false, exec: false };
    let mut cpu = cpu(&[fault, Exit::Shutdown]);
    // mov al,[0x8000]; mov bl,[0x8000]
    let mut world = world(&[0xa0, 0x00, 0x80, HLT]);
    let asked = Outcome::Mmio { address: 0x8000, data: [0; 8], len: 1, write: false };
    assert_eq!(cpu.run(&mut world), asked);
    world.memory[0x100..0x104].copy_from_slice(&[0x8a, 0x1e, 0x00, 0x80]);
    cpu.answer_mmio([0x42, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(cpu.run(&mut world), Outcome::Shutdown);
    assert_eq!(cpu.hardware.gprs[gpr::RAX] & 0xff, 0x42);
    assert_eq!((cpu.hardware.gprs[gpr::RBX], cpu.hardware.rip), (0, 0x103));
    // Once it is over, what is there counts.
    cpu.hardware.rip = 0x100;
    cpu.hardware.exits = [fault].into();
    assert_eq!(cpu.run(&mut world), asked);
    cpu.answer_mmio([0x43, 0, 0, 0, 0, 0, 0, 0]);
    cpu.run(&mut world);
    assert_eq!((cpu.hardware.gprs[gpr::RBX], cpu.hardware.rip), (0x43, 0x104));
}

#[test]
fn what_no_software_can_execute() {
    // fld dword [0x8000]
    let fault = Exit::NestedFault { address: 0x8000, write: false, exec: false };
    let mut cpu = cpu(&[fault]);
    let outcome = cpu.run(&mut world(&[0xd9, 0x06, 0x00, 0x80]));
    assert_eq!(outcome, Outcome::Internal { emulation: true, code: 0 });
}

#[test]
fn another_cpu_starts() {
    let mut cpu = cpu(&[Exit::Shutdown]);
    let mut world = world(&[HLT]);
    world.controller = Some(Interrupts::default());
    cpu.mp_state = MpState::Uninitialized;
    assert_eq!(cpu.run(&mut world), Outcome::Interrupted, "it waits");
    world.signals = Signals { startup: Some(0x9a), ..Signals::default() };
    assert_eq!(cpu.run(&mut world), Outcome::Interrupted, "no start before INIT");
    world.signals = Signals { init: true, startup: Some(0x9a), nmis: 0 };
    assert_eq!(cpu.run(&mut world), Outcome::Shutdown);
    let code = cpu.hardware.system.segments[1];
    assert_eq!((code.selector, code.base, cpu.hardware.rip), (0x9a00, 0x9_a000, 0));
}

/// Paging with EFER.LME is long mode, needs PAE and no 64-bit code; MOV and LMSW.
#[test]
fn writes_of_cr0() {
    const PG: u64 = 1 << 31;
    const GP: (u8, Option<u32>) = (13, Some(0));
    let written = Exit::ControlRegister { number: 0, write: true };
    // cr4, efer, attributes of CS, cr0 before, what is written; cr0 and efer behind it.
    for (cr4, efer, code, cr0, value, wanted) in [
        (0x20, 0x100, 0x9b, 0x11, PG | 0x11, Some((PG | 0x11, 0x500))),
        (0, 0x100, 0x9b, 0x11, PG | 0x11, None),
        (0x20, 0x100, 0x29b, 0x11, PG | 0x11, None),
        (0, 0, 0x9b, 0x11, PG | 0x11, Some((PG | 0x11, 0))),
        (0x20, 0x500, 0x9b, PG | 0x11, 0x11, Some((0x11, 0x100))),
        (0x20, 0x500, 0x29b, PG | 0x11, 0x11, None),
        (0x2_0020, 0x500, 0x9b, PG | 0x11, 0x11, None),
        (0, 0, 0x9b, 0x10, PG, None),
        (0, 0, 0x9b, 0x10, 1 << 29, None),
        (0, 0, 0x9b, 0x10, 3 << 29 | 1 << 6 | 1, Some((3 << 29 | 0x11, 0))),
    ] {
        let mut cpu = cpu(&[written, Exit::Shutdown]);
        // mov cr0,eax
        let mut world = world(&[0x0f, 0x22, 0xc0]);
        let system = &mut cpu.hardware.system;
        (system.cr0, system.cr4, system.efer) = (cr0, cr4, efer);
        system.segments[1].attributes = code;
        cpu.hardware.gprs[gpr::RAX] = value;
        if cr0 & PG != 0 {
            // Three levels of tables and a page of 2 MiB.
            system.cr3 = 0x1000;
            world.memory[0x1000..0x1008].copy_from_slice(&0x2007u64.to_le_bytes());
            world.memory[0x2000..0x2008].copy_from_slice(&0x3007u64.to_le_bytes());
            world.memory[0x3000..0x3008].copy_from_slice(&0x87u64.to_le_bytes());
        }
        cpu.run(&mut world);
        let system = cpu.hardware.system;
        match wanted {
            Some(state) => {
                assert_eq!((system.cr0, system.efer), state, "{value:#x}");
                assert_eq!(cpu.hardware.rip, 0x103);
                assert!(cpu.hardware.injected.is_empty());
            }
            None => {
                assert_eq!((system.cr0, system.efer), (cr0, efer), "{value:#x}");
                let error = GP.1.filter(|_| cr0 & 1 != 0);
                assert_eq!(cpu.hardware.injected, [Event::Exception(GP.0, error)]);
            }
        }
    }
    // lmsw ax sets PE and does not clear it; the other bits of CR0 stay.
    for (cr0, value, wanted) in
        [(0x10, 0xffff, 0x1f), (0x1f, 0, 0x11), (0x6000_0011, 8, 0x6000_0019)]
    {
        let mut cpu = cpu(&[written]);
        cpu.hardware.system.cr0 = cr0;
        cpu.hardware.gprs[gpr::RAX] = value;
        cpu.run(&mut world(&[0x0f, 0x01, 0xf0]));
        assert_eq!(cpu.hardware.system.cr0, wanted, "{cr0:#x} {value:#x}");
    }
}

#[test]
fn efer_and_xcr0() {
    let mut cpu = cpu(&[]);
    let mut world = world(&[]);
    assert!(cpu.write_msr(&mut world, 0xc000_0080, 0x901, true));
    assert!(!cpu.write_msr(&mut world, 0xc000_0080, 0x1000, true), "SVM");
    cpu.hardware.system.cr0 |= 1 << 31;
    assert!(!cpu.write_msr(&mut world, 0xc000_0080, 0x801, true), "LME while paging");
    assert!(cpu.write_msr(&mut world, 0x10, 5000, true));
    assert_eq!(cpu.read_msr(&mut world, 0x10), Some(5000));
    assert!(!cpu.write_msr(&mut world, 0x277, 0x0202, true), "a memory type that is none");
    assert_eq!(cpu.read_msr(&mut world, 0x1234), None);
    for (value, valid) in [(0, false), (1, true), (3, true), (5, false), (7, true), (9, false)] {
        assert_eq!(is_valid_xcr0(value, 7), valid, "{value}");
    }
}

fn any_exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        Just(Exit::Host),
        Just(Exit::InterruptWindow),
        Just(Exit::NmiReturn),
        Just(Exit::NmiWindow),
        Just(Exit::Halt),
        Just(Exit::Cpuid),
        Just(Exit::ReadMsr),
        Just(Exit::WriteMsr),
        Just(Exit::SetXcr),
        Just(Exit::CacheFlush),
        Just(Exit::Undefined),
        Just(Exit::Pause),
        (any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(address, write, exec)| Exit::NestedFault { address, write, exec }),
        (any::<u16>(), 1..5u8, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
            |(port, size, is_in, is_string, next_rip)| {
                Exit::Io(Io { port, size, is_in, is_string, next_rip })
            }
        ),
        (any::<u8>(), any::<bool>())
            .prop_map(|(number, write)| Exit::ControlRegister { number, write }),
        (any::<u8>(), any::<bool>())
            .prop_map(|(number, write)| Exit::DebugRegister { number, write }),
        (0..32u8, any::<u32>()).prop_map(|(vector, error)| Exit::Exception { vector, error }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever the guest's state and the exits: every run comes to an end, and nothing panics.
    #[test]
    fn hostile_guests(
        exits in prop::collection::vec(any_exit(), 0..24),
        memory in prop::collection::vec(any::<u8>(), 0x1000),
        gprs in any::<[u64; 16]>(),
        words in any::<[u64; 6]>(),
        near in any::<bool>(),
        answers in prop::collection::vec(any::<[u8; 8]>(), 24),
        controller in any::<bool>(),
    ) {
        let mut cpu = cpu(&exits);
        let mut world = world(&[]);
        world.memory[..0x1000].copy_from_slice(&memory);
        world.leave_after = 200;
        world.controller = controller.then(|| Interrupts { ready: true, ..Interrupts::default() });
        cpu.hardware.gprs = if near { gprs.map(|g| g & 0x3fff) } else { gprs };
        cpu.hardware.rip = if near { words[0] & 0xfff } else { words[0] };
        cpu.hardware.rflags = words[1];
        let system = &mut cpu.hardware.system;
        (system.cr0, system.cr3, system.cr4, system.efer) =
            (words[2], words[3] & 0x3fff, words[4], words[5]);
        for answer in answers {
            match cpu.run(&mut world) {
                Outcome::Mmio { write: false, .. } => cpu.answer_mmio(answer),
                Outcome::Io { is_in: true, .. } => cpu.port_data[..8].copy_from_slice(&answer),
                Outcome::Shutdown | Outcome::Interrupted => break,
                _ => {}
            }
        }
    }
}
