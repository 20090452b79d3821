//! The floating-point and vector registers of programs. The kernel itself never uses them (it is
//! compiled soft-float), so they are saved only when the CPU changes programs: eagerly, at every
//! switch, since lazy switching leaks register contents through speculation (CVE-2018-3665).

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;

use crate::cpu::features;
use crate::frame::OutOfMemory;

/// The register image of one thread: an XSAVE area in the standard form (SDM 1, 13.4), or FXSAVE
/// where XSAVE does not exist.
pub struct FpuState {
    area: *mut u8,
}

// SAFETY: the area is plain memory that this value owns.
unsafe impl Send for FpuState {}
// SAFETY: `&FpuState` only reads.
unsafe impl Sync for FpuState {}

/// Bytes of the legacy part that every CPU has (FXSAVE).
pub const FXSAVE_BYTES: usize = 512;
const MXCSR_DEFAULT: u32 = 0x1f80;
const MXCSR_MASK: u32 = 0xffff;
const FCW_DEFAULT: u16 = 0x37f;

/// Size of the register image on this machine, bytes.
pub fn state_bytes() -> usize {
    features().xsave_bytes.max(576) as usize
}

/// State components in the image, as bits of XCR0 (SDM 1, 13.1).
pub fn components() -> u64 {
    if features().xsave { features().xcr0 } else { 3 }
}

fn layout() -> Layout {
    Layout::from_size_align(state_bytes(), 64).expect("XSAVE areas are a few KiB")
}

impl FpuState {
    /// The state a new program starts with.
    pub fn new() -> Result<FpuState, OutOfMemory> {
        // SAFETY: the layout is not empty.
        let area = unsafe { alloc_zeroed(layout()) };
        if area.is_null() {
            return Err(OutOfMemory);
        }
        let mut state = FpuState { area };
        state.reset();
        Ok(state)
    }

    /// Back to the initial configuration.
    pub fn reset(&mut self) {
        let image = self.bytes_mut();
        image.fill(0);
        image[..2].copy_from_slice(&FCW_DEFAULT.to_le_bytes());
        image[24..28].copy_from_slice(&MXCSR_DEFAULT.to_le_bytes());
        // XSTATE_BV: x87 and SSE are given by the bytes above, the others are in their initial state.
        image[512..520].copy_from_slice(&3u64.to_le_bytes());
    }

    /// A copy, for fork.
    pub fn duplicate(&self) -> Result<FpuState, OutOfMemory> {
        let mut copy = FpuState::new()?;
        copy.bytes_mut().copy_from_slice(self.bytes());
        Ok(copy)
    }

    /// Becomes a copy of `other`.
    pub fn copy_from(&mut self, other: &FpuState) {
        self.bytes_mut().copy_from_slice(other.bytes());
    }

    /// The image, as XSAVE wrote it; [`state_bytes`] long.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the area has that size, and lives as long as `self`.
        unsafe { core::slice::from_raw_parts(self.area, state_bytes()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, with exclusive access.
        unsafe { core::slice::from_raw_parts_mut(self.area, state_bytes()) }
    }

    /// Takes an image that a program wrote (sigreturn, ptrace). Whatever XRSTOR would reject is
    /// cleared first, so that restoring it cannot fault. Short images leave the rest initial.
    pub fn set_from_user(&mut self, image: &[u8]) {
        self.reset();
        let len = image.len().min(state_bytes());
        let own = self.bytes_mut();
        own[..len].copy_from_slice(&image[..len]);
        let mxcsr = u32::from_le_bytes([own[24], own[25], own[26], own[27]]) & MXCSR_MASK;
        own[24..28].copy_from_slice(&mxcsr.to_le_bytes());
        let mut header = [0u8; 8];
        header.copy_from_slice(&own[512..520]);
        let present = if len >= 520 { u64::from_le_bytes(header) } else { 3 };
        let supported = if features().xsave { features().xcr0 } else { 3 };
        own[512..520].copy_from_slice(&(present & supported).to_le_bytes());
        // XCOMP_BV and the reserved header bytes must be zero in the standard form.
        own[520..576].fill(0);
    }

    /// Stores the CPU's registers into the image.
    pub(crate) fn save(&mut self) {
        let f = features();
        // SAFETY: the area is 64-byte aligned and large enough for all enabled components.
        unsafe {
            if f.xsaveopt {
                asm!("xsaveopt64 [{}]", in(reg) self.area, in("eax") u32::MAX, in("edx") u32::MAX,
                     options(nostack, preserves_flags));
            } else if f.xsave {
                asm!("xsave64 [{}]", in(reg) self.area, in("eax") u32::MAX, in("edx") u32::MAX,
                     options(nostack, preserves_flags));
            } else {
                asm!("fxsave64 [{}]", in(reg) self.area, options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the CPU's registers from the image.
    pub(crate) fn restore(&self) {
        // SAFETY: the image was written by XSAVE or passed through `set_from_user`, so XRSTOR
        // accepts it; the registers belong to programs only.
        unsafe {
            if features().xsave {
                asm!("xrstor64 [{}]", in(reg) self.area, in("eax") u32::MAX, in("edx") u32::MAX,
                     options(nostack, preserves_flags));
            } else {
                asm!("fxrstor64 [{}]", in(reg) self.area, options(nostack, preserves_flags));
            }
        }
    }
}

impl Drop for FpuState {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, owned by this value alone.
        unsafe { dealloc(self.area, layout()) };
    }
}
