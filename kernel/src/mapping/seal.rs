//! mseal(2): areas that keep their place and their rights for good. What the seal refuses is asked
//! where the change would be made: `MmInner::check_unmap` for all that unmaps, `Vma::is_sealed` in
//! [`super::protect`] and [`super::remap`], `Vma::keeps_contents` in [`super::advice`].

use abi::{Errno, Result};

use crate::mm::{PAGE, VmaFlags};
use crate::process::current;

/// mseal(2). Nothing is sealed where not all is mapped: ENOMEM.
pub fn mseal(start: u64, length: u64, flags: u64) -> Result<u64> {
    if flags != 0 || !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    current().process.mm()?.with(|inner| {
        inner.check_mapped(start, end, |_, _| Ok(()))?;
        inner.has_seals = true;
        inner.edit_flags(start, end, |vma| Ok(vma.flags | VmaFlags::SEALED))
    })?;
    Ok(0)
}
