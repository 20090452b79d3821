//! The command line, defined once: parsing, help, completions and the man page all come from here.
//!
//! Why it is hard: it is the product's surface. Every option says what it does and shows an
//! example; a size or an address is checked where it is parsed, so that later code has numbers.
//!
//! Neighbours: `main.rs` dispatches, `run/plan/mod.rs` turns [`RunArgs`] into a virtual machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::run::limits::Limits;

/// Most CPUs of a virtual machine.
pub(crate) const SMP_MAX: u8 = 16;
/// Least memory, in MiB: QEMU's firmware and the kernel need that much.
const MEMORY_MIN_MIB: u64 = 16;

/// Run Linux programs in a hardened microVM.
#[derive(Debug, Parser)]
#[command(name = "limen", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a microVM and exit with its status
    Run(Box<RunArgs>),
    /// List the VMs that limen run --detach has started
    Ps,
    /// Show what the program of a VM in the background has written
    Logs(LogsArgs),
    /// Run another program in a VM in the background
    Exec(ExecArgs),
    /// End a VM in the background
    Stop(StopArgs),
    /// Keep a packed image (a cpio initramfs) of a program and all that it needs
    Pack(PackArgs),
    /// Write down what a program does, as what it may do from then on
    Profile(ProfileArgs),
    /// Run the tests: all, or one level (host, audit, kernel, guest, run, ...)
    Test(TestArgs),
    /// Measure the kernel beside Linux in the same emulator, or the call sequences natively
    Bench(BenchArgs),
    /// Say what kernel parameters cost a program, in instructions that are the same every time
    Compare(CompareArgs),
    /// Check the sources (fmt, clippy, tidy, build, audit), or what an ELF file needs
    Check(CheckArgs),
    /// Audit or rewrite the kCFI checks of a kernel image
    Objtool(crate::objtool_cmd::ObjtoolArgs),
    /// Tell what a trace of limen run --trace says: time by kind, calls, longest stays
    Trace(TraceArgs),
    /// Make a Debian package and a relocatable archive of what is built
    Dist(DistArgs),
    /// Tell what is done about CPU vulnerabilities, on this or any CPU, and what it costs
    Mitigations(MitigationsArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell. Example: limen completions bash > /etc/bash_completion.d/limen
        shell: clap_complete::Shell,
    },
    /// Print the manual page. Example: limen man | man -l -
    Man,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    pub(crate) command: ProfileCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Run a program unrestricted, and write a profile that allows what it did
    #[command(after_help = LEARN_HELP, after_long_help = LEARN_HELP,
              mut_arg("profile", |arg| arg.hide(true)), mut_arg("detach", |arg| arg.hide(true)),
              mut_arg("dry_run", |arg| arg.hide(true)))]
    Learn {
        /// The profile: made, or added to. Example: --output app.toml
        #[arg(long, short, value_name = "FILE", default_value = "profile.toml")]
        output: PathBuf,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
    /// Check a profile
    Check {
        /// The profile. Example: limen profile check app.toml
        file: PathBuf,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MitigationsArgs {
    /// A CPU by name, in place of this one. Example: --cpu zen4
    #[arg(long, value_name = "MODEL", conflicts_with = "facts")]
    pub(crate) cpu: Option<String>,
    /// Facts of a CPU from a file of words name=value. Example: --facts cpu.txt
    #[arg(long, value_name = "FILE")]
    pub(crate) facts: Option<PathBuf>,
    /// Kernel parameters; repeatable. Example: --append 'mitigations=auto,nosmt'
    #[arg(long, value_name = "WORDS")]
    pub(crate) append: Vec<String>,
    /// Name the CPUs that --cpu knows. Example: --list
    #[arg(long, conflicts_with_all = ["cpu", "facts", "append"])]
    pub(crate) list: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_STATUS_HELP, after_long_help = run_long_help())]
pub(crate) struct RunArgs {
    /// Number of CPUs, 1 to 16. Example: --smp 4
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parse_cpus)]
    pub(crate) smp: u8,

    /// Memory of the VM, in MiB or with a suffix K, M or G. Example: --memory 256M
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = parse_memory_mib)]
    pub(crate) memory: u64,

    /// Set an environment variable, or pass the caller's. Without it the program gets PATH, HOME,
    /// USER, SHELL, TERM, LANG, LC_* and TZ. Example: --env A=b --env LESS
    #[arg(long, value_name = "K[=V]")]
    pub(crate) env: Vec<OsString>,

    /// Pass the caller's whole environment, with whatever keys and tokens are in it.
    /// Example: --env-all -- make
    #[arg(long)]
    pub(crate) env_all: bool,

    /// Working directory in the guest [default: the caller's, or / with --root or --pack]. It must
    /// be there. Example: --cwd /srv
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Copy a file into the guest; where GUEST is a folder, into that.
    /// Example: --file ./data.txt:/srv/
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) file: Vec<OsString>,

    /// Copy a folder into the guest. Example: --dir ./conf:/etc/app
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) dir: Vec<OsString>,

    /// Another tree as the live root. Example: --root /srv/debian-sid
    #[arg(long, value_name = "DIR", conflicts_with = "pack")]
    pub(crate) root: Option<PathBuf>,

    /// How the live root reaches the guest: by virtio-fs, which is fast, from a server in this
    /// program that only reads; or by 9P, from QEMU. It is 9P anyway for --rw folders and images,
    /// and with --detach or --dry-run. Example: --share 9p
    #[arg(long, value_enum, default_value_t = Share::Virtiofs, value_name = "WAY")]
    pub(crate) share: Share,

    /// How long the guest may believe what it has seen of the live root: none (it asks each time),
    /// auto (for a second), always (changes on the host are not seen). Not with 9P.
    /// Example: --cache always
    #[arg(long, value_enum, default_value_t = Cache::Auto, value_name = "WHEN")]
    pub(crate) cache: Cache,

    /// A container image as the root, copy-on-write: a folder in the OCI image layout or an archive
    /// of `docker save`, with :NAME where there are several in it. The program is the image's own;
    /// words behind it are its arguments. Example: --image alpine.tar -- ls -l /
    #[arg(long, value_name = "PATH[:NAME]", conflicts_with_all = ["pack", "root"])]
    pub(crate) image: Option<PathBuf>,

    /// The user in the guest [default: the caller; the image's with --image; root with --pack].
    /// Example: --user www-data or --user 1000:1000
    #[arg(long, value_name = "NAME|UID[:GROUP]")]
    pub(crate) user: Option<String>,

    /// In Limen in Limen: the outer one runs limen-vmm, which boots the inner one with the program,
    /// packed; --smp is of both. Example: --nested --smp 2 -- /bin/nproc
    #[arg(long, conflicts_with_all = ["root", "image", "rw", "gdb"])]
    pub(crate) nested: bool,

    /// Only the program and what it needs (interpreter, libraries, scripts' interpreters), nothing
    /// else of the host. Example: --pack -- /bin/ls -l /
    #[arg(long, visible_alias = "minimal")]
    pub(crate) pack: bool,

    /// Share a folder for writing. Set-user-ID and set-group-ID bits are not kept there. Example:
    /// --rw ./out or --rw ./out:/out
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) rw: Vec<OsString>,

    /// Hide a path from the program. What is hidden anyway is listed below. Example: --hide
    /// /etc/app/key
    #[arg(long, value_name = "PATH")]
    pub(crate) hide: Vec<PathBuf>,

    /// Show a path that would be hidden. Example: --show ~/.ssh
    #[arg(long, value_name = "PATH")]
    pub(crate) show: Vec<PathBuf>,

    /// Allow the program what this profile says, and nothing else; `limen profile learn` writes
    /// one. Example: --profile app.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,

    /// Where `limen profile learn` writes what the program does.
    #[arg(skip)]
    pub(crate) learn: Option<PathBuf>,

    /// Kernel parameters. Example: --append "pti=on"
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    pub(crate) append: String,

    /// CPU model of QEMU [default: max under TCG, host under KVM]. Example: --cpu EPYC
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Option<String>,

    /// Machine model. Example: --machine q35
    #[arg(long, value_enum, default_value_t = MachineModel::Microvm)]
    pub(crate) machine: MachineModel,

    /// Accelerator; auto takes KVM if the CPU offers virtualisation and a probe VM runs.
    /// Example: --accel tcg
    #[arg(long, value_enum, default_value_t = AccelChoice::Auto)]
    pub(crate) accel: AccelChoice,

    /// End the VM after a time (s, m or h; plain numbers are seconds). Example: --timeout 30s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// End the VM when it has taken so much of the host: CPU time, memory (the emulator's own
    /// included), bytes of output. Example: --limit cpu=30s,memory=512M,output=1M
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = Limits::parse)]
    pub(crate) limit: Vec<Limits>,

    /// Go on in the background under a name; see limen ps, logs, exec and stop. Example: --detach
    /// web -- nginx -g 'daemon off;'
    #[arg(long, value_name = "NAME", conflicts_with_all = ["timeout", "limit", "gdb", "json",
          "trace", "missing_syscalls", "missing_files", "syscall_summary", "dry_run"])]
    pub(crate) detach: Option<String>,

    /// Wait for a debugger on a TCP port of this host [default port: 1234]. Example: --gdb
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = "1234", value_parser = parse_port)]
    pub(crate) gdb: Option<u16>,

    /// Print the QEMU command and run nothing. Example: --dry-run -- true
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Report as one JSON object (status, exit code, boot time, peak memory, counters): the last
    /// line of stderr, or FILE. stdout stays the program's. Example: --json=report.json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,

    /// List the syscalls that the program made and the kernel lacks. Example:
    /// --missing-syscalls -- redis-server --version
    #[arg(long)]
    pub(crate) missing_syscalls: bool,

    /// Count the program's syscalls. Example: --syscall-summary -- ls
    #[arg(long)]
    pub(crate) syscall_summary: bool,

    /// List the files that the program asked for and did not find. Example: --pack --missing-files
    /// -- perl x.pl
    #[arg(long)]
    pub(crate) missing_files: bool,

    /// Write a trace of each CPU's last 16384 events at the boundary: who had it when, what threads
    /// were in, interrupts sent and received, work deferred and caught up with. A page that needs
    /// no network where FILE ends in .html; else for ui.perfetto.dev and `limen trace`, which sums
    /// it up. Example: --trace boundary.html
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Kernel image [default: the one built beside this program]. Example: --kernel ./limen-kernel
    #[arg(long, value_name = "ELF")]
    pub(crate) kernel: Option<PathBuf>,

    /// Show the kernel log on stderr, and how the VM was started; twice: QEMU's messages as well.
    /// Example: -v
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// The program and its arguments, or an image that `limen pack` made.
    /// Example: -- /bin/bash -c 'uname -a'
    #[arg(required_unless_present = "image", trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// With the list of what is hidden, which is too long for `-h`.
