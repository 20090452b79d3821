//! execve(2): from a file to a running program.
//!
//! [`load`] builds a complete new address space and stack without touching the running program;
//! only then, past the point of no return, does [`call`] give up the old one. So a bad
//! file never leaves a program half way.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::{Errno, Result, auxvec as at};
use entry::{PtRegs, flags, selector};
use formats::script::{self, Script};
use machine::memory::{Prot, USER_END};

use crate::base::{params, random};
use crate::mm::elf::{Elf, HEADER_BYTES, Mapped};
use crate::mm::fault::StackLimits;
use crate::mm::{Mm, PAGE, Vma, VmaFlags};
use crate::process::{Program, hooks, rseq};
use crate::security::Credentials;
use crate::vfs::File;
use crate::vfs::deny_write::WriteDenial;

pub mod call;

/// Personality: readable means executable (personality(2)).
pub const READ_IMPLIES_EXEC: u32 = 0x040_0000;

/// A program ready to run.
pub struct Image {
    /// Its address space.
    pub mm: Arc<Mm>,
    /// Its registers.
    pub regs: PtRegs,
    /// What procfs tells about it.
    pub program: Program,
    /// Its name: the last component of the path, NUL-padded.
    pub name: [u8; 16],
    /// Who runs it, now that the file is known.
    pub credentials: Credentials,
    /// Whether it must not trust its environment (AT_SECURE).
    pub secure: bool,
}

/// What a file's mode bits make of who runs it, and whether that raises the rights.
type Raise<'a> = dyn Fn(&Arc<File>) -> Result<(Credentials, bool)> + 'a;

/// What to run.
pub struct Request<'a> {
    /// Path, as given.
    pub path: Vec<u8>,
    /// The opened executable.
    pub file: Arc<File>,
    /// Arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Environment.
    pub environment: Vec<Vec<u8>>,
    /// Of a script it is the interpreter that is asked about.
    pub raise: &'a Raise<'a>,
    /// Whether areas go to random places (personality(2), ADDR_NO_RANDOMIZE); those of a program
    /// that raises the rights do whatever is said here, but not whatever [`randomization`] says.
    pub randomize: bool,
    /// Soft stack limit, bytes.
    pub stack_limit: u64,
    /// The path leads through a descriptor that exec closes.
    pub is_closing: bool,
    /// Opens another executable by path: an interpreter.
    pub open: &'a dyn Fn(&[u8]) -> Result<Arc<File>>,
}

impl Request<'_> {
    /// A random number below `bound`, or always 0.
    fn random_below(&self, bound: u64) -> u64 {
        if self.randomize { random::below(bound) } else { 0 }
    }
}

/// What of new programs goes to random places (proc(5), randomize_va_space): nothing, all but the
/// heap, or all.
static RANDOMIZATION: AtomicI32 = AtomicI32::new(2);

/// As it was set last.
pub fn randomization() -> i32 {
    RANDOMIZATION.load(Ordering::Relaxed)
}

/// For programs that start from now on: 0 for nothing, 1 for all but the heap, more for all.
pub fn set_randomization(value: i32) {
    RANDOMIZATION.store(value, Ordering::Relaxed);
}

/// `norandmaps`: programs lie where they always lie.
pub fn init(command_line: &str) {
    if params::has_flag(command_line, "norandmaps") {
        set_randomization(0);
    }
}

/// What rseq(2) writes, and how its area is aligned (getauxval(3)).
const AT_RSEQ_FEATURE_SIZE: u32 = 27;
/// See [`AT_RSEQ_FEATURE_SIZE`].
const AT_RSEQ_ALIGN: u32 = 28;
/// `#!` may lead to another `#!`, this deep.
const MAX_SCRIPT_DEPTH: usize = 5;
/// Longest argument string, with its NUL (MAX_ARG_STRLEN).
pub const MAX_STRING: usize = 128 * 1024;
/// Most arguments and environment strings together.
pub const MAX_STRINGS: usize = 1 << 20;
/// Where position-independent programs go, before randomisation: two thirds of user space.
const PIE_BASE: u64 = 0x5555_5555_4000;
const STACK_INITIAL: u64 = 132 * 1024;
/// Room for the growth of the stack below which mappings are placed, at least.
const STACK_GAP_MIN: u64 = 128 << 20;

