//! Files that are read from a backend which answers late: what is asked for ahead of a reader, what
//! it gets, and what becomes of answers that nobody comes for.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::{Errno, Result as Outcome};
use machine::ensure;
use machine::frame::{Frame, PAGE_SIZE};
use machine::ktest::Test;
use machine::sync::SpinLock;

use crate::base::io::Sink;
use crate::base::sched::Sleep;
use crate::base::sync::WaitQueue;
use crate::base::time::{Deadline, NS_PER_SEC};
use crate::page_cache::{Coming, PageBackend, PageCache, reclaim_all};
use crate::process::spawn_kernel;

pub(super) const TESTS: &[Test] = &[
    Test { name: "read_ahead::whole_file", run: whole_file },
    Test { name: "read_ahead::beginnings", run: beginnings },
    Test { name: "read_ahead::behind_the_end", run: behind_the_end },
    Test { name: "read_ahead::changes_meanwhile", run: changes_meanwhile },
    Test { name: "read_ahead::failures", run: failures },
    Test { name: "read_ahead::left_answers_are_reclaimed", run: left_answers },
    Test { name: "read_ahead::many_files", run: many_files },
    Test { name: "read_ahead::many_readers", run: many_readers },
];

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that are asked for at once.
const WINDOW: u64 = 64;
/// Ten windows and a half page.
const FILE_PAGES: u64 = 10 * WINDOW + 1;
const FILE_BYTES: u64 = (FILE_PAGES - 1) * PAGE + PAGE / 2;
/// How long a test waits for what must come.
const PATIENCE_NS: u64 = 30 * NS_PER_SEC;

/// What was asked for.
#[derive(Default)]
struct Asked {
    /// First pages of reads that somebody waits for, and of those ahead.
    waited: Vec<u64>,
    ahead: Vec<u64>,
}

#[derive(Default)]
struct Backend {
    asked: SpinLock<Asked>,
    /// What each page holds beside its number.
    version: AtomicU64,
    /// Answers take a moment.
    is_slow: AtomicBool,
    /// What was asked for ahead does not come.
    fails_ahead: AtomicBool,
    /// It does not take requests ahead.
    is_full: AtomicBool,
}

/// What page `index` begins with.
fn mark(index: u64, version: u64) -> u64 {
    version << 32 | index
}

/// Fills the pages and what is behind the file's end in them; bytes of the file.
fn fill(first: u64, frames: &[Frame], version: u64) -> usize {
    for (index, frame) in (first..).zip(frames) {
        frame.write(0, &[0xee; PAGE_SIZE]);
        frame.write(0, &mark(index, version).to_le_bytes());
    }
    (frames.len() * PAGE_SIZE).min((FILE_BYTES - first * PAGE) as usize)
}

impl PageBackend for Arc<Backend> {
    fn read_pages(&self, first: u64, frames: &[Frame]) -> Outcome<usize> {
        self.asked.lock().waited.push(first);
        Ok(fill(first, frames, self.version.load(Ordering::SeqCst)))
    }

    fn begin_pages(&self, first: u64, frames: &[Frame]) -> Option<Box<dyn Coming>> {
        if self.is_full.load(Ordering::SeqCst) {
            return None;
        }
        self.asked.lock().ahead.push(first);
        let version = self.version.load(Ordering::SeqCst);
        Some(Box::new(Answer { backend: self.clone(), first, frames: frames.to_vec(), version }))
    }

    fn write_pages(&self, _first: u64, _frames: &[Frame], _len: usize) -> Outcome<()> {
        Err(Errno::EROFS)
    }
}

/// An answer that holds what was true when it was asked for.
struct Answer {
    backend: Arc<Backend>,
    first: u64,
    frames: Vec<Frame>,
    version: u64,
}

impl Coming for Answer {
    fn is_here(&self) -> bool {
        !self.backend.is_slow.load(Ordering::SeqCst)
    }

    fn finish(&self) -> Outcome<usize> {
        const MOMENT_NS: u64 = 200_000;
        if !self.is_here() {
            let moment = Some(Deadline::after_ns(MOMENT_NS));
            let _ = WaitQueue::new().wait_deadline(Sleep::Uninterruptible, moment, || None::<()>);
        }
        if self.backend.fails_ahead.load(Ordering::SeqCst) {
            return Err(Errno::EIO);
        }
        Ok(fill(self.first, &self.frames, self.version))
    }
}