fn run_long_help() -> String {
    let hidden = crate::run::secrets::LIST.lines().filter(|line| !line.starts_with('#'));
    let hidden: Vec<String> = hidden.map(|line| format!("  {line}")).collect();
    format!(
        "{RUN_STATUS_HELP}\n\nHidden from the program unless named by --show (~ is every home \
         directory):\n{}",
        hidden.join("\n")
    )
}

type LooksLikeValue = fn(&str) -> bool;

/// Options whose value needs a `=`, for it may be left out; and whether a word that follows such an
/// option looks like a value of it.
const EQUALS: [(&str, LooksLikeValue); 2] = [
    ("--json", |word| word.ends_with(".json")),
    ("--gdb", |word| word.bytes().all(|byte| byte.is_ascii_digit())),
];

/// `--json report.json`: the option is complete without a value, and the file's name would be taken
/// for the program. What to write instead; `None` if there is no such word.
pub(crate) fn forgotten_equals(words: &[OsString]) -> Option<String> {
    let before = words.iter().take_while(|word| *word != "--").collect::<Vec<_>>();
    before.windows(2).find_map(|pair| {
        let (option, value) = (pair[0].to_str()?, pair[1].to_str()?);
        let (_, looks) = EQUALS.iter().find(|(name, _)| *name == option)?;
        looks(value).then(|| format!("write {option}={value}, with a `=`"))
    })
}

