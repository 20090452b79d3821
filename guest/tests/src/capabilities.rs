//! What execve(2) makes of capability sets (capabilities(7)): a table, each row a program with
//! mode bits and capabilities of its own, run by somebody with sets and secure bits; and the rules
//! of capset(2) and prctl(2).
//!
//! Rows have equal real and effective ids before the exec: what Linux says of others has changed
//! between its releases.

use crate::sys::*;
use crate::{sc, tests};

tests!("capabilities":
    exec_by_table, exec_of_other_revisions, attributes_of_capabilities_are_checked,
    capset_by_table, secure_bits_by_table,
);

const NET_RAW: u64 = 1 << 13;
const BIND: u64 = 1 << 10;
const BPF: u64 = 1 << 39;
/// All that the bounding set has.
const ALL: u64 = u64::MAX;

const NOROOT: u32 = 1;
const NO_SETUID_FIXUP: u32 = 1 << 2;
const KEEP_CAPS: u32 = 1 << 4;

/// Permitted, inheritable, and whether they are effective at once.
type FileCaps = (u64, u64, bool);

/// Who executes what.
#[derive(Clone, Copy)]
struct Row {
    what: &'static str,
    uid: u32,
    /// Before the exec: permitted, inheritable, ambient, taken from the bounding set.
    sets: [u64; 4],
    securebits: u32,
    no_new_privs: bool,
    /// Of the file: owner, mode, capabilities.
    file: (u32, u32, Option<FileCaps>),
    /// After it: permitted, effective, ambient, AT_SECURE, effective user id.
    want: Result<(u64, u64, u64, bool, u32), i32>,
}

const PLAIN: Row = Row {
    what: "a user, a plain file",
    uid: 1234,
    sets: [0; 4],
    securebits: 0,
    no_new_privs: false,
    file: (0, 0o755, None),
    want: Ok((0, 0, 0, false, 1234)),
};
const ROOT: Row = Row { uid: 0, sets: [ALL, 0, 0, 0], ..PLAIN };

