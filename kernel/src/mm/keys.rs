//! Which protection keys of an address space are in use (pkeys(7)). What they deny is each thread's
//! own ([`Pkru`]).

use abi::{Errno, Result};
use machine::pkey::{self, KEYS, Pkru};

use super::Mm;

/// PKEY_DISABLE_ACCESS.
pub const DISABLE_ACCESS: u32 = 1;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// A bit for each; none where the CPU has no keys.
    allocated: u16,
    /// That of memory that may be executed and nothing else. No call can name it.
    execute_only: Option<u8>,
}

impl Default for Keys {
    /// A new program has key 0, which is that of all memory.
    fn default() -> Keys {
        Keys { allocated: u16::from(pkey::exist()), execute_only: None }
    }
}

impl Keys {
    /// Whether a call may name it.
    pub fn is_allocated(&self, key: i32) -> bool {
        u8::try_from(key).is_ok_and(|key| {
            key < KEYS && self.execute_only != Some(key) && self.allocated >> key & 1 != 0
        })
    }

    /// pkey_alloc(2). ENOSPC if there is none left; EINVAL, whatever the manual page says, where
    /// the CPU has none, as on Linux.
    pub fn allocate(&mut self) -> Result<u8> {
        if !pkey::exist() {
            return Err(Errno::EINVAL);
        }
        let key = self.allocated.trailing_ones() as u8;
        if key >= KEYS {
            return Err(Errno::ENOSPC);
        }
        self.allocated |= 1 << key;
        Ok(key)
    }

    /// pkey_free(2). What has the key keeps it.
    pub fn free(&mut self, key: i32) -> Result<()> {
        if !self.is_allocated(key) {
            return Err(Errno::EINVAL);
        }
        self.allocated &= !(1 << key);
        Ok(())
    }

    /// The key of memory that may be executed alone, which is allocated when it is first asked for;
    /// 0 if there is none. A new program's rights deny it.
    pub fn execute_only(&mut self) -> u8 {
        if self.execute_only.is_none() {
            self.execute_only = self.allocate().ok();
        }
        self.execute_only.unwrap_or(0)
    }

    /// That key, if it has been asked for; else 0.
    pub fn known_execute_only(&self) -> u8 {
        self.execute_only.unwrap_or(0)
    }

    /// As [`Keys::execute_only`]; the running thread is denied its data, too.
    pub fn deny_execute_only(&mut self) -> u8 {
        let key = self.execute_only();
        let keys = Pkru::read();
        if key != 0 && keys.allows(key, false) {
            keys.with(key, DISABLE_ACCESS).load();
        }
        key
    }
}

impl Mm {
    /// The protection key of what is mapped at `address`; 0 if nothing is.
    pub fn key_of(&self, address: u64) -> u8 {
        self.with(|inner| inner.find(address).map_or(0, |(_, vma)| vma.prot.key()))
    }
}
