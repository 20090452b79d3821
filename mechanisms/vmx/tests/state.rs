//! A guest's registers in the control structure: every one goes in and comes out, what the host
//! owns of them is hidden; controls follow from capabilities; events, reasons and MSRs' bits are as
//! the manual says.

use std::collections::BTreeMap;

use proptest::prelude::*;
use virt::Event;
use virt::exit::{Entered, Exit, Io, Vmrun, Windows};
use virt::regs::{Segment, System, Table, gpr};
use vmx::controls::{ENABLED, LOCKED, entry, msr, msr_bit, primary, secondary};
use vmx::{
    Controls, Extra, Guest, Left, Request, Vmx, World, decode_event, encode_event, ept, exit, field,
};

const NE: u64 = 1 << 5;
const VMXE: u64 = 1 << 13;
const MCE: u64 = 1 << 6;

/// A CPU that allows everything, by MSR, where `change` says nothing else.
fn capabilities(change: impl Fn(u32, u64) -> u64) -> Option<Controls> {
    Controls::choose(|number| {
        let value = match number {
            msr::BASIC => 1 << 55 | 6 << 50 | 4096 << 32 | 0x12,
            msr::FEATURE_CONTROL => LOCKED | ENABLED,
            msr::MISC => 5 | 1 << 30,
            msr::CR0_FIXED0 => 1 << 31 | NE | 1,
            msr::CR4_FIXED0 => VMXE,
            // Without LA57.
            msr::CR4_FIXED1 => 0xfff_ffff & !(1 << 12),
            msr::SECONDARY => 0xffff_ffff << 32,
            msr::EPT_VPID => u64::MAX,
            // What was always set before there were true controls, but CR3's.
            msr::TRUE_PIN => 0xffff_ffff << 32 | 0x16,
            msr::TRUE_PRIMARY => 0xffff_ffff << 32 | 0x0400_6172,
            msr::TRUE_EXIT => 0xffff_ffff << 32 | 0x3_6dfb,
            msr::TRUE_ENTRY => 0xffff_ffff << 32 | 0x11fb,
            other => panic!("{other:#x} is no capability"),
        };
        change(number, value)
    })
}

fn all() -> Controls {
    capabilities(|_, value| value).expect("all is there")
}

#[test]
fn controls_follow_from_capabilities() {
    let controls = all();
    assert_eq!(controls.revision, 0x12);
    assert_eq!(controls.pin, 0x16 | 1 | 8 | 32);
    assert!(controls.has_vpid);
    assert_eq!(controls.timer_shift, Some(5));
    let windows = primary::INTERRUPT_WINDOW | primary::NMI_WINDOW;
    assert_eq!(controls.primary & windows, 0, "windows are asked for by each entry");
    assert_eq!(controls.primary & (1 << 15 | 1 << 16), 0, "CR3 is the guest's");
    assert_eq!(controls.entry & entry::LONG_MODE, 0, "the guest's mode is its own");
    assert_eq!(controls.cr4_allowed & (1 << 12 | VMXE | 1 << 23), 0);
    // Each of these gone: no guests.
    for (gone, bits) in [
        (msr::BASIC, 1 << 55),
        (msr::FEATURE_CONTROL, ENABLED),
        (msr::SECONDARY, u64::from(secondary::EPT) << 32),
        (msr::SECONDARY, u64::from(secondary::UNRESTRICTED) << 32),
        (msr::EPT_VPID, 1 << 20),
        (msr::TRUE_PIN, 1 << (32 + 5)),
        (msr::TRUE_PRIMARY, u64::from(primary::MSR_BITMAP) << 32),
        (msr::TRUE_PRIMARY, u64::from(primary::NMI_WINDOW) << 32),
        (msr::TRUE_EXIT, 1 << (32 + 21)),
        (msr::TRUE_ENTRY, u64::from(entry::LOAD_EFER) << 32),
    ] {
        let controls = capabilities(|n, value| if n == gone { value & !bits } else { value });
        assert_eq!(controls, None, "{gone:#x} without {bits:#x}");
    }
    // Not locked: it can still be enabled. Without identifiers guests run, too.
    assert!(capabilities(|n, v| if n == msr::FEATURE_CONTROL { 0 } else { v }).is_some());
    let without = capabilities(|n, v| if n == msr::EPT_VPID { v & !(1 << 41) } else { v });
    let without = without.expect("VPID is not needed");
    assert!(!without.has_vpid && without.secondary & secondary::VPID == 0);
}

