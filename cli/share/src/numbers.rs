//! Inode numbers for the guest, which sees one device where the host has several.
//!
//! Why it is hard: two devices use the same numbers, the guest must not take their files for hard
//! links of each other, and a table of all files would grow without a bound. So a number keeps its
//! low 48 bits, and a prefix of 16 stands for the device and whatever was above them: the pairs are
//! few, and two of them never share a prefix. Objects on the root's own device keep their numbers
//! (as QEMU's 9P server does it with `multidevs=remap`).
//!
//! The same place knows what else there is to know of a device: whether it is one that is not
//! shared ([`is_concealed`]).

use std::collections::{HashMap, HashSet};

use rustix::fs::{PROC_SUPER_MAGIC, StatFs};
use rustix::io::Errno;

use super::nodes::Object;

/// Bits of a number that are kept.
const KEPT_BITS: u32 = 48;
/// Most prefixes: 16 bits of them.
const PREFIXES_MAX: usize = 1 << (u64::BITS - KEPT_BITS);
/// Most devices that are remembered.
const DEVICES_MAX: usize = 1 << 12;

/// Which numbers stand for which.
#[derive(Debug)]
pub(super) struct Numbers {
    root: (u32, u32),
    prefixes: HashMap<((u32, u32), u64), u64>,
    taken: HashSet<u64>,
    /// No prefix below is free.
    free_from: u64,
    /// Whether a device is concealed, for those that were seen.
    devices: HashMap<(u32, u32), bool>,
}

impl Numbers {
    pub(super) fn new(root: (u32, u32)) -> Self {
        Self {
            root,
            prefixes: HashMap::from([((root, 0), 0)]),
            taken: HashSet::from([0]),
            free_from: 1,
            devices: HashMap::new(),
        }
    }

    /// The guest's number of an object.
    ///
    /// # Errors
    /// EOVERFLOW if there are more than 65,536 prefixes.
    pub(super) fn guests(&mut self, object: &Object) -> Result<u64, Errno> {
        let (prefix, kept) = (object.ino >> KEPT_BITS, object.ino & ((1 << KEPT_BITS) - 1));
        let key = (object.device, prefix);
        if let Some(prefix) = self.prefixes.get(&key) {
            return Ok(prefix << KEPT_BITS | kept);
        }
        if self.prefixes.len() >= PREFIXES_MAX {
            return Err(Errno::OVERFLOW);
        }
        let own =
            Some(prefix).filter(|own| object.device == self.root && !self.taken.contains(own));
        let free = match own {
            Some(own) => own,
            None => {
                let mut others = self.free_from..PREFIXES_MAX as u64;
                let free = others.find(|prefix| !self.taken.contains(prefix));
                self.free_from = free.ok_or(Errno::OVERFLOW)?;
                self.free_from
            }
        };
        self.taken.insert(free);
        self.prefixes.insert(key, free);
        Ok(free << KEPT_BITS | kept)
    }

    /// Whether a device is concealed, if that is known.
    pub(super) fn known(&self, device: (u32, u32)) -> Option<bool> {
        self.devices.get(&device).copied()
    }

    pub(super) fn learn(&mut self, device: (u32, u32), is_concealed: bool) {
        if self.devices.len() >= DEVICES_MAX {
            self.devices.clear();
        }
        self.devices.insert(device, is_concealed);
    }
}

/// The host's /proc is not shared: its files hold this process's own memory and environment, of
/// which the guest gets what the caller chose. The guest mounts its own there.
pub(super) fn is_concealed(file_system: &StatFs) -> bool {
    file_system.f_type == PROC_SUPER_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(device: u32, ino: u64) -> Object {
        Object { device: (device, 0), ino, born_ns: 0 }
    }

    #[test]
    fn the_root_keeps_its_numbers_and_no_two_devices_share_one() {
        let mut numbers = Numbers::new((8, 0));
        let inos = [1, 2, 1 << 47, 1 << 48, 5 << 48 | 1, 1 << 63 | 1, u64::MAX];
        let mut seen = HashSet::new();
        for device in [8, 9, 10] {
            for ino in inos {
                let number = numbers.guests(&object(device, ino)).expect("room");
                assert_eq!(numbers.guests(&object(device, ino)), Ok(number), "it stays");
                assert!(seen.insert(number), "{device} {ino:x} gives {number:x} again");
                if device == 8 {
                    assert_eq!(number, ino);
                }
            }
        }
    }

    #[test]
    fn prefixes_end_with_an_error() {
        let mut numbers = Numbers::new((8, 0));
        let all = (0..PREFIXES_MAX as u32 + 3).filter(|n| *n != 8);
        let failed = all.filter(|n| numbers.guests(&object(*n, 1)).is_err()).count();
        assert_eq!(failed, 3);
    }

    #[test]
    fn proc_is_concealed() {
        let of = |path| is_concealed(&rustix::fs::statfs(path).expect("it is there"));
        assert!(of("/proc"));
        assert!(!of("/"));
    }
}