#[rustfmt::skip]
const ROWS: &[Row] = &[
    PLAIN,
    Row { what: "permitted sets are lost", sets: [NET_RAW | BPF, NET_RAW, 0, 0], ..PLAIN },
    Row { what: "ambient ones are kept", sets: [NET_RAW | BPF, NET_RAW | BPF, BPF, 0],
          want: Ok((BPF, BPF, BPF, false, 1234)), ..PLAIN },
    Row { what: "the file gives, effective", file: (0, 0o755, Some((NET_RAW | BPF, 0, true))),
          want: Ok((NET_RAW | BPF, NET_RAW | BPF, 0, true, 1234)), ..PLAIN },
    Row { what: "the file gives, not effective", file: (0, 0o755, Some((NET_RAW, 0, false))),
          want: Ok((NET_RAW, 0, 0, true, 1234)), ..PLAIN },
    Row { what: "the file gives what is inherited", sets: [NET_RAW, NET_RAW, 0, 0],
          file: (0, 0o755, Some((0, NET_RAW | BIND, false))),
          want: Ok((NET_RAW, 0, 0, true, 1234)), ..PLAIN },
    Row { what: "nothing of the two is there", sets: [BIND, BIND, 0, 0],
          file: (0, 0o755, Some((0, NET_RAW, false))), ..PLAIN },
    Row { what: "a file with sets ends ambient ones", sets: [NET_RAW, NET_RAW, NET_RAW, 0],
          file: (0, 0o755, Some((BIND, 0, true))),
          want: Ok((BIND, BIND, 0, true, 1234)), ..PLAIN },
    Row { what: "an empty set ends ambient ones", sets: [NET_RAW, NET_RAW, NET_RAW, 0],
          file: (0, 0o755, Some((0, 0, false))), ..PLAIN },
    Row { what: "the bounding set limits", sets: [0, 0, 0, NET_RAW],
          file: (0, 0o755, Some((NET_RAW | BIND, 0, false))),
          want: Ok((BIND, 0, 0, true, 1234)), ..PLAIN },
    Row { what: "what needs more is not run", sets: [0, 0, 0, NET_RAW],
          file: (0, 0o755, Some((NET_RAW | BIND, 0, true))), want: Err(EPERM), ..PLAIN },
    Row { what: "no new privileges by files", no_new_privs: true,
          file: (0, 0o755, Some((NET_RAW, 0, true))),
          want: Ok((0, 0, 0, true, 1234)), ..PLAIN },
    Row { what: "no new privileges, of what was there", no_new_privs: true,
          sets: [NET_RAW, 0, 0, 0], file: (0, 0o755, Some((NET_RAW | BIND, 0, true))),
          want: Ok((NET_RAW, NET_RAW, 0, true, 1234)), ..PLAIN },
    Row { what: "ambient ones, no new privileges", no_new_privs: true,
          sets: [NET_RAW, NET_RAW, NET_RAW, 0],
          want: Ok((NET_RAW, NET_RAW, NET_RAW, false, 1234)), ..PLAIN },
    Row { what: "set-user-ID of root's", file: (0, 0o4755, None),
          want: Ok((ALL, ALL, 0, true, 0)), ..PLAIN },
    Row { what: "set-user-ID of root's, bounded", sets: [0, 0, 0, NET_RAW],
          file: (0, 0o4755, None),
          want: Ok((ALL & !NET_RAW, ALL & !NET_RAW, 0, true, 0)), ..PLAIN },
    Row { what: "set-user-ID of root's, no new privileges", no_new_privs: true,
          file: (0, 0o4755, None), ..PLAIN },
    Row { what: "set-user-ID of root's, with sets", file: (0, 0o4755, Some((NET_RAW, 0, true))),
          want: Ok((NET_RAW, NET_RAW, 0, true, 0)), ..PLAIN },
    Row { what: "set-user-ID of root's, without root's rights", securebits: NOROOT,
          file: (0, 0o4755, None), want: Ok((0, 0, 0, true, 0)), ..PLAIN },
    Row { what: "set-user-ID of another", file: (4321, 0o4755, None),
          want: Ok((0, 0, 0, true, 4321)), ..PLAIN },
    Row { what: "set-user-ID ends ambient ones", sets: [NET_RAW, NET_RAW, NET_RAW, 0],
          file: (4321, 0o4755, None), want: Ok((0, 0, 0, true, 4321)), ..PLAIN },
    Row { what: "set-user-ID of oneself", file: (1234, 0o4755, None), ..PLAIN },
    Row { what: "root", want: Ok((ALL, ALL, 0, false, 0)), ..ROOT },
    Row { what: "root who has none", sets: [0; 4], want: Ok((ALL, ALL, 0, false, 0)), ..ROOT },
    Row { what: "root, bounded", sets: [0, 0, 0, NET_RAW],
          want: Ok((ALL & !NET_RAW, ALL & !NET_RAW, 0, false, 0)), ..ROOT },
    Row { what: "root, bounded, inherits", sets: [ALL, NET_RAW, 0, NET_RAW],
          want: Ok((ALL, ALL, 0, false, 0)), ..ROOT },
    Row { what: "root, without root's rights", securebits: NOROOT,
          want: Ok((0, 0, 0, false, 0)), ..ROOT },
    Row { what: "root, without root's rights, ambient", securebits: NOROOT,
          sets: [ALL, NET_RAW, NET_RAW, 0],
          want: Ok((NET_RAW, NET_RAW, NET_RAW, false, 0)), ..ROOT },
    Row { what: "root, a file with sets", file: (0, 0o755, Some((NET_RAW, 0, false))),
          want: Ok((ALL, ALL, 0, false, 0)), ..ROOT },
    Row { what: "root, without root's rights, a file with sets", securebits: NOROOT,
          file: (0, 0o755, Some((NET_RAW, 0, true))),
          want: Ok((NET_RAW, NET_RAW, 0, false, 0)), ..ROOT },
    Row { what: "root, set-user-ID of another", file: (4321, 0o4755, None),
          want: Ok((ALL, 0, 0, true, 4321)), ..ROOT },
    Row { what: "keeping capabilities ends", securebits: KEEP_CAPS, ..PLAIN },
];

const HEADER: [u32; 2] = [0x2008_0522, 0];

/// capset(2) of the sets in the order of `struct __user_cap_data_struct`.
fn set(effective: u64, permitted: u64, inheritable: u64) -> Res {
    let half = |shift: u32| [effective, permitted, inheritable].map(|set| (set >> shift) as u32);
    let data = [half(0), half(32)];
    sc!(SYS_capset, HEADER.as_ptr(), data.as_ptr())
}

/// Sets of this thread by their names in /proc/self/status.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn permitted() -> u64 {
    status("CapPrm")
}

