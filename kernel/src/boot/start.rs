//! From a running kernel to a running program: the root file system, standard files, the first
//! process. Runs in a kernel thread, because devices make it sleep.
//!
//! Whatever fails here is a boot failure: one line in the log that names the thing, and the machine
//! ends without a status, which the command line reports as such.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, general as raw};
use formats::boot_config::{BootConfig, RootKind, RwMount, Stdio};
use formats::control::ToHost;
use formats::ports;
use machine::sync::{Once, ReadMostly};

use crate::base::reserve::{self, Givers};
use crate::base::sched::Sleep;
use crate::base::sync::WaitQueue;
use crate::base::time::{self, Deadline, NS_PER_SEC, set_realtime_ns};
use crate::boot::host_channel::{Listener, listen};
use crate::boot::initramfs;
use crate::boot::{report, sessions};
use crate::drivers::chrdev::{self, Nodes};
use crate::exec::call::next_credentials;
use crate::exec::{self, Image, Request};
use crate::fs::devfs;
use crate::fs::overlay::OverlayFs;
use crate::fs::tmpfs::{Limits, TmpFs};
use crate::fs::virtiofs::VirtioFs;
use crate::futex::robust;
use crate::init::{First, PROGRAM_PID};
use crate::io::stdio::{self, Stream};
use crate::io::timerfd;
use crate::ipc::sysv::undo;
use crate::mm::vdso;
use crate::oom;
use crate::page_cache;
use crate::process::signal::{SigInfo, send_to_group};
use crate::process::upper::{self, Upper};
use crate::security::{self, Credentials, Resource, Subject};
use crate::tty::WinSize;
use crate::vfs as fs;
use crate::vfs::open::{How, open_executable};
use crate::vfs::path::{Context, FsContext, Location, resolve, walk};
use crate::vfs::{FdTable, File, FileOps, FileSystem, FileType, SetAttributes, mount, namei};

static CONFIG: Once<BootConfig> = Once::new();

/// The boot configuration, once it has been read.
pub fn config() -> Option<&'static BootConfig> {
    CONFIG.get()
}

/// What went wrong: the step, and the error.
struct Failure {
    step: String,
    error: Errno,
}

/// Names the step of an error.
trait Step<T> {
    fn step(self, step: impl Into<String>) -> core::result::Result<T, Failure>;
}

impl<T> Step<T> for Result<T> {
    fn step(self, step: impl Into<String>) -> core::result::Result<T, Failure> {
        self.map_err(|error| Failure { step: step.into(), error })
    }
}

/// Prepares the first program, as the body of process 1's thread. A boot failure does not come
/// back.
pub fn prepare() -> Result<First> {
    register_floors();
    #[cfg(feature = "ktest")]
    if crate::ktest::is_wanted() {
        crate::ktest::run();
    }
    try_prepare().map_err(|failure| {
        machine::log!("boot failed: {}: {}", failure.step, failure.error.name());
        machine::power::off(machine::power::OK)
    })
}

/// Tells the floors below what those above do for them, and seals it. The kernel's tests run
/// programs, too.
fn register_floors() {
    reserve::register(Givers {
        drop_caches: || {
            page_cache::reclaim_all();
        },
        relieve: oom::relieve,
    });
    crate::process::acting::init();
    crate::base::sched::on_measured_tick(crate::process::timers::cpu_tick);
    crate::ipc::mqueue::register_sockets(crate::sockets::netlink::cookie_sink);
    upper::register(Upper {
        collect_garbage: || {
            crate::net::garbage::collect();
        },
        leaves_memory: robust::leaves_memory,
        dump_core: crate::ptrace::core::dump,
        start_helper: super::helper::start,
        leaves_core_notes: crate::ptrace::core::add_thread,
        undo_of: |process| undo::list_of(process),
        leave_undo: undo::leave,
        process_ended: crate::tty::job::process_ended,
    });
    crate::init::set_power_off(|| report::finish(&ToHost::Exit { code: 0 }));
    time::notify_of_clock(&[timerfd::clock_was_set, vdso::realtime_changed]);
    chrdev::register(Nodes {
        devices: &[devfs::DEVICES, crate::tty::DEVICES, crate::kvm::DEVICES],
        fifo: crate::io::pipe::open_node,
    });
    mount::register_types(super::file_systems::TYPES);
    crate::vfs::anon::common();
    machine::boot::seal();
}

