//! What a system call was asked and what it gave, for people: the names of its arguments in Linux's
//! manual (section 2), numbers as numbers and addresses as addresses, errors by their text.
//!
//! Calls that are not in the table show all six registers, of which they may not use all.

use serde_json::{Map, Value, json};

use super::timeline::{Visit, VisitKind};

/// Calls and the names of their arguments. Those in [`ADDRESSES`] are shown in base 16.
const CALLS: [(&str, &str); 58] = [
    ("accept4", "fd addr len flags"),
    ("access", "path mode"),
    ("arch_prctl", "code addr"),
    ("bind", "fd addr len"),
    ("brk", "addr"),
    ("chdir", "path"),
    ("clone", "flags stack parent_tid child_tid tls"),
    ("clone3", "args size"),
    ("close", "fd"),
    ("connect", "fd addr len"),
    ("dup", "fd"),
    ("dup2", "fd newfd"),
    ("dup3", "fd newfd flags"),
    ("epoll_ctl", "fd op target event"),
    ("epoll_wait", "fd events count timeout"),
    ("execve", "path argv envp"),
    ("exit", "status"),
    ("exit_group", "status"),
    ("fcntl", "fd op arg"),
    ("fork", ""),
    ("fstat", "fd statbuf"),
    ("futex", "addr op val timeout addr2 val3"),
    ("getcwd", "buf size"),
    ("getdents64", "fd buf count"),
    ("getpid", ""),
    ("getppid", ""),
    ("getrandom", "buf count flags"),
    ("gettid", ""),
    ("getuid", ""),
    ("ioctl", "fd op arg"),
    ("kill", "pid sig"),
    ("lseek", "fd offset whence"),
    ("mmap", "addr length prot flags fd offset"),
    ("mprotect", "addr length prot"),
    ("munmap", "addr length"),
    ("nanosleep", "req rem"),
    ("newfstatat", "dirfd path statbuf flags"),
    ("openat", "dirfd path flags mode"),
    ("pipe2", "buf flags"),
    ("poll", "fds count timeout"),
    ("pread64", "fd buf count offset"),
    ("prlimit64", "pid resource new old"),
    ("pwrite64", "fd buf count offset"),
    ("read", "fd buf count"),
    ("readlink", "path buf size"),
    ("recvfrom", "fd buf count flags addr len"),
    ("rseq", "addr length flags sig"),
    ("rt_sigaction", "sig new old size"),
    ("rt_sigprocmask", "how new old size"),
    ("sched_yield", ""),
    ("sendto", "fd buf count flags addr len"),
    ("set_robust_list", "addr len"),
    ("set_tid_address", "addr"),
    ("socket", "domain type protocol"),
    ("wait4", "pid statbuf options rusage"),
    ("write", "fd buf count"),
    ("writev", "fd iov count"),
    ("vfork", ""),
];
/// Arguments that are pointers, or sets of bits.
const ADDRESSES: [&str; 23] = [
    "addr",
    "addr2",
    "arg",
    "args",
    "argv",
    "buf",
    "child_tid",
    "envp",
    "event",
    "events",
    "fds",
    "flags",
    "iov",
    "new",
    "old",
    "parent_tid",
    "path",
    "req",
    "rem",
    "rusage",
    "stack",
    "statbuf",
    "tls",
];
/// Results from here on are errors, negated (syscall(2)).
const ERRORS: i64 = -4095;

/// The arguments and the result of a call; none of what is no call.
pub(super) fn of(visit: &Visit) -> Option<Value> {
    if visit.kind != VisitKind::Call || visit.arguments.is_empty() {
        return None;
    }
    let mut all = Map::new();
    match CALLS.iter().find(|(name, _)| *name == visit.name) {
        Some((_, names)) => {
            for (name, value) in names.split_whitespace().zip(&visit.arguments) {
                let shown = match ADDRESSES.contains(&name) {
                    true => json!(format!("{value:#x}")),
                    // As C's int: -1, AT_FDCWD.
                    false => json!(*value as u32 as i32),
                };
                let is_long = ["count", "length", "size", "offset"].contains(&name);
                all.insert(name.to_owned(), if is_long { json!(*value as i64) } else { shown });
            }
        }
        None => {
            for (index, value) in visit.arguments.iter().enumerate() {
                all.insert(format!("register {}", index + 1), json!(format!("{value:#x}")));
            }
        }
    }
    if let Some(result) = visit.result {
        all.insert("result".to_owned(), shown_result(result as i64));
    }
    Some(Value::Object(all))
}

fn shown_result(result: i64) -> Value {
    match result {
        ERRORS..0 => json!(std::io::Error::from_raw_os_error(-result as i32).to_string()),
        // No size or number of things is as large: an address.
        0x1_0000_0000.. => json!(format!("{result:#x}")),
        _ => json!(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(name: &str, arguments: &[u64], result: u64) -> Visit {
        Visit {
            thread: 1,
            from_ns: 0,
            to_ns: 1,
            kind: VisitKind::Call,
            name: name.to_owned(),
            arguments: arguments.to_vec(),
            result: Some(result),
        }
    }

    #[test]
    fn arguments_have_names_and_errors_words() {
        let open = visit("openat", &[-100i64 as u64, 0x7f00, 0, 0, 9, 9], -2i64 as u64);
        let shown = json!({ "dirfd": -100, "path": "0x7f00", "flags": "0x0", "mode": 0,
                            "result": "No such file or directory (os error 2)" });
        assert_eq!(of(&open), Some(shown));
        let other =
            of(&visit("unheard_of", &[1, 2, 3, 4, 5, 6], 0x7f00_0000_0000)).expect("a call");
        assert_eq!(
            (&other["register 6"], &other["result"]),
            (&json!("0x6"), &json!("0x7f0000000000"))
        );
        assert_eq!(of(&Visit { kind: VisitKind::Interrupt, ..visit("tlb", &[1], 0) }), None);
    }

    #[test]
    fn calls_exist_and_are_named_once() {
        let mut names: Vec<&str> = CALLS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CALLS.len());
        assert!(CALLS.iter().all(|(_, names)| names.split_whitespace().count() <= 6));
    }
}
