//! Memory of programs, typed. A [`UserPtr`] is an allegation: a number a program gave. Using it may
//! sleep (demand paging) and fails with EFAULT.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::marker::PhantomData;

use abi::{Errno, Result};
use machine::uaccess::{self, Fault};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A program's pointer to a `T`.
pub struct UserPtr<T> {
    address: u64,
    _points_to: PhantomData<*const T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for UserPtr<T> {}

/// What a failed access to a program's memory becomes.
pub fn efault(_: Fault) -> Errno {
    Errno::EFAULT
}

impl<T> UserPtr<T> {
    /// Takes the program's word.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        UserPtr { address, _points_to: PhantomData }
    }

    /// The number itself.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Whether it is the null pointer.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    /// None for the null pointer: optional arguments.
    #[must_use]
    pub fn non_null(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }

    /// The `index`-th element after this one.
    #[must_use]
    pub fn nth(self, index: usize) -> Self {
        UserPtr::new(self.address.wrapping_add((index * size_of::<T>()) as u64))
    }

    /// The same address as a pointer to another type.
    #[must_use]
    pub const fn cast<U>(self) -> UserPtr<U> {
        UserPtr::new(self.address)
    }
}

impl UserPtr<u8> {
    /// Copies bytes in.
    pub fn read_bytes(self, bytes: &mut [u8]) -> Result<()> {
        uaccess::read_bytes(self.address, bytes).map_err(efault)
    }

    /// Copies bytes out.
    pub fn write_bytes(self, bytes: &[u8]) -> Result<()> {
        uaccess::write_bytes(self.address, bytes).map_err(efault)
    }

    /// Writes `len` bytes of zeros.
    pub fn write_zeros(self, len: usize) -> Result<()> {
        uaccess::write_zeros(self.address, len).map_err(efault)
    }

    /// Whether `len` bytes from here on lie in user space. Says nothing about what is mapped.
    #[must_use]
    #[inline(always)]
    pub fn is_user_range(self, len: usize) -> bool {
        uaccess::is_user_range(self.address, len)
    }

    /// The byte `distance` bytes after this one.
    #[must_use]
    pub const fn byte_at(self, distance: usize) -> Self {
        UserPtr::new(self.address.wrapping_add(distance as u64))
    }
}

/// An aligned word that threads of the program change at the same time.
impl UserPtr<u32> {
    /// Reads it in one access.
    pub fn load(self) -> Result<u32> {
        uaccess::read_u32(self.address).map_err(efault)
    }

    /// Replaces it by `new` if it is `old`; what was there.
    pub fn compare_exchange(self, old: u32, new: u32) -> Result<u32> {
        uaccess::compare_exchange_u32(self.address, old, new).map_err(efault)
    }
}

impl UserPtr<u64> {
    /// Writes a word of the program's shadow stack: EFAULT unless it is one.
    pub fn write_shadow_stack(self, word: u64) -> Result<()> {
        uaccess::write_shadow_stack(self.address, word).map_err(efault)
    }
}

impl UserPtr<[u16; 4]> {
    /// Copies one word of each record out; what else is in the records there stays as it is.
    pub fn write_column<const COLUMN: usize>(self, records: &[[u16; 4]]) -> Result<()> {
        uaccess::write_column::<COLUMN>(self.address, records).map_err(efault)
    }
}

impl<T: FromBytes + IntoBytes + Immutable> UserPtr<T> {
    /// Copies the value in.
    pub fn read(self) -> Result<T> {
        let mut value = T::new_zeroed();
        uaccess::read_bytes(self.address, value.as_mut_bytes()).map_err(efault)?;
        Ok(value)
    }

    /// Copies `count` values in. `count` must have been bounded by the caller.
    pub fn read_many(self, count: usize) -> Result<Vec<T>> {
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        values.resize_with(count, T::new_zeroed);
        let bytes = values.as_mut_slice().as_mut_bytes();
        // Nothing is read from anywhere, wherever that is.
        if !bytes.is_empty() {
            uaccess::read_bytes(self.address, bytes).map_err(efault)?;
        }
        Ok(values)
    }
}

impl<T: IntoBytes + Immutable> UserPtr<T> {
    /// Copies the value out.
    pub fn write(self, value: &T) -> Result<()> {
        uaccess::write_bytes(self.address, value.as_bytes()).map_err(efault)
    }

    /// Copies the value out, unless the pointer is null.
    pub fn write_if_some(self, value: &T) -> Result<()> {
        if self.is_null() { Ok(()) } else { self.write(value) }
    }

    /// Copies values out.
    pub fn write_many(self, values: &[T]) -> Result<()> {
        uaccess::write_bytes(self.address, values.as_bytes()).map_err(efault)
    }
}

/// Copies a structure in whose size the program tells, because later versions have more fields
/// (clone3(2), openat2(2) …). Fields it does not have are zero; E2BIG if it sets fields that this
/// kernel does not know.
pub fn read_extensible<T: FromBytes + IntoBytes + Immutable>(address: u64, size: u64) -> Result<T> {
    const MOST: u64 = 4096;
    if size > MOST {
        return Err(Errno::E2BIG);
    }
    let size = size as usize;
    let mut value = T::new_zeroed();
    let known = size.min(size_of::<T>());
    uaccess::read_bytes(address, &mut value.as_mut_bytes()[..known]).map_err(efault)?;
    let rest = UserPtr::<u8>::new(address.wrapping_add(known as u64)).read_many(size - known)?;
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    Ok(value)
}

/// Longest path, with its NUL (limits.h).
pub const PATH_MAX: usize = 4096;

/// Copies a NUL-terminated string in, without the NUL. `max` counts the NUL; longer strings give
/// `too_long`.
pub fn read_c_string(address: u64, max: usize, too_long: Errno) -> Result<Vec<u8>> {
    let mut string = Vec::new();
    append_c_string(&mut string, address, max, too_long)?;
    Ok(string)
}

/// As [`read_c_string`], behind what `bytes` has already. After an error it may have a part more.
pub fn append_c_string(
    bytes: &mut Vec<u8>,
    address: u64,
    max: usize,
    too_long: Errno,
) -> Result<()> {
    let start = bytes.len();
    // Most strings are short; of a long one whole pages are taken.
    let mut most = 256;
    loop {
        let done = bytes.len();
        let at = address.wrapping_add((done - start) as u64);
        // Never touch the next page before this one is known to have no NUL.
        let to_page_end = 4096 - (at % 4096) as usize;
        let len = to_page_end.min(most).min(max - (done - start));
        if len == 0 {
            return Err(too_long);
        }
        bytes.try_reserve(len).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(done + len, 0);
        uaccess::read_bytes(at, &mut bytes[done..]).map_err(efault)?;
        // It looks at a word at a time.
        if let Ok(string) = CStr::from_bytes_until_nul(&bytes[done..]) {
            let len = string.count_bytes();
            bytes.truncate(done + len);
            return Ok(());
        }
        most = 4096;
    }
}

/// Copies a path argument in: ENAMETOOLONG from [`PATH_MAX`] on.
pub fn read_path(address: u64) -> Result<Vec<u8>> {
    read_c_string(address, PATH_MAX, Errno::ENAMETOOLONG)
}
