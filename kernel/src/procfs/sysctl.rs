//! /proc/sys: the kernel's settings (proc(5), sysctl(8)). Most can only be read: they tell programs
//! what the kernel does, and it does nothing else.

use ::core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::sync::Once;

use crate::aio;
use crate::base::identity;
use crate::fs::pseudo::{Show, Static, Text, parse_number};
use crate::ipc::mqueue;
use crate::mm::hugetlb;
use crate::process;
use crate::ptrace::core;
use crate::vfs::{file, leases};

macro_rules! says {
    ($($text:tt)*) => {
        Static::Fixed(|out| {
            writeln!(out, $($text)*);
            Ok(())
        })
    };
}

/// A number of the pool of huge pages, and what sets it.
macro_rules! pool_setting {
    ($count:ident, $set:ident) => {
        Static::Setting(
            |out| {
                writeln!(out, "{}", hugetlb::counts().$count);
                Ok(())
            },
            |data| {
                hugetlb::$set(parse_number(data)?);
                Ok(())
            },
        )
    };
}
pub(super) use pool_setting;

/// The directory's table.
pub(super) static TABLE: &[(&str, Static)] = &[
    ("fs", Static::Directory(FS)),
    ("kernel", Static::Directory(KERNEL)),
    ("net", Static::Directory(NET)),
    ("vm", Static::Directory(VM)),
];

static KERNEL: &[(&str, Static)] = &[
    ("cap_last_cap", says!("40")),
    ("core_pattern", Static::Setting(core_pattern, set_core_pattern)),
    ("core_pipe_limit", Static::Setting(core_pipe_limit, set_core_pipe_limit)),
    ("core_uses_pid", Static::Setting(core_uses_pid, set_core_uses_pid)),
    ("dmesg_restrict", says!("1")),
    ("domainname", Static::Setting(domainname, set_domainname)),
    ("hostname", Static::Setting(hostname, set_hostname)),
    ("io_uring_disabled", says!("2")),
    ("kptr_restrict", says!("2")),
    ("msgmax", says!("8192")),
    ("msgmnb", says!("16384")),
    ("msgmni", says!("32000")),
    ("ngroups_max", says!("65536")),
    ("osrelease", says!("{}", identity::RELEASE)),
    ("ostype", says!("{}", identity::SYSNAME)),
    ("overflowgid", says!("65534")),
    ("overflowuid", says!("65534")),
    ("panic", says!("0")),
    ("perf_event_paranoid", says!("4")),
    ("pid_max", says!("{}", process::PID_MAX)),
    ("printk", says!("4\t4\t1\t7")),
    #[cfg(feature = "ktest")]
    ("provoke", Static::Setting(zero, provoke)),
    ("pty", Static::Directory(PTY)),
    ("random", Static::Directory(RANDOM)),
    ("randomize_va_space", Static::Setting(randomization, set_randomization)),
    ("sched_child_runs_first", says!("0")),
    ("sched_schedstats", Static::Setting(schedstats, set_schedstats)),
    ("seccomp", Static::Directory(SECCOMP)),
    ("sem", says!("32000\t1024000000\t500\t32000")),
    ("shmall", says!("18446744073692774399")),
    ("shmmax", says!("18446744073692774399")),
    ("shmmni", says!("4096")),
    ("tainted", says!("0")),
    ("threads-max", says!("{}", process::THREADS_MAX)),
    ("unprivileged_bpf_disabled", says!("2")),
    ("version", says!("{}", identity::VERSION)),
    ("yama", Static::Directory(YAMA)),
];

static YAMA: &[(&str, Static)] =
    &[("ptrace_scope", Static::Setting(ptrace_scope, set_ptrace_scope))];

static SECCOMP: &[(&str, Static)] = &[("actions_avail", says!("{}", process::seccomp::ACTIONS))];

static PTY: &[(&str, Static)] = &[("max", says!("4096")), ("reserve", says!("1024"))];

