//! Core files (core(5)): what a process was when a signal ended it, as an ELF file for debuggers.
//!
//! Why it is hard: the registers of all threads are wanted, but each thread has only its own. So
//! the thread that got the signal makes the others end, each of them leaves its notes on the way
//! out ([`add_thread`]), and when it is alone it writes the file: memory cannot change any more.
//! Pages that were never touched become holes. Neighbours: `regset` has the FPU's image,
//! `signal::deliver` and `process::exit` call in here by `process::upper`.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result, general as raw};
use entry::PtRegs;
use machine::fpu::{FXSAVE_BYTES, FpuState};
use machine::memory::{Page, PageKind, Prot};
use machine::sync::SpinLock;
use zerocopy::IntoBytes;

use super::{registers, regset};
use crate::base::io::Source;
use crate::base::sched::Sleep;
use crate::base::time::{NS_PER_SEC, realtime_ns};
use crate::base::{identity, sched};
use crate::io::pipe;
use crate::mm::{Backing, Mm, MmInner, PAGE, Vma, VmaFlags};
use crate::process::signal::info::{SIGINFO_BYTES, SigInfo};
use crate::process::signal::{SignalSet, send};
use crate::process::{Process, Thread, current, upper};
use crate::security::Resource;
use crate::vfs::open::{How, open};
use crate::vfs::path::Context;
use crate::vfs::{File, FileType, SetAttributes, namei};

/// Longest pattern, with its NUL (core(5)), and longest name that is made of it.
pub const PATTERN_MAX: usize = 128;
const NAME_MAX: usize = 4096;
/// Most areas that are written: a program header counts them in 16 bits (elf(5), PN_XNUM).
const AREAS_MAX: usize = 0xfff0;
/// Bytes copied at once.
const CHUNK: usize = 64 << 10;
/// Bytes of the text that the file names of NT_FILE may take.
const FILES_MAX: usize = 4 << 20;

/// Kinds of notes (elf.h).
mod note {
    pub(super) const PRSTATUS: u32 = 1;
    pub(super) const PRFPREG: u32 = 2;
    pub(super) const PRPSINFO: u32 = 3;
    pub(super) const AUXV: u32 = 6;
    pub(super) const X86_XSTATE: u32 = 0x202;
    pub(super) const X86_SHSTK: u32 = 0x204;
    pub(super) const SIGINFO: u32 = 0x5349_4749;
    pub(super) const FILE: u32 = 0x4649_4c45;
}

/// Bits of /proc/PID/coredump_filter (core(5)).
mod filter {
    pub(super) const ANONYMOUS_PRIVATE: u32 = 1;
    pub(super) const ANONYMOUS_SHARED: u32 = 1 << 1;
    pub(super) const FILE_PRIVATE: u32 = 1 << 2;
    pub(super) const FILE_SHARED: u32 = 1 << 3;
    pub(super) const ELF_HEADERS: u32 = 1 << 4;
    pub(super) const HUGETLB_PRIVATE: u32 = 1 << 5;
    pub(super) const HUGETLB_SHARED: u32 = 1 << 6;
}

const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// kernel.core_pattern and kernel.core_uses_pid.
static PATTERN: SpinLock<([u8; PATTERN_MAX], bool)> = SpinLock::new((DEFAULT_PATTERN, false));
const DEFAULT_PATTERN: [u8; PATTERN_MAX] = {
    let mut text = [0; PATTERN_MAX];
    (text[0], text[1], text[2], text[3]) = (b'c', b'o', b'r', b'e');
    text
};

/// How core files are named.
pub fn pattern() -> Vec<u8> {
    let text = PATTERN.lock().0;
    text.iter().copied().take_while(|&byte| byte != 0).collect()
}

/// Sets the pattern. EINVAL if it is too long.
pub fn set_pattern(text: &[u8]) -> Result<()> {
    if text.len() >= PATTERN_MAX {
        return Err(Errno::EINVAL);
    }
    let mut pattern = [0; PATTERN_MAX];
    pattern[..text.len()].copy_from_slice(text);
    PATTERN.lock().0 = pattern;
    Ok(())
}

/// Whether names get the process's id where the pattern does not say it.
pub fn uses_pid() -> bool {
    PATTERN.lock().1
}