const RUN_STATUS_HELP: &str = "\
Exit status: the program's; 128+N if signal N ended it; 124 --timeout or --limit ended it; 125 the
kernel panicked (backtrace on stderr), or the server of the live root ended; 126 the VM did not
boot, or the program is not executable; 127 the program was not found; 2 wrong usage; 1 the program
ended with 0, but its output could not be written. A program that switches the machine off or
restarts it has ended with 0.

Keys, when stdin and stdout are a terminal: Ctrl-A x quits, Ctrl-A Ctrl-A sends Ctrl-A.

Examples:
  limen run -- /bin/bash -c 'uname -a'
  limen run --smp 4 --memory 256M --env A=b --file ./data.txt:/data.txt -- ./my-program --flag
  echo hello | limen run -- tr a-z A-Z";

/// Options of `limen run` that `limen profile learn` refuses, and its help does not show.
pub(crate) const NOT_WHILE_LEARNING: [&str; 3] = ["profile", "detach", "dry_run"];

const LEARN_HELP: &str = "\
Exit status: the program's, as with limen run. What the program did not do this time is not in the
profile: run it again with the same --output for what it does another time.

Examples:
  limen profile learn -o app.toml -- ./app --once
  limen profile learn -o app.toml --rw ./out -- ./app --write out/x
  limen run --profile app.toml -- ./app --once";

