//! A datagram that is put together from several sends (UDP_CORK, MSG_MORE; udp(7)).
//!
//! The first send says where it goes and how; the others add bytes, and what they say beside that
//! is not looked at. A send that cannot be added takes all with it.

use alloc::vec::Vec;
use core::net::SocketAddr;

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::udp::{PAYLOAD_MAX, Sending, read_all};
use crate::base::io::Source;

/// What waits for more.
struct Begun {
    sending: Sending,
    is_to_peer: bool,
    bytes: Vec<u8>,
}

/// A socket's datagram that is not whole yet, if there is one.
#[derive(Default)]
pub(super) struct Cork(SpinLock<Option<Begun>>);

impl Cork {
    /// Where it goes, if one is begun.
    pub(super) fn begun_to(&self) -> Option<SocketAddr> {
        self.0.lock().as_ref().map(|begun| begun.sending.to)
    }

    /// What it takes of memory (SIOCOUTQ).
    pub(super) fn held_bytes(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |begun| size_of::<Begun>() + begun.bytes.len())
    }

    /// Begins one. EFAULT, ENOMEM; EINVAL if another thread has just begun one.
    pub(super) fn begin(
        &self,
        source: &mut Source<'_>,
        sending: Sending,
        is_to_peer: bool,
    ) -> Result<usize> {
        let bytes = read_all(source)?;
        let len = bytes.len();
        let mut slot = self.0.lock();
        if slot.is_some() {
            return Err(Errno::EINVAL);
        }
        *slot = Some(Begun { sending, is_to_peer, bytes });
        Ok(len)
    }

    /// Adds to it. EMSGSIZE, EFAULT, ENOMEM: and it is gone.
    pub(super) fn add(&self, source: &mut Source<'_>) -> Result<usize> {
        let len = self.0.lock().as_ref().map_or(0, |begun| begun.bytes.len());
        let added = match len + source.left() {
            ..=PAYLOAD_MAX => read_all(source),
            _ => Err(Errno::EMSGSIZE),
        };
        let mut slot = self.0.lock();
        let result = added.and_then(|added| {
            let begun = slot.as_mut().ok_or(Errno::EINVAL)?;
            // Others may have added meanwhile.
            if begun.bytes.len() + added.len() > PAYLOAD_MAX {
                return Err(Errno::EMSGSIZE);
            }
            begun.bytes.try_reserve(added.len()).map_err(|_| Errno::ENOMEM)?;
            begun.bytes.extend_from_slice(&added);
            Ok(added.len())
        });
        let lost = if result.is_err() { slot.take() } else { None };
        drop(slot);
        drop(lost);
        result
    }

    /// Takes it out: how it is sent, whether to the socket's peer, and its bytes.
    pub(super) fn take(&self) -> Option<(Sending, bool, Vec<u8>)> {
        let begun = { self.0.lock().take() }?;
        Some((begun.sending, begun.is_to_peer, begun.bytes))
    }
}
