//! What the policies are asked about who acts (`security::hooks`).

use core::cell::RefCell;

use lsm::capabilities::Change;
use lsm::fold::{All, First};

use super::hooks::define_hooks;
use super::{Capability, Credentials, Subject};

/// The policies that implement hooks of this part.
mod policies {
    pub(super) use super::super::capability;
}

lsm::security_hooks!(define_hooks);