static RANDOM: &[(&str, Static)] = &[
    ("boot_id", Static::File(boot_id as Show)),
    ("entropy_avail", says!("256")),
    ("poolsize", says!("256")),
    ("uuid", Static::File(uuid as Show)),
];

static VM: &[(&str, Static)] = &[
    ("drop_caches", Static::Setting(zero, drop_caches)),
    ("max_map_count", says!("{}", crate::mm::MAX_MAP_COUNT)),
    ("min_free_kbytes", says!("0")),
    ("mmap_min_addr", says!("{}", crate::mm::MMAP_MIN)),
    ("nr_hugepages", pool_setting!(total, set_total)),
    ("nr_overcommit_hugepages", pool_setting!(overcommit, set_overcommit)),
    // Memory is given out when it is touched, and never refused before.
    ("overcommit_memory", says!("1")),
    ("overcommit_ratio", says!("50")),
    ("swappiness", says!("0")),
];

/// A setting of leases.
macro_rules! lease_setting {
    ($setting:ident) => {
        Static::Setting(
            |out| {
                writeln!(out, "{}", leases::$setting().load(Ordering::Relaxed));
                Ok(())
            },
            |data| {
                leases::$setting().store(parse_number(data)?, Ordering::Relaxed);
                Ok(())
            },
        )
    };
}

static FS: &[(&str, Static)] = &[
    (
        "aio-max-nr",
        Static::Setting(
            |out| {
                writeln!(out, "{}", aio::system_places_max().load(Ordering::Relaxed));
                Ok(())
            },
            |data| {
                aio::system_places_max().store(parse_number(data)?, Ordering::Relaxed);
                Ok(())
            },
        ),
    ),
    ("aio-nr", says!("{}", aio::places())),
    ("epoll", Static::Directory(EPOLL)),
    ("file-max", says!("9223372036854775807")),
    ("file-nr", says!("0\t0\t9223372036854775807")),
    ("inotify", Static::Directory(INOTIFY)),
    ("lease-break-time", lease_setting!(break_time)),
    ("leases-enable", lease_setting!(is_enabled)),
    ("mount-max", says!("{}", crate::vfs::mount::MOUNTS_MAX)),
    ("mqueue", Static::Directory(MQUEUE)),
    ("nr_open", Static::Setting(nr_open, |data| file::set_max_fds(parse_number(data)?))),
    ("overflowgid", says!("65534")),
    ("overflowuid", says!("65534")),
    ("pipe-max-size", says!("{}", crate::io::pipe::MAX_CAPACITY)),
    ("pipe-user-pages-hard", says!("0")),
    ("pipe-user-pages-soft", says!("0")),
    ("protected_hardlinks", says!("0")),
    ("protected_symlinks", says!("0")),
];

/// A setting of POSIX message queues.
macro_rules! queue_setting {
    ($setting:ident) => {
        Static::Setting(
            |out| {
                writeln!(out, "{}", mqueue::limits::$setting.get());
                Ok(())
            },
            |data| mqueue::limits::$setting.set(parse_number(data)?),
        )
    };
}

static MQUEUE: &[(&str, Static)] = &[
    ("msg_default", queue_setting!(MESSAGES_DEFAULT)),
    ("msg_max", queue_setting!(MESSAGES)),
    ("msgsize_default", queue_setting!(BYTES_DEFAULT)),
    ("msgsize_max", queue_setting!(BYTES)),
    ("queues_max", queue_setting!(QUEUES)),
];

static EPOLL: &[(&str, Static)] =
    &[("max_user_watches", says!("{}", crate::io::epoll::watches_max()))];

static INOTIFY: &[(&str, Static)] = &[
    ("max_queued_events", says!("16384")),
    ("max_user_instances", says!("128")),
    ("max_user_watches", says!("65536")),
];

static NET: &[(&str, Static)] =
    &[("core", Static::Directory(NET_CORE)), ("unix", Static::Directory(NET_UNIX))];