/// Builds the address space of a program. ENOEXEC, E2BIG, ENOMEM, ELIBBAD, EACCES …
pub fn load(mut request: Request<'_>) -> Result<Image> {
    let name = program_name(&request.path);
    let (elf, denial) = resolve_scripts(&mut request)?;
    let (credentials, secure) = (request.raise)(&request.file)?;
    let randomization = randomization();
    request.randomize = (request.randomize || secure) && randomization != 0;
    let mm = Mm::new()?;
    let stack_top = USER_END - request.random_below(1 << 22) * PAGE;
    let gap = request.stack_limit.clamp(STACK_GAP_MIN, USER_END / 6 * 5);
    mm.with(|inner| {
        inner.layout.stack_top = stack_top;
        inner.layout.mmap_top =
            stack_top - gap.next_multiple_of(PAGE) - request.random_below(1 << 12) * PAGE;
        let exec = elf.wants_executable_stack();
        let mut prot = Prot::READ | Prot::WRITE;
        prot.set(Prot::EXEC, exec);
        let mut stack = Vma::anonymous(stack_top, prot);
        stack.flags |= VmaFlags::GROWS_DOWN;
        stack.name = Some("[stack]");
        inner.insert(stack_top - STACK_INITIAL, stack)
    })?;
    let place = PIE_BASE + request.random_below(1 << 20) * PAGE;
    let interpreter = match elf.interpreter()? {
        Some(path) => Some(read_interpreter(&path, request.open)?),
        None => None,
    };
    // From here on Linux has given up the old program: a file that cannot be mapped is fatal.
    let main = elf.map(&mm, Some(place)).map_err(fatal)?;
    let interpreter = match interpreter {
        Some((elf, _denial)) => Some(elf.map(&mm, None).map_err(fatal)?),
        None => None,
    };
    mm.with(|inner| {
        let gap = if randomization > 1 { request.random_below(1 << 10) * PAGE } else { 0 };
        let start = main.end.next_multiple_of(PAGE) + gap;
        (inner.layout.brk_start, inner.layout.brk) = (start, start);
    });
    let vdso = crate::mm::vdso::map(&mm)?;
    let (rsp, mut program) = build_stack(
        &mm,
        &request,
        stack_top,
        (&main, interpreter.as_ref(), vdso),
        (&credentials, secure),
    )?;
    program.denial = Some(Arc::new(denial));
    let rip = interpreter.map_or(main.entry, |interpreter| interpreter.entry);
    // An entry point outside user space is the program's first fault, not a reason to refuse it.
    Ok(Image { mm, regs: first_registers(rip, rsp), program, name, credentials, secure })
}

/// All zero but the stack and what SYSRET loads; so the first return leaves by SYSRET.
fn first_registers(rip: u64, rsp: u64) -> PtRegs {
    let rflags = flags::FIXED | flags::IF;
    PtRegs {
        rip,
        rsp,
        rflags,
        cs: selector::USER_CS.into(),
        ss: selector::USER_DS.into(),
        orig_rax: u64::MAX,
        ..PtRegs::default()
    }
}

fn program_name(path: &[u8]) -> [u8; 16] {
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let mut name = [0; 16];
    let len = last.len().min(15);
    name[..len].copy_from_slice(&last[..len]);
    name
}

/// Follows `#!` lines until an ELF file is found; rewrites file and arguments on the way. The path
/// stays what was asked for: it is the program's name, and AT_EXECFN.
fn resolve_scripts(request: &mut Request<'_>) -> Result<(Elf, WriteDenial)> {
    let mut path = request.path.clone();
    for _ in 0..=MAX_SCRIPT_DEPTH {
        hooks::bprm_check_security((&request.file,))?;
        let denial = WriteDenial::new(request.file.inode())?;
        let cache = request.file.ops().inode().page_cache().ok_or(Errno::EACCES)?;
        let mut start = [0u8; script::START_MAX];
        let len = cache.read(0, &mut crate::base::io::Sink::kernel(&mut start))?;
        if !start[..len].starts_with(b"#!") {
            return Ok((Elf::read(request.file.clone(), cache)?, denial));
        }
        let found = Script::parse(&start[..len]).ok_or(Errno::ENOEXEC)?;
        if request.is_closing {
            // The interpreter would find nothing under the name it gets.
            return Err(Errno::ENOENT);
        }
        let interpreter = found.interpreter.to_vec();
        let mut arguments = Vec::new();
        arguments.push(interpreter.clone());
        arguments.extend(found.argument.map(<[u8]>::to_vec));
        arguments.push(path);
        arguments.extend(request.arguments.drain(..).skip(1));
        request.arguments = arguments;
        request.file = (request.open)(&interpreter)?;
        path = interpreter;
    }
    Err(Errno::ELOOP)
}

