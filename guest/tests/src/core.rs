//! Core files (core(5)): what is in one, and when there is none.
//!
//! Where the host gives cores to a program, or names them otherwise, only the wait status is looked
//! at: a test changes no setting of the host's.

use std::sync::atomic::Ordering::SeqCst;

use crate::sc;
use crate::sys::*;
use crate::tests;

tests!("core":
    a_core_has_threads_and_memory, without_a_core, what_is_left_out, a_core_that_is_too_long,
    a_filter_that_kills,
);

/// Notes by their kinds (elf.h).
const NT_PRSTATUS: u32 = 1;
const NT_PRFPREG: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;
const WITH_CORE: i32 = 0x80;
const PATTERN: [u8; 16] = *b"a pattern of it!";
const LARGE: u64 = 1 << 30;

/// A core, taken apart.
struct Core {
    bytes: Vec<u8>,
    notes: Vec<(u32, Vec<u8>)>,
    /// Address, size in memory, offset and size in the file.
    areas: Vec<[u64; 4]>,
}

fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at..at + size]);
    u64::from_le_bytes(word)
}

impl Core {
    fn of(bytes: Vec<u8>) -> Core {
        assert_eq!(&bytes[..7], b"\x7fELF\x02\x01\x01");
        // A core file, for x86-64.
        assert_eq!((word(&bytes, 16, 2), word(&bytes, 18, 2)), (4, 62));
        let (headers, count) = (word(&bytes, 32, 8) as usize, word(&bytes, 56, 2) as usize);
        let (mut notes, mut areas) = (Vec::new(), Vec::new());
        for number in 0..count {
            let header = &bytes[headers + number * 56..][..56];
            let field = |at: usize| word(header, at, 8);
            let (offset, size) = (field(8) as usize, field(32) as usize);
            match word(header, 0, 4) {
                1 => areas.push([field(16), field(40), field(8), field(32)]),
                4 => notes = Self::notes(&bytes[offset..offset + size]),
                kind => panic!("a header of kind {kind}"),
            }
        }
        Core { bytes, notes, areas }
    }

    fn notes(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let (mut notes, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let size = |which: usize| word(bytes, at + which * 4, 4) as usize;
            let content = at + 12 + size(0).next_multiple_of(4);
            notes.push((size(2) as u32, bytes[content..content + size(1)].to_vec()));
            at = content + size(1).next_multiple_of(4);
        }
        notes
    }

    fn all(&self, kind: u32) -> Vec<&[u8]> {
        self.notes.iter().filter(|note| note.0 == kind).map(|note| &note.1[..]).collect()
    }

    /// What is at an address; none if it was left out.
    fn memory(&self, address: u64, len: usize) -> Option<&[u8]> {
        let [start, _, offset, size] =
            *self.areas.iter().find(|area| (area[0]..area[0] + area[1]).contains(&address))?;
        let at = address - start;
        (at + len as u64 <= size).then(|| &self.bytes[(offset + at) as usize..][..len])
    }
}

/// Whether cores are files named `core` in the working directory here.
fn are_plain() -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    read("core_pattern").is_ok_and(|text| text == "core\n")
        && read("core_uses_pid").is_ok_and(|text| text == "0\n")
}

/// Has a child do this in a directory of its own, with a limit for cores; its status, and the
/// core.
fn ended(limit: u64, end: impl FnOnce()) -> (i32, Option<Vec<u8>>) {
    let dir = dir();
    let path = c(&dir);
    let child = fork(|| {
        sc!(SYS_chdir, path.as_ptr()).is(0);
        sc!(SYS_setrlimit, RLIMIT_CORE, [limit, LARGE].as_ptr()).is(0);
        sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
        std::fs::write("/proc/self/coredump_filter", "0x33").unwrap();
        end();
        0
    });
    let status = wait(child);
    (status, std::fs::read(format!("{dir}/core")).ok())
}

/// The notes of this kind in the core of a child that ends so; none where cores are not plain.
pub fn notes_of(kind: u32, end: impl FnOnce()) -> Option<Vec<Vec<u8>>> {
    let (status, core) = ended(LARGE, end);
    if !are_plain() {
        return None;
    }
    assert_eq!(status & WITH_CORE, WITH_CORE);
    let core = Core::of(core.expect("a core"));
    Some(core.all(kind).into_iter().map(<[u8]>::to_vec).collect())
}

