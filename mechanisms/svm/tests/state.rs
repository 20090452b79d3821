//! A guest's registers in the control block: every one goes in and comes out, events are encoded as
//! the manual says, identifiers are never used for two guests at once, codes decode to what they
//! are.

use proptest::prelude::*;
use svm::asid::{Pool, Tag};
use svm::vmcb::{Save, Vmcb, intercept, msr_bits};
use svm::{Extra, Left, Request, Svm, World, decode_event, encode_event, exit, npt};
use virt::Event;
use virt::exit::{Entered, Exit, Io, Vmrun, Windows};
use virt::regs::{Segment, System, Table};
use zerocopy::FromZeros;

/// A block and no CPU.
struct Paper {
    block: Box<Vmcb>,
    extra: Extra,
    requests: Vec<Request>,
    left: Option<Left>,
}

impl World for Paper {
    fn save(&self) -> &Save {
        &self.block.save
    }
    fn save_mut(&mut self) -> &mut Save {
        &mut self.block.save
    }
    fn extra(&mut self) -> &mut Extra {
        &mut self.extra
    }
    fn flush_translations(&mut self) {}
    fn has_next_rip(&self) -> bool {
        false
    }
    fn run(&mut self, request: &Request, is_busy: &mut dyn FnMut() -> bool) -> Option<Left> {
        self.requests.push(*request);
        if is_busy() { None } else { self.left }
    }
}

fn paper(left: Option<Left>) -> Svm<Paper> {
    let block = Box::new(Vmcb::new_zeroed());
    Svm::new(Paper { block, extra: Extra::default(), requests: vec![], left })
}

fn any_segment() -> impl Strategy<Value = Segment> {
    (any::<u64>(), any::<u32>(), any::<u16>(), 0..0x1000u16).prop_map(
        |(base, limit, selector, attributes)| Segment { base, limit, selector, attributes },
    )
}

proptest! {
    #[test]
    fn system_registers(
        segments in prop::array::uniform8(any_segment()),
        words in any::<[u64; 8]>(),
        limits in any::<[u16; 2]>(),
    ) {
        let system = System {
            segments,
            gdt: Table { base: words[0], limit: limits[0] },
            idt: Table { base: words[1], limit: limits[1] },
            cr0: words[2],
            cr2: words[3],
            cr3: words[4],
            cr4: words[5],
            // The bit that VMRUN needs is not the guest's.
            efer: words[6] & !(1 << 12),
        };
        let mut cpu = paper(None);
        cpu.set_system(&system);
        prop_assert_eq!(cpu.system(), system);
        prop_assert_eq!(cpu.world.block.save.efer & 1 << 12, 1 << 12);
        prop_assert_eq!(u16::from(cpu.cpl()), segments[2].attributes >> 5 & 3);
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
        code in prop_oneof![0..0x500u64, any::<u64>()],
        a in any::<u64>(),
        b in any::<u64>(),
    ) {
        let left = Left {
            exit_code: code,
            exit_info_1: a,
            exit_info_2: b,
            exit_interrupt_info: a,
            ..Left::default()
        };
        let mut cpu = paper(Some(left));
        let entered = cpu.enter(Windows::default(), &mut || false);
        prop_assert!(matches!(entered, Entered::Left(_)));
        cpu.cut_short();
    }
}

/// AMD APM 2, 15.20: vector, type, whether there is a code, valid, code.
#[test]
fn words_of_events() {
    assert_eq!(encode_event(Event::Interrupt(0x31)), 0x8000_0031);
    assert_eq!(encode_event(Event::Nmi), 0x8000_0202);
    assert_eq!(encode_event(Event::Exception(14, Some(5))), 0x5_8000_0b0e);
    assert_eq!(encode_event(Event::Software(0x80)), 0x8000_0480);
    assert_eq!(decode_event(0x31), None);
}

