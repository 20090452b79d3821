//! What is recorded of a program: each call's value and the memory it wrote, and at the end the
//! tree, the descriptors, the mappings and what /proc says.
//!
//! Numbers that no program may rely on are replaced: inode, device and mount numbers by the order
//! of their first sight, ids by actors, times by "now" or "set", ports by their distance from the
//! program's own.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::SeqCst;

use super::program::*;
use super::run::{Log, Shared, handler};
use crate::sc;
use crate::sys::*;

/// The programs' working directory.
pub const TREE: &str = "/tmp/differ/w";
const FILL: u8 = 0xee;
/// Times behind this, in seconds, are the clock's; programs set smaller ones.
const NOW_S: i64 = 1_500_000_000;
/// Longest text of written memory that is recorded in full.
const SHORT: usize = 160;
/// Descriptors that are looked at at the end.
const FDS: usize = 48;
/// First port of program 0; each has four.
pub const PORTS: u64 = 1100;
pub const PORT_PROGRAMS: u64 = 7500;

/// Everything outside the tree as it was before the first program, and no tree.
pub fn clean() {
    clean_ipc();
    let is_ours = |name: &str| ["dev", "proc", "tmp"].contains(&name);
    for entry in std::fs::read_dir("/").into_iter().flatten().flatten() {
        if !is_ours(&entry.file_name().to_string_lossy()) {
            let _ = std::fs::remove_dir_all(entry.path());
            let _ = std::fs::remove_file(entry.path());
        }
    }
    for dir in ["/dev", "/tmp"] {
        let _ = std::fs::remove_dir_all(dir);
        let _ = std::fs::remove_file(dir);
        let _ = sc!(SYS_mkdir, c(dir).as_ptr(), 0o755);
        let _ = sc!(SYS_chmod, c(dir).as_ptr(), 0o755);
    }
    for (name, minor) in [("/dev/null", 3), ("/dev/zero", 5), ("/dev/full", 7)] {
        sc!(SYS_mknod, c(name).as_ptr(), S_IFCHR | 0o666, makedev(1, minor)).is(0);
        let _ = sc!(SYS_chmod, c(name).as_ptr(), 0o666);
    }
    let _ = sc!(SYS_mkdir, c"/tmp/differ".as_ptr(), 0o777);
    let _ = sc!(SYS_chmod, c"/tmp/differ".as_ptr(), 0o1777);
    let _ = sc!(SYS_chmod, c"/".as_ptr(), 0o755);
    let _ = sc!(SYS_chown, c"/".as_ptr(), 0, 0);
}

/// The part of the tree that is root's, made before the program's process.
pub fn tree_of_root() {
    let _ = std::fs::create_dir(TREE);
    let _ = sc!(SYS_chmod, c(TREE).as_ptr(), 0o777);
    let _ = sc!(SYS_chdir, c(TREE).as_ptr());
    make_file("rooted", 100, 0o644);
}

fn make_file(name: &str, bytes: usize, mode: u32) {
    let text: Vec<u8> = (0..bytes).map(|at| b'A' + (at % 26) as u8).collect();
    let fd = sc!(SYS_openat, AT_FDCWD, c(name).as_ptr(), O_WRONLY | O_CREAT | O_EXCL, mode).fd();
    if bytes > 0 {
        sc!(SYS_write, fd, text.as_ptr(), bytes).is(bytes);
    }
    close(fd);
}