/// What a new program says of itself, for [`run`].
pub fn told() -> String {
    // SAFETY: reading the auxiliary vector.
    let secure = unsafe { getauxval(AT_SECURE) };
    let sets = ["CapPrm", "CapEff", "CapAmb", "CapInh"].map(status);
    let uid = sc!(SYS_geteuid).must();
    let bits = sc!(SYS_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0).must();
    format!("{} {} {} {secure} {uid} {} {bits}", sets[0], sets[1], sets[2], sets[3])
}

fn value((permitted, inheritable, effective): FileCaps) -> [u32; 5] {
    let magic = 0x0200_0000 | u32::from(effective);
    let half = |set: u64, shift: u32| (set >> shift) as u32;
    [magic, half(permitted, 0), half(inheritable, 0), half(permitted, 32), half(inheritable, 32)]
}

fn give(path: &str, words: &[u32]) -> Res {
    let (path, name) = (c(path), c"security.capability");
    sc!(SYS_setxattr, path.as_ptr(), name.as_ptr(), words.as_ptr(), words.len() * 4, 0)
}

/// A program as a row says. One copy serves all rows: it is large.
fn program(row: &Row) -> String {
    static COPY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let path = COPY.get_or_init(copy);
    let (owner, mode, sets) = row.file;
    let _ = sc!(SYS_removexattr, c(path).as_ptr(), c"security.capability".as_ptr());
    sc!(SYS_chown, c(path).as_ptr(), owner, 0).is(0);
    sc!(SYS_chmod, c(path).as_ptr(), mode).is(0);
    if let Some(sets) = sets {
        give(path, &value(sets)).is(0);
    }
    path.clone()
}

fn copy() -> String {
    let folder = dir();
    sc!(SYS_chmod, c(&folder).as_ptr(), 0o755).is(0);
    let path = format!("{folder}/program");
    std::fs::copy(own_path(), &path).unwrap();
    path
}

/// Becomes who executes, in a child.
fn become_row(row: &Row, all: u64) {
    let [own, inheritable, ambient, bounded] = row.sets;
    sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).is(0);
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresuid, row.uid, row.uid, row.uid).is(0);
    sc!(SYS_prctl, PR_SET_KEEPCAPS, 0, 0, 0, 0).is(0);
    set(all, all, inheritable).is(0);
    if row.securebits != 0 {
        sc!(SYS_prctl, PR_SET_SECUREBITS, row.securebits, 0, 0, 0).is(0);
    }
    for number in 0..64 {
        if ambient >> number & 1 != 0 {
            sc!(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0).is(0);
        }
        if bounded >> number & 1 != 0 {
            sc!(SYS_prctl, PR_CAPBSET_DROP, number, 0, 0, 0).is(0);
        }
    }
    set(0, own & all, inheritable).is(0);
    if row.no_new_privs {
        sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
    }
}

/// Executes a path as the row says; what the program tells, or the error.
fn run(row: &Row, path: &str) -> Result<Vec<u64>, i32> {
    let all = permitted();
    let (out, into) = pipe();
    let child = fork(|| {
        become_row(row, all);
        sc!(SYS_dup2, into, 1).is(1);
        let path = c(path);
        let words = [path.as_ptr(), c"child".as_ptr(), c"capabilities".as_ptr(), std::ptr::null()];
        let error = sc!(SYS_execve, path.as_ptr(), words.as_ptr(), 0).unwrap_err();
        write(1, format!("error {error}").as_bytes());
        0
    });
    close(into);
    let said = String::from_utf8(read(out, 256)).unwrap();
    wait_code(child, 0);
    close(out);
    match said.strip_prefix("error ") {
        Some(error) => Err(error.parse().unwrap()),
        None => Ok(said.split(' ').map(|word| word.parse().unwrap()).collect()),
    }
}

fn exec_by_table() {
    let all = permitted();
    for row in ROWS {
        let got = run(row, &program(row));
        let got = got.map(|said| (said[0], said[1], said[2], said[3] != 0, said[4] as u32));
        let want = row.want.map(|(p, e, a, secure, uid)| (p & all, e & all, a, secure, uid));
        assert_eq!(got, want, "{}", row.what);
    }
    // Inheritable sets stay, KEEP_CAPS goes, other secure bits stay.
    let row = Row { sets: [NET_RAW, NET_RAW, 0, 0], securebits: KEEP_CAPS | 4, ..PLAIN };
    let said = run(&row, &program(&row)).unwrap();
    assert_eq!((said[5], said[6]), (NET_RAW, u64::from(NO_SETUID_FIXUP)));
}

