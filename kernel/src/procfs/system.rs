//! Files about the machine as a whole (proc(5)).

use abi::Result;
use machine::cpu::cpu_count;
use machine::memory::{HUGE_PAGE, PageKind, huge_pages};
use machine::sync::SpinLock;

use crate::base::time::{NS_PER_SEC, now_ns};
use crate::base::{identity, sched};
use crate::drivers::chrdev;
use crate::fs::pseudo::Text;
use crate::mm::hugetlb;
use crate::page_cache;
use crate::process;
use crate::vfs::Inode;
use crate::vfs::leases::{self, LeaseKind, Shown};
use crate::vfs::locks::{Lock, Owner};

/// Nanoseconds of a tick in which procfs counts CPU time (USER_HZ is 100).
pub(super) const NS_PER_TICK: u64 = NS_PER_SEC / 100;
/// Kilobytes of a page.
pub(super) const KB_PER_PAGE: u64 = 4;

pub(super) fn empty(_: &mut Text) -> Result<()> {
    Ok(())
}

pub(super) fn cmdline(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", machine::boot::info().command_line);
    Ok(())
}

pub(super) fn version(out: &mut Text) -> Result<()> {
    let (name, release) = (identity::SYSNAME, identity::RELEASE);
    writeln!(out, "{name} version {release} (limen) {}", identity::VERSION);
    Ok(())
}

pub(super) fn uptime(out: &mut Text) -> Result<()> {
    let idle_ns = (0..cpu_count()).map(sched::idle_ns).sum();
    let hundredths = |ns: u64| (ns / NS_PER_SEC, ns % NS_PER_SEC / NS_PER_TICK);
    let (up, idle) = (hundredths(now_ns()), hundredths(idle_ns));
    writeln!(out, "{}.{:02} {}.{:02}", up.0, up.1, idle.0, idle.1);
    Ok(())
}

pub(super) fn devices(out: &mut Text) -> Result<()> {
    out.bytes(b"Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n");
    out.bytes(b" 10 misc\n136 pts\n229 hvc\n\nBlock devices:\n");
    Ok(())
}

/// Devices with a minor number of a driver of their own (misc): those that there are.
pub(super) fn misc(out: &mut Text) -> Result<()> {
    const MAJOR: u32 = 10;
    const NAMES: [(u32, &str); 1] = [(232, "kvm")];
    for (minor, name) in NAMES {
        if chrdev::is_served(chrdev::make_device(MAJOR, minor)) {
            writeln!(out, "{minor:3} {name}");
        }
    }
    Ok(())
}

/// Terminals, as ps(1) finds their names: node, major and minor numbers, kind.
pub(super) fn tty_drivers(out: &mut Text) -> Result<()> {
    const DRIVERS: [(&str, &str, u32, &str, &str); 5] = [
        ("/dev/tty", "/dev/tty", 5, "      0", "system:/dev/tty"),
        ("/dev/console", "/dev/console", 5, "      1", "system:console"),
        ("/dev/ptmx", "/dev/ptmx", 5, "      2", "system"),
        ("hvc", "/dev/hvc", 229, "0-3", "system"),
        ("pty_slave", "/dev/pts", 136, "0-1048575", "pty:slave"),
    ];
    for (driver, node, major, minors, kind) in DRIVERS {
        writeln!(out, "{driver:<20} {node:<13} {major:3} {minors} {kind}");
    }
    Ok(())
}

/// Of control groups there are no controllers: the table has its head alone.
pub(super) fn cgroups(out: &mut Text) -> Result<()> {
    out.bytes(b"#subsys_name\thierarchy\tnum_cgroups\tenabled\n");
    Ok(())
}

/// Whose programs run: what every Linux says (personality(2)).
pub(super) fn execdomains(out: &mut Text) -> Result<()> {
    out.bytes(b"0-0\tLinux           \t[kernel]\n");
    Ok(())
}

pub(super) fn filesystems(out: &mut Text) -> Result<()> {
    for name in crate::vfs::mount::types() {
        writeln!(out, "nodev\t{name}");
    }
    Ok(())
}

