//! The interrupt controllers and the interval timer as a guest and a VMM meet them: what the data
//! sheets say, and that no state and no access makes them panic, loop or fire without pause.

use proptest::prelude::*;
use virt::ioapic::{IoApic, PINS};
use virt::lapic::{Effect, Lapic, Message, Mode, Target, base};
use virt::pic::Pic;
use virt::pit::Pit;

// ------------------------------------------------------------------------------------------------
// The 8259s

/// Command and data of both, and their edges or levels.
const PIC_PORTS: [u16; 6] = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1];

/// Both set up: vectors 0x20 and 0x28, nothing masked.
fn pic() -> Pic {
    let mut pic = Pic::default();
    for (port, value) in [
        (0x20, 0x11),
        (0xa0, 0x11),
        (0x21, 0x20),
        (0xa1, 0x28),
        (0x21, 4),
        (0xa1, 2),
        (0x21, 1),
        (0xa1, 1),
        (0x21, 0),
        (0xa1, 0),
    ] {
        pic.write(port, value);
    }
    pic
}

#[test]
fn an_edge_is_one_interrupt() {
    let mut pic = pic();
    pic.set_line(4, true);
    assert!(pic.is_pending());
    assert_eq!(pic.acknowledge(), 0x24);
    pic.write(0x20, 0x20);
    assert!(!pic.is_pending(), "the line is still up, and was seen");
    pic.set_line(4, false);
    pic.set_line(4, true);
    assert!(pic.is_pending());
}

#[test]
fn lower_lines_wait_for_the_end_of_higher_ones() {
    let mut pic = pic();
    pic.set_line(3, true);
    assert_eq!(pic.acknowledge(), 0x23);
    pic.set_line(5, true);
    assert!(!pic.is_pending());
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x21);
    pic.write(0x20, 0x20);
    assert!(!pic.is_pending(), "line 3 is still served");
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x25);
}

#[test]
fn the_second_controller_is_behind_line_2() {
    let mut pic = pic();
    pic.set_line(12, true);
    assert_eq!(pic.acknowledge(), 0x2c);
    pic.set_line(7, true);
    assert!(!pic.is_pending(), "below line 2");
    pic.write(0xa0, 0x20);
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x27);
}

#[test]
fn a_masked_line_waits_and_nothing_is_line_7() {
    let mut pic = pic();
    pic.write(0x21, 1 << 4);
    pic.set_line(4, true);
    assert!(!pic.is_pending());
    assert_eq!(pic.acknowledge(), 0x27, "spurious");
    pic.write(0x21, 0);
    assert_eq!(pic.acknowledge(), 0x24);
}

#[test]
fn a_level_stays() {
    let mut pic = pic();
    pic.controllers[0].elcr_mask = 0xf8;
    pic.write(0x4d0, 1 << 5);
    pic.set_line(5, true);
    assert_eq!(pic.acknowledge(), 0x25);
    pic.write(0x20, 0x20);
    assert!(pic.is_pending(), "still up");
    pic.set_line(5, false);
    assert!(!pic.is_pending());
}

// ------------------------------------------------------------------------------------------------
// The I/O APIC

fn program(ioapic: &mut IoApic, pin: u32, entry: u64) -> Option<Message> {
    ioapic.write(0, 0x10 + 2 * pin);
    let low = ioapic.write(0x10, entry as u32);
    ioapic.write(0, 0x11 + 2 * pin);
    ioapic.write(0x10, (entry >> 32) as u32).or(low)
}

const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;

#[test]
fn an_edge_of_a_pin_is_one_message() {
    let mut ioapic = IoApic::default();
    assert_eq!(program(&mut ioapic, 3, 0x41 | 2 << 56), None);
    let message = ioapic.set_line(3, true).expect("a message");
    assert_eq!((message.vector, message.mode, message.is_level), (0x41, Mode::Fixed, false));
    assert_eq!(message.target, Target::Physical(2));
    assert_eq!(ioapic.set_line(3, true), None);
    assert_eq!(ioapic.set_line(3, false), None);
    assert!(ioapic.set_line(3, true).is_some());
    assert_eq!(ioapic.set_line(PINS, true), None, "no such pin");
}

#[test]
fn a_level_of_a_pin_comes_again_behind_its_end() {
    let mut ioapic = IoApic::default();
    program(&mut ioapic, 9, 0x51 | LEVEL);
    assert!(ioapic.set_line(9, true).is_some_and(|message| message.is_level));
    assert_eq!(ioapic.set_line(9, false), None);
    assert_eq!(ioapic.set_line(9, true), None, "not yet ended");
    let mut ended = Vec::new();
    ioapic.end(0x51, |pin, again| ended.push((pin, again.is_some())));
    assert_eq!(ended, [(9, true)]);
    ioapic.set_line(9, false);
    ended.clear();
    ioapic.end(0x51, |pin, again| ended.push((pin, again.is_some())));
    ioapic.end(0x51, |pin, again| ended.push((pin, again.is_some())));
    assert_eq!(ended, [(9, false)], "it is ended once");
}