fn file() -> (Arc<Backend>, Arc<PageCache>) {
    let backend = Arc::new(Backend::default());
    let cache = PageCache::new(Some(Arc::new(backend.clone())), FILE_BYTES);
    (backend, cache)
}

/// Reads these pages as read(2) does, and compares them.
fn read(cache: &PageCache, pages: core::ops::Range<u64>, version: u64) -> Result<(), String> {
    for index in pages {
        let mut bytes = [0; 8];
        let read = cache.read(index * PAGE, &mut Sink::kernel(&mut bytes));
        ensure!(read == Ok(8), "page {index}: {read:?}");
        let (found, wanted) = (u64::from_le_bytes(bytes), mark(index, version));
        ensure!(found == wanted, "page {index}: {found:#x} and not {wanted:#x}");
    }
    Ok(())
}

/// A file that is read to its end is asked for page by page once, nothing of it behind the end.
fn whole_file() -> Result<(), String> {
    let (backend, cache) = file();
    backend.is_slow.store(true, Ordering::SeqCst);
    read(&cache, 0..FILE_PAGES, 0)?;
    let asked = core::mem::take(&mut *backend.asked.lock());
    ensure!(asked.waited == [0], "waited for: {:?}", asked.waited);
    let rest: Vec<u64> = (1..=10).map(|window| window * WINDOW).collect();
    ensure!(asked.ahead == rest, "ahead: {:?}", asked.ahead);
    ensure!(cache.resident_pages() as u64 == FILE_PAGES, "{} pages", cache.resident_pages());
    read(&cache, 0..FILE_PAGES, 0)?;
    ensure!(backend.asked.lock().ahead.is_empty(), "it was asked for again");

    // One that takes no requests ahead gives the same.
    let (backend, cache) = file();
    backend.is_full.store(true, Ordering::SeqCst);
    read(&cache, 0..FILE_PAGES, 0)?;
    ensure!(backend.asked.lock().waited.len() == 11, "{:?}", backend.asked.lock().waited);
    Ok(())
}

/// Who reads a beginning, or here and there, gets no more than what it reads.
fn beginnings() -> Result<(), String> {
    let (backend, cache) = file();
    read(&cache, 0..WINDOW, 0)?;
    for index in [5 * WINDOW, 3 * WINDOW, 8 * WINDOW] {
        read(&cache, index..index + 1, 0)?;
    }
    let asked = backend.asked.lock();
    ensure!(asked.waited.len() == 4 && asked.ahead.is_empty(), "ahead: {:?}", asked.ahead);
    Ok(())
}

/// Whatever is behind the end in a page that was read, a program that maps it sees zeros.
fn behind_the_end() -> Result<(), String> {
    for is_ahead in [false, true] {
        let (backend, cache) = file();
        if is_ahead {
            read(&cache, 0..FILE_PAGES, 0)?;
            let last = backend.asked.lock().ahead.last().copied();
            ensure!(last == Some(FILE_PAGES - 1), "ahead came {last:?}");
        }
        let page = cache.page(FILE_PAGES - 1, false).map_err(|e| format!("{e:?}"))?;
        let mut bytes = [0; PAGE_SIZE];
        page.read(0, &mut bytes);
        let (file, rest) = bytes.split_at(PAGE_SIZE / 2);
        ensure!(file[8..].iter().all(|&byte| byte == 0xee), "what was read is gone: {file:x?}");
        ensure!(rest.iter().all(|&byte| byte == 0), "ahead: {is_ahead}: {rest:x?}");
    }
    Ok(())
}

/// What changed after it was asked for ahead is not read as it was.
fn changes_meanwhile() -> Result<(), String> {
    let (backend, cache) = file();
    backend.is_slow.store(true, Ordering::SeqCst);
    read(&cache, 0..2 * WINDOW, 0)?;
    let ahead = backend.asked.lock().ahead.clone();
    ensure!(ahead.last().is_some_and(|&first| first >= 2 * WINDOW), "ahead: {ahead:?}");
    backend.version.store(1, Ordering::SeqCst);
    cache.invalidate();
    read(&cache, 0..FILE_PAGES, 1)?;

    // A file that got shorter and longer again is read anew, too.
    let (backend, cache) = file();
    backend.is_slow.store(true, Ordering::SeqCst);
    read(&cache, 0..2 * WINDOW, 0)?;
    cache.set_size(2 * WINDOW * PAGE).map_err(|e| format!("{e:?}"))?;
    backend.version.store(2, Ordering::SeqCst);
    cache.set_size(FILE_BYTES).map_err(|e| format!("{e:?}"))?;
    read(&cache, 2 * WINDOW..FILE_PAGES, 2)
}