/// File locks that are held; who waits is not shown.
pub(super) fn locks(out: &mut Text) -> Result<()> {
    let mut number = 1;
    for inode in crate::vfs::locks::listed() {
        for lock in crate::vfs::locks::of(&*inode) {
            put_lock(out, number, &*inode, &lock);
            number += 1;
        }
        for lease in leases::shown(&*inode) {
            put_lease(out, number, &*inode, lease);
            number += 1;
        }
    }
    Ok(())
}

/// A line about a lease.
pub(super) fn put_lease(
    out: &mut Text,
    number: usize,
    inode: &dyn Inode,
    (kind, breaks, pid): Shown,
) {
    let Ok(metadata) = inode.metadata() else { return };
    let state = if breaks { "BREAKING  " } else { "ACTIVE    " };
    let mode = if kind == LeaseKind::Write { "WRITE" } else { "READ " };
    let (major, minor) = (chrdev::major(metadata.device), chrdev::minor(metadata.device));
    write!(out, "{number}: LEASE  {state}{mode} {pid} ");
    writeln!(out, "{major:02x}:{minor:02x}:{} 0 EOF", metadata.inode);
}

/// A line about a lock.
pub(super) fn put_lock(out: &mut Text, number: usize, inode: &dyn Inode, lock: &Lock) {
    let Ok(metadata) = inode.metadata() else { return };
    let kind = match lock.owner {
        Owner::Process(_) => "POSIX ",
        Owner::OpenFile(_) => "OFDLCK",
        Owner::Flock(_) => "FLOCK ",
    };
    let mode = if lock.exclusive { "WRITE" } else { "READ " };
    let (major, minor) = (chrdev::major(metadata.device), chrdev::minor(metadata.device));
    write!(out, "{number}: {kind} ADVISORY  {mode} {} ", lock.pid);
    write!(out, "{major:02x}:{minor:02x}:{} {} ", metadata.inode, lock.start);
    match lock.end {
        // Offsets are signed; the last one means all that will ever be.
        end if end >= i64::MAX as u64 => out.bytes(b"EOF\n"),
        end => writeln!(out, "{end}"),
    }
}