/// The program has ended with this wait(2) status, or could not be started: tells the command line.
pub fn ended(result: Result<i32>) {
    match result {
        Ok(status) => report::finish(&fate(status)),
        Err(error) => {
            machine::log!("boot failed: starting the program: {}", error.name());
            machine::power::off(machine::power::OK)
        }
    }
}

/// What the command line is told of a wait(2) status.
pub(super) fn fate(status: i32) -> ToHost {
    match status & 0x7f {
        0 => ToHost::Exit { code: (status >> 8) as u8 },
        signal => ToHost::Signaled { number: signal as u8 },
    }
}

fn try_prepare() -> core::result::Result<First, Failure> {
    crate::base::params::warn_unknown(machine::boot::info().command_line);
    crate::process::ptrace::apply_options(machine::boot::info().command_line);
    crate::mm::huge::init(machine::boot::info().command_line);
    crate::exec::init(machine::boot::info().command_line);
    crate::calls::lsm::init(machine::boot::info().command_line);
    let config = read_config()?;
    let config = CONFIG.call_once(|| config);
    report::init(&config.want);
    security::profile::set(&config.profile, report::user()).step("the profile")?;
    // Longer ones are refused when the configuration is decoded; an empty one keeps the default.
    let _ = crate::base::identity::set_hostname(&config.hostname);
    let root = mount_root(config)?;
    mount_standard(&root)?;
    for share in &config.rw_mounts {
        mount_share(share, &root)?;
    }
    crate::khugepaged::start().step("starting khugepaged")?;
    first_program(config, &root)
}

fn first_program(config: &BootConfig, root: &Location) -> core::result::Result<First, Failure> {
    let credentials = Credentials::for_user(config.uid, config.gid, config.groups.clone());
    let fs = Arc::new(FsContext {
        cwd: ReadMostly::new(root.clone()),
        root: ReadMostly::new(root.clone()),
        umask: config.umask.into(),
    });
    // Its process is not there yet.
    let subject = Subject { pid: 0, credentials: Arc::new(credentials), domain: None };
    let context = Context { fs: fs.clone(), subject };
    let cwd = resolve(&context, raw::AT_FDCWD, &config.cwd, walk::FOLLOW | walk::DIRECTORY);
    *fs.cwd.lock() =
        cwd.step(format!("working directory {}", String::from_utf8_lossy(&config.cwd)))?;
    let image = match load(&context, config) {
        Ok(image) => image,
        Err(error) => {
            let path = config.program.clone();
            report::finish(&match error {
                Errno::ENOENT | Errno::ENOTDIR => ToHost::NotFound { path },
                _ => ToHost::NotExecutable { errno: error.number() as u16, path },
            })
        }
    };
    let streams = Streams { terminal: b"/dev/console", open: &stdio::open };
    start_console(config).step("the console")?;
    let files = standard_files(config, &context, &streams).step("standard files")?;
    crate::tty::console::first_program(PROGRAM_PID, &files);
    listen(Arc::new(HostEvents)).step("control channel")?;
    sessions::listen(root).step("ports for limen exec")?;
    if config.want.clock {
        take_hosts_time();
    }
    fs::profile::set_root(root);
    super::helper::set_root(root);
    security::profile::enforce().step("the profile")?;
    report::send(&ToHost::BootNs(crate::base::time::now_ns()));
    Ok(First { image, files: Arc::new(files), fs })
}

/// How long the host may take to say what time it is; later the machine's own clock must do, which
/// has whole seconds only.
const CLOCK_NS: u64 = NS_PER_SEC / 4;
static CLOCK_IS_SET: WaitQueue = WaitQueue::new();
static CLOCK: AtomicBool = AtomicBool::new(false);

/// Sets the wall clock by the host's, before the first program looks at it. What is set is what the
/// host wrote before the line travelled here: a little late, never ahead.
fn take_hosts_time() {
    report::send(&ToHost::AskTime);
    let has_come = || CLOCK.load(Ordering::Acquire).then_some(());
    if CLOCK_IS_SET
        .wait_deadline(Sleep::Uninterruptible, Some(Deadline::after_ns(CLOCK_NS)), has_come)
        .is_err()
    {
        machine::log!("the host does not say what time it is");
    }
}

/// Passes on what the command line says.
struct HostEvents;

impl Listener for HostEvents {
    fn realtime(&self, ns: u64) {
        set_realtime_ns(ns);
        CLOCK.store(true, Ordering::Release);
        CLOCK_IS_SET.wake_all(!0);
    }

