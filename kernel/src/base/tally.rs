//! What is counted on the way for the command line, if asked to: system calls, those that nothing
//! serves, files that were looked for in vain. Where it is off, counting costs nothing (system
//! calls, which then have an entry of their own), or a load and a predicted branch.
//!
//! Neighbour: `boot::report` switches it on and tells what was counted.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::syscalls;
use machine::sync::SpinLock;

static COUNT_CALLS: AtomicBool = AtomicBool::new(false);
static NOTE_FILES: AtomicBool = AtomicBool::new(false);
static COUNT_MISSING: AtomicBool = AtomicBool::new(false);

/// Calls by number; the last slot is for numbers beyond Linux's.
pub type Counts = [AtomicU64; syscalls::END + 1];

/// Calls of numbers beyond Linux's that nothing serves, by number.
static MISSING_NUMBERS: SpinLock<BTreeMap<u32, u64>> = SpinLock::new(BTreeMap::new());
/// Most of them that are remembered.
const NUMBERS_MAX: usize = 64;

static CALLS: Counts = [const { AtomicU64::new(0) }; syscalls::END + 1];
/// Calls answered with ENOSYS because nothing serves them.
static MISSING: Counts = [const { AtomicU64::new(0) }; syscalls::END + 1];
static FILES: SpinLock<BTreeSet<Arc<[u8]>>> = SpinLock::new(BTreeSet::new());
/// Most missing files that are remembered.
const FILES_MAX: usize = 4096;

/// Starts counting system calls. The caller sees to it that they are instrumented.
pub fn count_calls() {
    COUNT_CALLS.store(true, Ordering::Relaxed);
}

/// Starts counting calls that nothing serves, or does not.
pub fn count_missing(wanted: bool) {
    COUNT_MISSING.store(wanted, Ordering::Relaxed);
}

/// Whether such calls are counted.
#[inline(always)]
pub fn counts_missing() -> bool {
    COUNT_MISSING.load(Ordering::Relaxed)
}

/// Starts noting missing files, or does not.
pub fn note_files(wanted: bool) {
    NOTE_FILES.store(wanted, Ordering::Relaxed);
}

/// Threads that are remembered with their names: the latest of each.
const NAMES_MAX: usize = 8192;
static NOTE_NAMES: AtomicBool = AtomicBool::new(false);
/// Process and name by thread.
static NAMES: SpinLock<BTreeMap<u32, (u32, [u8; 16])>> = SpinLock::new(BTreeMap::new());

/// Starts remembering what threads are called, for a trace.
pub fn note_names(wanted: bool) {
    NOTE_NAMES.store(wanted, Ordering::Relaxed);
}

/// Whether anybody wants to know what threads are called.
#[inline]
pub fn wants_names() -> bool {
    NOTE_NAMES.load(Ordering::Relaxed)
}

/// A thread of this process has this name from now on.
pub fn named(tid: u32, pid: u32, name: &[u8; 16]) {
    let mut names = NAMES.lock();
    if names.len() < NAMES_MAX || names.contains_key(&tid) {
        names.insert(tid, (pid, *name));
    }
}

/// All that is remembered, to be asked once.
pub fn names() -> BTreeMap<u32, (u32, [u8; 16])> {
    core::mem::take(&mut *NAMES.lock())
}

#[inline(always)]
fn slot(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).min(syscalls::END)
}

/// A system call was made that is instrumented.
pub fn instrumented_syscall(number: u64) {
    if COUNT_CALLS.load(Ordering::Relaxed) {
        CALLS[slot(number)].fetch_add(1, Ordering::Relaxed);
    }
}

/// A system call was made that nothing serves: counted, if anybody wants to know.
#[inline(always)]
pub fn missing_syscall(number: u32) {
    if counts_missing() {
        count_missing_syscall(number);
    }
}

#[cold]
fn count_missing_syscall(number: u32) {
    match slot(u64::from(number)) {
        syscalls::END => missing_number(number),
        known => {
            MISSING[known].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A number that Linux has none of, as it was.
fn missing_number(number: u32) {
    let mut numbers = MISSING_NUMBERS.lock();
    if numbers.len() < NUMBERS_MAX || numbers.contains_key(&number) {
        *numbers.entry(number).or_insert(0) += 1;
    }
}

/// Whether missing files are to be noted; asked before a path is made absolute.
#[inline(always)]
pub fn wants_missing_files() -> bool {
    NOTE_FILES.load(Ordering::Relaxed)
}

/// A program asked for this absolute path, and nothing is there.
pub fn missing_file(path: &[u8]) {
    let path: Arc<[u8]> = path.into();
    let mut files = FILES.lock();
    if files.len() < FILES_MAX {
        files.insert(path);
    }
}

static EXECS: AtomicU64 = AtomicU64::new(0);

/// A process has started to run a program.
pub fn program_started() {
    EXECS.fetch_add(1, Ordering::Relaxed);
}

/// Programs that processes have started to run.
pub fn programs_started() -> u64 {
    EXECS.load(Ordering::Relaxed)
}

/// System calls so far, if they are counted.
pub fn calls() -> Option<&'static Counts> {
    COUNT_CALLS.load(Ordering::Relaxed).then_some(&CALLS)
}

/// Calls so far that nothing serves.
pub fn missing_calls() -> &'static Counts {
    &MISSING
}

/// Those of them whose numbers Linux has none of.
pub fn missing_numbers() -> BTreeMap<u32, u64> {
    MISSING_NUMBERS.lock().clone()
}

/// The missing files so far, sorted.
pub fn missing_files() -> Vec<Arc<[u8]>> {
    FILES.lock().iter().cloned().collect()
}
