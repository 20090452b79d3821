//! How unix sockets are found: by an abstract name, or by the object that a path leads to.
//!
//! A path is only a way to an inode of type socket; the table knows sockets by device and inode
//! number, and a binding holds the inode so that its number is not given out again meanwhile.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::UnixSocket;
use crate::vfs::namei::{self as tree, Make};
use crate::vfs::path::{self, Context, Location, walk};
use crate::vfs::{FileType, permission};

/// How a socket is known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Abstract(Arc<[u8]>),
    /// Device and inode number.
    Object(u64, u64),
}

static NAMES: SpinLock<BTreeMap<Key, Weak<UnixSocket>>> = SpinLock::new(BTreeMap::new());

/// A name in use, until dropped.
pub(super) struct Binding {
    key: Key,
    _node: Option<Location>,
}

impl Drop for Binding {
    fn drop(&mut self) {
        NAMES.lock().remove(&self.key);
    }
}

/// Binds the socket to a name: EADDRINUSE if there is such a name.
pub(super) fn bind(socket: &Arc<UnixSocket>, name: &Arc<[u8]>) -> Result<Binding> {
    if name.first() == Some(&0) {
        return bind_abstract(socket, name.clone());
    }
    let what = Make::plain(FileType::Socket, 0o777);
    let node = tree::make(&Context::current(), raw::AT_FDCWD, name, &what).map_err(in_use)?;
    let metadata = node.inode().metadata()?;
    let key = Key::Object(metadata.device, metadata.inode);
    NAMES.lock().insert(key.clone(), Arc::downgrade(socket));
    Ok(Binding { key, _node: Some(node) })
}

/// What an existing name means to bind(2).
fn in_use(error: Errno) -> Errno {
    if error == Errno::EEXIST { Errno::EADDRINUSE } else { error }
}

fn bind_abstract(socket: &Arc<UnixSocket>, name: Arc<[u8]>) -> Result<Binding> {
    let key = Key::Abstract(name);
    let mut names = NAMES.lock();
    if names.contains_key(&key) {
        return Err(Errno::EADDRINUSE);
    }
    names.insert(key.clone(), Arc::downgrade(socket));
    Ok(Binding { key, _node: None })
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

/// The socket behind a name: ECONNREFUSED if nobody is there, and what a path walk can say.
pub(super) fn find(name: &Arc<[u8]>) -> Result<Arc<UnixSocket>> {
    let key = if name.first() == Some(&0) {
        Key::Abstract(name.clone())
    } else {
        let context = Context::current();
        let location = path::resolve(&context, raw::AT_FDCWD, name, walk::FOLLOW)?;
        permission::check(&**location.inode(), permission::WRITE, &context.credentials)?;
        if location.file_type() != FileType::Socket {
            return Err(Errno::ECONNREFUSED);
        }
        let metadata = location.inode().metadata()?;
        Key::Object(metadata.device, metadata.inode)
    };
    let found = NAMES.lock().get(&key).cloned();
    found.and_then(|socket| socket.upgrade()).ok_or(Errno::ECONNREFUSED)
}