    fn window_size(&self, rows: u16, cols: u16) {
        crate::tty::console::window_changed(rows, cols);
    }

    fn signal(&self, number: u8) {
        // The program may have ended meanwhile.
        let _ = send_to_group(PROGRAM_PID, SigInfo::kernel(u32::from(number)));
    }
}

/// Loads the program of a configuration, for whom it is started as.
pub(super) fn load(context: &Context, config: &BootConfig) -> Result<Image> {
    let open = |path: &[u8]| open_executable(context, raw::AT_FDCWD, path, 0);
    let image = open(&config.program).and_then(|file| {
        exec::load(Request {
            path: config.program.clone(),
            file,
            arguments: config.argv.clone(),
            environment: config.env.clone(),
            raise: &|file| next_credentials(file, &context.subject),
            is_closing: false,
            randomize: true,
            stack_limit: security::Limits::default().soft(Resource::Stack),
            open: &open,
        })
    });
    // There is no process yet that a bad file could end.
    image.map_err(|error| if error == exec::FATAL { Errno::ENOEXEC } else { error })
}

/// Where the standard streams of a program lead.
pub(super) struct Streams<'a> {
    /// The terminal's path, where one of them is a terminal.
    pub(super) terminal: &'a [u8],
    /// Opens one that is none.
    pub(super) open: &'a dyn Fn(Stream) -> Result<Arc<dyn FileOps>>,
}

fn start_console(config: &BootConfig) -> Result<()> {
    if !config.stdio.contains(&Stdio::Tty) {
        return Ok(());
    }
    let (rows, cols) = (config.winsize.rows, config.winsize.cols);
    crate::tty::console::start(WinSize { rows, cols, ..WinSize::default() })
}

/// Descriptors 0, 1 and 2 as the host's are.
pub(super) fn standard_files(
    config: &BootConfig,
    context: &Context,
    to: &Streams<'_>,
) -> Result<FdTable> {
    let files = FdTable::new();
    let kernel = Context::for_kernel(&context.root());
    if config.stdio.contains(&Stdio::Tty) {
        // The program may open its terminal again, by /dev/stdin.
        let node = resolve(&kernel, raw::AT_FDCWD, to.terminal, 0)?;
        let uid = Some(context.subject.credentials.uid);
        node.inode().set_attributes(&SetAttributes { uid, ..SetAttributes::default() })?;
    }
    let streams = [
        (Stream::Input, raw::O_RDONLY),
        (Stream::Output, raw::O_WRONLY),
        (Stream::Error, raw::O_WRONLY),
    ];
    for (fd, (stream, flags)) in streams.into_iter().enumerate() {
        let file = match config.stdio[fd] {
            Stdio::Null => {
                let how = How { flags: raw::O_RDWR, mode: 0, walk: 0 };
                fs::open::open(context, raw::AT_FDCWD, b"/dev/null", &how)?
            }
            Stdio::Tty => {
                let how = How { flags: raw::O_RDWR | raw::O_NOCTTY, mode: 0, walk: 0 };
                fs::open::open(&kernel, raw::AT_FDCWD, to.terminal, &how)?
            }
            Stdio::Pipe => File::new((to.open)(stream)?, flags, None),
        };
        files.insert(file, false, fd as u32, 3)?;
    }
    Ok(files)
}

fn read_config() -> core::result::Result<BootConfig, Failure> {
    let archive = machine::boot::info().initrd;
    let wanted = ports::CONFIG_PATH.as_bytes();
    let mut found = None;
    // To the end, so that an archive that is cut anywhere is refused before any of it is used.
    for entry in formats::cpio::Reader::new(archive) {
        let entry =
            entry.map_err(|error| Failure { step: format!("{error}"), error: Errno::EINVAL })?;
        if entry.path == wanted && found.is_none() {
            found = Some(entry.data);
        }
    }
    if let Some(data) = found {
        return BootConfig::decode(data).map_err(|error| Failure {
            step: format!("boot configuration: {error}"),
            error: Errno::EINVAL,
        });
    }
    Err(Failure {
        step: format!("the initramfs has no {}", ports::CONFIG_PATH),
        error: Errno::ENOENT,
    })
}