#[derive(Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// Wait for more until the VM ends. Example: limen logs -f web
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// The kernel's log instead of the program's output. Example: limen logs --kernel web
    #[arg(long)]
    pub(crate) kernel: bool,

    /// The VM. Example: limen logs web
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ExecArgs {
    /// Set an environment variable, or pass the caller's. Without it the program gets those of the
    /// VM's own program, and the caller's TERM at a terminal. Example: --env A=b --env LESS
    #[arg(long, value_name = "K[=V]")]
    pub(crate) env: Vec<OsString>,

    /// Working directory in the guest [default: that of the VM's own program]. Example: --cwd /srv
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// The user in the guest [default: that of the VM's own program].
    /// Example: --user www-data or --user 0
    #[arg(long, value_name = "NAME|UID[:GROUP]")]
    pub(crate) user: Option<String>,

    /// The VM. Example: limen exec web -- ps -A
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The program and its arguments. Example: limen exec web -- /bin/sh
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct StopArgs {
    /// How long the program may take to end before the VM is switched off. Example: --time 30s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) time: Duration,

    /// The VM. Example: limen stop web
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PackArgs {
    /// The image to write. Example: -o app.cpio
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Add a file. Example: --file ./data.txt:/data.txt
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) file: Vec<OsString>,

    /// Add a folder. Example: --dir /usr/lib/python3.11
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) dir: Vec<OsString>,

    /// Pack a container image, as `limen run --image` would run it.
    /// Example: limen pack -o app.cpio --image alpine.tar
    #[arg(long, value_name = "PATH[:NAME]", conflicts_with_all = ["file", "dir"])]
    pub(crate) image: Option<PathBuf>,

    /// The program and its arguments: `limen pack` keeps them in the image as what to run.
    /// Example: limen pack -o app.cpio -- ./server --port 80
    #[arg(required_unless_present = "image", trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// A set of kernel parameters; at least two, and the first is what the others are compared
    /// with. The word linux, alone or before parameters of its own, is Debian's kernel. All run
    /// with nokaslr norandmaps, so that none is dearer by what it draws.
    /// Example: --with pti=off --with pti=on --with linux
    #[arg(long, value_name = "PARAMETERS", required = true, allow_hyphen_values = true)]
    pub(crate) with: Vec<String>,

    /// Copy a file into the guest. Example: --file ./data.txt:/data.txt
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) file: Vec<OsString>,

    /// Copy a folder into the guest. Example: --dir ./conf:/etc/app
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub(crate) dir: Vec<OsString>,

    /// Memory of the VM, in MiB or with a suffix K, M or G. Example: --memory 256M
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = parse_memory_mib)]
    pub(crate) memory: u64,

    /// CPU model of QEMU, the same for all sets. Example: --cpu Skylake-Client
    #[arg(long, value_name = "MODEL", default_value = BENCH_CPU)]
    pub(crate) cpu: String,

    /// Number of CPUs, 1 to 16: they take turns, and instructions of all are counted together.
    /// Example: --smp 4
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parse_cpus)]
    pub(crate) smp: u8,

    /// Give a run up after a time (s, m or h). Example: --timeout 10m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,

    /// Measure time as well: each set five times, the middle one counts. Example: --time
    #[arg(long)]
    pub(crate) time: bool,

    /// Print one JSON object instead of a table. Example: --json
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a page as well, which needs no network. Example: --html cost.html
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// The bzImage for --with linux [default: Debian's newest cloud kernel; fetched if need be].
    /// Example: --linux /boot/vmlinuz-6.12-cloud-amd64
    #[arg(long, value_name = "FILE")]
    pub(crate) linux: Option<PathBuf>,

    /// Kernel image [default: the one built beside this program]. Example: --kernel ./limen-kernel
    #[arg(long, value_name = "ELF")]
    pub(crate) kernel: Option<PathBuf>,

    /// The program and its arguments; it is packed with what it needs.
    /// Example: limen compare --with pti=off --with pti=on -- /bin/ls -l
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TestArgs {
    /// A level (host, audit, kernel, bochs, guest, settings, isolation, run,
    /// dist, pages, people, hostile, differ, fuzz, bench, apps, soak, sabotage) or a room, which is
    /// a test name's part. Example: limen test guest
    #[arg(value_name = "LEVEL|ROOM")]
    pub(crate) what: Option<String>,

    /// Only tests whose name contains this. Example: limen test guest --filter futex
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,

    /// Print the names of the tests that would run, and run none. Example: limen test run --list
    #[arg(long)]
    pub(crate) list: bool,

    /// CPU counts for the levels that run VMs; where all levels run without --all, its first and
    /// last. Example: --smp 1,4
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4",
          value_parser = parse_cpus)]
    pub(crate) smp: Vec<u8>,

    /// Run every combination: applications on the live root and packed, at each CPU count. Without
    /// it, packed at the highest count only; and where all levels run, live at one count each.
    /// Sabotages of the kernel, too, for each of which it is built.
    /// Example: limen test apps --all
    #[arg(long)]
    pub(crate) all: bool,

    /// VMs at the same time [default: the host's CPUs]. Example: --jobs 2
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) jobs: Option<u8>,

    /// Seed of the system call fuzzer, which prints the one it takes [default: a new one], and of
    /// the level differ [default: 1]. Example: limen test fuzz --seed 1000
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) seed: u64,

    /// How long the level differ makes programs, and soak runs them.
    /// Example: limen test soak --time 1h
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    pub(crate) time: Duration,

    /// Print each test's output, also of those that pass. Example: -v
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The level that is named runs as one of all levels: a run of all has started it.
    /// Example: limen test bochs --among-all
    #[arg(long, hide = true)]
    pub(crate) among_all: bool,
}

