//! The vDSO's image (`vdso.S`) and the page of clock parameters that it reads.

use alloc::vec::Vec;
use core::arch::global_asm;
use core::mem::offset_of;

use crate::cpu::{clock, features};
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SIZE};

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

unsafe extern "C" {
    static vdso_image: u8;
    static vdso_image_end: u8;
}

/// Pages of the code, copied to frames of their own: the kernel's image is not mapped into
/// programs.
pub fn code() -> Result<Vec<Frame>, OutOfMemory> {
    let start = &raw const vdso_image;
    let len = (&raw const vdso_image_end) as usize - start as usize;
    // SAFETY: the two symbols bound the image in the kernel's read-only data.
    let image = unsafe { core::slice::from_raw_parts(start, len) };
    let mut frames = Vec::new();
    for page in image.chunks(PAGE_SIZE) {
        let frame = Frame::alloc_zeroed()?;
        frame.write(0, page);
        frames.push(frame);
    }
    Ok(frames)
}

/// A data page with this machine's clock parameters. `realtime_ns`: what the monotonic clock lacks
/// to the wall clock.
pub fn data(realtime_ns: u64) -> Result<Frame, OutOfMemory> {
    let frame = Frame::alloc_zeroed()?;
    let clock = clock::clock_params();
    let put = |offset: usize, value: u64| frame.write(offset, &value.to_le_bytes());
    put(offset_of!(VdsoData, tsc_base), clock.tsc_base);
    put(offset_of!(VdsoData, mult), clock.mult);
    put(offset_of!(VdsoData, ns_base), clock.ns_base);
    put(offset_of!(VdsoData, realtime), realtime_ns);
    let has_rdtscp = u32::from(features().rdtscp);
    frame.write(offset_of!(VdsoData, has_rdtscp), &has_rdtscp.to_le_bytes());
    Ok(frame)
}

/// Changes the wall clock offset in the data page. One caller at a time.
pub fn set_realtime(data: &Frame, realtime_ns: u64) {
    let mut sequence = [0; 4];
    data.read(offset_of!(VdsoData, sequence), &mut sequence);
    let sequence = u32::from_le_bytes(sequence);
    let at = offset_of!(VdsoData, sequence);
    // x86 keeps the order of stores, and `write` is opaque to the compiler.
    data.write(at, &sequence.wrapping_add(1).to_le_bytes());
    data.write(offset_of!(VdsoData, realtime), &realtime_ns.to_le_bytes());
    data.write(at, &sequence.wrapping_add(2).to_le_bytes());
}