/// The part of the tree that belongs to the program's user.
pub fn tree() {
    make_file("f", 6000, 0o644);
    make_file("e", 0, 0o666);
    make_file("ro", 10, 0o444);
    make_file("none", 10, 0);
    make_file("x", 20, 0o755);
    for (name, mode) in [("d", 0o755), ("d/s", 0o700), ("sticky", 0o1777)] {
        let _ = sc!(SYS_mkdir, c(name).as_ptr(), 0o777);
        let _ = sc!(SYS_chmod, c(name).as_ptr(), mode);
    }
    make_file("d/g", 33, 0o640);
    let _ = sc!(SYS_link, c"f".as_ptr(), c"h".as_ptr());
    for (target, name) in [("f", "l"), ("d", "ld"), ("missing", "dangling"), ("loop", "loop")] {
        let _ = sc!(SYS_symlink, c(target).as_ptr(), c(name).as_ptr());
    }
    let _ = sc!(SYS_mknod, c"p".as_ptr(), S_IFIFO | 0o644, 0);
    make_file("sp", 5, 0o644);
    let _ = sc!(SYS_truncate, c"sp".as_ptr(), 1 << 20);
}

/// Fills the areas as a call wants them.
pub fn lay_out(shared: &Shared, call: &Call) {
    // SAFETY: the areas are mapped for as long as the process lives, and the offsets are in them.
    unsafe {
        std::ptr::write_bytes(OUTPUT as *mut u8, FILL, OUTPUT_BYTES);
        for (at, bytes) in &call.input {
            let to = (INPUT + usize::from(*at)) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        for (at, bytes, arg) in &call.fixes {
            let value = value(shared, *arg);
            let to = (INPUT + usize::from(*at)) as *mut u8;
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, usize::from(*bytes));
        }
    }
}

/// What is passed for an argument.
pub fn value(shared: &Shared, arg: Arg) -> usize {
    match arg {
        Arg::Number(n) => n as usize,
        Arg::Slot(slot) => shared.slots[usize::from(slot) % SLOTS].load(SeqCst) as usize,
        // Nobody's id before there is such an actor.
        Arg::Id(actor) => match shared.tids[actor as usize].load(SeqCst) {
            0 => 1 << 22 | 9,
            id => id as usize,
        },
        Arg::Handler => handler(),
        Arg::Restorer => restorer(),
    }
}

fn output() -> &'static mut [u8] {
    // SAFETY: the area is mapped, and only the actor whose turn it is looks at it.
    unsafe { std::slice::from_raw_parts_mut(OUTPUT as *mut u8, OUTPUT_BYTES) }
}

/// What the call wrote is not recorded.
pub fn blank() {
    output().fill(FILL);
}

/// Whether it asks who used a semaphore last (semctl(2), GETPID).
fn is_last_user(call: &Call, args: &[usize]) -> bool {
    call.nr as usize == SYS_semctl as usize && args.get(2) == Some(&11)
}

/// Records what a call gave back.
pub fn record(shared: &Shared, call: &Call, args: &[usize], result: Res) {
    let log = &mut Log(shared);
    let slot = |slot: u8, value: i64| shared.slots[usize::from(slot)].store(value, SeqCst);
    if let Some(at) = call.slot {
        slot(at, result.map_or(-1, |value| value as i64));
    }
    let _ = match (result, call.value, call.special) {
        (Err(fault), _, Special::Load | Special::Store) => write!(log, "fault {fault:#x}"),
        (Err(errno), ..) => write!(log, "{}", errno_word(errno)),
        (Ok(_), Value::Any, _) => write!(log, "ok"),
        (Ok(id), ..) if is_last_user(call, args) => {
            write!(log, "id {}", shared.letter(id as i64))
        }
        (Ok(id), Value::Id, _) => write!(log, "id {}", shared.letter(id as i32 as i64)),
        (Ok(at), Value::Address, _) => match (BASE..BASE + (1 << 32)).contains(&at) {
            true => write!(log, "{}", Arg::Number(at as u64)),
            false => write!(log, "elsewhere"),
        },
        (Ok(value), ..) => write!(log, "{}", value as i64),
    };
    // What a copy leaves that ends in a fault is nobody's promise.
    if result == Err(EFAULT) {
        blank();
    }
    for (at, norm) in &call.norms {
        if let (Norm::Pair(a, b), Ok(_)) = (norm, result) {
            let at = usize::from(*at);
            let word = |at: usize| {
                i64::from(i32::from_ne_bytes(output()[at..at + 4].try_into().unwrap_or_default()))
            };
            slot(*a, word(at));
            slot(*b, word(at + 4));
        }
        if let (Norm::Timer(to), Ok(_)) = (norm, result) {
            let at = &mut output()[usize::from(*at)..][..4];
            slot(*to, i32::from_ne_bytes(at.try_into().unwrap_or_default()).into());
            at.fill(FILL);
        }
        normalise(shared, usize::from(*at), *norm, result, args);
    }
    written(log);
    for (at, bytes) in &call.shows {
        let from = (INPUT + usize::from(*at)) as *const u8;
        // SAFETY: a part of the input area, which is mapped for as long as the process lives.
        let bytes = unsafe { std::slice::from_raw_parts(from, usize::from(*bytes)) };
        let _ = write!(log, " in {at:#x}:{}", quoted(bytes));
    }
    let _ = writeln!(log);
}

