//! Hostile ELF files, each with what Linux answers: an errno of execve(2), the exit status of the
//! program (77), or 1000 and the signal that ended it.
//!
//! Nothing can be known of such a file but that; so the answers were taken from Linux and are
//! compared with every kernel's. `elf-cases` prints what the kernel at hand answers, in the form of
//! the table. Where answers depend on where things happen to lie, all that occur are listed.
//! Neighbour: `exec.rs`, which has the simple cases. Manual page: elf(5).

use crate::exec::{BASE, result, small_elf, with_segments};

/// A file and its name.
pub struct Case {
    name: String,
    bytes: Vec<u8>,
}

const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
const INTERP: u64 = 3;
const NOTE: u64 = 4;
const PHDR: u64 = 6;
const TLS: u64 = 7;
const GNU_STACK: u64 = 0x6474_e551;
const GNU_PROPERTY: u64 = 0x6474_e553;

fn load(off: u64, addr: u64, filesz: u64, memsz: u64) -> [u64; 8] {
    [LOAD, 7, off, addr, addr, filesz, memsz, 0x1000]
}

fn add(cases: &mut Vec<Case>, name: impl Into<String>, bytes: Vec<u8>) {
    cases.push(Case { name: name.into(), bytes });
}

fn truncations(cases: &mut Vec<Case>) {
    let good = load(0, BASE, 4096, 4096);
    let mut whole = with_segments(&[
        good,
        [INTERP, 4, 4096, 0, 0, 13, 13, 1],
        load(4096, BASE + 0x4000, 100, 100),
    ]);
    whole[4096..4109].copy_from_slice(b"/nonexistent\0");
    for n in [
        0, 1, 3, 4, 5, 15, 16, 17, 20, 24, 32, 40, 52, 54, 56, 58, 63, 64, 65, 96, 119, 120, 121,
        175, 176, 231, 232, 233, 4095, 4096, 4097, 4108, 4109, 4200,
    ] {
        add(cases, format!("cut at {n}"), whole[..n].to_vec());
    }
    // The file ends inside a segment: what lies behind its last page cannot be touched.
    let long = with_segments(&[load(0, BASE, 0x10000, 0x10000)]);
    add(cases, "segment longer than the file", long);
    let only_bss = with_segments(&[good, load(0x8000, BASE + 0x4000, 0x100, 0x3000)]);
    add(cases, "segment behind the file with bss", only_bss);
}

/// Every field of the headers with values at its borders.
fn fields(cases: &mut Vec<Case>) {
    let fields: [(&str, usize, usize); 20] = [
        ("ei_class", 4, 1),
        ("ei_data", 5, 1),
        ("ei_version", 6, 1),
        ("ei_osabi", 7, 1),
        ("e_type", 16, 2),
        ("e_machine", 18, 2),
        ("e_version", 20, 4),
        ("e_phoff", 32, 8),
        ("e_shoff", 40, 8),
        ("e_flags", 48, 4),
        ("e_ehsize", 52, 2),
        ("e_phentsize", 54, 2),
        ("e_phnum", 56, 2),
        ("p_type", 64, 4),
        ("p_offset", 72, 8),
        ("p_vaddr", 80, 8),
        ("p_paddr", 88, 8),
        ("p_filesz", 96, 8),
        ("p_memsz", 104, 8),
        ("p_align", 112, 8),
    ];
    let values = [
        0,
        1,
        2,
        55,
        57,
        0xfff,
        0x1000,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 40,
        (1 << 47) - 0x1000,
        1 << 47,
        1 << 62,
        1 << 63,
        u64::MAX - 0xfff,
        u64::MAX,
    ];
    for (name, at, len) in fields {
        for value in values.into_iter().filter(|v| len == 8 || v >> (8 * len) == 0) {
            let mut bytes = small_elf();
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            add(cases, format!("{name} {value:#x}"), bytes);
        }
    }
}

