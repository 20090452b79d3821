//! Looking at what waits without taking it (MSG_PEEK), from the beginning or from where the last
//! look ended (SO_PEEK_OFF, socket(7)).
//!
//! The offset belongs to the receiving socket (`Common`), which moves it: forwards by what was
//! looked at, backwards by what was taken. Here is only what can be seen from one.

use abi::{Errno, Result};

use super::{Data, Received, goes_with};
use crate::base::io::Sink;

/// Where a look at messages begins: the message, how many bytes of the ring come before it, and
/// what of it is passed over. None if nothing is left. A message without bytes is passed over once
/// it was seen.
fn first_message(data: &Data, offset: Option<usize>) -> Option<(usize, usize, usize)> {
    let (mut before, mut left) = (0, offset.unwrap_or(0));
    for (number, segment) in data.segments.iter().enumerate() {
        let is_passed = left >= segment.len && (segment.len > 0 || left > 0 || segment.was_seen);
        if offset.is_none() || !is_passed {
            return Some((number, before, left));
        }
        left -= segment.len;
        before += segment.len;
    }
    None
}

/// How much can be looked at: bytes of a stream of which `readable` are there, or messages.
pub(super) fn visible(
    data: &Data,
    is_stream: bool,
    readable: usize,
    offset: Option<usize>,
) -> usize {
    match is_stream {
        true => readable.saturating_sub(offset.unwrap_or(0)),
        false => usize::from(first_message(data, offset).is_some()),
    }
}

/// Copies a message, or up to `visible` bytes of a stream, and leaves them there.
pub(super) fn peek(
    data: &mut Data,
    visible: usize,
    offset: Option<usize>,
    sink: &mut Sink<'_>,
) -> Result<Received> {
    match data.segments.front() {
        None => {
            let len = data.ring.peek(offset.unwrap_or(0), visible, sink)?;
            Ok(Received { len, full_len: len, ..Received::default() })
        }
        Some(first) if first.is_message => peek_message(data, offset, sink),
        Some(_) => peek_pieces(data, visible, offset.unwrap_or(0), sink),
    }
}

fn peek_message(data: &mut Data, offset: Option<usize>, sink: &mut Sink<'_>) -> Result<Received> {
    let Some((number, before, skip)) = first_message(data, offset) else {
        return Ok(Received::default());
    };
    let full_len = data.segments[number].len - skip;
    let len = if full_len == 0 { 0 } else { data.ring.peek(before + skip, full_len, sink)? };
    // What does not get there whole, as far as there is room, is an error as at a receipt.
    if len < full_len && sink.left() > 0 {
        return Err(Errno::EFAULT);
    }
    let segment = &mut data.segments[number];
    segment.was_seen = true;
    let info = segment.info.clone();
    Ok(Received { len, full_len, info, is_message: true, is_urgent: false })
}

/// The pieces of a stream that one receive would give together.
fn peek_pieces(
    data: &Data,
    visible: usize,
    offset: usize,
    sink: &mut Sink<'_>,
) -> Result<Received> {
    let mut total = Received::default();
    let (mut at, end) = (0, offset + visible);
    let mut is_first = true;
    for segment in &data.segments {
        let (begin, next) = (at.max(offset), (at + segment.len).min(end));
        at += segment.len;
        if begin >= next {
            continue;
        }
        let info = segment.info.as_deref();
        if sink.left() == 0 || !is_first && !goes_with(total.info.as_deref(), info) {
            break;
        }
        let len = match data.ring.peek(begin, next - begin, sink) {
            Err(error) if is_first => return Err(error),
            len => len.unwrap_or(0),
        };
        total.len += len;
        total.full_len += len;
        if segment.info.is_some() {
            total.info = segment.info.clone();
        }
        is_first = false;
        if len < next - begin {
            break;
        }
    }
    Ok(total)
}