/// The errors that tests speak of by name.
fn errno_word(errno: i32) -> String {
    ERRNOS
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or(errno.to_string(), |(_, n)| (*n).into())
}

macro_rules! errnos {
    ($($name:ident)*) => { const ERRNOS: &[(i32, &str)] = &[$(($name, stringify!($name))),*]; };
}
errnos! { EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE
EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA ETIME
EOVERFLOW EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT
ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN
ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH
EALREADY EINPROGRESS ESTALE ECANCELED EOWNERDEAD ENOTRECOVERABLE }

/// The output area where it was written: offset and bytes, long ones by their hash.
fn written(log: &mut Log<'_>) {
    let area = output();
    let mut at = 0;
    while at < area.len() {
        let words = area[at..].chunks(8).take_while(|chunk| chunk.iter().all(|b| *b == FILL));
        at += 8 * words.count();
        if at >= area.len() {
            return;
        }
        // An extent ends where eight bytes in a row are as they were.
        let chunks = area[at..].chunks(8).take_while(|chunk| chunk.iter().any(|b| *b != FILL));
        let end = (at + 8 * chunks.count()).min(area.len());
        let begin = at + area[at..end].iter().take_while(|b| **b == FILL).count();
        let unwritten = area[begin..end].iter().rev().take_while(|b| **b == FILL).count();
        let bytes = &area[begin..end - unwritten];
        let _ = match bytes.len() {
            0..=SHORT => write!(log, " {begin:#x}:{}", quoted(bytes)),
            long => write!(log, " {begin:#x}:{long} bytes {:016x}", hash_bytes(bytes)),
        };
        at = end;
    }
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A structure in the output area.
struct At<'a> {
    bytes: &'a mut [u8],
    shared: &'a Shared,
}

impl At<'_> {
    fn get(&self, at: usize, bytes: usize) -> u64 {
        let mut word = [0; 8];
        if let Some(from) = self.bytes.get(at..at + bytes) {
            word[..bytes].copy_from_slice(from);
        }
        u64::from_ne_bytes(word)
    }

    fn set(&mut self, at: usize, bytes: usize, value: u64) {
        if let Some(to) = self.bytes.get_mut(at..at + bytes) {
            to.copy_from_slice(&value.to_ne_bytes()[..bytes]);
        }
    }

    fn is_untouched(&self, at: usize, bytes: usize) -> bool {
        self.bytes.get(at..at + bytes).is_none_or(|b| b.iter().all(|b| *b == FILL))
    }

    fn intern(&mut self, at: usize, bytes: usize) {
        if !self.is_untouched(at, bytes) {
            let value = self.get(at, bytes);
            self.set(at, bytes, self.shared.intern(value));
        }
    }

    fn id(&mut self, at: usize) {
        if !self.is_untouched(at, 4) {
            let id = self.get(at, 4) as i32;
            let letter = self.shared.letter(id.into());
            let mut word = [b' '; 4];
            let length = letter.len().min(4);
            word[..length].copy_from_slice(&letter.as_bytes()[..length]);
            self.set(at, 4, u32::from_ne_bytes(word).into());
        }
    }

    /// An inode's number, which is one only together with its device.
    fn inode(&mut self, at: usize, device: u64) {
        if !self.is_untouched(at, 8) {
            let number = inode(self.shared, device, self.get(at, 8));
            self.set(at, 8, number);
        }
    }

    /// Seconds and nanoseconds.
    fn time(&mut self, at: usize) {
        if self.get(at, 8) as i64 > NOW_S && !self.is_untouched(at, 8) {
            self.set(at, 8, 1);
            self.set(at + 8, 4, 0);
        }
    }

    fn zero(&mut self, at: usize, bytes: usize) {
        // What lies behind the area's end was not written.
        let end = (at + bytes).min(self.bytes.len());
        if at < end && self.bytes[at..end].iter().any(|b| *b != FILL) {
            self.bytes[at..end].fill(0);
        }
    }
}

