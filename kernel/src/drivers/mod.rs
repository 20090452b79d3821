//! Drivers of the devices a microVM has, in safe code over `machine::virtio`.
//!
//! - [`chrdev`]: from nodes of file systems to what serves their numbers.
//! - [`console`]: the ports to the command line: standard streams and the control channel.
//! - [`kmsg`]: the kernel's log as a file.
//! - [`exchange`]: requests and replies; [`ninep_transport`] and [`fuse_transport`]: the host's
//!   file servers.

pub mod chrdev;
pub mod console;
pub(crate) mod exchange;
pub mod fuse_transport;
pub mod kmsg;
pub mod ninep_transport;
mod port;

pub use port::Port;