fn segments(cases: &mut Vec<Case>) {
    let good = load(0, BASE, 4096, 4096);
    let mut of = |name: &str, segments: &[[u64; 8]]| add(cases, name, with_segments(segments));
    of("twice the same", &[good, good]);
    of("overlap in a page", &[good, load(0, BASE + 0x800, 4096, 8192)]);
    of("descending", &[load(0, BASE + 0x10000, 4096, 4096), good]);
    of("page zero", &[good, load(0, 0, 4096, 4096)]);
    of("ends behind user space", &[good, load(0, 0x7fff_ffff_e000, 4096, 1 << 40)]);
    of("half of user space", &[good, load(0, 1 << 46, 10, 1 << 46)]);
    of("offset far behind the file", &[good, load(1 << 50, BASE + 0x100000, 4096, 4096)]);
    of("offset that wraps", &[good, load(u64::MAX - 0xfff, BASE + 0x100000, 8192, 8192)]);
    of("32 TiB of zeros", &[good, load(0, BASE + 0x100000, 0, 1 << 45)]);
    of("offset at the end of a page", &[good, load(0xfff, BASE + 0x100fff, 1, 1)]);
    of("offset and address differ", &[good, load(0xfff, BASE + 0x100000, 1, 1)]);
    of("70 times the same", &[good; 70]);
    let many: Vec<_> = (0..60).map(|i| load(0, BASE + i * 0x1000, 4096, 4096)).collect();
    of("60 neighbours", &many);
    of("file larger than memory", &[good, load(0, BASE + 0x10000, 4096, 100)]);
    of("address wraps", &[good, load(0, u64::MAX - 0xfff, 4096, 4096)]);
    of("address and size wrap", &[good, load(0, BASE + 0x10000, 16, u64::MAX - 0x1000)]);
    of("empty segment", &[good, load(0, BASE + 0x10000, 0, 0)]);
    of("only an empty segment", &[load(0, BASE, 0, 0)]);
    of("no segment to load", &[[NOTE, 4, 0, 0, 0, 0, 0, 4]]);
    of("wild PT_DYNAMIC", &[good, [DYNAMIC, 7, u64::MAX, u64::MAX, 0, u64::MAX, u64::MAX, 0]]);
    of("wild PT_GNU_STACK", &[good, [GNU_STACK, 7, 0, 0, 0, 0, u64::MAX, 16]]);
    of("wild PT_PHDR", &[good, [PHDR, 4, 1 << 62, 1 << 62, 0, 1 << 62, 1 << 62, 8]]);
    of("wild PT_TLS", &[good, [TLS, 4, 0, u64::MAX - 7, 0, u64::MAX, u64::MAX, 1 << 63]]);
    of("huge PT_GNU_PROPERTY", &[good, [GNU_PROPERTY, 4, 0, 0, 0, u64::MAX, 0, 8]]);
    of("unreadable", &[[LOAD, 0, 0, BASE, BASE, 4096, 4096, 0x1000]]);
    of("write only", &[[LOAD, 2, 0, BASE, BASE, 4096, 4096, 0x1000]]);
    of("execute only", &[[LOAD, 1, 0, BASE, BASE, 4096, 4096, 0x1000]]);
    for align in [0, 1, 3, 0x1001, 1 << 21, 1 << 40, 1 << 63, u64::MAX] {
        of(&format!("aligned {align:#x}"), &[[LOAD, 7, 0, BASE, BASE, 4096, 4096, align]]);
    }
}

fn interpreters(cases: &mut Vec<Case>) {
    let good = [LOAD, 7, 0, BASE, BASE, 8192, 8192, 0x1000];
    let mut with = |name: &str, path: &[u8], off: u64, size: u64| {
        let mut e = with_segments(&[good, [INTERP, 4, off, 0, 0, size, size, 1]]);
        e[4096..4096 + path.len()].copy_from_slice(path);
        add(cases, name, e);
    };
    with("interpreter is missing", b"/nonexistent\0", 4096, 13);
    with("interpreter without zero", b"/nonexistent", 4096, 12);
    with("interpreter of one byte", b"\0", 4096, 1);
    with("interpreter of two zeros", b"\0\0", 4096, 2);
    with("interpreter is a directory", b"/tmp\0", 4096, 5);
    with("interpreter is a device", b"/dev/null\0", 4096, 10);
    with("interpreter of no bytes", b"/x\0", 4096, 0);
    with("interpreter of 4096 bytes", b"/nonexistent\0", 4096, 4096);
    with("interpreter of 4097 bytes", b"/nonexistent\0", 4095, 4097);
    with("interpreter of all bytes", b"/x\0", 4096, u64::MAX);
    with("interpreter behind the file", b"/x\0", 1 << 40, 3);
    with("interpreter at a wild offset", b"/x\0", 1 << 63, 3);
    with("interpreter at the last offset", b"/x\0", u64::MAX - 1, 3);
    with("interpreter across the end", b"/x\0", 8190, 5);
    let mut two = with_segments(&[
        good,
        [INTERP, 4, 4096, 0, 0, 13, 13, 1],
        [INTERP, 4, 4200, 0, 0, 3, 3, 1],
    ]);
    two[4096..4109].copy_from_slice(b"/nonexistent\0");
    add(cases, "two interpreters", two);
}

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    truncations(&mut cases);
    fields(&mut cases);
    segments(&mut cases);
    interpreters(&mut cases);
    cases
}

/// What Linux answers: a line for each case.
const TABLE: &str = include_str!("elf_cases.txt");

/// Compares every case with the table.
pub fn check() {
    let mut wrong = Vec::new();
    let cases = all();
    assert_eq!(cases.len(), TABLE.lines().count(), "a line for each case");
    for (case, line) in cases.iter().zip(TABLE.lines()) {
        let (name, answers) = line.split_once(": ").expect("NAME: ANSWERS");
        assert_eq!(name, case.name);
        let got = result(&case.bytes).to_string();
        if !answers.split(' ').any(|answer| answer == got) {
            wrong.push(format!("{name}: {got}, not {answers}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Prints the table as this kernel would have it.
pub fn print() -> bool {
    for case in all() {
        println!("{}: {}", case.name, result(&case.bytes));
    }
    true
}