fn inode(shared: &Shared, device: u64, number: u64) -> u64 {
    shared.intern(number.wrapping_mul(0x1_0001) ^ device << 40 | 1 << 63)
}

/// Replaces what may differ.
fn normalise(shared: &Shared, at: usize, norm: Norm, result: Res, args: &[usize]) {
    let Some(bytes) = output().get_mut(at..) else { return };
    let mut at = At { bytes, shared };
    let length = result.unwrap_or(0);
    match norm {
        Norm::Pair(..) | Norm::Timer(_) => {}
        Norm::Stat => {
            at.inode(8, at.get(0, 8));
            at.intern(0, 8);
            [72, 88, 104].into_iter().for_each(|time| at.time(time));
            // A socket's times are what its inode had before.
            if at.get(24, 4) as u32 & S_IFMT == S_IFSOCK {
                at.zero(72, 48);
            }
        }
        Norm::Statx => {
            at.zero(56, 8);
            at.inode(32, makedev(at.get(136, 4) as u32, at.get(140, 4) as u32));
            [64, 80, 96, 112].into_iter().for_each(|time| at.time(time));
            at.zero(136, 120);
            if at.get(28, 2) as u32 & S_IFMT == S_IFSOCK {
                at.zero(64, 64);
            }
        }
        Norm::Statfs => at.zero(16, 48),
        Norm::Time(bytes) => at.zero(0, usize::from(bytes)),
        Norm::Pointer => {
            let value = at.get(0, 8);
            if !at.is_untouched(0, 8) && value > BASE as u64 + (1 << 32) {
                at.set(0, 8, 0xaaaa);
            }
        }
        Norm::Amount => {
            if !at.is_untouched(0, 4) {
                at.set(0, 4, u64::from(at.get(0, 4) != 0));
            }
        }
        Norm::Siginfo => siginfo(&mut at),
        Norm::Sigaction => {
            let known = at.get(0, 8) as usize == handler();
            if at.get(0, 8) > 1 && !at.is_untouched(0, 8) {
                at.set(0, 8, if known { 0x4848 } else { 0x4949 });
            }
            if at.get(16, 8) != 0 && !at.is_untouched(16, 8) {
                at.set(16, 8, 0x5252);
            }
        }
        Norm::SignalfdInfo => {
            for start in (0..length).step_by(128) {
                at.id(start + 12);
                if at.get(start, 4) == SIGCHLD as u64 {
                    at.zero(start + 56, 16);
                }
            }
        }
        Norm::Dents => dents(&mut at, length),
        Norm::Inotify => {
            let mut start = 0;
            while start + 16 <= length {
                at.intern(start + 8, 4);
                start += 16 + at.get(start + 12, 4) as usize;
            }
        }
        Norm::Address => address(&mut at, args),
        Norm::IpcTimes(which) => ipc_state(&mut at, which),
        Norm::Control => control(&mut at),
        Norm::Text => {}
    }
}

