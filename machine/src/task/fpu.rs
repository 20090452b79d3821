//! The floating-point and vector registers of programs. The kernel itself never uses them (it is
//! compiled soft-float), so they are saved only when the CPU changes programs: eagerly, at every
//! switch, since lazy switching leaks register contents through speculation (CVE-2018-3665).

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;

use crate::cpu::pkey::{self, Pkru};
use crate::cpu::{XCR0_PKRU, features};
use crate::memory::frame::OutOfMemory;
use crate::memory::uaccess::{self, Fault};

/// The register image of one thread: an XSAVE area in the standard form (SDM 1, 13.4), or FXSAVE
/// where XSAVE does not exist.
pub struct FpuState {
    area: *mut u8,
}

// SAFETY: the area is plain memory that this value owns.
unsafe impl Send for FpuState {}
// SAFETY: a shared `FpuState` is only read from.
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
        state.begin();
        Ok(state)
    }

    /// What the CPU's registers hold: the running program's, for the child that it forks.
    pub fn of_running() -> Result<FpuState, OutOfMemory> {
        let mut state = FpuState::new()?;
        state.copy_running();
        Ok(state)
    }

    /// Becomes a copy of the running program's registers.
    pub fn copy_running(&mut self) {
        // Not XSAVEOPT: it may leave out what was saved before, elsewhere.
        self.save_all();
    }

    /// Back to the initial configuration.
    pub fn reset(&mut self) {
        self.bytes_mut().fill(0);
        self.begin();
    }

    /// Makes zeros the initial configuration.
    fn begin(&mut self) {
        let image = self.bytes_mut();
        image[..2].copy_from_slice(&FCW_DEFAULT.to_le_bytes());
        image[24..28].copy_from_slice(&MXCSR_DEFAULT.to_le_bytes());
        // XSTATE_BV: x87 and SSE are given by the bytes above, the others are in their initial
        // state.
        image[512..520].copy_from_slice(&3u64.to_le_bytes());
        self.set_keys(Pkru::INITIAL);
    }

    /// Sets the rights of protection keys, where there are any.
    pub fn set_keys(&mut self, keys: Pkru) {
        if pkey::exist() {
            let at = features().pkru_offset as usize;
            let image = self.bytes_mut();
            image[at..at + 4].copy_from_slice(&keys.bits().to_le_bytes());
            image[512 + 1] |= (XCR0_PKRU >> 8) as u8;
        }
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
        // Without a header the keys' rights stay those of the initial configuration.
        let present = if len >= 520 { u64::from_le_bytes(header) } else { 3 | XCR0_PKRU };
        let supported = if features().xsave { features().xcr0 } else { 3 };
        own[512..520].copy_from_slice(&(present & supported).to_le_bytes());
        // XCOMP_BV and the reserved header bytes must be zero in the standard form.
        own[520..576].fill(0);
    }

    /// Stores the CPU's registers into the image; what is there already need not be written.
    pub(crate) fn save(&mut self) {
        if !features().xsaveopt {
            return self.save_all();
        }
        // SAFETY: the area is 64-byte aligned and large enough for all enabled components.
        unsafe {
            asm!("xsaveopt64 [{}]", in(reg) self.area, in("eax") u32::MAX, in("edx") u32::MAX,
                 options(nostack, preserves_flags));
        }
    }

    fn save_all(&mut self) {
        if features().xsave {
            // SAFETY: as in `save`: the area is aligned and large enough.
            unsafe {
                asm!("xsave64 [{}]", in(reg) self.area, in("eax") u32::MAX, in("edx") u32::MAX,
                     options(nostack, preserves_flags));
            }
        } else {
            // SAFETY: as in `save`; FXSAVE writes the first 512 bytes only.
            unsafe {
                asm!("fxsave64 [{}]", in(reg) self.area, options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the CPU's registers from the image.
    pub(crate) fn restore(&self) {
        load(self.area);
    }
}

impl Drop for FpuState {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, owned by this value alone.
        unsafe { dealloc(self.area, layout()) };
    }
}

/// An XSAVE image of which all components are in their initial state.
#[repr(C, align(64))]
struct InitialImage([u8; 576]);

static INITIAL: InitialImage = {
    let mut image = [0; 576];
    let (control, mxcsr) = (FCW_DEFAULT.to_le_bytes(), MXCSR_DEFAULT.to_le_bytes());
    (image[0], image[1]) = (control[0], control[1]);
    (image[24], image[25]) = (mxcsr[0], mxcsr[1]);
    InitialImage(image)
};

/// Gives the running program the registers that a program starts with.
pub fn reset_running() {
    load(INITIAL.0.as_ptr());
    Pkru::INITIAL.load();
}

/// Loads the registers of the running program from an image that the CPU accepts: one that XSAVE
/// wrote, that passed through `set_from_user`, or [`INITIAL`].
fn load(image: *const u8) {
    if features().xsave {
        // SAFETY: the callers' images are aligned, as long as XRSTOR reads (of components in their
        // initial state it reads nothing) and pass its checks; the registers are no one else's.
        unsafe {
            asm!("xrstor64 [{}]", in(reg) image, in("eax") u32::MAX, in("edx") u32::MAX,
                 options(nostack, preserves_flags, readonly));
        }
    } else {
        // SAFETY: as above; FXRSTOR reads the first 512 bytes only.
        unsafe {
            asm!("fxrstor64 [{}]", in(reg) image, options(nostack, preserves_flags, readonly));
        }
    }
}

/// What tells of the running program's floating-point exceptions.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// x87 control word (SDM 1, 8.1.5).
    pub x87_control: u16,
    /// x87 status word (SDM 1, 8.1.3).
    pub x87_status: u16,
    /// Control and status of SSE (SDM 1, 10.2.3).
    pub mxcsr: u32,
}

/// See [`Status`].
pub fn status() -> Status {
    let (mut x87_control, mut x87_status, mut mxcsr) = (0u16, 0u16, 0u32);
    // SAFETY: the three store into these variables and raise no pending exception (SDM 2A,
    // FNSTCW, FNSTSW).
    unsafe {
        asm!("fnstcw [{control}]", "fnstsw [{status}]", "stmxcsr [{mxcsr}]",
             control = in(reg) &raw mut x87_control, status = in(reg) &raw mut x87_status,
             mxcsr = in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
    }
    Status { x87_control, x87_status, mxcsr }
}

/// Runs one instruction that stores registers to, or loads them from, the program's memory at `at`.
macro_rules! access {
    ($instruction:literal, $at:expr) => {
        uaccess::guarded!(
            $instruction,
            at = in(reg) $at,
            in("eax") u32::MAX,
            in("edx") u32::MAX,
        )
    };
}

/// Stores the running program's registers in its memory, as an XSAVE image of [`state_bytes`]
/// bytes, but `keys` in the place of PKRU. May sleep. `to` is a multiple of 64.
pub fn store_to_user(to: u64, keys: Pkru) -> Result<(), Fault> {
    check_image(to)?;
    let has_xsave = features().xsave;
    // XSAVE sets the components' bits and leaves the rest of the header; FXSAVE leaves all of it.
    let mut header = [0u8; 64];
    header[0] = if has_xsave { 0 } else { 3 };
    uaccess::write_bytes(to + FXSAVE_BYTES as u64, &header)?;
    if !has_xsave {
        return access!("fxsave64 [{at}]", to);
    }
    access!("xsave64 [{at}]", to)?;
    if pkey::exist() {
        let present_at = to + FXSAVE_BYTES as u64;
        let present = uaccess::read_u64(present_at)? | XCR0_PKRU;
        uaccess::write_u64(present_at, present)?;
        let at = to + u64::from(features().pkru_offset);
        uaccess::write_bytes(at, &keys.bits().to_le_bytes())?;
    }
    Ok(())
}

/// Loads the running program's registers from an image in its memory; [`Fault`] also if it is none
/// that the CPU takes, and then some registers may have been loaded. May sleep. `from` is a
/// multiple of 64.
pub fn load_from_user(from: u64) -> Result<(), Fault> {
    check_image(from)?;
    if features().xsave {
        access!("xrstor64 [{at}]", from)
    } else {
        access!("fxrstor64 [{at}]", from)
    }
}

fn check_image(at: u64) -> Result<(), Fault> {
    let fits = at.is_multiple_of(64) && uaccess::is_user_range(at, state_bytes());
    if fits { Ok(()) } else { Err(Fault) }
}
