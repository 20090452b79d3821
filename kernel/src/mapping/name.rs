//! Names that a program gives its memory (prctl(2), PR_SET_VMA_ANON_NAME), for readers of
//! /proc/PID/maps: areas of different names are not joined.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};

use crate::base::user::{UserPtr, read_c_string};
use crate::mm::{Label, MmInner, PAGE, Vma};
use crate::process::current;

/// Most bytes of a name, without the NUL.
const NAME_MAX: usize = 79;

/// Names what lies in `[start, start + length)`, or takes the name away if there is none.
pub fn set_name(start: u64, length: u64, name: u64) -> Result<u64> {
    let name = UserPtr::<u8>::new(name).non_null().map(read_name).transpose()?;
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    current().process.mm()?.with(|inner| inner.name_areas(start, end, name.as_ref()))?;
    Ok(0)
}

fn read_name(at: UserPtr<u8>) -> Result<Arc<[u8]>> {
    let name = read_c_string(at.address(), NAME_MAX + 1, Errno::EINVAL)?;
    let is_fit = |byte: &u8| matches!(byte, b' '..=b'~') && !br"\`$[]".contains(byte);
    if name.iter().all(is_fit) { Ok(name.into()) } else { Err(Errno::EINVAL) }
}

impl MmInner {
    /// EBADF where a file is mapped, which has a name of its own; ENOMEM where there are holes,
    /// behind which all is named too.
    fn name_areas(&mut self, start: u64, end: u64, name: Option<&Arc<[u8]>>) -> Result<()> {
        let has_name = |vma: &Vma| match (&vma.label, name) {
            (Some(Label::Name(old)), Some(new)) => old == new,
            (None, None) => true,
            _ => false,
        };
        let mut changes = Vec::new();
        let result = self.each_part(start, end, |from, to, vma| {
            if !vma.is_without_file() {
                return Err(Errno::EBADF);
            }
            if !has_name(vma) {
                changes.try_reserve(1).map_err(|_| Errno::EAGAIN)?;
                changes.push((from, to));
            }
            Ok(())
        });
        for (from, to) in changes {
            self.split(from);
            self.split(to);
            self.vmas.edit(from, |vma| vma.label = name.cloned().map(Label::Name));
            self.vmas.join(from);
        }
        result
    }
}
