//! Attributes of objects that live in memory: owner, mode, links and times.

use super::SetAttributes;

/// The wall clock, for the times of objects: nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    crate::base::time::realtime_ns() as i64
}

/// See the module; the names are stat(2)'s. Sizes are elsewhere.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "as in `vfs::Metadata`")]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
}

impl Attributes {
    /// Of a new object, with permission bits `mode`.
    #[must_use]
    pub fn new(mode: u32, (uid, gid): (u32, u32), links: u64) -> Attributes {
        let now_ns = now_ns();
        Attributes {
            mode: mode & 0o7777,
            uid,
            gid,
            links,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            btime_ns: now_ns,
        }
    }

    /// Applies changes, of which a new size only sets a time here.
    pub fn change(&mut self, changes: &SetAttributes) {
        self.mode = changes.mode.map_or(self.mode, |mode| mode & 0o7777);
        self.uid = changes.uid.unwrap_or(self.uid);
        self.gid = changes.gid.unwrap_or(self.gid);
        self.ctime_ns = now_ns();
        self.atime_ns = changes.atime_ns.unwrap_or(self.atime_ns);
        let resized_ns = changes.size.map(|_| self.ctime_ns);
        self.mtime_ns = changes.mtime_ns.or(resized_ns).unwrap_or(self.mtime_ns);
    }
}
