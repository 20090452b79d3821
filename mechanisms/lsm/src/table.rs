//! The hooks: one line each. Everything else about a hook comes from its line: its type, its
//! static call, the chain of its policies, its place in [`HOOKS`], its tests.
//!
//! A line is `name(what it is given) -> rule [the policies that implement it];`. Names and meanings
//! are Linux's. Types are the kernel's and are resolved where the kernel expands the table, in
//! three parts, since what a hook is given must be known where the hook is.

use crate::order::{POLICIES, POLICIES_MAX};

/// Hooks about files, names and mounts.
#[macro_export]
macro_rules! vfs_hooks {
    ($define:ident) => {
        $define! {
            /// A file is opened with open(2)'s flags, to be executed if [`EXEC`] is among them;
            /// policies take from `granted` what may be done with it later.
            file_open(&'a Context, &'a Location, u32, &'a Cell<u64>) -> First<0> [landlock];
            /// An open file is resized.
            file_truncate(&'a File) -> First<0> [landlock];
            /// ioctl(2) with this command.
            file_ioctl(&'a File, u32) -> First<0> [landlock];
            /// An object of this kind is made in a directory: mknod(2), open(2), bind(2).
            path_mknod(&'a Context, &'a Location, FileType) -> First<0> [landlock];
            /// mkdir(2).
            path_mkdir(&'a Context, &'a Location) -> First<0> [landlock];
            /// symlink(2).
            path_symlink(&'a Context, &'a Location) -> First<0> [landlock];
            /// unlink(2).
            path_unlink(&'a Context, &'a Location) -> First<0> [landlock];
            /// rmdir(2).
            path_rmdir(&'a Context, &'a Location) -> First<0> [landlock];
            /// An object gets another name, in the second place: link(2).
            path_link(&'a Context, &'a Location, &'a Location) -> First<0> [landlock];
            /// What moves where: rename(2).
            path_rename(&'a Context, &'a Rename<'a>) -> First<0> [landlock];
            /// truncate(2).
            path_truncate(&'a Context, &'a Location) -> First<0> [landlock];
            /// Something is mounted, bound, moved or remounted.
            sb_mount(&'a Credentials) -> First<0> [landlock];
            /// umount2(2).
            sb_umount(&'a Credentials) -> First<0> [landlock];
            /// pivot_root(2).
            sb_pivotroot(&'a Credentials) -> First<0> [landlock];
        }
    };
}

/// Hooks about processes.
#[macro_export]
macro_rules! process_hooks {
    ($define:ident) => {
        $define! {
            /// The first looks into the second: ptrace(2), procfs.
            ptrace_access_check(&'a Credentials, &'a Credentials) -> First<0> [landlock];
            /// The first asks to be traced by the second: PTRACE_TRACEME.
            ptrace_traceme(&'a Credentials, &'a Credentials) -> First<0> [landlock];
        }
    };
}

/// Hooks about sockets.
#[macro_export]
macro_rules! net_hooks {
    ($define:ident) => {
        $define! {
            /// bind(2).
            socket_bind(&'a Credentials, &'a Common, &'a RawAddress) -> First<0> [landlock];
            /// connect(2).
            socket_connect(&'a Credentials, &'a Common, &'a RawAddress) -> First<0> [landlock];
        }
    };
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Linux's name.
    pub name: &'static str,
    /// Its rule.
    pub rule: &'static str,
    /// The policies that implement it.
    pub policies: &'static [&'static str],
}

macro_rules! list {
    ($( $(#[$doc:meta])* $hook:ident($($type:ty),*) -> $rule:ty [$($policy:ident)*]; )*) => {
        &[$(Info {
            name: stringify!($hook),
            rule: stringify!($rule),
            policies: &[$(stringify!($policy)),*],
        }),*]
    };
}

/// All hooks, in the table's three parts.
pub const HOOKS: [&[Info]; 3] =
    [crate::vfs_hooks!(list), crate::process_hooks!(list), crate::net_hooks!(list)];

/// The policy with this name.
///
/// # Panics
/// At build time, if there is none.
#[must_use]
pub const fn policy(name: &str) -> usize {
    let mut index = 0;
    while index < POLICIES_MAX {
        if is_equal(POLICIES[index].name.as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the table names a policy that does not exist");
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    one.len() == other.len()
}
