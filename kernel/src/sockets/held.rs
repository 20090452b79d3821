//! A raw packet that is put together from several sends (MSG_MORE, send(2)).
//!
//! The first send says how long it lives; of IPv4 the last one says whom it is for, of IPv6 the
//! first one, as on Linux. A send that cannot be added takes all with it.
//! Neighbour: `crate::inet`, whose datagrams wait in the same way.

use alloc::vec::Vec;
use core::net::IpAddr;

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::packets::HEADER;
use crate::base::io::Source;
use crate::net::packet::Said;

/// What is held back, or sent.
pub(super) struct Message {
    pub(super) said: Said,
    pub(super) to: IpAddr,
    pub(super) bytes: Vec<u8>,
}

/// A socket's packet that is not whole yet, if there is one.
#[derive(Default)]
pub(super) struct Held(SpinLock<Option<Message>>);

impl Held {
    /// What it takes of memory (SIOCOUTQ).
    pub(super) fn memory(&self) -> usize {
        let of = |message: &Message| size_of::<Message>() + message.bytes.len();
        self.0.lock().as_ref().map_or(0, of)
    }

    /// Gives it up.
    pub(super) fn clear(&self) {
        let lost = self.0.lock().take();
        drop(lost);
    }

    /// What is to be sent with the bytes of `source`; None if they wait for more. EMSGSIZE with
    /// more than `most` bytes in all, EFAULT, ENOMEM: and nothing is left.
    pub(super) fn add(
        &self,
        source: &mut Source<'_>,
        (said, to): (Said, IpAddr),
        most: usize,
        more: bool,
    ) -> Result<Option<Message>> {
        let added = self.read(source, most);
        // One that cannot be added ends what was begun.
        let begun = { self.0.lock().take() };
        let mut message = match begun {
            None => Message { said, to, bytes: added? },
            Some(mut begun) => {
                let added = added?;
                // Others may have added meanwhile.
                if begun.bytes.len() + added.len() > most {
                    return Err(Errno::EMSGSIZE);
                }
                begun.bytes.try_reserve(added.len() + HEADER).map_err(|_| Errno::ENOMEM)?;
                begun.bytes.extend_from_slice(&added);
                begun
            }
        };
        if to.is_ipv4() {
            message.to = to;
        }
        if !more {
            return Ok(Some(message));
        }
        let lost = self.0.lock().replace(message);
        drop(lost);
        Ok(None)
    }

    fn read(&self, source: &mut Source<'_>, most: usize) -> Result<Vec<u8>> {
        let len = source.left();
        let begun = self.0.lock().as_ref().map_or(0, |message| message.bytes.len());
        if begun + len > most {
            return Err(Errno::EMSGSIZE);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len + HEADER).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(len, 0);
        if source.take(&mut bytes)? < len { Err(Errno::EFAULT) } else { Ok(bytes) }
    }
}