/// The error of [`load`] that stands for the end of the process by SIGSEGV (ELF files whose
/// segments cannot be mapped). No system call gives it.
pub const FATAL: Errno = Errno::ERESTART;

fn fatal(error: Errno) -> Errno {
    if error == Errno::ENOMEM && machine::frame::is_short() { error } else { FATAL }
}

fn read_interpreter(
    path: &[u8],
    open: &dyn Fn(&[u8]) -> Result<Arc<File>>,
) -> Result<(Elf, WriteDenial)> {
    let file = open(path)?;
    let denial = WriteDenial::new(file.inode())?;
    let cache = file.ops().inode().page_cache().ok_or(Errno::EACCES)?;
    if cache.size() < HEADER_BYTES {
        return Err(Errno::EIO);
    }
    let as_libbad = |error| if error == Errno::ENOEXEC { Errno::ELIBBAD } else { error };
    Ok((Elf::read(file, cache).map_err(as_libbad)?, denial))
}

/// Entries of the auxiliary vector, without its end.
const AUXILIARY: usize = 22;
/// A stack begins up to so many bytes below what is at its top.
const STACK_SHIFT_MAX: u64 = 128 * 16;

/// A stack grows for its first words as far as the program's own may. Nothing of it is locked yet.
impl StackLimits for Request<'_> {
    fn stack_bytes(&self) -> u64 {
        self.stack_limit
    }

    fn locked_bytes(&self) -> u64 {
        0
    }
}

/// Strings, then (16-byte aligned) argc, argv, envp and the auxiliary vector, as the ABI has them
/// (System V x86-64 psABI 3.4.1). Returns the stack pointer.
fn build_stack(
    mm: &Arc<Mm>,
    request: &Request<'_>,
    top: u64,
    mapped: (&Mapped, Option<&Mapped>, u64),
    subject: (&Credentials, bool),
) -> Result<(u64, Program)> {
    let mut arguments: Vec<&[u8]> = request.arguments.iter().map(Vec::as_slice).collect();
    if arguments.is_empty() {
        // A program may rely on argv[0]; Linux gives it an empty one.
        arguments.push(b"");
    }
    let strings = arguments.iter().copied().chain(request.environment.iter().map(Vec::as_slice));
    let bytes: usize = strings.map(|s| s.len() + 1).sum::<usize>() + request.path.len() + 1;
    let count = arguments.len() + request.environment.len();
    let limit = (request.stack_limit / 4).clamp(STACK_INITIAL, 6 << 20);
    if (bytes + count * 8) as u64 > limit {
        return Err(Errno::E2BIG);
    }
    let mut block = Vec::new();
    block.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
    let base = top - 16 - bytes as u64;
    let mut pointers = |strings: &mut dyn Iterator<Item = &[u8]>| {
        let mut addresses = Vec::new();
        for string in strings {
            addresses.push(base + block.len() as u64);
            block.extend_from_slice(string);
            block.push(0);
        }
        (addresses, base + block.len() as u64)
    };
    let (argv, arguments_end) = pointers(&mut arguments.iter().copied());
    let (envp, environment_end) = pointers(&mut request.environment.iter().map(Vec::as_slice));
    let (exec_path, _) = pointers(&mut core::iter::once(request.path.as_slice()));
    let auxiliary_words = 2 * AUXILIARY + 2;
    let words = 1 + (argv.len() + 1) + (envp.len() + 1) + auxiliary_words;
    let lowest = base - 48 - STACK_SHIFT_MAX - (words * 8 + 16) as u64;
    mm.with(|inner| inner.grow_to(lowest, request))?;
    mm.write(base, &block)?;
    let mut seed = [0u8; 32];
    random::fill(&mut seed[..16]);
    seed[16..23].copy_from_slice(b"x86_64\0");
    let seed_at = (base - 32) & !15;
    mm.write(seed_at, &seed)?;
    let auxv = auxiliary_vector(mapped, subject, seed_at, exec_path[0]);
    let mut words = Vec::new();
    words.push(argv.len() as u64);
    words.extend_from_slice(&argv);
    words.push(0);
    words.extend_from_slice(&envp);
    words.push(0);
    words.extend_from_slice(&auxv);
    // A little randomness below the page, for what the layout of pages leaves predictable.
    let rsp =
        (seed_at - request.random_below(STACK_SHIFT_MAX / 16) * 16 - words.len() as u64 * 8) & !15;
    mm.write(rsp, zerocopy::IntoBytes::as_bytes(words.as_slice()))?;
    let program = Program {
        file: Some(request.file.clone()),
        denial: None,
        path: request.path.clone(),
        arguments: (base, arguments_end),
        environment: (arguments_end, environment_end),
        auxv,
    };
    Ok((rsp, program))
}