/// Default CPU model of the benches: figures are only comparable within one model.
pub(crate) const BENCH_CPU: &str = "EPYC";

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure. Example: limen bench kernel
    #[arg(value_enum, default_value = "kernel")]
    pub(crate) what: Bench,

    /// Print one JSON object instead of a table. Example: --json
    #[arg(long)]
    pub(crate) json: bool,

    /// Few repetitions: to see that the bench works, not to measure. Example: --tiny
    #[arg(long, visible_alias = "quick")]
    pub(crate) tiny: bool,

    /// Only rows of bench growth or scale with this in their names; of bench growth, with one of
    /// several such words. Example: --rows fork,wait
    #[arg(long, value_name = "WORD")]
    pub(crate) rows: Option<String>,

    /// Also draw cycles over call sites (bench cfi), or costs over sizes (bench growth).
    /// Example: --svg growth.svg
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// CPU model of QEMU, the same for both kernels. Example: --cpu Skylake-Client
    #[arg(long, value_name = "MODEL", default_value = BENCH_CPU)]
    pub(crate) cpu: String,

    /// The bzImage to compare with [default: Debian's newest cloud kernel; fetched if need be].
    /// Example: --linux /boot/vmlinuz-6.12-cloud-amd64
    #[arg(long, value_name = "FILE", conflicts_with = "no_linux")]
    pub(crate) linux: Option<PathBuf>,

    /// How long the load of bench ipi runs, in each of its columns. Example: --time 10m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) time: Duration,

    /// Only these columns of bench ipi: values of defer=, or linux. Example: --only pending,off
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',',
          value_parser = ["pending", "always", "off", "linux"])]
    pub(crate) only: Vec<String>,

    /// Measure Limen alone. Example: --no-linux
    #[arg(long)]
    pub(crate) no_linux: bool,

    /// Kernel image [default: the one built beside this program]. Example: --kernel ./limen-kernel
    #[arg(long, value_name = "ELF")]
    pub(crate) kernel: Option<PathBuf>,
}