/// What IPC_STAT writes: the sequence number is the kernel's own, times are set or not, ids are
/// actors'.
fn ipc_state(at: &mut At<'_>, which: u8) {
    at.zero(24, 2);
    let (times, ids): (&[usize], &[usize]) = match which {
        2 => (&[48, 64], &[]),
        3 => (&[48, 56, 64], &[96, 100]),
        _ => (&[56, 64, 72], &[80, 84]),
    };
    for time in times {
        if at.get(*time, 8) as i64 > NOW_S && !at.is_untouched(*time, 8) {
            at.set(*time, 8, 1);
        }
    }
    ids.iter().for_each(|id| at.id(*id));
}

/// What goes along with a message (cmsg(3)): times are the clock's.
fn control(at: &mut At<'_>) {
    const HEADER: usize = 16;
    let mut start = 0;
    while !at.is_untouched(start, HEADER) {
        let bytes = at.get(start, 8) as usize;
        let is_time = [SCM_TIMESTAMP, SCM_TIMESTAMPNS].contains(&(at.get(start + 12, 4) as i32));
        if is_time && at.get(start + 8, 4) as i32 == SOL_SOCKET {
            at.zero(start + HEADER, bytes.saturating_sub(HEADER).min(HEADER));
        }
        start += bytes.max(HEADER).next_multiple_of(8);
    }
}

/// Removes all objects of System V, and queues of POSIX.
fn clean_ipc() {
    for name in super::table_more::QUEUES {
        let _ = sc!(SYS_mq_unlink, name.as_ptr());
    }
    // (the call, its commands that tell the greatest index and the id at an index)
    for (call, info, stat) in [(SYS_msgctl, 12, 11), (SYS_semctl, 19, 18), (SYS_shmctl, 14, 13)] {
        let mut buffer = [0u64; 32];
        let control = |id: usize, command: i32, at: usize| match call == SYS_semctl {
            true => sc!(call, id, 0, command, at),
            false => sc!(call, id, command, at),
        };
        let greatest = control(0, info, buffer.as_mut_ptr() as usize).unwrap_or(0);
        for index in 0..=greatest {
            if let Ok(id) = control(index, stat, buffer.as_mut_ptr() as usize) {
                let _ = control(id, IPC_RMID, 0);
            }
        }
    }
}

fn siginfo(at: &mut At<'_>) {
    if at.is_untouched(0, 8) {
        return;
    }
    at.id(16);
    if at.get(0, 4) == SIGCHLD as u64 {
        at.zero(32, 16);
    }
}

/// Entries in the order of their names: no order is promised (readdir(3)).
fn dents(at: &mut At<'_>, length: usize) {
    let (mut names, mut start) = (Vec::new(), 0);
    while start + 19 <= length.min(OUTPUT_BYTES - 8) {
        let record = at.get(start + 16, 2) as usize;
        let end = (start + record.max(19)).min(at.bytes.len());
        let name = at.bytes[start + 19..end].split(|b| *b == 0).next().unwrap_or(&[]).to_vec();
        names.push((name, at.bytes[start + 18], record));
        start = end;
    }
    names.sort();
    if start > 0 {
        at.bytes[..start].fill(FILL);
        let text: String = names
            .iter()
            .map(|(name, kind, bytes)| format!("{}/{kind}/{bytes} ", String::from_utf8_lossy(name)))
            .collect();
        let text = &text.as_bytes()[..text.len().min(start)];
        at.bytes[..text.len()].copy_from_slice(text);
    }
}