fn auxiliary_vector(
    (main, interpreter, vdso): (&Mapped, Option<&Mapped>, u64),
    (credentials, secure): (&Credentials, bool),
    seed_at: u64,
    path_at: u64,
) -> Vec<u64> {
    let hwcap = u64::from(machine::cpu::cpuid(1, 0)[3]);
    // HWCAP2 bit 1: programs may use FSGSBASE instructions.
    let hwcap2 = if machine::cpu::features().fsgsbase { 2 } else { 0 };
    let pairs: [(u32, u64); AUXILIARY] = [
        (if vdso == 0 { at::AT_IGNORE } else { at::AT_SYSINFO_EHDR }, vdso),
        (at::AT_MINSIGSTKSZ, machine::fpu::state_bytes() as u64 + 1024),
        (at::AT_HWCAP, hwcap),
        (at::AT_PAGESZ, PAGE),
        (at::AT_CLKTCK, 100),
        (at::AT_PHDR, main.headers),
        (at::AT_PHENT, 56),
        (at::AT_PHNUM, main.header_count),
        (at::AT_BASE, interpreter.map_or(0, |mapped| mapped.bias)),
        (at::AT_FLAGS, 0),
        (at::AT_ENTRY, main.entry),
        (at::AT_UID, credentials.uid.into()),
        (at::AT_EUID, credentials.euid.into()),
        (at::AT_GID, credentials.gid.into()),
        (at::AT_EGID, credentials.egid.into()),
        (at::AT_SECURE, secure.into()),
        (at::AT_RANDOM, seed_at),
        (at::AT_HWCAP2, hwcap2),
        (at::AT_EXECFN, path_at),
        (at::AT_PLATFORM, seed_at + 16),
        (AT_RSEQ_FEATURE_SIZE, rseq::FEATURE_BYTES.into()),
        (AT_RSEQ_ALIGN, rseq::ALIGN.into()),
    ];
    let mut vector: Vec<u64> =
        pairs.iter().flat_map(|&(kind, value)| [u64::from(kind), value]).collect();
    vector.extend_from_slice(&[u64::from(at::AT_NULL), 0]);
    vector
}

/// Reads a NULL-terminated array of string pointers. E2BIG past the bounds.
pub fn read_strings(array: u64) -> Result<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    let mut total = 0;
    if array == 0 {
        return Ok(strings);
    }
    loop {
        let pointer = crate::base::user::UserPtr::<u64>::new(array).nth(strings.len()).read()?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = crate::base::user::read_c_string(pointer, MAX_STRING, Errno::E2BIG)?;
        total += string.len() + 9;
        if strings.len() == MAX_STRINGS || total > 6 << 20 {
            return Err(Errno::E2BIG);
        }
        strings.try_reserve(1).map_err(|_| Errno::E2BIG)?;
        strings.push(string);
    }
}