/// The benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bench {
    /// Instructions per kernel operation, boot and memory, Limen beside Linux
    Kernel,
    /// Cycles of kCFI's call sequences on this CPU
    Cfi,
    /// Instructions per operation among 10 and among 10,000 of something, and how fast they grow
    Growth,
    /// Locks that CPUs share which do the same at the same time, and interrupts between them
    Scale,
    /// Time of find, cat and git status over the host's files, in a VM and on the host
    Root,
    /// Instructions of system calls and returns: by SYSRET and not, with isolated tables, with work
    /// at each call, with a filter; Limen beside Linux
    Entry,
    /// Instructions of calls that do next to nothing, Limen beside Linux, on three CPU models with
    /// what each kernel does about their vulnerabilities
    Calls,
    /// What interrupts isolated CPUs under load, with work deferred and not; the price at entries
    Ipi,
    /// Instructions per kernel operation with kCFI off, as compiled, and optimised; the boot pass
    CfiKernel,
    /// Security hooks with no to four policies, as direct calls, as lists of pointers, and none
    Lsm,
    /// Instructions of leaving a guest, to the kernel, to its VMM and with what it sends, Limen
    /// beside Linux's KVM; and with each flush of predictors behind guests
    Guest,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    /// A program: say which libraries it needs, and which of them are missing.
    /// Example: limen check /usr/bin/python3
    #[arg(value_name = "ELF")]
    pub(crate) elf: Option<PathBuf>,
    /// Write the pages of docs/ that are made from tables. Example: limen check --pages
    #[arg(long, conflicts_with = "elf")]
    pub(crate) pages: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TraceArgs {
    /// Write the timeline as a page as well, which needs no network. Example: --html boundary.html
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// The file. Example: limen trace boundary.json
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DistArgs {
    /// The folder for both files [default: target/dist]. Example: -o /tmp/out
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// QEMU's machine model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MachineModel {
    /// Small machine with virtio-mmio devices
    Microvm,
    /// PC with PCI Express and virtio-pci devices
    Q35,
}

/// How the live root reaches the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Share {
    /// By QEMU
    #[value(name = "9p")]
    NineP,
    /// By a server in this program
    Virtiofs,
}

/// How long the guest may believe what it has seen of the live root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// Not at all
    None,
    /// For a second
    Auto,
    /// For good
    Always,
}

impl Cache {
    /// For how long.
    pub(crate) const fn valid(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Auto => Duration::from_secs(1),
            Self::Always => limen_share::ALWAYS,
        }
    }
}

/// What the user asked for; `run/accel.rs` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM if it works, else TCG
    Auto,
    /// Hardware virtualisation
    Kvm,
    /// QEMU's emulation
    Tcg,
}

/// A number of CPUs.
fn parse_cpus(text: &str) -> Result<u8, String> {
    let number = text.parse().ok().filter(|number| (1..=SMP_MAX).contains(number));
    number.ok_or_else(|| format!("want a number of CPUs, 1 to {SMP_MAX}"))
}

/// A port of TCP.
fn parse_port(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "want a port's number, 1 to 65535".to_owned())
}