fn address(at: &mut At<'_>, _args: &[usize]) {
    if at.is_untouched(0, 2) {
        return;
    }
    let family = at.get(0, 2) as i32;
    if [AF_INET, AF_INET6].contains(&family) {
        let port = u64::from(u16::from_be(at.get(2, 2) as u16));
        if port >= 32768 {
            at.set(2, 2, 0x4141);
        } else if port >= PORTS {
            at.set(2, 2, (port - PORTS) % 4);
        }
    } else if family == AF_UNIX && at.get(2, 1) == 0 {
        // A name that the kernel chose (unix(7), autobind), cut off perhaps.
        let told = (3..8).take_while(|&byte| !at.is_untouched(byte, 1)).count();
        if at.bytes[3..3 + told].iter().all(u8::is_ascii_hexdigit) {
            (3..3 + told).for_each(|byte| at.set(byte, 1, 0x41));
        }
    }
}

/// The state when the last call is over.
pub fn end(shared: &Shared) {
    let log = &mut Log(shared);
    let _ = sc!(SYS_chdir, c(TREE).as_ptr());
    // (Who looks at memory below a stack extends that on Linux.)
    status(shared, log);
    maps(log);
    descriptors(shared, log);
    for which in 0..16 {
        let mut limit = [0u64; 2];
        let _ = sc!(SYS_prlimit64, 0, which, 0, limit.as_mut_ptr());
        let _ = write!(
            log,
            "{}{:x}/{:x}",
            if which == 0 { "limits " } else { " " },
            limit[0],
            limit[1]
        );
    }
    let _ = writeln!(log);
    let mut budget = 200;
    tree_state(shared, log, TREE, &mut budget);
}

/// The map area: what /proc says, and what is in it.
fn maps(log: &mut Log<'_>) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let area = MAPS..MAPS + MAP_PAGES * PAGE;
    let mut any = false;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some((start, end)) = words.first().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let start = usize::from_str_radix(start, 16).unwrap_or(0);
        let end = usize::from_str_radix(end, 16).unwrap_or(0);
        if area.contains(&start) && words.len() >= 5 {
            any = true;
            let name = words.get(5..).map_or(String::new(), |name| name.join(" "));
            let _ = writeln!(
                log,
                "map {:#x} {:#x} {} {} {}",
                start - MAPS,
                end - MAPS,
                words[1],
                words[2],
                digits(&name)
            );
        }
    }
    let Ok(memory) = open("/proc/self/mem", O_RDONLY) else { return };
    let mut page = [0u8; PAGE];
    for number in (0..MAP_PAGES).filter(|_| any) {
        let at = MAPS + number * PAGE;
        if let Ok(n) = sc!(SYS_pread64, memory, page.as_mut_ptr(), PAGE, at)
            && page[..n].iter().any(|b| *b != 0)
        {
            let _ = writeln!(log, "page {number} {n} {:016x}", hash_bytes(&page[..n]));
        }
    }
    let _ = sc!(SYS_close, memory);
}