fn a_core_has_threads_and_memory() {
    let memory = anon(4 * 4096);
    // SAFETY: the second of four pages that were mapped writable just now; the pattern is shorter
    // than a page.
    unsafe { std::ptr::copy_nonoverlapping(PATTERN.as_ptr(), memory.add(4096), PATTERN.len()) };
    let told = new_shared();
    let (status, core) = ended(LARGE, || {
        std::thread::spawn(move || {
            told[0].store(tid() as u32, SeqCst);
            loop {
                let _ = sc!(SYS_pause);
            }
        });
        until(|| told[0].load(SeqCst) != 0);
        told[1].store(tid() as u32, SeqCst);
        // SAFETY: the fault is the point.
        unsafe { std::hint::black_box(0x1238 as *mut u8).write_volatile(1) };
    });
    assert_eq!(status & 0x7f, SIGSEGV);
    if !are_plain() {
        return;
    }
    assert_eq!(status & WITH_CORE, WITH_CORE);
    let core = Core::of(core.expect("a core"));
    let threads: Vec<u64> =
        core.all(NT_PRSTATUS).iter().map(|status| word(status, 32, 4)).collect();
    let wanted = [1, 0].map(|at: usize| u64::from(told[at].load(SeqCst)));
    assert_eq!(threads, wanted);
    for status in core.all(NT_PRSTATUS) {
        assert_eq!(status.len(), 336);
        // The stack's pointer is in an area that was kept.
        assert!(core.memory(word(status, 112 + 19 * 8, 8), 8).is_some());
    }
    assert_eq!(core.all(NT_PRFPREG).iter().map(|regs| regs.len()).collect::<Vec<_>>(), [512, 512]);
    let info = core.all(NT_SIGINFO)[0];
    assert_eq!((word(info, 0, 4), word(info, 16, 8)), (SIGSEGV as u64, 0x1238));
    let process = core.all(NT_PRPSINFO)[0];
    assert_eq!((process.len(), word(process, 24, 4)), (136, wanted[0]));
    let auxv = core.all(NT_AUXV)[0];
    assert_eq!(&std::fs::read("/proc/self/auxv").unwrap()[..auxv.len()], auxv);
    let files = core.all(NT_FILE)[0];
    let own = own_path();
    assert!(files.windows(own.len()).any(|text| text == own.as_bytes()));
    assert_eq!(core.memory(memory as u64 + 4096, 16), Some(&PATTERN[..]));
    assert_eq!(core.memory(memory as u64 + 3 * 4096, 4096), Some(&[0u8; 4096][..]));
}

fn without_a_core() {
    let quits = || {
        let _ = sc!(SYS_kill, pid(), SIGQUIT);
    };
    let (status, core) = ended(0, quits);
    assert_eq!((status, core), (SIGQUIT, None));
    let (status, core) = ended(LARGE, || {
        sc!(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0).is(0);
        quits();
    });
    assert_eq!((status, core), (SIGQUIT, None));
    let (status, core) = ended(LARGE, || {
        let _ = sc!(SYS_kill, pid(), SIGTERM);
    });
    assert_eq!((status, core), (SIGTERM, None));
}

fn what_is_left_out() {
    let at = anon(4096) as u64;
    let left_out = |set: &dyn Fn()| {
        // SAFETY: mapped just now, and never unmapped.
        unsafe { std::ptr::copy_nonoverlapping(PATTERN.as_ptr(), at as *mut u8, PATTERN.len()) };
        let (status, core) = ended(LARGE, || {
            set();
            let _ = sc!(SYS_kill, pid(), SIGABRT);
        });
        assert_eq!(status & 0x7f, SIGABRT);
        if !are_plain() {
            return None;
        }
        Some(Core::of(core.expect("a core")).memory(at, 16).is_none())
    };
    let filter = |text: &str| std::fs::write("/proc/self/coredump_filter", text).unwrap();
    assert_ne!(left_out(&|| ()), Some(true));
    assert_ne!(left_out(&|| filter("0x10")), Some(false));
    let advise = || sc!(SYS_madvise, at, 4096, MADV_DONTDUMP).is(0);
    assert_ne!(left_out(&advise), Some(false));
    filter("0x7fffffff");
    let text = std::fs::read_to_string("/proc/self/coredump_filter").unwrap();
    assert_eq!(text, "000001ff\n");
}

/// A filter's kill leaves a core as SIGSYS would, with what the call was; or none, and says so.
fn a_filter_that_kills() {
    const KILL_PROCESS: u32 = 0x8000_0000;
    let killed = || {
        crate::seccomp::answer(SYS_getppid, KILL_PROCESS);
        let _ = sc!(SYS_getppid);
    };
    let (status, core) = ended(0, killed);
    assert_eq!(core, None);
    if are_plain() {
        assert_eq!(status, SIGSYS);
    }
    let (status, core) = ended(LARGE, killed);
    assert_eq!(status & 0x7f, SIGSYS);
    if !are_plain() {
        return;
    }
    assert_eq!(status & WITH_CORE, WITH_CORE);
    let core = Core::of(core.expect("a core"));
    let info = core.all(NT_SIGINFO)[0];
    assert_eq!((word(info, 0, 4), word(info, 24, 4)), (SIGSYS as u64, SYS_getppid as u64));
    let status = core.all(NT_PRSTATUS)[0];
    let (rax, orig_rax) = (word(status, 112 + 10 * 8, 8), word(status, 112 + 15 * 8, 8));
    assert_eq!((rax, orig_rax), (SYS_getppid as u64, SYS_getppid as u64), "as before the call");
}

fn a_core_that_is_too_long() {
    let (status, core) = ended(8192, || {
        let _ = sc!(SYS_kill, pid(), SIGABRT);
    });
    assert_eq!(status & 0x7f, SIGABRT);
    if are_plain() {
        assert!(core.is_some_and(|core| core.len() <= 8192));
    }
}