/// A structure and no CPU. What is written must fit its field.
struct Paper {
    guest: Guest,
    extra: Extra,
    controls: Controls,
    requests: Vec<Request>,
    left: Option<Left>,
}

impl World for Paper {
    fn guest(&self) -> &Guest {
        &self.guest
    }
    fn guest_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
    fn extra(&mut self) -> &mut Extra {
        &mut self.extra
    }
    fn extra_ref(&self) -> &Extra {
        &self.extra
    }
    fn controls(&self) -> &Controls {
        &self.controls
    }
    fn flush_translations(&mut self) {}
    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left> {
        self.requests.push(*request);
        if is_busy() { None } else { self.left }
    }
}

fn paper(left: Option<Left>) -> Vmx<Paper> {
    let (guest, extra) = (Guest::default(), Extra::default());
    Vmx::new(Paper { guest, extra, controls: all(), requests: vec![], left })
}

fn any_segment() -> impl Strategy<Value = Segment> {
    (any::<u64>(), any::<u32>(), any::<u16>(), 0..0x1000u16).prop_map(
        |(base, limit, selector, attributes)| {
            // What is loaded was accessed.
            let accessed = u16::from(attributes & 0x90 == 0x90);
            Segment { base, limit, selector, attributes: attributes | accessed }
        },
    )
}

fn stored(guest: &Guest) -> BTreeMap<u32, u64> {
    let mut fields = BTreeMap::new();
    guest.store(&all(), |number, value| {
        let width = field::width(number);
        assert!(width == 64 || value >> width == 0, "{value:#x} in {number:#x}");
        assert!(number & 1 == 0, "the upper half of a field");
        assert_eq!(fields.insert(number, value), None, "{number:#x} twice");
    });
    fields
}

proptest! {
    #[test]
    fn registers(
        segments in prop::array::uniform8(any_segment()),
        words in any::<[u64; 8]>(),
        limits in any::<[u16; 2]>(),
    ) {
        let controls = all();
        let system = System {
            segments,
            gdt: Table { base: words[0], limit: limits[0] },
            idt: Table { base: words[1], limit: limits[1] },
            cr0: words[2],
            cr2: words[3],
            cr3: words[4],
            cr4: words[5],
            // SCE, LME, LMA, NXE: there are no others.
            efer: words[6] & 0xd01,
        };
        let mut cpu = paper(None);
        cpu.set_system(&system);
        prop_assert_eq!(cpu.system(), system);
        prop_assert_eq!(u16::from(cpu.cpl()), segments[2].attributes >> 5 & 3);
        // Through the structure, and what is another guest's is gone.
        let fields = stored(&cpu.world.guest);
        prop_assert_eq!(fields[&field::GUEST_CR0] & (NE | 3 << 29), NE);
        prop_assert_eq!(fields[&field::CR0_SHADOW], system.cr0);
        let cr4 = fields[&field::GUEST_CR4];
        prop_assert_eq!(cr4 & (VMXE | MCE), VMXE | MCE);
        prop_assert_eq!(cr4 & !(controls.cr4_allowed | VMXE | MCE), 0);
        let known = cpu.world.guest.rflags & 0x3f_7fd5 | 2;
        let segments = [Segment::default(); 8];
        let mut back = Guest { rflags: !0, segments, ..cpu.world.guest.clone() };
        back.load(&controls, |number| fields[&number]);
        let expected = Guest { rflags: known, ..cpu.world.guest.clone() };
        let visible = |g: &Guest| Guest { cr4: g.cr4 & controls.cr4_allowed, ..g.clone() };
        prop_assert_eq!(visible(&back), visible(&expected));
    }

    #[test]
    fn events(vector in any::<u8>(), code in any::<u32>()) {
        for event in [
            Event::Interrupt(vector),
            Event::Software(vector),
            Event::Exception(vector & 31, None),
            Event::Exception(vector & 31, Some(code)),
            Event::Nmi,
        ] {
            prop_assert_eq!(decode_event(encode_event(event)), Some(event));
        }
    }

    /// Whatever an exit leaves, it decodes to something.
    #[test]
    fn any_exit(
        reason in prop_oneof![0..80u32, any::<u32>()],
        qualification in any::<u64>(),
        words in any::<[u32; 5]>(),
    ) {
        let [event, event_error, vectoring, vectoring_error, length] = words;
        let guest_physical = qualification;
        let left = Left {
            reason, qualification, guest_physical, event, event_error, vectoring, vectoring_error,
            length,
        };
        let mut cpu = paper(Some(left));
        let entered = cpu.enter(Windows::default(), &mut || false);
        prop_assert!(matches!(entered, Entered::Left(_)));
        cpu.cut_short();
        cpu.next_rip();
    }
}