/// `256`, `256M`, `1G`, `65536K`: MiB.
fn parse_memory_mib(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: u64 = digits.parse().map_err(|_| "want a number, such as 256M".to_owned())?;
    let mib = match unit.trim_end_matches(['i', 'B', 'b']) {
        "" | "M" | "m" => Some(number),
        "K" | "k" => Some(number / 1024),
        "G" | "g" => number.checked_mul(1024),
        _ => None,
    };
    match mib {
        Some(mib) if (MEMORY_MIN_MIB..=1 << 20).contains(&mib) => Ok(mib),
        Some(_) => Err(format!("want {MEMORY_MIN_MIB}M to 1024G")),
        None => Err("unit is K, M or G".to_owned()),
    }
}

/// `30`, `30s`, `1.5m`, `2h`, `500ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: f64 = digits.parse().map_err(|_| "want a number, such as 30s".to_owned())?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err("unit is ms, s, m or h".to_owned()),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds > 0.0 && seconds < 1e9 => Ok(duration),
        _ => Err("want more than zero".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    /// What lacks an example, in a command and those below it.
    fn without_example(command: &clap::Command, found: &mut Vec<String>) {
        // Help and version are clap's own.
        let own = ["help", "version"];
        for arg in command.get_arguments().filter(|arg| !own.contains(&arg.get_id().as_str())) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let text = arg.get_long_help().map(ToString::to_string).unwrap_or_default() + &help;
            // One of its own: a value or the option itself stands behind the word.
            if text.split_once("xample").is_none_or(|(_, rest)| rest.trim().len() <= 3) {
                found.push(format!("{} {}", command.get_name(), arg.get_id()));
            }
        }
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            without_example(inner, found);
        }
    }

    #[test]
    fn every_option_has_an_example() {
        let mut found = Vec::new();
        without_example(&Cli::command(), &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn help_prints_what_is_hidden_and_the_statuses() {
        let mut whole = Cli::command();
        let run = whole.find_subcommand_mut("run").expect("a command");
        let text = run.render_long_help().to_string();
        let hidden = crate::run::secrets::LIST.lines().filter(|line| !line.starts_with('#'));
        for line in hidden.chain(["124", "125", "126", "127"]) {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn help_of_learning_has_only_what_works_there() {
        let mut whole = Cli::command();
        let profile = whole.find_subcommand_mut("profile").expect("a command");
        let learn = profile.find_subcommand_mut("learn").expect("a command");
        for text in [learn.render_long_help().to_string(), learn.render_help().to_string()] {
            for option in NOT_WHILE_LEARNING {
                let option = format!("--{} ", option.replace('_', "-"));
                let is_listed = |line: &str| format!("{} ", line.trim_start()).starts_with(&option);
                assert!(!text.lines().any(is_listed), "{option}: {text}");
            }
            assert!(text.contains("limen profile learn -o") && !text.contains("echo hello"));
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_memory_mib("256"), Ok(256));
        assert_eq!(parse_memory_mib("1G"), Ok(1024));
        assert_eq!(parse_memory_mib("65536KiB"), Ok(64));
        for wrong in ["", "M", "15M", "1T", "-1", "99999999999999999999G", "18446744073709551615G"]
        {
            assert!(parse_memory_mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "s", "1d", "1e9h", "99999999999999999999999"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn program_keeps_its_own_options() {
        let line = ["limen", "run", "--smp", "2", "--", "ls", "--smp", "x"];
        let cli = Cli::try_parse_from(line).expect("valid");
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!((run.smp, run.program.len()), (2, 3));
        let line = ["limen", "run", "ls", "-l"];
        assert!(Cli::try_parse_from(line).is_ok());
        assert!(Cli::try_parse_from(["limen", "run", "--", "--odd-name"]).is_ok());
    }

    #[test]
    fn a_mistyped_option_is_not_the_program() {
        let line = ["limen", "run", "--memroy", "256M", "ls"];
        let error = Cli::try_parse_from(line).expect_err("no such option");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--memory"), "{error}");
    }

    #[test]
    fn forgotten_equals_are_seen() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(forgotten_equals(&words("run --json rep.json ls")).is_some());
        assert!(forgotten_equals(&words("run --gdb 2345 ls")).is_some());
        assert!(forgotten_equals(&words("run --json ls")).is_none());
        assert!(forgotten_equals(&words("run -- prog --json rep.json")).is_none());
    }
}