#[test]
fn codes() {
    for (code, a, b, wanted) in [
        (0x18, 0, 0, Exit::ControlRegister { number: 8, write: true }),
        (0x27, 0, 0, Exit::DebugRegister { number: 7, write: false }),
        (0x41, 0, 0, Exit::Exception { vector: 1, error: 0 }),
        (0x51, 9, 0, Exit::Exception { vector: 17, error: 9 }),
        (0x52, 0, 0, Exit::Host),
        (0x60, 0, 0, Exit::Host),
        (0x64, 0, 0, Exit::InterruptWindow),
        (0x65, 0, 0, Exit::ControlRegister { number: 0, write: true }),
        (0x72, 0, 0, Exit::Cpuid),
        (0x78, 0, 0, Exit::Halt),
        (0x7c, 0, 0, Exit::ReadMsr),
        (0x7c, 1, 0, Exit::WriteMsr),
        (0x7f, 0, 0, Exit::Shutdown),
        (0x80, 0, 0, Exit::Undefined),
        (0x81, 0, 0, Exit::Hypercall),
        (0x400, 0x6, 0x1234, Exit::NestedFault { address: 0x1234, write: true, exec: false }),
        (0x400, 0x14, 0x1234, Exit::NestedFault { address: 0x1234, write: false, exec: true }),
        (u64::MAX, 0, 0, Exit::Invalid),
        (0xffff_ffff, 0, 0, Exit::Invalid),
        (u64::MAX - 1, 0, 0, Exit::Lost),
        (0x12345, 0, 0, Exit::Unknown(0x12345)),
    ] {
        assert_eq!(exit::decode(code, a, b), wanted, "{code:#x}");
    }
    let io = Io { port: 0x3f8, size: 2, is_in: true, is_string: true, next_rip: 0x99 };
    assert_eq!(exit::decode(0x7b, 0x03f8_0025, 0x99), Exit::Io(io));
}

/// What was not delivered comes again; windows ask for what they need.
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
    assert_eq!(request.intercepts, intercept::VINTR | intercept::IRET);
    assert_eq!(request.intercept_cr, intercept::CR8_WRITE);
    assert_eq!(request.event, 0, "an event is asked for once");
}

/// EFER.LME stands in the block only beside CR0.PG, and while the guest has it, writes of CR0 exit.
#[test]
fn long_mode_without_paging_is_kept_out_of_the_block() {
    const LME: u64 = 1 << 8;
    const PG: u64 = 1 << 31;
    let mut cpu = paper(None);
    for (efer, cr0, in_block) in
        [(0, 0, 0), (LME, 0, 0), (LME | 1 << 10, PG, LME), (0, PG, 0), (LME, 1, 0)]
    {
        cpu.set_system(&System { efer, cr0, ..System::default() });
        assert_eq!(cpu.system().efer, efer);
        assert_eq!(cpu.world.block.save.efer & LME, in_block, "{efer:#x} {cr0:#x}");
        cpu.enter(Windows::default(), &mut || true);
        let asked = cpu.world.requests.last().map(|request| request.intercepts);
        let selective = if efer & LME != 0 { intercept::CR0_SELECTIVE } else { 0 };
        assert_eq!(asked, Some(selective), "{efer:#x} {cr0:#x}");
    }
}

/// No tag is good for two guests between two moments at which all is dropped.
#[test]
fn identifiers() {
    for count in [0, 2, 3, 16] {
        let mut pool = Pool::new(count);
        assert!(!pool.is_good(Tag::default()));
        let mut alive: Vec<Tag> = vec![];
        for _ in 0..100 {
            let (tag, dropped) = pool.take();
            if dropped {
                assert!(alive.iter().all(|&old| !pool.is_good(old)), "of the last round");
                alive.clear();
            }
            assert!(tag.asid >= 1 && tag.asid < count.max(2));
            assert!(alive.iter().all(|old| old.asid != tag.asid), "{tag:?} twice");
            alive.push(tag);
            assert!(pool.is_good(tag));
        }
    }
}

#[test]
fn nested_entries() {
    let leaf = npt::leaf(0x1234_5000, true);
    assert_eq!(npt::target(leaf), Some(0x1234_5000));
    assert!(npt::is_writable(leaf) && !npt::is_writable(npt::read_only(leaf)));
    assert_eq!(npt::target(0), None);
}

#[test]
fn msr_bitmap() {
    assert_eq!(msr_bits(0), Some((0, 0)));
    assert_eq!(msr_bits(0x175), Some((0x5d, 2)));
    assert_eq!(msr_bits(0xc000_0081), Some((0x820, 2)));
    assert_eq!(msr_bits(0xc001_0114), Some((0x1045, 0)));
    assert_eq!(msr_bits(0x4000_0000), None);
}
