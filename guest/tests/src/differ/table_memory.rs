//! The calls on mappings.

use super::draft::{Draft, FILES, Kind, Row};
use super::program::{Arg, INPUT, Norm, OUTPUT, Special, Value};
use crate::sys::*;

fn mmap_row(d: &mut Draft) {
    d.pages();
    d.one(&[0, 1, 2, 3, 3, 3, 3, 4, 5, 7]);
    let shape = d.rng.of(&[MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED, 3, 0]);
    let place = d.rng.of(&[MAP_FIXED, MAP_FIXED, MAP_FIXED, MAP_FIXED_NOREPLACE, 0]);
    let more = d.rng.of(&[
        0,
        0,
        0,
        MAP_NORESERVE,
        MAP_POPULATE,
        MAP_LOCKED,
        MAP_GROWSDOWN,
        MAP_DENYWRITE,
        MAP_STACK,
        1 << 26,
    ]);
    let anonymous = d.chance(2);
    d.num(i64::from(shape | place | more | if anonymous { MAP_ANONYMOUS } else { 0 }));
    if anonymous && !d.chance(8) {
        d.num(-1)
    } else {
        d.fd(FILES)
    }
    d.of(&[0, 0, 0, 4096, 4096, 8192, 1, -4096, 1 << 20]);
    d.call.value = Value::Address;
    if place == 0 {
        d.makes(Kind::Area);
    }
}

fn area(d: &mut Draft) {
    d.pages();
}

fn remote(d: &mut Draft, local_is_output: bool) {
    d.id();
    d.iovecs(local_is_output);
    let mut words = Vec::new();
    let count = 1 + d.rng.below(3);
    for _ in 0..count {
        let base = match local_is_output {
            true => INPUT + 0x1800,
            false => OUTPUT + 0xc00,
        };
        let at = if d.chance(8) { 0x1000 } else { base };
        words.extend([at as u64, d.rng.below(200)]);
    }
    d.words(&words);
    d.num(count as i64);
    d.of(&[0, 0, 0, 0, 1]);
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_mmap, 40, mmap_row),
    (SYS_munmap, 14, area),
    (SYS_mprotect, 18, |d| {
        area(d);
        d.one(&[0, 1, 2, 3, 3, 4, 5, 7, 0x0100_0001, 0x0200_0001])
    }),
    (SYS_mremap, 20, |d| {
        area(d);
        d.page_length();
        d.of(&[0, 1, 1, 3, 3, 3, 2, 5, 7, 8]);
        d.page();
        d.call.value = Value::Address
    }),
    (SYS_madvise, 16, |d| {
        area(d);
        d.of(&[
            0, 1, 2, 3, 4, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
            99,
        ])
    }),
    (SYS_mlock, 6, area),
    (SYS_mlock2, 4, |d| {
        area(d);
        d.of(&[0, 1, 2])
    }),
    (SYS_munlock, 4, area),
    (SYS_munlockall, 1, |_| {}),
    (SYS_msync, 6, |d| {
        area(d);
        d.of(&[1, 2, 4, 5, 6, 0, 8])
    }),
    (SYS_mincore, 6, |d| {
        area(d);
        d.out(8);
    }),
    (SYS_remap_file_pages, 1, |d| {
        area(d);
        d.of(&[0, 1]);
        d.of(&[0, 1]);
        d.num(0)
    }),
    (SYS_pkey_mprotect, 3, |d| {
        area(d);
        d.of(&[1, 3]);
        d.of(&[-1, 0, 14, 16])
    }),
    (SYS_membarrier, 3, |d| {
        d.of(&[1, 2, 4, 8, 16, 32, 64, 128, 256, 3]);
        d.of(&[0, 0, 1]);
        d.of(&[0])
    }),
    (SYS_process_vm_readv, 4, |d| remote(d, true)),
    (SYS_process_vm_writev, 3, |d| remote(d, false)),
    (SYS_set_mempolicy, 1, |d| {
        d.of(&[0, 1, 5, 9]);
        d.num(0);
        d.num(0)
    }),
    (SYS_get_mempolicy, 1, |d| {
        d.out(4);
        d.num(0);
        d.num(0);
        d.num(0);
        d.num(0)
    }),
    (SYS_mbind, 1, |d| {
        area(d);
        d.of(&[0, 1, 9]);
        d.num(0);
        d.num(0);
        d.of(&[0, 1, 8])
    }),
    (SYS_write, 8, |d| {
        d.fd(FILES);
        d.page();
        d.of(&[10, 4096, 8192, 5000])
    }),
    (SYS_read, 8, |d| {
        d.fd(FILES);
        d.page();
        d.of(&[10, 4096, 8192, 5000])
    }),
    (SYS_ftruncate, 6, |d| {
        d.fd(FILES);
        d.of(&[0, 4096, 5000, 8192, 10, 1 << 16])
    }),
    (SYS_fallocate, 3, |d| {
        d.fd(FILES);
        d.of(&[0, 3]);
        d.of(&[0, 4096, 100]);
        d.of(&[4096, 8192, 10])
    }),
    (SYS_memfd_create, 3, |d| {
        d.input(b"m\0");
        d.of(&[2, 0]);
        d.makes(Kind::Memory)
    }),
    (SYS_fcntl, 3, |d| {
        d.fd(&[Kind::Memory]);
        d.num(1033);
        d.of(&[1, 2, 4, 8, 16])
    }),
    (SYS_setrlimit, 2, |d| {
        d.of(&[8, 8, 2, 9]);
        let v = d.rng.of(&[0u64, 4096, 1 << 20, u64::MAX]);
        let v = if d.call.args[0].is(8) { v } else { u64::MAX };
        d.words(&[v, u64::MAX]);
    }),
    (SYS_getpid, 24, |d| {
        d.page();
        d.call.special = Special::Load
    }),
    (SYS_getpid, 24, |d| {
        d.page();
        d.call.special = Special::Store
    }),
    (SYS_get_robust_list, 1, |d| {
        d.id();
        d.out_as(8, Norm::Pointer);
        d.out(8);
    }),
];

impl Arg {
    fn is(self, value: u64) -> bool {
        matches!(self, Arg::Number(n) if n == value)
    }
}
