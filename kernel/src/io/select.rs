//! Waiting for many files by a list (poll(2)) or by bit sets (select(2)).
//!
//! Both first ask every file and return if one is ready, without registering anywhere; only then do
//! they register with every queue once, and look again after each wake-up. A file is looked up
//! anew in each round: closing it meanwhile shows.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use arrayvec::ArrayVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{read_timeout, signals};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, Waiter, Wake};
use crate::base::time::{Deadline, NS_PER_SEC, TimeSpec};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::restart;
use crate::security::Resource;
use crate::vfs::{Fd, FdTable, File};

/// `struct pollfd` (poll(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

/// Entries of a list that needs no allocation.
const SMALL: usize = 32;

/// Files that are looked up together.
type Batch = ArrayVec<Option<Arc<File>>, 16>;

/// What poll reports without being asked.
const ALWAYS: u32 = events::ERR | events::HUP;

/// Calls `look` until it finds something, a signal comes, or the deadline passes (0 then). The
/// first look only asks; the second one registers.
fn wait_many(
    deadline: Option<Deadline>,
    mut look: impl FnMut(&mut PollTable) -> Result<u64>,
) -> Result<u64> {
    let found = look(&mut PollTable::ask())?;
    if found > 0 || deadline.is_some_and(Deadline::has_passed) {
        return Ok(found);
    }
    let waiter = Waiter::new();
    let waker: Arc<dyn Wake> = waiter.clone();
    let mut registered = PollTable::register(waker, false);
    let mut is_first = true;
    loop {
        waiter.clear();
        let found = if core::mem::take(&mut is_first) {
            let found = look(&mut registered)?;
            registered.check()?;
            found
        } else {
            look(&mut PollTable::ask())?
        };
        if found > 0 {
            return Ok(found);
        }
        if current().has_pending_signal() {
            return Err(WaitError::Interrupted.into());
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Ok(0);
        }
        waiter.sleep(Sleep::Interruptible, deadline);
    }
}

/// What can be done with a file of what is `wanted`; NVAL if it only names a place.
fn ask(file: &File, wanted: u32, table: &mut PollTable) -> u32 {
    if file.flags() & abi::general::O_PATH != 0 {
        return events::NVAL;
    }
    file.ops().poll(file, table) & (wanted | ALWAYS)
}

fn poll_list(list: &mut [PollFd], deadline: Option<Deadline>) -> Result<u64> {
    let files = current().files();
    wait_many(deadline, |table| {
        let mut found = 0;
        let mut batch = Batch::new();
        for part in list.chunks_mut(batch.capacity()) {
            // As numbers without sign, negative ones are beyond every table.
            files.get_each(part.iter().map(|entry| entry.fd as Fd), &mut batch);
            for (entry, file) in part.iter_mut().zip(&batch) {
                let wanted = u32::from(entry.events as u16);
                entry.revents = match file {
                    Some(file) => ask(file, wanted, table) as i16,
                    // A negative one is no descriptor, and not asked.
                    None if entry.fd < 0 => 0,
                    None => events::NVAL as i16,
                };
                found += u64::from(entry.revents != 0);
            }
            batch.clear();
        }
        Ok(found)
    })
}

/// The common part of poll and ppoll. Results are written back even after a signal.
fn poll(address: u64, count: u64, deadline: Option<Deadline>) -> Result<u64> {
    if count > current().process.limit(Resource::OpenFiles) {
        return Err(Errno::EINVAL);
    }
    let address = UserPtr::<PollFd>::new(address);
    let mut small = [PollFd { fd: -1, events: 0, revents: 0 }; SMALL];
    let mut large;
    let list = if count as usize <= small.len() {
        let list = &mut small[..count as usize];
        UserPtr::<u8>::new(address.address()).read_bytes(list.as_mut_bytes())?;
        list
    } else {
        large = address.read_many(count as usize)?;
        &mut large[..]
    };
    let result = poll_list(list, deadline);
    // Only the answers are written: the program may share the rest with another thread.
    let records = <[[u16; 4]]>::ref_from_bytes(list.as_bytes()).map_err(|_| Errno::EFAULT)?;
    const ANSWER: usize = core::mem::offset_of!(PollFd, revents) / size_of::<u16>();
    address.cast().write_column::<ANSWER>(records)?;
    result
}

/// poll(2): the timeout is in milliseconds, negative for ever.
pub fn sys_poll(fds: u64, count: u64, timeout_ms: i32) -> Result<u64> {
    let deadline = u64::try_from(timeout_ms).ok().map(|ms| Deadline::after_ns(ms * 1_000_000));
    poll_restartably(fds, count, deadline)
}

