//! The real-time clock: date and time of day, to the second, from the CMOS memory behind ports
//! 0x70 and 0x71 (MC146818A data sheet). Hosts run it in UTC.

use crate::cpu::{inb, outb};

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
const CENTURY: u8 = 0x32;
const UPDATE_IN_PROGRESS: u8 = 0x80;
const HOURS_24: u8 = 2;
const BINARY: u8 = 4;
const PM: u8 = 0x80;
/// An update takes 2 ms; a port access takes a microsecond or so.
const MAX_POLLS: u32 = 10_000;
const MAX_TRIES: u32 = 4;

fn register(index: u8) -> u8 {
    // SAFETY: selects a CMOS byte; bit 7, which is clear, would mask NMI.
    unsafe { outb(INDEX, index) };
    // SAFETY: reads the byte that was selected; no other effect.
    unsafe { inb(DATA) }
}

/// Seconds, minutes, hours, day, month, year, century, as stored.
fn fields() -> [u8; 7] {
    [0, 2, 4, 7, 8, 9, CENTURY].map(register)
}

/// Seconds since 1970, or `None` without a (sane) clock.
pub(super) fn read() -> Option<u64> {
    for _ in 0..MAX_TRIES {
        let mut polls = 0;
        while register(STATUS_A) & UPDATE_IN_PROGRESS != 0 {
            polls += 1;
            if polls == MAX_POLLS {
                return None;
            }
        }
        // Two equal readings: no update came between the fields of either.
        let first = fields();
        if first == fields() {
            return decode(first, register(STATUS_B));
        }
    }
    None
}

fn decode(raw: [u8; 7], status: u8) -> Option<u64> {
    let number = |byte: u8| {
        let byte = u64::from(byte);
        if status & BINARY != 0 { byte } else { (byte >> 4) * 10 + (byte & 0xf) }
    };
    let [second, minute, hour, day, month, year, century] = raw;
    let mut hours = number(if status & HOURS_24 != 0 { hour } else { hour & !PM });
    if status & HOURS_24 == 0 {
        hours = hours % 12 + if hour & PM != 0 { 12 } else { 0 };
    }
    let century = match number(century) {
        century @ 19..=29 => century,
        _ => 20,
    };
    let (second, minute, day, month) = (number(second), number(minute), number(day), number(month));
    let year = century * 100 + number(year);
    let sane = second < 61 && minute < 60 && hours < 24;
    let sane = sane && (1..=31).contains(&day) && (1..=12).contains(&month);
    if !sane || !(1970..3000).contains(&year) {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hours * 3600 + minute * 60 + second)
}

/// Days from 1 January 1970 to a date of the Gregorian calendar. Years are taken to start in March,
/// so that the leap day is the last of its year.
const fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // Days before each month from March on: 0, 31, 61, 92, 122, 153, …
    let in_year = (153 * month + 2) / 5 + day - 1;
    365 * year + leap_days + in_year - DAYS_TO_1970
}

/// What the formula above gives for 1 January 1970, from the March of year 0.
const DAYS_TO_1970: u64 = 719_468;

const _: () = assert!(days_since_1970(1970, 1, 1) == 0);
const _: () = assert!(days_since_1970(2000, 3, 1) == 11_017);
const _: () = assert!(days_since_1970(2024, 2, 29) == 19_782);
const _: () = assert!(days_since_1970(2100, 12, 31) == 47_846);
