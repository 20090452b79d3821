//! Descriptors in flight that only hold each other: sockets whose queues hold messages with
//! descriptors of sockets whose queues … and none of which any process has.
//!
//! Why it is hard: references are counted, and a circle keeps its own counts up. So the files in
//! flight are listed here with how often they fly, and from time to time the list is searched: a
//! file with more references than it has flights is held from outside; one that flies in a queue
//! outside the list's own sockets can be received; what those sockets hold can be received in turn.
//! The rest is garbage: its queues are emptied, which closes it. While the list is locked no
//! message with descriptors comes or goes, and whatever was just taken out of a queue counts as
//! held from outside.
//!
//! Neighbours: `control` (which lists the flights), `channel` (the queues).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use machine::sync::SpinLock;

use super::SocketFile;
use crate::vfs::File;

/// Files that fly before the first search, and least number between two.
const SEARCH_MIN: usize = 64;

struct Flight {
    file: Weak<File>,
    count: usize,
}

/// By the file's address, which is its own as long as it is listed.
static FLIGHTS: SpinLock<BTreeMap<usize, Flight>> = SpinLock::new(BTreeMap::new());
/// Number of listed files at which to search.
static SEARCH_AT: AtomicUsize = AtomicUsize::new(SEARCH_MIN);

fn key(file: &Arc<File>) -> usize {
    Arc::as_ptr(file).addr()
}

/// Lists files that begin to fly; searches for garbage if there are many.
pub fn take_off(files: &[Arc<File>]) {
    let mut flights = FLIGHTS.lock();
    for file in files {
        let new = || Flight { file: Arc::downgrade(file), count: 0 };
        flights.entry(key(file)).or_insert_with(new).count += 1;
    }
}

/// Whether so many files fly that it is time for [`collect`].
#[inline]
pub fn is_due() -> bool {
    FLIGHTS.lock().len() >= SEARCH_AT.load(Ordering::Relaxed)
}

/// Files whose messages were received or dropped.
pub fn land(files: &[Arc<File>]) {
    let mut flights = FLIGHTS.lock();
    for file in files {
        let Some(flight) = flights.get_mut(&key(file)) else { continue };
        flight.count -= 1;
        if flight.count == 0 {
            flights.remove(&key(file));
        }
    }
}

/// A file that may be garbage.
struct Suspect {
    file: Arc<File>,
    /// Flights that are not in queues of suspects.
    outside: usize,
    is_live: bool,
}

/// Calls `f` with each file in the socket's queue; false if the queue cannot be looked at.
fn each_queued(file: &File, f: &mut dyn FnMut(&Arc<File>)) -> bool {
    file.ops_as::<SocketFile>().is_none_or(|socket| socket.socket().each_queued_file(f))
}

/// Closes garbage. The caller holds no lock.
pub fn collect() {
    let mut suspects: BTreeMap<usize, Suspect> = BTreeMap::new();
    {
        let flights = FLIGHTS.lock();
        for (&key, flight) in flights.iter() {
            if flight.file.strong_count() == flight.count
                && let Some(file) = flight.file.upgrade()
            {
                suspects.insert(key, Suspect { file, outside: flight.count, is_live: false });
            }
        }
        mark_live(&mut suspects);
        SEARCH_AT.store((2 * flights.len()).max(SEARCH_MIN), Ordering::Relaxed);
    }
    for suspect in suspects.values().filter(|suspect| !suspect.is_live) {
        if let Some(socket) = suspect.file.ops_as::<SocketFile>() {
            socket.socket().forget_queue();
        }
    }
    if suspects.values().any(|suspect| !suspect.is_live) {
        SEARCH_AT.store((2 * FLIGHTS.lock().len()).max(SEARCH_MIN), Ordering::Relaxed);
    }
}

/// Marks what can be received by somebody, now or later.
fn mark_live(suspects: &mut BTreeMap<usize, Suspect>) {
    let mut inside: BTreeMap<usize, usize> = BTreeMap::new();
    let mut live: Vec<usize> = Vec::new();
    for (&number, suspect) in suspects.iter() {
        let seen = each_queued(&suspect.file, &mut |queued| {
            *inside.entry(key(queued)).or_default() += 1;
        });
        if !seen {
            live.push(number);
        }
    }
    for (&number, suspect) in suspects.iter_mut() {
        suspect.outside -= inside.get(&number).copied().unwrap_or(0).min(suspect.outside);
        if suspect.outside > 0 {
            live.push(number);
        }
    }
    while let Some(number) = live.pop() {
        let Some(suspect) = suspects.get_mut(&number).filter(|suspect| !suspect.is_live) else {
            continue;
        };
        suspect.is_live = true;
        each_queued(&suspect.file, &mut |queued| live.push(key(queued)));
    }
}