fn mount_root(config: &BootConfig) -> core::result::Result<Location, Failure> {
    let archive = machine::boot::info().initrd;
    if config.root == RootKind::Packed {
        let root = TmpFs::new("rootfs", 0o755, Limits::default());
        initramfs::unpack(archive, &root.root(), false).step("unpacking the initramfs")?;
        return Ok(mount::mount_root(root, b"rootfs"));
    }
    let lower = attach_root()?;
    let overlay = OverlayFs::new(&lower).step("overlay on the root")?;
    for path in &config.hidden {
        overlay.hide(path).step(format!("hiding {}", String::from_utf8_lossy(path)))?;
    }
    for (path, ..) in STANDARD {
        overlay.empty_directory(path.as_bytes()).step(*path)?;
    }
    initramfs::unpack(archive, &overlay.root(), true).step("unpacking the initramfs")?;
    Ok(mount::mount_root(overlay, b"overlay"))
}

/// Largest 9P message: what one request of file contents carries, and a little for its header.
const MAX_MESSAGE: u32 = 256 * 1024 + 4096;

/// Connects to the host's folder that is the root: by virtio-fs, or else by 9P.
fn attach_root() -> core::result::Result<Arc<dyn FileSystem>, Failure> {
    let tag = ports::ROOT_TAG.as_bytes();
    match crate::drivers::fuse_transport::find(tag) {
        Some(transport) => Ok(VirtioFs::mount(transport).step("virtio-fs share root")?),
        None => attach(tag, false),
    }
}

/// Connects to the 9P device with this mount tag.
fn attach(tag: &[u8], writable: bool) -> core::result::Result<Arc<dyn FileSystem>, Failure> {
    let name = || format!("9P share {}", String::from_utf8_lossy(tag));
    let transport = crate::drivers::ninep_transport::find(tag).ok_or(Errno::ENODEV).step(name())?;
    let fs = crate::fs::ninep::NinepFs::mount(transport, MAX_MESSAGE, writable).step(name())?;
    Ok(fs)
}

type Maker = fn() -> Result<Arc<dyn FileSystem>>;

/// File systems every program expects: where, how it is made, mount flags.
const STANDARD: &[(&str, Maker, u32)] = &[
    ("/proc", || Ok(crate::procfs::new()), NO_EXEC),
    ("/sys", || Ok(crate::procfs::sysfs::new()), NO_EXEC),
    ("/dev", || crate::fs::devfs::new().map(|fs| fs as Arc<dyn FileSystem>), raw::MS_NOSUID),
    ("/dev/pts", || Ok(crate::tty::devpts::file_system()), raw::MS_NOSUID | raw::MS_NOEXEC),
    ("/dev/shm", || Ok(TmpFs::new("tmpfs", 0o1777, Limits::default())), NO_DEVICES),
    ("/dev/mqueue", || Ok(crate::ipc::mqueue::fs::file_system()), NO_EXEC),
    ("/run", || Ok(TmpFs::new("tmpfs", 0o755, Limits::default())), NO_DEVICES),
];
const NO_DEVICES: u32 = raw::MS_NOSUID | raw::MS_NODEV;
const NO_EXEC: u32 = NO_DEVICES | raw::MS_NOEXEC;

fn mount_standard(root: &Location) -> core::result::Result<(), Failure> {
    for (path, make, flags) in STANDARD {
        let fs = make().step(*path)?;
        let name = fs.name();
        let place = directory(root, path.as_bytes())?;
        mount::mount(fs, &place, *flags, name.as_bytes()).step(*path)?;
    }
    directory(root, b"/tmp").map(|_| ())
}

/// The directory at an absolute path, made if it is missing.
fn directory(root: &Location, path: &[u8]) -> core::result::Result<Location, Failure> {
    let context = Context::for_kernel(root);
    let step = || String::from_utf8_lossy(path).into_owned();
    let mut at = 1;
    while at < path.len() {
        let end = path[at..].iter().position(|&byte| byte == b'/').map_or(path.len(), |n| at + n);
        let what = namei::Make::plain(FileType::Directory, 0o755);
        match namei::make(&context, raw::AT_FDCWD, &path[..end], &what) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(Failure { step: step(), error }),
        }
        at = end + 1;
    }
    resolve(&context, raw::AT_FDCWD, path, walk::FOLLOW | walk::DIRECTORY).step(step())
}

fn mount_share(share: &RwMount, root: &Location) -> core::result::Result<(), Failure> {
    let fs = attach(&share.tag, true)?;
    let place = directory(root, &share.path)?;
    mount::mount(fs, &place, raw::MS_NODEV, &share.tag)
        .step(String::from_utf8_lossy(&share.path))?;
    Ok(())
}
