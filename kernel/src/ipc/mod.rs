//! Communication between processes by names and numbers: System V's (sysvipc(7)), whose objects are
//! no files, and POSIX message queues (mq_overview(7)), which have both names and descriptors.

pub mod hooks;
pub mod mqueue;
pub mod sysv;