/// SDM 3C, 25.8.3: vector, type, whether there is a code, valid; the code.
#[test]
fn words_of_events() {
    assert_eq!(encode_event(Event::Interrupt(0x31)), (0x8000_0031, 0));
    assert_eq!(encode_event(Event::Nmi), (0x8000_0202, 0));
    assert_eq!(encode_event(Event::Exception(14, Some(5))), (0x8000_0b0e, 5));
    assert_eq!(encode_event(Event::Software(0x80)), (0x8000_0480, 0));
    assert_eq!(decode_event((0x8000_0603, 0)), Some(Event::Software(3)), "INT3 comes again");
    assert_eq!(decode_event((0x31, 0)), None);
}

#[test]
fn reasons() {
    let of = |reason, qualification| Left { reason, qualification, ..Left::default() };
    let event = |event, event_error| Left { event, event_error, ..Left::default() };
    let control = |number, write| Exit::ControlRegister { number, write };
    let debug = |number, write| Exit::DebugRegister { number, write };
    let fault = |write, exec| Exit::NestedFault { address: 0x1234, write, exec };
    for (left, wanted) in [
        (event(0x8000_0301, 0), Exit::Exception { vector: 1, error: 0 }),
        (event(0x8000_0b11, 9), Exit::Exception { vector: 17, error: 9 }),
        (event(0x8000_0202, 0), Exit::Host),
        (of(1, 0), Exit::Host),
        (of(2, 0), Exit::Shutdown),
        (of(7, 0), Exit::InterruptWindow),
        (of(8, 0), Exit::NmiWindow),
        (of(10, 0), Exit::Cpuid),
        (of(12, 0), Exit::Halt),
        (of(18, 0), Exit::Hypercall),
        (of(24, 0), Exit::Undefined),
        (of(28, 8), control(8, true)),
        (of(28, 0x18), control(8, false)),
        (of(28, 0x300), control(0, true)),
        (of(28, 0x30), control(0, true)),
        (of(29, 7), debug(7, true)),
        (of(29, 0x10), debug(0, false)),
        (of(31, 0), Exit::ReadMsr),
        (of(32, 0), Exit::WriteMsr),
        (of(1 << 31 | 33, 0), Exit::Invalid),
        (Left { guest_physical: 0x1234, ..of(48, 2) }, fault(true, false)),
        (Left { guest_physical: 0x1234, ..of(48, 4) }, fault(false, true)),
        (of(49, 0), Exit::Unknown(49)),
        (of(52, 0), Exit::Host),
        (of(55, 0), Exit::SetXcr),
    ] {
        assert_eq!(exit::decode(&left, 0), wanted, "{left:x?}");
    }
    let io = Io { port: 0x3f8, size: 2, is_in: true, is_string: true, next_rip: 0x102 };
    let left = Left { length: 2, ..of(30, 0x03f8_0019) };
    assert_eq!(exit::decode(&left, 0x100), Exit::Io(io));
    assert!(exit::is_nmi(&event(0x8000_0202, 0)) && !exit::is_nmi(&event(0x8000_0302, 0)));
    assert!(exit::is_machine_check(&event(0x8000_0312, 0)));
    assert!(exit::is_machine_check(&of(1 << 31 | 41, 0)));
}