static NET_CORE: &[(&str, Static)] = &[
    ("rmem_default", says!("212992")),
    ("rmem_max", says!("212992")),
    ("somaxconn", says!("4096")),
    ("wmem_default", says!("212992")),
    ("wmem_max", says!("212992")),
];

static NET_UNIX: &[(&str, Static)] = &[("max_dgram_qlen", says!("10"))];

fn core_pattern(out: &mut Text) -> Result<()> {
    out.bytes(&core::pattern());
    out.bytes(b"\n");
    Ok(())
}

fn set_core_pattern(data: &[u8]) -> Result<()> {
    core::set_pattern(data.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default())
}

fn core_pipe_limit(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", core::pipe_limit());
    Ok(())
}

fn set_core_pipe_limit(data: &[u8]) -> Result<()> {
    core::set_pipe_limit(parse_number(data)?);
    Ok(())
}

fn core_uses_pid(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", u8::from(core::uses_pid()));
    Ok(())
}

fn set_core_uses_pid(data: &[u8]) -> Result<()> {
    core::set_uses_pid(parse_number::<i32>(data)? != 0);
    Ok(())
}

fn nr_open(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", file::max_fds());
    Ok(())
}

fn hostname(out: &mut Text) -> Result<()> {
    out.bytes(&identity::hostname());
    out.bytes(b"\n");
    Ok(())
}

fn set_hostname(data: &[u8]) -> Result<()> {
    identity::set_hostname(data.trim_ascii_end())
}

fn domainname(out: &mut Text) -> Result<()> {
    out.bytes(&identity::domainname());
    out.bytes(b"\n");
    Ok(())
}

fn set_domainname(data: &[u8]) -> Result<()> {
    identity::set_domainname(data.trim_ascii_end())
}

fn schedstats(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", u8::from(crate::base::schedstats::enabled()));
    Ok(())
}

fn set_schedstats(data: &[u8]) -> Result<()> {
    match parse_number::<u32>(data)? {
        value @ 0..=1 => crate::base::schedstats::set(value == 1),
        _ => Err(Errno::EINVAL),
    }
}

fn ptrace_scope(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", process::yama::scope() as u32);
    Ok(())
}

fn set_ptrace_scope(data: &[u8]) -> Result<()> {
    process::yama::set_scope(parse_number(data)?)
}

fn randomization(out: &mut Text) -> Result<()> {
    writeln!(out, "{}", crate::exec::randomization());
    Ok(())
}

fn set_randomization(data: &[u8]) -> Result<()> {
    crate::exec::set_randomization(parse_number(data)?);
    Ok(())
}

fn zero(out: &mut Text) -> Result<()> {
    out.bytes(b"0\n");
    Ok(())
}

/// In test builds only: makes a call that kCFI must stop (`limen test kernel`, `fault::*`).
#[cfg(feature = "ktest")]
fn provoke(data: &[u8]) -> Result<()> {
    match machine::ktest::provoke(data.trim_ascii_end()) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn drop_caches(data: &[u8]) -> Result<()> {
    match parse_number::<u32>(data)? {
        what @ 1..=4 => {
            if what & 1 != 0 {
                crate::page_cache::reclaim_all();
            }
            if what & 2 != 0 {
                crate::vfs::dentry::shrink_all();
                crate::net::garbage::collect();
                while machine::stack::trim_stacks() > 0 {}
                machine::trim_heap();
            }
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Sixteen random bytes as text (RFC 9562, version 4).
fn write_uuid(out: &mut Text, mut bytes: [u8; 16]) {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.bytes(b"-");
        }
        write!(out, "{byte:02x}");
    }
    out.bytes(b"\n");
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    crate::base::random::fill(&mut bytes);
    bytes
}

fn uuid(out: &mut Text) -> Result<()> {
    write_uuid(out, random_bytes());
    Ok(())
}

fn boot_id(out: &mut Text) -> Result<()> {
    static ID: Once<[u8; 16]> = Once::new();
    write_uuid(out, *ID.call_once(random_bytes));
    Ok(())
}