/// The third revision counts for its own superuser only.
fn exec_of_other_revisions() {
    let path = program(&PLAIN);
    for (root, want) in [(0, NET_RAW), (77, 0)] {
        give(&path, &[0x0300_0001, NET_RAW as u32, 0, 0, 0, root]).is(0);
        assert_eq!(run(&PLAIN, &path).unwrap()[0], want, "of {root}");
    }
}

fn attributes_of_capabilities_are_checked() {
    let path = program(&PLAIN);
    give(&path, &[0x0100_0000, 1, 0]).fails(EINVAL);
    give(&path, &[0x0200_0000, 1, 0]).fails(EINVAL);
    give(&path, &[0x0200_0000, 1, 0, 0, 0, 0]).fails(EINVAL);
    give(&path, &[0x0400_0000, 1, 0, 0, 0]).fails(EINVAL);
    give(&path, &[]).is(0);
    assert_eq!(run(&PLAIN, &path), Err(EINVAL), "a value that nobody can read");
    give(&path, &[0x0200_0000, 1, 0, 0, 0]).is(0);
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        give(&path, &[0x0200_0000, 1, 0, 0, 0]).fails(EPERM);
        sc!(SYS_removexattr, c(&path).as_ptr(), c"security.capability".as_ptr()).fails(EPERM);
    });
}

fn capset_by_table() {
    let all = permitted();
    let setpcap = 1 << 8;
    // From permitted, effective and inheritable to the same; whether it is let.
    let cases = [
        ([NET_RAW, 0, 0], [NET_RAW, NET_RAW, 0], true),
        ([NET_RAW, 0, 0], [NET_RAW | BIND, 0, 0], false),
        ([NET_RAW, 0, 0], [0, NET_RAW, 0], false),
        ([NET_RAW, 0, 0], [NET_RAW, 0, NET_RAW], true),
        ([NET_RAW, 0, 0], [NET_RAW, 0, BIND], false),
        ([setpcap, setpcap, 0], [setpcap, setpcap, BIND], true),
        ([setpcap, 0, 0], [setpcap, 0, BIND], false),
        ([0, 0, BIND], [0, 0, BIND], true),
        ([0, 0, BIND], [0, 0, 0], true),
        ([NET_RAW | BIND, BIND, 0], [BIND, 0, 0], true),
    ];
    for (from, to, allowed) in cases {
        in_child(|| {
            set(all & (from[1] | setpcap), all, from[2]).is(0);
            set(from[1], from[0], from[2]).is(0);
            let before = ["CapPrm", "CapEff", "CapInh"].map(status);
            let result = set(to[1], to[0], to[2]);
            let after = ["CapPrm", "CapEff", "CapInh"].map(status);
            if allowed {
                result.is(0);
                assert_eq!(after, to, "{from:x?}");
            } else {
                result.fails(EPERM);
                assert_eq!(after, before, "what is refused changes nothing");
            }
        });
    }
}

fn secure_bits_by_table() {
    let bits = |bits: u32| sc!(SYS_prctl, PR_SET_SECUREBITS, bits, 0, 0, 0);
    in_child(|| {
        bits(1 << 12).fails(EPERM);
        bits(NOROOT | NOROOT << 1).is(0);
        bits(NOROOT << 1).fails(EPERM);
        bits(NOROOT).fails(EPERM);
        bits(NOROOT | NOROOT << 1 | KEEP_CAPS << 1).is(0);
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).fails(EPERM);
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 2, 0, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_CAPBSET_DROP, 64, 0, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_CAPBSET_READ, 64, 0, 0, 0).fails(EINVAL);
        sc!(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 13, 0, 0).fails(EPERM);
        set(0, 0, 0).is(0);
        bits(NOROOT | NOROOT << 1 | KEEP_CAPS << 1).fails(EPERM);
        sc!(SYS_prctl, PR_CAPBSET_DROP, 1, 0, 0, 0).fails(EPERM);
    });
    in_child(|| {
        // Changes of ids change no sets.
        bits(NO_SETUID_FIXUP).is(0);
        let all = permitted();
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        assert_eq!(permitted(), all);
    });
}