/// What was not delivered comes again; windows ask for what they need; what the CPU would refuse
/// for the host's sake is refused before it.
#[test]
fn entries() {
    let mut cpu = paper(None);
    cpu.inject(Event::Nmi);
    assert_eq!(cpu.enter(Windows::default(), &mut || true), Entered::Busy);
    assert_eq!(cpu.cut_short(), Some(Event::Nmi));
    assert_eq!(cpu.cut_short(), None);
    let windows = Windows { interrupt: true, nmi: true, priority: true };
    cpu.enter(windows, &mut || true);
    let request = cpu.world.requests[1];
    assert!(request.interrupt_window && request.nmi_window);
    assert_eq!(request.event, (0, 0), "an event is asked for once");
    assert_eq!(cpu.world.guest.interruptibility, 1 << 3, "an NMI is in service");
    // Behind STI, which needs IF; else as behind MOV SS.
    cpu.set_shadow(true);
    cpu.enter(Windows::default(), &mut || true);
    assert_eq!(cpu.world.guest.interruptibility, 2);
    cpu.set_rflags(1 << 9);
    cpu.enter(Windows::default(), &mut || true);
    assert_eq!(cpu.world.guest.interruptibility, 1);
    cpu.inject(Event::Interrupt(0x20));
    cpu.enter(Windows::default(), &mut || true);
    assert_eq!(cpu.world.guest.interruptibility, 0);
    let failed = Left { reason: 1 << 31 | 33, ..Left::default() };
    let mut cpu = paper(Some(failed));
    cpu.inject(Event::Interrupt(0x20));
    assert_eq!(cpu.enter(Windows::default(), &mut || false), Entered::Left(Exit::Invalid));
    assert_eq!(cpu.cut_short(), Some(Event::Interrupt(0x20)));
    cpu.set_system(&System { cr4: VMXE, ..System::default() });
    let entries = cpu.world.requests.len();
    assert_eq!(cpu.enter(Windows::default(), &mut || false), Entered::Left(Exit::Invalid));
    assert_eq!(cpu.world.requests.len(), entries);
}

/// What an exit says of the guest is in its registers: RSP, RIP behind the instruction, DR6.
#[test]
fn behind_an_exit() {
    let step = Left { event: 0x8000_0301, qualification: 1 << 14, ..Left::default() };
    let mut cpu = paper(Some(step));
    cpu.debug_registers()[6] = 0xffff_0ff1;
    cpu.gprs()[gpr::RSP] = 0x7000;
    let entered = cpu.enter(Windows::default(), &mut || false);
    assert_eq!(entered, Entered::Left(Exit::Exception { vector: 1, error: 0 }));
    assert_eq!((cpu.world.guest.rsp, cpu.gprs()[gpr::RSP]), (0x7000, 0x7000));
    assert_eq!(cpu.debug_registers()[6], 0xffff_4ff0);
    let mut cpu = paper(Some(Left { reason: 10, length: 2, ..Left::default() }));
    cpu.set_rip(0xffff_ffff);
    cpu.enter(Windows::default(), &mut || false);
    assert_eq!(cpu.next_rip(), Some(1), "16-bit code has no addresses beyond 4 GiB");
}

/// PAE paging keeps four entries, which are read again when the VMM changes what leads to them.
#[test]
fn entries_of_pae_paging() {
    let mut cpu = paper(None);
    assert_eq!(cpu.pdptes_due(), None);
    let pae = System { cr0: 1 << 31 | 1, cr4: 1 << 5, cr3: 0x5020, ..System::default() };
    cpu.set_system(&pae);
    assert_eq!(cpu.pdptes_due(), Some(0x5020));
    cpu.set_pdptes([1, 2, 3, 4]);
    assert_eq!(cpu.pdptes_due(), None);
    let fields = stored(&cpu.world.guest);
    let kept = [0, 2, 4, 6].map(|n| fields[&(field::GUEST_PDPTE + n)]);
    assert_eq!(kept, [1, 2, 3, 4]);
    cpu.set_system(&System { cr2: 5, ..pae });
    assert_eq!(cpu.pdptes_due(), None, "nothing of them changed");
    cpu.set_system(&System { efer: 0x500, ..pae });
    assert_eq!(cpu.pdptes_due(), None, "long mode has none");
}

/// Entries of tables are walked by the code that walks AMD's: the bits that it looks at agree.
#[test]
fn extended_entries() {
    let leaf = ept::leaf(0x1234_5000, true);
    assert_eq!(leaf & 0x3f, 0x37);
    assert_eq!(ept::leaf(0x1234_5000, false) & 7, 5);
    // As in ordinary tables: one walker serves both.
    assert_eq!(ept::TABLE, 7);
    assert_eq!(ept::pointer(0x1234_5000), 0x1234_501e);
}

#[test]
fn msr_bitmap() {
    assert_eq!(msr_bit(0), Some((0, 0)));
    assert_eq!(msr_bit(0x175), Some((0x2e, 5)));
    assert_eq!(msr_bit(0xc000_0102), Some((0x420, 2)));
    assert_eq!(msr_bit(0xc001_0114), None);
}