pub(super) fn swaps(out: &mut Text) -> Result<()> {
    out.bytes(b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    Ok(())
}

pub(super) fn partitions(out: &mut Text) -> Result<()> {
    out.bytes(b"major minor  #blocks  name\n\n");
    Ok(())
}

/// Memory in kilobytes.
struct Memory {
    total: u64,
    free: u64,
    cached: u64,
    slab: u64,
    /// Slabs and stacks that nothing uses.
    idle: u64,
}

fn memory() -> Memory {
    let (total, free) = machine::frame::usage();
    Memory {
        total: total as u64 * KB_PER_PAGE,
        free: free as u64 * KB_PER_PAGE,
        cached: crate::page_cache::cached_pages() as u64 * KB_PER_PAGE,
        slab: machine::slab_bytes() as u64 / 1024,
        idle: (machine::heap_idle_bytes() + machine::stack::idle_stack_bytes()) as u64 / 1024,
    }
}

pub(super) fn meminfo(out: &mut Text) -> Result<()> {
    let m = memory();
    let pool = hugetlb::counts();
    let hugetlb = pool.total * (HUGE_PAGE / 1024);
    let anonymous = m.total.saturating_sub(m.free + m.cached + m.slab + hugetlb);
    let lines = [
        ("MemTotal", m.total),
        ("MemFree", m.free),
        ("MemAvailable", m.free + m.cached + m.idle),
        ("Buffers", 0),
        ("Cached", m.cached),
        ("SwapCached", 0),
        ("Active", anonymous),
        ("Inactive", m.cached),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", anonymous),
        ("Mapped", m.cached),
        ("Shmem", 0),
        ("Slab", m.slab),
        ("SReclaimable", m.idle.min(m.slab)),
        ("SUnreclaim", m.slab.saturating_sub(m.idle)),
        ("PageTables", machine::memory::user_tables() * KB_PER_PAGE),
        ("CommitLimit", m.total),
        ("Committed_AS", anonymous),
        ("VmallocTotal", 34_359_738_367),
        ("VmallocUsed", machine::vmap_usage().0 as u64 / 1024),
        ("AnonHugePages", huge_pages(PageKind::Anonymous) * (HUGE_PAGE / 1024)),
        ("ShmemHugePages", page_cache::huge::runs() * (HUGE_PAGE / 1024)),
        ("ShmemPmdMapped", huge_pages(PageKind::Shmem) * (HUGE_PAGE / 1024)),
        ("HugePages_Total", pool.total),
        ("HugePages_Free", pool.free),
        ("HugePages_Rsvd", pool.reserved),
        ("HugePages_Surp", pool.surplus),
        ("Hugepagesize", HUGE_PAGE / 1024),
        ("Hugetlb", hugetlb),
    ];
    for (name, kilobytes) in lines {
        out.amount(name, kilobytes, if name.starts_with("HugePages") { "" } else { " kB" });
    }
    Ok(())
}

pub(super) fn vmstat(out: &mut Text) -> Result<()> {
    let m = memory();
    writeln!(out, "nr_free_pages {}", m.free / KB_PER_PAGE);
    writeln!(out, "nr_file_pages {}", m.cached / KB_PER_PAGE);
    out.bytes(b"pgpgin 0\npgpgout 0\npswpin 0\npswpout 0\n");
    Ok(())
}

pub(super) fn stat(out: &mut Text) -> Result<()> {
    let up_ns = now_ns();
    let times = |cpu: usize| {
        let idle_ns = sched::idle_ns(cpu).min(up_ns);
        let user_ns = sched::user_ns(cpu).min(up_ns - idle_ns);
        [user_ns, up_ns - idle_ns - user_ns, idle_ns].map(|ns| ns / NS_PER_TICK)
    };
    let mut total = [0u64; 3];
    for cpu in 0..cpu_count() {
        let cpu_times = times(cpu);
        total.iter_mut().zip(cpu_times).for_each(|(sum, part)| *sum += part);
    }
    writeln!(out, "cpu  {} 0 {} {} 0 0 0 0 0 0", total[0], total[1], total[2]);
    for cpu in 0..cpu_count() {
        let [user, system, idle] = times(cpu);
        writeln!(out, "cpu{cpu} {user} 0 {system} {idle} 0 0 0 0 0 0");
    }
    let interrupts: u64 = machine::irq::counts().flat_map(|(_, counts)| counts).sum();
    writeln!(out, "intr {interrupts}");
    writeln!(out, "ctxt {}", sched::switches());
    writeln!(out, "btime {}", crate::base::time::realtime_offset_ns() / NS_PER_SEC);
    writeln!(out, "processes {}", process::last_pid());
    writeln!(out, "procs_running {}", sched::runnable().max(1));
    out.bytes(b"procs_blocked 0\n");
    Ok(())
}

/// Load averages over 1, 5 and 15 minutes in thousandths, and when they were computed.
struct Load {
    at_ns: u64,
    thousandths: [u64; 3],
}

static LOAD: SpinLock<Load> = SpinLock::new(Load { at_ns: 0, thousandths: [0; 3] });

/// The load averages, in thousandths. Nothing samples the queues in the background: an idle machine
/// has no tick. So the number of runnable threads now stands for the time since the last question.
pub fn load_averages() -> [u64; 3] {
    let now = now_ns();
    // The one who asks is running, and does not count.
    let runnable = (sched::runnable() as u64).saturating_sub(1) * 1000;
    let mut load = LOAD.lock();
    let seconds = now.saturating_sub(load.at_ns) / NS_PER_SEC;
    if seconds > 0 {
        for (value, window) in load.thousandths.iter_mut().zip([60, 300, 900]) {
            // (1 - 1/window)^seconds, second by second, until nothing of the old value is left.
            for _ in 0..seconds.min(window * 8) {
                *value = (*value * (window - 1) + runnable) / window;
            }
        }
        load.at_ns = now;
    }
    load.thousandths
}

pub(super) fn loadavg(out: &mut Text) -> Result<()> {
    for value in load_averages() {
        write!(out, "{}.{:02} ", value / 1000, value % 1000 / 10);
    }
    let threads: usize =
        process::all_processes().iter().map(|process| process.threads.lock().len()).sum();
    writeln!(out, "{}/{threads} {}", sched::runnable().max(1), process::last_pid());
    Ok(())
}