/// See [`uses_pid`].
pub fn set_uses_pid(uses: bool) {
    PATTERN.lock().1 = uses;
}

/// Most processes whose cores programs take at a time, whose ends are then waited for; 0: any, and
/// no end is (kernel.core_pipe_limit).
static PIPES_MAX: AtomicU32 = AtomicU32::new(0);
static PIPES: AtomicU32 = AtomicU32::new(0);

/// See [`PIPES_MAX`].
pub fn pipe_limit() -> u32 {
    PIPES_MAX.load(Ordering::Relaxed)
}

/// See [`PIPES_MAX`].
pub fn set_pipe_limit(limit: u32) {
    PIPES_MAX.store(limit, Ordering::Relaxed);
}

/// The running thread ends its process by `info`'s signal: ends the others and writes the file.
/// Whether there is one. RLIMIT_CORE says of 0 that none is wanted, but not to a program.
pub fn dump(regs: &PtRegs, info: &SigInfo) -> bool {
    let thread = current();
    let process = &thread.process;
    let to_program = pattern().starts_with(b"|");
    if !to_program && limit(process) == 0 {
        return false;
    }
    {
        let threads = process.threads.lock();
        let mut shared = process.signals.lock();
        if shared.group_exit.is_some() {
            return false;
        }
        process.settings.dumps_core.store(true, Ordering::SeqCst);
        send::start_exit(process, &threads, &mut shared, info.signo, Some(thread.tid()));
    }
    let written = wait_for_others(process).and_then(|()| match to_program {
        true => give_to_program(&thread, regs, info),
        false => write_file(&thread, regs, info),
    });
    process.settings.dumps_core.store(false, Ordering::SeqCst);
    if written.is_ok() {
        let mut shared = process.signals.lock();
        shared.group_exit = shared.group_exit.map(|status| status | 0x80);
    }
    written.is_ok()
}

/// A thread of a process of which a core is written is about to go: leaves its notes.
pub fn add_thread(regs: &PtRegs) {
    let thread = current();
    // Without memory for them the core lacks the thread.
    let Ok(notes) = thread_notes(&thread, regs, &SigInfo::default()) else { return };
    let mut all = thread.process.core_notes.lock();
    if all.try_reserve(1).is_ok() {
        all.push(notes.0);
    }
}

/// Waits until no other thread is left. The signal that ends the process has been taken already.
fn wait_for_others(process: &Process) -> Result<()> {
    let is_alone = || (process.threads.lock().len() <= 1).then_some(());
    Ok(process.release_events.wait_deadline(Sleep::Killable, None, is_alone)?)
}

/// Notes in the making.
#[derive(Default)]
struct Notes(Vec<u8>);