#[test]
fn a_masked_pin_says_nothing() {
    let mut ioapic = IoApic::default();
    program(&mut ioapic, 1, 0x33 | MASKED);
    assert_eq!(ioapic.set_line(1, true), None);
    assert_eq!(ioapic.entry(1) & 0xff, 0x33);
}

// ------------------------------------------------------------------------------------------------
// The local APIC

const EOI: u32 = 0xb0;
const SPIV: u32 = 0xf0;
const LVT_TIMER: u32 = 0x320;
const INITIAL: u32 = 0x380;
const CURRENT: u32 = 0x390;
const DIVIDE: u32 = 0x3e0;

fn lapic() -> Lapic {
    let mut lapic = Lapic::new(0, true);
    lapic.write(SPIV, 0x1ff, 0);
    lapic
}

#[test]
fn higher_vectors_first_and_lower_ones_behind_their_end() {
    let mut lapic = lapic();
    assert!(lapic.post(0x31, false) && lapic.post(0x52, false));
    assert_eq!(lapic.acknowledge(), Some(0x52));
    assert_eq!(lapic.acknowledge(), None, "a lower class waits");
    assert_eq!(lapic.write(EOI, 0, 0), Effect::Changed);
    assert_eq!(lapic.acknowledge(), Some(0x31));
}

#[test]
fn the_task_priority_holds_back() {
    let mut lapic = lapic();
    lapic.set_priority(5);
    lapic.post(0x52, false);
    assert!(lapic.is_masked_by_priority() && lapic.deliverable().is_none());
    lapic.set_priority(4);
    assert_eq!(lapic.acknowledge(), Some(0x52));
}

#[test]
fn the_end_of_a_level_is_told() {
    let mut lapic = lapic();
    lapic.post(0x61, true);
    lapic.acknowledge();
    assert_eq!(lapic.write(EOI, 0, 0), Effect::EndOfLevel(0x61));
}

#[test]
fn what_is_switched_off_takes_nothing() {
    let mut lapic = Lapic::new(0, true);
    assert!(!lapic.post(0x41, false));
    let mut on = self::lapic();
    assert!(!on.post(15, false), "vectors below 16 are none");
}

#[test]
fn one_shot_and_periodic_timers() {
    let mut lapic = lapic();
    // Divided by 1.
    lapic.write(DIVIDE, 0b1011, 0);
    lapic.write(LVT_TIMER, 0x40, 0);
    assert_eq!(lapic.write(INITIAL, 1_000_000, 1_000), Effect::Timer);
    let at = lapic.deadline(|tsc| tsc).expect("armed");
    assert!(at > 1_000);
    let half = lapic.read(CURRENT, 1_000 + (at - 1_000) / 2);
    assert!((499_000..=501_000).contains(&half), "{half}");
    assert!(lapic.expire(at));
    assert_eq!((lapic.acknowledge(), lapic.deadline(|tsc| tsc)), (Some(0x40), None));
    lapic.write(EOI, 0, 0);
    lapic.write(LVT_TIMER, 0x40 | 1 << 17, at);
    lapic.write(INITIAL, 1_000_000, at);
    let first = lapic.deadline(|tsc| tsc).expect("armed");
    assert!(lapic.expire(first));
    assert_eq!(lapic.deadline(|tsc| tsc), Some(first + (first - at)));
}

/// A guest that asks for a tick each nanosecond does not get the host's time.
#[test]
fn the_shortest_period_leaves_time() {
    let mut lapic = lapic();
    lapic.write(DIVIDE, 0b1011, 0);
    lapic.write(LVT_TIMER, 0x40 | 1 << 17, 0);
    lapic.write(INITIAL, 1, 0);
    let first = lapic.deadline(|tsc| tsc).expect("armed");
    assert!(first >= 100_000, "a tick after {first} ns");
    lapic.expire(first + 5);
    let next = lapic.deadline(|tsc| tsc).expect("armed");
    assert!(next >= first + 100_000, "{first}, then {next}");
}

#[test]
fn what_a_vmm_saves_it_can_restore() {
    let mut lapic = lapic();
    lapic.post(0x77, true);
    lapic.acknowledge();
    lapic.post(0x78, false);
    let page = lapic.registers(5);
    let mut other = Lapic::new(0, true);
    other.set_registers(&page, 5);
    assert_eq!(other.registers(5), page);
}

// ------------------------------------------------------------------------------------------------
// The interval timer

