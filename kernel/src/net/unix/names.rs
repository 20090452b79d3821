//! How unix sockets are found: by an abstract name, or by the object that a path leads to.
//!
//! A path is only a way to an inode of type socket, which knows the socket that is bound to it
//! (`InodeState::endpoint`). Abstract names are in a table.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::{SocketKind, UnixSocket};
use crate::process::Thread;
use crate::vfs::namei::{self as tree, Make};
use crate::vfs::path::{self, Context, Location, walk};
use crate::vfs::{FileType, permission};

/// An abstract name: sockets of different types have names of their own.
type Name = (SocketKind, Arc<[u8]>);

/// Abstract names.
static NAMES: SpinLock<BTreeMap<Name, Weak<UnixSocket>>> = SpinLock::new(BTreeMap::new());

/// A name in use, until dropped.
pub(super) enum Binding {
    /// An abstract name.
    Abstract(Name),
    /// A name in a file system, whose object the socket keeps.
    Object(#[expect(dead_code, reason = "held, so that the object stays")] Location),
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Binding::Abstract(name) = self {
            NAMES.lock().remove(name);
        }
    }
}

/// Binds the socket to a name: EADDRINUSE if there is such a name.
pub(super) fn bind(who: &Thread, socket: &Arc<UnixSocket>, name: &Arc<[u8]>) -> Result<Binding> {
    if name.first() == Some(&0) {
        return bind_abstract(socket, name.clone());
    }
    let what = Make::plain(FileType::Socket, socket.common.mode());
    let node = tree::make(&Context::of(who), raw::AT_FDCWD, name, &what).map_err(in_use)?;
    // The node is new: nobody else can be bound to it.
    node.inode().state().endpoint_or(socket.clone());
    Ok(Binding::Object(node))
}

/// What bind(2) says of a name before it looks at the socket, which has one already: a path may be
/// in use or lead nowhere.
pub(super) fn check_free(who: &Thread, name: &[u8]) -> Result<()> {
    if name.first() == Some(&0) {
        return Ok(());
    }
    let context = Context::of(who);
    let walk = path::resolve_parent(&context, raw::AT_FDCWD, name, 0)?;
    if walk.last_child()?.is_some() {
        return Err(Errno::EADDRINUSE);
    }
    let rights = permission::WRITE | permission::EXECUTE;
    permission::check(&**walk.at.inode(), rights, &context.subject)
}

/// What an existing name means to bind(2).
fn in_use(error: Errno) -> Errno {
    if error == Errno::EEXIST { Errno::EADDRINUSE } else { error }
}

fn bind_abstract(socket: &Arc<UnixSocket>, name: Arc<[u8]>) -> Result<Binding> {
    let name = (socket.common.kind, name);
    let mut names = NAMES.lock();
    if names.contains_key(&name) {
        return Err(Errno::EADDRINUSE);
    }
    names.insert(name.clone(), Arc::downgrade(socket));
    Ok(Binding::Abstract(name))
}

/// Names of five hexadecimal digits (unix(7)).
const AUTOBIND_NAMES: u32 = 1 << 20;

/// Binds to an abstract name that is free.
pub(super) fn bind_any(socket: &Arc<UnixSocket>) -> Result<(Arc<[u8]>, Binding)> {
    static NEXT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(1);
    for _ in 0..AUTOBIND_NAMES {
        let number = NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed) % AUTOBIND_NAMES;
        let name: Arc<[u8]> = format!("\0{number:05x}").into_bytes().into();
        match bind_abstract(socket, name.clone()) {
            Ok(binding) => return Ok((name, binding)),
            Err(Errno::EADDRINUSE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::ENOSPC)
}

/// The socket of this kind behind a name: ECONNREFUSED if nobody is there, EPROTOTYPE if another
/// kind is, and what a path walk can say.
pub(super) fn find(who: &Thread, name: &Arc<[u8]>, kind: SocketKind) -> Result<Arc<UnixSocket>> {
    if name.first() == Some(&0) {
        let found = NAMES.lock().get(&(kind, name.clone())).cloned();
        return found.and_then(|socket| socket.upgrade()).ok_or(Errno::ECONNREFUSED);
    }
    let context = Context::of(who);
    let location = path::resolve(&context, raw::AT_FDCWD, name, walk::FOLLOW)?;
    permission::check(&**location.inode(), permission::WRITE, &context.subject)?;
    if location.file_type() != FileType::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    let found = location.inode().state().endpoint::<UnixSocket>().ok_or(Errno::ECONNREFUSED)?;
    if found.common.kind == kind { Ok(found) } else { Err(Errno::EPROTOTYPE) }
}
