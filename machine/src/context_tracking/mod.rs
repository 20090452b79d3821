//! What one CPU asks of others, and what waits until they enter the kernel: the machine's side of
//! the mechanism of the same name.
//!
//! `word` says where each CPU is, and lets an entry catch up; `ipi` interrupts and keeps the
//! accounts; `tlb` is the shootdown, which waits for answers; `local` is what one CPU drops, and
//! `pcid` the contexts that it keeps. Page tables stand above (`memory`), and call this floor when
//! they have changed.

pub mod ipi;
pub(crate) mod local;
pub mod pcid;
pub mod tlb;
pub mod word;
