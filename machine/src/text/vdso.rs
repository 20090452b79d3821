//! The vDSO's image (`vdso.S`) and the page of clock parameters that it reads.
//!
//! Programs execute what is on these pages, so an attacker who can write kernel data would like to
//! write here. Both lie in the image's read-only data: no address of the kernel's writes them, and
//! programs are given the image's own frames. The wall clock is set through the window by which
//! text is patched (`text_poke`), which is there for as long as that takes.

use alloc::vec::Vec;
use core::arch::global_asm;
use core::mem::offset_of;
use core::ops::Range;

use text_patching::TextPoke as _;

use crate::cpu::{clock, features};
use crate::memory::frame::{Frame, PAGE_SIZE};
use crate::text::text_poke;

/// The data page, as `vdso.S` reads it. `realtime` is guarded by `sequence`.
#[repr(C)]
struct VdsoData {
    sequence: u32,
    has_rdtscp: u32,
    tsc_base: u64,
    mult: u64,
    ns_base: u64,
    realtime: u64,
}

global_asm!(
    include_str!("vdso.S"),
    SEQUENCE = const offset_of!(VdsoData, sequence),
    HAS_RDTSCP = const offset_of!(VdsoData, has_rdtscp),
    TSC_BASE = const offset_of!(VdsoData, tsc_base),
    MULT = const offset_of!(VdsoData, mult),
    NS_BASE = const offset_of!(VdsoData, ns_base),
    REALTIME = const offset_of!(VdsoData, realtime),
    SUPPORTED_CLOCKS = const 0b1111_0011u32,
    REALTIME_CLOCKS = const 0b0010_0001u32,
    NR_CLOCK_GETTIME = const abi::general::__NR_clock_gettime,
    NR_CLOCK_GETRES = const abi::general::__NR_clock_getres,
    NR_GETCPU = const abi::general::__NR_getcpu,
    options(att_syntax)
);

global_asm!(
    ".pushsection .vdso_data, \"a\", @progbits",
    ".balign 4096",
    ".globl vdso_data",
    "vdso_data: .zero 4096",
    ".popsection",
);

unsafe extern "C" {
    static vdso_image: u8;
    static vdso_image_end: u8;
    static vdso_data: u8;
}

/// Addresses of the code in the image: whole pages.
pub(crate) fn code_range() -> Range<u64> {
    let end = (&raw const vdso_image_end) as u64;
    (&raw const vdso_image) as u64..end.next_multiple_of(PAGE_SIZE as u64)
}

/// Those of the data page.
pub(crate) fn data_range() -> Range<u64> {
    let start = (&raw const vdso_data) as u64;
    start..start + PAGE_SIZE as u64
}

/// The code's pages and the data page, which has this machine's clock parameters now.
/// `realtime_ns`: what the monotonic clock lacks to the wall clock. Once.
pub fn pages(realtime_ns: u64) -> (Vec<Frame>, Frame) {
    let clock = clock::clock_params();
    let has_rdtscp = u32::from(features().rdtscp);
    let mut window = text_poke::vdso_window();
    let start = data_range().start;
    for (offset, value) in [
        (offset_of!(VdsoData, tsc_base), clock.tsc_base),
        (offset_of!(VdsoData, mult), clock.mult),
        (offset_of!(VdsoData, ns_base), clock.ns_base),
        (offset_of!(VdsoData, realtime), realtime_ns),
    ] {
        window.poke(start + offset as u64, &value.to_le_bytes());
    }
    let at = start + offset_of!(VdsoData, has_rdtscp) as u64;
    window.poke(at, &has_rdtscp.to_le_bytes());
    drop(window);
    (code_range().step_by(PAGE_SIZE).map(Frame::of_image).collect(), Frame::of_image(start))
}

/// Changes the wall clock offset in the data page. One caller at a time.
pub fn set_realtime(realtime_ns: u64) {
    let start = data_range().start;
    let at = start + offset_of!(VdsoData, sequence) as u64;
    // SAFETY: the page is the image's and is mapped for good; the only writer is this function,
    // which one caller runs at a time.
    let sequence = unsafe { (at as *const u32).read_volatile() };
    let mut window = text_poke::vdso_window();
    // x86 keeps the order of stores, and the window makes each as it stands here.
    window.poke(at, &sequence.wrapping_add(1).to_le_bytes());
    let realtime = start + offset_of!(VdsoData, realtime) as u64;
    window.poke(realtime, &realtime_ns.to_le_bytes());
    window.poke(at, &sequence.wrapping_add(2).to_le_bytes());
}