/// Text without its numbers.
fn digits(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

fn descriptors(shared: &Shared, log: &mut Log<'_>) {
    for fd in 3..FDS {
        let Ok(flags) = sc!(SYS_fcntl, fd, F_GETFD) else { continue };
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let _ = write!(log, "fd {fd} {flags} {}", digits(&link.to_string_lossy()));
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let mut lines: Vec<&str> = info.lines().collect();
        // The order of what epoll watches is that of the kernel's addresses on Linux.
        lines.sort_by_key(|line| line.starts_with("tfd").then_some(*line));
        for line in lines {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key {
                // (Linux 6.18 says more than 6.12.)
                // (What a position in a directory is, is the file system's.)
                "pos" if is_directory(fd) => {
                    let _ = write!(log, " pos={}", if value == "0" { "0" } else { "set" });
                }
                "mnt_id" | "ino" | "eventfd-id" | "scm_fds" => {}
                // ("it_value" and the like hold what is left of a time.)
                "it_value" | "it_interval" if value != "(0, 0)" => {
                    let _ = write!(log, " {key}=set");
                }
                "inotify wd" | "tfd" => {
                    let known = value
                        .split(' ')
                        .filter(|w| !w.starts_with("ino:") && !w.starts_with("sdev:"));
                    let known: Vec<&str> =
                        known.take_while(|w| !w.starts_with("fhandle")).collect();
                    let _ = write!(log, " {key}={}", known.join(" ").trim());
                }
                "Pid" | "NSpid" => {
                    let _ = write!(log, " {key}={}", shared.letter(value.parse().unwrap_or(0)));
                }
                "lock" => {
                    let words: Vec<&str> = value.split_ascii_whitespace().collect();
                    let _ = write!(log, " lock={}", words.get(1..4).unwrap_or(&[]).join(" "));
                }
                _ => drop(write!(log, " {key}={value}")),
            }
        }
        let _ = writeln!(log);
    }
}

fn is_directory(fd: usize) -> bool {
    let mut stat = [0u64; 18];
    let known = sc!(SYS_fstat, fd, stat.as_mut_ptr()).is_ok();
    known && stat[3] as u32 & S_IFMT == S_IFDIR
}

/// What /proc/self/status says of signals, rights and threads.
fn status(_shared: &Shared, log: &mut Log<'_>) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    const KEYS: [&str; 18] = [
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "VmLck",
        "Threads",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
    ];
    // The bounding set is the host's own.
    let is_root = text.lines().any(|line| line.starts_with("Uid:\t0\t0\t0\t0"));
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        if KEYS.contains(&key) && !(key.starts_with("Cap") && (is_root || key == "CapBnd")) {
            let _ = write!(log, "{key}={} ", value.trim().replace('\t', ","));
        }
    }
    let _ = writeln!(log);
}

fn tree_state(shared: &Shared, log: &mut Log<'_>, dir: &str, budget: &mut u32) {
    let mut names: Vec<_> = match std::fs::read_dir(dir) {
        Ok(entries) => entries.flatten().map(|entry| entry.file_name()).collect(),
        Err(_) => return,
    };
    names.sort();
    for name in names {
        if *budget == 0 {
            return;
        }
        *budget -= 1;
        let path = format!("{dir}/{}", name.to_string_lossy());
        let mut stat = [0u64; 18];
        if sc!(SYS_lstat, c(&path).as_ptr(), stat.as_mut_ptr()).is_err() {
            continue;
        }
        let (mode, uid, gid) = (stat[3] as u32, stat[3] >> 32, stat[4] as u32);
        let kind = mode & S_IFMT;
        let _ = write!(
            log,
            "tree {} {mode:o} {uid}/{gid} links {} size {} blocks {} inode {}",
            path.get(TREE.len()..).unwrap_or("").chars().take(40).collect::<String>(),
            stat[2],
            stat[6],
            stat[8],
            inode(shared, stat[0], stat[1])
        );
        for at in [9, 11] {
            let time = stat[at] as i64;
            let _ = if time > NOW_S {
                write!(log, " now")
            } else {
                write!(log, " {time}.{}", stat[at + 1])
            };
        }
        if kind == S_IFLNK {
            let target = std::fs::read_link(&path).unwrap_or_default();
            let _ = write!(
                log,
                " -> {}",
                target.to_string_lossy().chars().take(40).collect::<String>()
            );
        } else if kind == S_IFREG && stat[6] <= 4 << 20 {
            let _ = match std::fs::read(&path) {
                Ok(bytes) => write!(log, " content {:016x}", hash_bytes(&bytes)),
                Err(_) => write!(log, " unreadable"),
            };
        }
        let mut list = [0u8; 256];
        if let Ok(n @ 1..) = sc!(SYS_llistxattr, c(&path).as_ptr(), list.as_mut_ptr(), 256) {
            let mut names: Vec<&[u8]> =
                list[..n].split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
            names.sort();
            for name in names {
                let _ = write!(log, " {}", String::from_utf8_lossy(name));
            }
        }
        let _ = writeln!(log);
        if kind == S_IFDIR {
            tree_state(shared, log, &path, budget);
        }
    }
}