impl Notes {
    fn add(&mut self, name: &str, kind: u32, content: &[u8]) -> Result<()> {
        let name_bytes = name.len() + 1;
        let room = 12 + name_bytes.next_multiple_of(4) + content.len().next_multiple_of(4);
        self.0.try_reserve(room).map_err(|_| Errno::ENOMEM)?;
        for word in [name_bytes as u32, content.len() as u32, kind] {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.pad();
        self.0.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// NT_PRSTATUS, NT_PRFPREG, NT_X86_XSTATE and NT_X86_SHSTK of the running thread.
fn thread_notes(thread: &Thread, regs: &PtRegs, info: &SigInfo) -> Result<Notes> {
    let mut notes = Notes::default();
    notes.add("CORE", note::PRSTATUS, &status(thread, regs, info))?;
    add_fpu(&mut notes)?;
    Ok(notes)
}

fn add_fpu(notes: &mut Notes) -> Result<()> {
    let fpu = FpuState::of_running().map_err(|_| Errno::ENOMEM)?;
    let image = regset::whole_image(fpu.bytes())?;
    notes.add("CORE", note::PRFPREG, &image[..FXSAVE_BYTES.min(image.len())])?;
    if machine::cpu::features().xsave {
        notes.add("LINUX", note::X86_XSTATE, &image)?;
    }
    match machine::task::shadow_stack_pointer() {
        Some(pointer) => notes.add("LINUX", note::X86_SHSTK, &pointer.to_le_bytes()),
        None => Ok(()),
    }
}

/// `struct elf_prstatus`: signals, ids, times, the general registers.
fn status(thread: &Thread, regs: &PtRegs, info: &SigInfo) -> Vec<u8> {
    let process = &thread.process;
    let (pending, blocked) = {
        let own = thread.signals.lock();
        (own.pending.set(), own.blocked)
    };
    let time = |ns: u64| [ns / 1_000_000_000, ns % 1_000_000_000 / 1000];
    let (user, system) = thread.times_ns();
    let mut bytes = Vec::new();
    bytes.extend_from_slice([info.signo, info.code, info.errno, info.signo].as_bytes());
    bytes.extend_from_slice([pending, blocked].as_bytes());
    bytes.extend_from_slice(ids(process, thread.tid()).as_bytes());
    bytes.extend_from_slice([time(user), time(system), [0; 2], [0; 2]].as_bytes());
    bytes.extend_from_slice(registers::of_running(regs).as_bytes());
    // The FPU's registers follow, in a note of their own.
    bytes.extend_from_slice([1u32, 0].as_bytes());
    bytes
}

/// The id (of a thread or process), the parent's, the group, the session.
fn ids(process: &Process, id: u32) -> [u32; 4] {
    [id, process.parent_pid(), process.group(), process.session.load(Ordering::Relaxed)]
}

/// `struct elf_prpsinfo`: what ps(1) shows.
fn process_info(thread: &Thread) -> Result<Vec<u8>> {
    /// Room for the arguments.
    const ARGUMENTS: usize = 80;
    let process = &thread.process;
    let credentials = process.credentials();
    let mut bytes = alloc::vec![0, b'R', 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(0u64.as_bytes());
    bytes.extend_from_slice([credentials.uid, credentials.gid].as_bytes());
    bytes.extend_from_slice(ids(process, process.pid).as_bytes());
    bytes.extend_from_slice(&*thread.name.lock());
    let (start, end) = process.program.lock().arguments;
    let mut arguments = [0; ARGUMENTS];
    let len = (end.saturating_sub(start) as usize).min(ARGUMENTS - 1);
    let len = process.mm()?.read_remote(start, &mut arguments[..len]).unwrap_or(0);
    let text = arguments[..len].iter_mut().filter(|byte| **byte == 0);
    text.for_each(|byte| *byte = b' ');
    bytes.extend_from_slice(&arguments);
    Ok(bytes)
}

/// An area, as the core has it.
struct Segment {
    start: u64,
    end: u64,
    /// Bytes of it that are in the core.
    kept: u64,
    flags: u32,
    /// What never had a page needs no reading.
    is_sparse: bool,
}

/// How much of an area is kept, by the process's filter. `has_own`: pages of the file were copied
/// for it, as those that the loader relocates, and are nowhere else.
fn kept_bytes(
    (start, vma, has_own): (u64, &Vma, bool),
    wanted: u32,
    is_elf: impl FnOnce() -> bool,
) -> u64 {
    let all = vma.end - start;
    let has = |bit: u32| wanted & bit != 0;
    let whole = |is_wanted: bool| if is_wanted { all } else { 0 };
    if vma.flags.contains(VmaFlags::DONT_DUMP) {
        return 0;
    }
    match &vma.backing {
        Backing::Special { name, .. } => whole(*name == "[vdso]"),
        Backing::Anonymous => whole(has(filter::ANONYMOUS_PRIVATE)),
        Backing::Hugetlb(_) if vma.shared => whole(has(filter::HUGETLB_SHARED)),
        Backing::Hugetlb(_) => whole(has(filter::HUGETLB_PRIVATE)),
        Backing::File { file: None, .. } => whole(has(filter::ANONYMOUS_SHARED)),
        Backing::File { .. } if vma.shared => whole(has(filter::FILE_SHARED)),
        Backing::File { .. } if has_own && has(filter::ANONYMOUS_PRIVATE) => all,
        Backing::File { .. } if has(filter::FILE_PRIVATE) => all,
        Backing::File { page_offset: 0, .. } if has(filter::ELF_HEADERS) && is_elf() => PAGE,
        Backing::File { .. } => 0,
    }
}

/// The areas, and the content of NT_FILE: which files are mapped where.
fn areas(process: &Process) -> Result<(Vec<Segment>, Vec<u8>)> {
    let mm = process.mm()?;
    let wanted = process.settings.core_filter();
    let has_own = |inner: &MmInner, start: u64, vma: &Vma| {
        let mut has_own = false;
        let is_private_file = !vma.shared && matches!(vma.backing, Backing::File { .. });
        if is_private_file {
            let note = |page: Page| has_own |= page.kind == PageKind::Anonymous;
            inner.table.for_each(start, vma.end, note);
        }
        has_own
    };
    let all: Vec<(u64, Vma, bool)> = mm.with(|inner| {
        let areas = inner.vmas.iter();
        areas.map(|(start, vma)| (*start, vma.clone(), has_own(inner, *start, vma))).collect()
    });
    let context = Context::current();
    let (mut segments, mut files, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (start, vma, has_own) in all.iter().take(AREAS_MAX) {
        let is_elf = || {
            let mut magic = [0; 4];
            mm.read_remote(*start, &mut magic) == Ok(4) && magic == ELF_MAGIC
        };
        segments.push(Segment {
            start: *start,
            end: vma.end,
            kept: kept_bytes((*start, vma, *has_own), wanted, is_elf),
            flags: u32::from(vma.prot.contains(Prot::READ)) << 2
                | u32::from(vma.prot.changes()) << 1
                | u32::from(vma.prot.contains(Prot::EXEC)),
            is_sparse: matches!(vma.backing, Backing::Anonymous | Backing::Hugetlb(_)),
        });
        if let Backing::File { file: Some(file), page_offset, .. } = &vma.backing
            && let Some(location) = &file.location
            && names.len() < FILES_MAX
        {
            files.extend([*start, vma.end, *page_offset]);
            names.extend_from_slice(&location.path(&context.root()));
            names.push(0);
        }
    }
    let mut text = Vec::new();
    text.extend_from_slice([files.len() as u64 / 3, PAGE].as_bytes());
    text.extend_from_slice(files.as_bytes());
    text.extend_from_slice(&names);
    Ok((segments, text))
}

/// EFBIG if not even the notes fit RLIMIT_CORE; what else does not is cut off.
fn write_file(thread: &Thread, regs: &PtRegs, info: &SigInfo) -> Result<()> {
    let file = create(thread, info)?;
    let limit = limit(&thread.process);
    write_core(thread, regs, info, Output { file, at: 0, limit, is_pipe: false })
}

/// Starts the pattern's program and writes to its standard input. EAGAIN if too many are taken.
fn give_to_program(thread: &Thread, regs: &PtRegs, info: &SigInfo) -> Result<()> {
    // The core of one that takes cores would be given to another.
    if limit(&thread.process) == upper::HELPERS_CORE {
        return Err(Errno::EAGAIN);
    }
    let most = pipe_limit();
    let taken = PIPES.fetch_add(1, Ordering::SeqCst);
    let given = match most == 0 || taken < most {
        true => write_to_program(thread, regs, info, most != 0),
        false => Err(Errno::EAGAIN),
    };
    PIPES.fetch_sub(1, Ordering::SeqCst);
    // Who reads no more has had what it wanted.
    if let Err(error) = given
        && error != Errno::EPIPE
    {
        let pid = thread.process.pid;
        machine::log!("warning: core of process {pid}: not given to a program: {}", error.name());
    }
    given
}

/// `waits`: until the program has ended or closed its input.
fn write_to_program(thread: &Thread, regs: &PtRegs, info: &SigInfo, waits: bool) -> Result<()> {
    // Each word is one argument, whatever stands in it for what.
    let words = pattern()[1..]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| expanded(word, thread, info).0)
        .collect();
    let (input, output) = pipe::open_ends((0, 0), 0);
    upper::start_helper(words, input)?;
    let pipe = pipe::of(&output).ok_or(Errno::EIO)?.clone();
    let output = Output { file: output, at: 0, limit: u64::MAX, is_pipe: true };
    let written = write_core(thread, regs, info, output);
    if waits {
        pipe.wait_unread()?;
    }
    written
}

fn write_core(thread: &Thread, regs: &PtRegs, info: &SigInfo, mut output: Output) -> Result<()> {
    let process = &thread.process;
    let (segments, files) = areas(process)?;
    let mut notes = Notes::default();
    notes.add("CORE", note::PRSTATUS, &status(thread, regs, info))?;
    notes.add("CORE", note::PRPSINFO, &process_info(thread)?)?;
    let mut known = [0; SIGINFO_BYTES];
    known[..size_of::<SigInfo>()].copy_from_slice(info.as_bytes());
    notes.add("CORE", note::SIGINFO, &known)?;
    notes.add("CORE", note::AUXV, process.program.lock().auxv.as_bytes())?;
    notes.add("CORE", note::FILE, &files)?;
    add_fpu(&mut notes)?;
    for others in core::mem::take(&mut *process.core_notes.lock()) {
        notes.0.extend_from_slice(&others);
    }
    // The signal that ends the process ends no wait of this, but for SIGKILL.
    thread.signals.lock().blocked = SignalSet::MAX;
    output.write(&headers(&segments, notes.0.len()))?;
    output.write(&notes.0)?;
    let gap = output.at.next_multiple_of(PAGE) - output.at;
    output.skip(gap)?;
    let mut buffer = crate::io::splice::buffer(CHUNK)?;
    let mm = process.mm()?;
    for segment in &segments {
        write_segment(segment, &mm, &mut buffer, &mut output)?;
    }
    output.finish()
}

fn write_segment(segment: &Segment, mm: &Mm, buffer: &mut [u8], output: &mut Output) -> Result<()> {
    let end = segment.start + segment.kept;
    let mut at = segment.start;
    while at < end {
        let is_absent = segment.is_sparse && mm.with(|inner| is_absent(inner, at));
        // Page by page where some may be absent.
        let most = if segment.is_sparse { PAGE } else { CHUNK as u64 };
        let len = most.min(end - at) as usize;
        let read = if is_absent { Ok(0) } else { mm.read_remote(at, &mut buffer[..len]) };
        at += match read {
            Ok(read @ 1..) => {
                output.write(&buffer[..read])?;
                read as u64
            }
            // What cannot be read reads as zeros.
            _ => output.skip(PAGE.min(end - at))?,
        };
        sched::yield_if_needed();
    }
    Ok(())
}

/// Whether an anonymous page was never touched.
fn is_absent(inner: &MmInner, page: u64) -> bool {
    !inner.table.allows(page, Prot::empty())
}

/// RLIMIT_CORE.
fn limit(process: &Process) -> u64 {
    process.limit(Resource::Core)
}

/// The ELF header and the program headers: the notes, then each area.
fn headers(segments: &[Segment], notes_bytes: usize) -> Vec<u8> {
    const PT_LOAD: u32 = 1;
    const PT_NOTE: u32 = 4;
    let count = segments.len() + 1;
    let notes_at = (ELF_HEADER_BYTES + count * PROGRAM_HEADER_BYTES) as u64;
    let mut bytes = Vec::new();
    // 64 bits, little-endian, version 1; a core file for x86-64 (elf(5)).
    bytes.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice([4u16, 62].as_bytes());
    bytes.extend_from_slice(1u32.as_bytes());
    bytes.extend_from_slice([0u64, ELF_HEADER_BYTES as u64, 0].as_bytes());
    bytes.extend_from_slice(0u32.as_bytes());
    let sizes = [ELF_HEADER_BYTES as u16, PROGRAM_HEADER_BYTES as u16, count as u16, 0, 0, 0];
    bytes.extend_from_slice(sizes.as_bytes());
    let mut header = |kind: u32, flags: u32, words: [u64; 6]| {
        bytes.extend_from_slice([kind, flags].as_bytes());
        bytes.extend_from_slice(words.as_bytes());
    };
    header(PT_NOTE, 0, [notes_at, 0, 0, notes_bytes as u64, 0, 4]);
    let mut at = (notes_at + notes_bytes as u64).next_multiple_of(PAGE);
    for segment in segments {
        let size = segment.end - segment.start;
        header(PT_LOAD, segment.flags, [at, segment.start, 0, segment.kept, size, PAGE]);
        at += segment.kept;
    }
    bytes
}

/// The file as it is written.
struct Output {
    file: Arc<File>,
    at: u64,
    /// What lies behind this is cut off.
    limit: u64,
    /// It has no holes, and no size.
    is_pipe: bool,
}

impl Output {
    /// EFBIG behind the limit, up to which it is written.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let fits = self.limit.saturating_sub(self.at).min(bytes.len() as u64) as usize;
        let mut source = Source::kernel(&bytes[..fits]);
        while source.left() > 0 {
            match self.file.ops().write_at(&self.file, self.at, &mut source)? {
                0 => return Err(Errno::EIO),
                written => self.at += written as u64,
            }
        }
        if fits < bytes.len() { Err(Errno::EFBIG) } else { Ok(()) }
    }

    /// Leaves a hole of at most a page; its length.
    fn skip(&mut self, len: u64) -> Result<u64> {
        match self.is_pipe {
            true => self.write(&[0; PAGE as usize][..len as usize])?,
            false => self.at += len,
        }
        Ok(len)
    }

    /// A hole at the end is part of the file, too.
    fn finish(self) -> Result<()> {
        if self.is_pipe {
            return Ok(());
        }
        let size = self.at.min(self.limit);
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.file.inode().set_attributes(&changes)?;
        if size < self.at { Err(Errno::EFBIG) } else { Ok(()) }
    }
}

/// Makes the file anew. EACCES for what is not a plain file of the process's own.
fn create(thread: &Thread, info: &SigInfo) -> Result<Arc<File>> {
    let name = file_name(thread, info);
    let context = Context::current();
    // Something old would give its owner what is written.
    let _ = namei::unlink(&context, raw::AT_FDCWD, &name);
    let flags = raw::O_CREAT | raw::O_EXCL | raw::O_RDWR | raw::O_NOFOLLOW | raw::O_LARGEFILE;
    let file = open(&context, raw::AT_FDCWD, &name, &How { flags, mode: 0o600, walk: 0 })?;
    let of = file.inode().metadata()?;
    let is_own = of.file_type == FileType::Regular && of.uid == context.subject.credentials.fsuid;
    if is_own { Ok(file) } else { Err(Errno::EACCES) }
}

/// The pattern with everything in it replaced (core(5)).
fn file_name(thread: &Thread, info: &SigInfo) -> Vec<u8> {
    let (mut name, has_pid) = expanded(&pattern(), thread, info);
    if uses_pid() && !has_pid {
        name.extend_from_slice(format!(".{}", thread.process.pid).as_bytes());
    }
    name.truncate(NAME_MAX);
    name
}

/// A text with everything in it replaced, and whether the process's id was.
fn expanded(text: &[u8], thread: &Thread, info: &SigInfo) -> (Vec<u8>, bool) {
    let process = &thread.process;
    let credentials = process.credentials();
    let (mut name, mut has_pid) = (Vec::new(), false);
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let kind = bytes.next();
        has_pid |= matches!(kind, Some(b'p' | b'P'));
        let number: u64 = match kind {
            Some(b'%') => {
                name.push(b'%');
                continue;
            }
            Some(letter @ (b'e' | b'f' | b'E' | b'h')) => {
                add_text(&mut name, letter, thread);
                continue;
            }
            Some(b'p' | b'P') => process.pid.into(),
            Some(b'i' | b'I') => thread.tid().into(),
            Some(b'u') => credentials.uid.into(),
            Some(b'g') => credentials.gid.into(),
            Some(b'd') => 1,
            Some(b's') => info.number().into(),
            Some(b't') => realtime_ns() / NS_PER_SEC,
            Some(b'c') => limit(process),
            Some(b'C') => machine::percpu::cpu_id() as u64,
            // Unknown ones are left out, as on Linux.
            _ => continue,
        };
        name.extend_from_slice(format!("{number}").as_bytes());
    }
    (name, has_pid)
}

/// A name in a file's name: a slash in it would lead elsewhere.
fn add_text(name: &mut Vec<u8>, letter: u8, thread: &Thread) {
    let path = || {
        let file = thread.process.program.lock().file.clone();
        let location = file.and_then(|file| file.location.clone());
        location.map_or(Vec::new(), |at| at.path(&Context::current().root()))
    };
    let text = match letter {
        b'e' => thread.name.lock().iter().copied().take_while(|&byte| byte != 0).collect(),
        b'f' => path().rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec(),
        b'E' => path(),
        _ => identity::hostname(),
    };
    name.extend(text.into_iter().map(|byte| if byte == b'/' { b'!' } else { byte }));
}