/// A poll(2) that goes on after a signal without handler.
fn poll_restartably(fds: u64, count: u64, deadline: Option<Deadline>) -> Result<u64> {
    poll(fds, count, deadline).map_err(|error| match deadline {
        Some(Deadline(deadline_ns)) if error == Errno::ERESTARTSYS => {
            restart::later(move || poll_restartably(fds, count, Some(Deadline(deadline_ns))))
        }
        _ => not_restarted(error),
    })
}

/// ppoll(2): the remaining time is written back.
pub fn sys_ppoll(fds: u64, count: u64, timeout: u64, mask: u64, set_size: u64) -> Result<u64> {
    let deadline = read_timeout(timeout)?.map(Deadline::after_ns);
    signals::replace_mask(mask, set_size)?;
    let result = poll(fds, count, deadline).map_err(not_restarted);
    write_rest(timeout, deadline, |address, rest_ns| {
        UserPtr::<TimeSpec>::new(address).write(&TimeSpec::from_ns(rest_ns))
    });
    result
}

/// Waiting calls go on after a signal without a handler, and never after a handler.
fn not_restarted(error: Errno) -> Errno {
    if error == Errno::ERESTARTSYS { Errno::ERESTARTNOHAND } else { error }
}

/// Tells the program the rest of its timeout. As on Linux, a failure to write is not an error.
fn write_rest(
    address: u64,
    deadline: Option<Deadline>,
    write: impl FnOnce(u64, u64) -> Result<()>,
) {
    if let Some(deadline) = deadline {
        let rest_ns = deadline.0.saturating_sub(crate::base::time::now_ns());
        let _ = write(address, rest_ns);
    }
}

// ------------------------------------------------------------------------------------------------
// select

/// Conditions of each of select's three sets.
const READ_SET: u32 =
    events::RDNORM | events::RDBAND | events::IN | events::HUP | events::ERR | events::NVAL;
const WRITE_SET: u32 = events::WRBAND | events::WRNORM | events::OUT | events::ERR | events::NVAL;
const EXCEPT_SET: u32 = events::PRI | events::NVAL;
const SETS: [u32; 3] = [READ_SET, WRITE_SET, EXCEPT_SET];

/// Bits of one word of a set.
const WORD_BITS: usize = 64;

/// Words of a set of FD_SETSIZE (select(2)) descriptors, which needs no allocation.
const FEW: usize = 1024 / WORD_BITS;

/// The words of a set.
enum Words {
    /// An array, and how many of it there are.
    Few([u64; FEW], usize),
    Many(Vec<u64>),
}

impl Words {
    /// So many zeros. ENOMEM.
    fn zeros(count: usize) -> Result<Words> {
        if count <= FEW {
            return Ok(Words::Few([0; FEW], count));
        }
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        words.resize(count, 0);
        Ok(Words::Many(words))
    }

    #[inline]
    fn as_slice(&self) -> &[u64] {
        match self {
            Words::Few(words, count) => &words[..*count],
            Words::Many(words) => words,
        }
    }

    #[inline]
    fn as_mut_slice(&mut self) -> &mut [u64] {
        match self {
            Words::Few(words, count) => &mut words[..*count],
            Words::Many(words) => words,
        }
    }
}

/// One of the three sets: what was asked, and the answer.
struct BitSet {
    address: UserPtr<u64>,
    asked: Words,
    found: Words,
}

impl BitSet {
    /// None without an address: nothing is asked.
    fn read(address: u64, bits: usize) -> Result<Option<BitSet>> {
        let Some(address) = UserPtr::<u64>::new(address).non_null() else { return Ok(None) };
        let count = bits.div_ceil(WORD_BITS);
        let (mut asked, found) = (Words::zeros(count)?, Words::zeros(count)?);
        // Of no descriptors nothing is read, wherever it is said to be.
        if count > 0 {
            address.cast::<u8>().read_bytes(asked.as_mut_slice().as_mut_bytes())?;
        }
        // Bits behind the last descriptor are nobody's.
        if !bits.is_multiple_of(WORD_BITS)
            && let Some(last) = asked.as_mut_slice().last_mut()
        {
            *last &= (1 << (bits % WORD_BITS)) - 1;
        }
        Ok(Some(BitSet { address, asked, found }))
    }

    fn write(&self) -> Result<()> {
        let found = self.found.as_slice();
        if found.is_empty() { Ok(()) } else { self.address.write_many(found) }
    }
}

