//! Protection keys (SDM 3A, 4.6.2): every page of a program has one of 16 keys
//! ([`crate::memory::Prot::key`]), and a register that the program itself writes says which keys
//! its reads and writes may not use. The kernel's own accesses to a program's pages are judged by
//! the same register; fetches by none.

use core::arch::asm;

use super::features;

/// How many keys there are.
pub const KEYS: u8 = 16;

/// Whether this machine has them.
#[inline(always)]
pub fn exist() -> bool {
    features().pku
}

/// The register PKRU: of each key, from the lowest on, whether every access is denied, and whether
/// every write is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pkru(u32);

impl Pkru {
    /// Nothing is denied; the CPU's initial state.
    pub const ALL: Pkru = Pkru(0);
    /// What a program and a signal's handler begin with: only what has key 0, as everything that
    /// nobody asked another key for, may be accessed.
    pub const INITIAL: Pkru = Pkru(0x5555_5554);

    /// The running program's; [`Pkru::ALL`] where there are no keys.
    #[inline]
    pub fn read() -> Pkru {
        if !exist() {
            return Pkru::ALL;
        }
        let value: u32;
        // SAFETY: CR4.PKE is set where keys exist; the instruction only reads a register.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _,
                 options(nomem, nostack, preserves_flags));
        }
        Pkru(value)
    }

    /// Makes it the running program's. Nothing where there are no keys.
    pub fn load(self) {
        if exist() {
            // SAFETY: CR4.PKE is set where keys exist; the register only decides what becomes of
            // accesses to the program's pages, each of which may fault anyhow. Without `nomem` no
            // access is moved across it.
            unsafe {
                asm!("wrpkru", in("eax") self.0, in("ecx") 0, in("edx") 0,
                     options(nostack, preserves_flags));
            }
        }
    }

    /// Whether it allows a read, or a write, of pages with `key`.
    #[must_use]
    #[inline]
    pub const fn allows(self, key: u8, write: bool) -> bool {
        let denied = self.0 >> (2 * (key & 0xf));
        denied & 1 == 0 && !(write && denied & 2 != 0)
    }

    /// With these two bits for `key`: 1 denies accesses, 2 writes.
    #[must_use]
    pub const fn with(self, key: u8, denied: u32) -> Pkru {
        let shift = 2 * (key & 0xf);
        Pkru(self.0 & !(3 << shift) | (denied & 3) << shift)
    }

    /// As it stands in the register.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}
