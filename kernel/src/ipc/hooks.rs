//! What the policies are asked about System V IPC (`security::hooks`).

use abi::sysv::Perm;
use lsm::fold::{All, First};

use crate::security::hooks::define_hooks;

lsm::ipc_hooks!(define_hooks);