/// The common part of select and pselect6.
fn select(count: i32, sets: [u64; 3], deadline: Option<Deadline>) -> Result<u64> {
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    let files = thread.files();
    // More bits than there can be descriptors are not looked at.
    let most = thread.process.fd_limit().min(crate::vfs::file::max_fds());
    let count = (count as usize).min(most.next_multiple_of(WORD_BITS));
    let [read, write, except] = sets;
    let mut sets =
        [BitSet::read(read, count)?, BitSet::read(write, count)?, BitSet::read(except, count)?];
    let found = wait_many(deadline, |table| {
        for set in sets.iter_mut().flatten() {
            set.found.as_mut_slice().fill(0);
        }
        let mut found = 0;
        for word in 0..count.div_ceil(WORD_BITS) {
            found += select_word(&files, word, &mut sets, table)?;
        }
        Ok(found)
    })
    .map_err(not_restarted)?;
    for set in sets.iter().flatten() {
        set.write()?;
    }
    Ok(found)
}

/// The places of the ones of a word, lowest first.
#[derive(Clone)]
struct Bits(u64);

impl Iterator for Bits {
    type Item = Fd;

    #[inline]
    fn next(&mut self) -> Option<Fd> {
        let bit = self.0.trailing_zeros();
        let left = self.0.checked_sub(1)?;
        self.0 &= left;
        Some(bit)
    }
}

/// Asks the descriptors of one word of the sets, each for all three. EBADF if one is closed.
fn select_word(
    files: &FdTable,
    word: usize,
    sets: &mut [Option<BitSet>; 3],
    table: &mut PollTable,
) -> Result<u64> {
    let asked = sets.each_ref().map(|set| set.as_ref().map_or(0, |set| set.asked.as_slice()[word]));
    let mut answers = [0; 3];
    // What no set of this word asks for is no answer: most files have none.
    let of_interest = asked.iter().zip(SETS).filter(|&(&asked, _)| asked != 0);
    let interest = of_interest.fold(0, |all, (_, conditions)| all | conditions);
    let mut left = Bits(asked[0] | asked[1] | asked[2]);
    let mut batch = Batch::new();
    let first = word as Fd * WORD_BITS as Fd;
    loop {
        let of_batch = left.clone();
        files.get_each(of_batch.map(|bit| first + bit), &mut batch);
        if batch.is_empty() {
            break;
        }
        for (file, bit) in batch.iter().zip(&mut left) {
            let ready = ask(file.as_ref().ok_or(Errno::EBADF)?, u32::MAX, table);
            if ready & interest == 0 {
                continue;
            }
            for (answer, conditions) in answers.iter_mut().zip(SETS) {
                *answer |= u64::from(ready & conditions != 0) << bit;
            }
        }
        batch.clear();
    }
    // Not all three sets need ask for each of them.
    answers.iter_mut().zip(asked).for_each(|(answer, asked)| *answer &= asked);
    for (set, answer) in sets.iter_mut().zip(answers).filter(|(_, answer)| *answer != 0) {
        if let Some(set) = set {
            set.found.as_mut_slice()[word] = answer;
        }
    }
    Ok(answers.iter().map(|answer| u64::from(answer.count_ones())).sum())
}

/// select(2): the timeout is a `struct timeval`, and the rest is written back.
pub fn sys_select(count: i32, read: u64, write: u64, except: u64, timeout_at: u64) -> Result<u64> {
    let timeout = match UserPtr::<[i64; 2]>::new(timeout_at).non_null() {
        None => None,
        Some(timeval) => {
            let [sec, usec] = timeval.read()?;
            if sec < 0 || usec < 0 {
                return Err(Errno::EINVAL);
            }
            let whole = (sec as u64).saturating_mul(NS_PER_SEC);
            Some(whole.saturating_add((usec as u64).saturating_mul(1000)))
        }
    };
    let deadline = timeout.map(Deadline::after_ns);
    let result = select(count, [read, write, except], deadline);
    write_rest(timeout_at, deadline, |address, rest_ns| {
        let us = rest_ns.div_ceil(1000);
        let rest = [(us / 1_000_000) as i64, (us % 1_000_000) as i64];
        UserPtr::<[i64; 2]>::new(address).write(&rest)
    });
    result
}

/// pselect6(2): a `struct timespec`, and a pair (address of a signal set, its size) as sixth.
pub fn sys_pselect6(
    count: i32,
    read: u64,
    write: u64,
    except: u64,
    timeout_at: u64,
    mask_at: u64,
) -> Result<u64> {
    let mask = match UserPtr::<[u64; 2]>::new(mask_at).non_null() {
        Some(pair) => pair.read()?,
        None => [0, 0],
    };
    let deadline = read_timeout(timeout_at)?.map(Deadline::after_ns);
    signals::replace_mask(mask[0], mask[1])?;
    let result = select(count, [read, write, except], deadline);
    write_rest(timeout_at, deadline, |address, rest_ns| {
        UserPtr::<TimeSpec>::new(address).write(&TimeSpec::from_ns(rest_ns))
    });
    result
}

const _: () = assert!(raw::POLLIN == events::IN && raw::POLLNVAL == events::NVAL);