#[test]
fn channel_0_ticks_at_its_rate() {
    let mut pit = Pit::new(0);
    pit.write(0x43, 0x34, 0);
    pit.write(0x40, 0xa9, 0);
    assert!(pit.write(0x40, 4, 0), "armed with the second half");
    // 0x4a9 of 1,193,182 Hz: a millisecond.
    let first = pit.deadline(0).expect("armed");
    assert!((990_000..1_010_000).contains(&first), "{first}");
    assert_eq!(pit.deadline(first), Some(2 * first));
    // Latched: low, then high.
    pit.write(0x43, 0, first / 2);
    let count = u16::from(pit.read(0x40, first)) | u16::from(pit.read(0x40, first)) << 8;
    assert!((0x250..0x259).contains(&count), "{count:#x}");
}

#[test]
fn one_shot_fires_once_and_short_periods_leave_time() {
    let mut pit = Pit::new(0);
    pit.write(0x43, 0x30, 0);
    pit.write(0x40, 0, 0);
    pit.write(0x40, 1, 0);
    let at = pit.deadline(0).expect("armed");
    assert_eq!(pit.deadline(at), None);
    pit.write(0x43, 0x34, at);
    pit.write(0x40, 1, at);
    pit.write(0x40, 0, at);
    let next = pit.deadline(at).expect("armed");
    assert!(next - at >= 100_000, "after {} ns", next - at);
}

// ------------------------------------------------------------------------------------------------
// Anything at any time

proptest! {
    #[test]
    fn no_access_and_no_state_breaks_them(
        state in proptest::collection::vec(any::<u8>(), 1024),
        steps in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u32>()), 1..200),
        base_bits in any::<u64>(),
    ) {
        let page: [u8; 1024] = state.clone().try_into().unwrap();
        let (mut pic, mut ioapic, mut pit) = (Pic::default(), IoApic::default(), Pit::new(0));
        let mut lapic = Lapic::new(0, true);
        lapic.set_base(base_bits | base::ENABLE);
        lapic.set_registers(&page, u64::from(state[0]));
        ioapic.set_state((state[1].into(), u32::from(state[2]) << 24, u32::MAX));
        for pin in 0..PINS {
            let entry = page[8 * pin..8 * pin + 8].try_into().unwrap();
            ioapic.set_entry(pin, u64::from_le_bytes(entry));
        }
        for (channel, bytes) in pit.channels.iter_mut().zip(state.chunks(16)) {
            channel.count = u32::from_le_bytes(bytes[..4].try_into().unwrap()).clamp(1, 0x1_0000);
            (channel.mode, channel.rw_mode, channel.read_state) = (bytes[4], bytes[5], bytes[6]);
            (channel.write_state, channel.bcd, channel.gate) = (bytes[7], bytes[8], bytes[9]);
            channel.loaded_ns = i64::from_le_bytes(bytes[..8].try_into().unwrap());
        }
        let mut now = 0u64;
        for (what, at, value) in steps {
            now += u64::from(value);
            match what % 12 {
                0 => pic.set_line(at.into(), value & 1 != 0),
                1 => pic.write(PIC_PORTS[usize::from(at) % 6], value as u8),
                2 => { pic.read(PIC_PORTS[usize::from(at) % 6]); }
                3 => { pic.acknowledge(); }
                4 => { ioapic.write(u64::from(at), value); let _ = ioapic.read(u64::from(at)); }
                5 => { ioapic.set_line(at.into(), value & 1 != 0); }
                6 => ioapic.end(value as u8, |pin, _| assert!(pin < PINS)),
                7 => { lapic.write(u32::from(at) & 0xff0, value, now); }
                8 => { let _ = lapic.read(u32::from(at) & 0xff0, now); lapic.acknowledge(); }
                9 => {
                    let msr = 0x800 | u32::from(at) & 0xff;
                    lapic.write_msr(msr, u64::from(value) << 32 | now, now);
                    let _ = lapic.read_msr(msr, now);
                }
                10 => {
                    pit.write(0x40 + at % 4, value as u8, now);
                    pit.read(0x40 + at % 3, now);
                    pit.write(0x61, value as u8, now);
                    pit.read(0x61, now);
                }
                _ => { lapic.post(value as u8, at & 1 != 0); lapic.expire(now); }
            }
            // Whatever was programmed: the next time is ahead, and timers do not fire in a row.
            if let Some(at) = pit.deadline(now) {
                prop_assert!(at > now);
            }
            if let Some(at) = lapic.deadline(|tsc| tsc) && lapic.tsc_deadline() == 0 && at <= now {
                lapic.expire(now);
                prop_assert!(lapic.deadline(|tsc| tsc).is_none_or(|next| next > now));
            }
        }
    }
}
