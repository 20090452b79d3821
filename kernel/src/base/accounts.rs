//! The kernel's own accounts: how many objects of each kind live.
//!
//! Why it is hard: what leaks is what somebody still refers to, so no search finds it; only a count
//! that was equal before and is not after does. So each kind that others refer to has a [`Counted`]
//! among its fields, of no size, which counts it in and out. `/proc/limen/accounts` shows the
//! counts beside those of frames, tables and heap; the tests of programs compare them before and
//! after.

use core::sync::atomic::{AtomicUsize, Ordering};

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// A thread, as the scheduler knows it.
    Thread,
    /// A process, zombies too.
    Process,
    /// An address space.
    Space,
    /// An open file: what descriptors refer to.
    File,
    /// What file systems keep of an object while somebody uses or caches it.
    Inode,
    /// A name's object, in use or cached.
    Name,
    /// A socket's file.
    Socket,
    /// What a subject acts with.
    Credentials,
    /// A table of descriptors.
    Descriptors,
}

/// Each kind's name in the table.
pub const NAMES: [&str; KINDS] = [
    "threads",
    "processes",
    "spaces",
    "files",
    "inodes",
    "names",
    "sockets",
    "credentials",
    "descriptor_tables",
];
const KINDS: usize = 9;

static LIVE: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

/// A field of each object of kind `KIND`, a [`ObjectKind`] as a number.
#[derive(Debug)]
pub struct Counted<const KIND: usize>(());

impl<const KIND: usize> Counted<KIND> {
    /// Counts one more.
    #[inline]
    pub fn new() -> Self {
        LIVE[KIND].fetch_add(1, Ordering::Relaxed);
        Counted(())
    }
}

impl<const KIND: usize> Clone for Counted<KIND> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<const KIND: usize> Default for Counted<KIND> {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl<const KIND: usize> Drop for Counted<KIND> {
    #[inline]
    fn drop(&mut self) {
        LIVE[KIND].fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many objects of each kind live, in the order of [`NAMES`].
pub fn live() -> impl Iterator<Item = (&'static str, usize)> {
    NAMES.iter().copied().zip(LIVE.iter().map(|count| count.load(Ordering::Relaxed)))
}