/// What does not come ahead is asked for when somebody waits for it.
fn failures() -> Result<(), String> {
    let (backend, cache) = file();
    read(&cache, 0..WINDOW, 0)?;
    backend.is_slow.store(true, Ordering::SeqCst);
    read(&cache, WINDOW..WINDOW + 1, 0)?;
    ensure!(backend.asked.lock().ahead == [WINDOW, 2 * WINDOW], "{:?}", backend.asked.lock().ahead);
    backend.fails_ahead.store(true, Ordering::SeqCst);
    backend.is_full.store(true, Ordering::SeqCst);
    read(&cache, WINDOW..4 * WINDOW, 0)?;
    let waited = backend.asked.lock().waited.clone();
    ensure!(waited == [0, 2 * WINDOW, 3 * WINDOW], "waited for: {waited:?}");
    Ok(())
}

/// Answers that nobody comes for are given back when memory is short.
fn left_answers() -> Result<(), String> {
    let (backend, cache) = file();
    backend.is_slow.store(true, Ordering::SeqCst);
    read(&cache, 0..3 * WINDOW, 0)?;
    ensure!(cache.resident_pages() as u64 > 3 * WINDOW, "{} pages", cache.resident_pages());
    backend.is_slow.store(false, Ordering::SeqCst);
    reclaim_all();
    ensure!(cache.resident_pages() == 0, "{} pages stay", cache.resident_pages());
    read(&cache, 0..FILE_PAGES, 0)
}

/// Files that are left half read hold no more than a few answers between them.
fn many_files() -> Result<(), String> {
    const FILES: usize = 100;
    const LEFT_MAX: u64 = 64 * WINDOW;
    let files: Vec<_> = (0..FILES).map(|_| file()).collect();
    for (_, cache) in &files {
        read(cache, 0..2 * WINDOW, 0)?;
    }
    let asked = |(backend, _): &(Arc<Backend>, _)| backend.asked.lock().ahead.len() as u64;
    ensure!(files.iter().all(|file| asked(file) > 0), "some were not read ahead");
    // What was not settled is being read still, and cannot be told from the outside but so.
    let settled: u64 = files.iter().map(|(_, cache)| up_to_date(cache)).sum();
    let there: u64 = files.iter().map(|(_, cache)| cache.resident_pages() as u64).sum();
    ensure!(there - settled <= LEFT_MAX, "{there} pages, {settled} settled");
    Ok(())
}

/// Pages that a reader would not have to wait for.
fn up_to_date(cache: &PageCache) -> u64 {
    (0..FILE_PAGES).filter(|&index| cache.resident(index).is_some()).count() as u64
}

/// Threads that read one file at once each get all of it, whoever of them takes which answer.
fn many_readers() -> Result<(), String> {
    const THREADS: u64 = 4;
    const ROUNDS: usize = 10;
    for _ in 0..ROUNDS {
        let (backend, cache) = file();
        backend.is_slow.store(true, Ordering::SeqCst);
        let done = Arc::new((AtomicU64::new(0), AtomicU64::new(0), WaitQueue::new()));
        for _ in 0..THREADS {
            let (done, cache) = (done.clone(), cache.clone());
            let body = move || {
                let is_right = read(&cache, 0..FILE_PAGES, 0).is_ok();
                done.1.fetch_add(u64::from(is_right), Ordering::SeqCst);
                done.0.fetch_add(1, Ordering::SeqCst);
                done.2.wake_all(0);
            };
            spawn_kernel("reader", body).map_err(|e| format!("{e:?}"))?;
        }
        let all = || (done.0.load(Ordering::SeqCst) == THREADS).then_some(());
        let deadline = Some(Deadline::after_ns(PATIENCE_NS));
        let result = done.2.wait_deadline(Sleep::Uninterruptible, deadline, all);
        ensure!(result.is_ok(), "{} of {THREADS} ended", done.0.load(Ordering::SeqCst));
        let right = done.1.load(Ordering::SeqCst);
        ensure!(right == THREADS, "{right} of {THREADS} read the right thing");
    }
    Ok(())
}
