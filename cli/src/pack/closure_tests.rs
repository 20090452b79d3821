//! Tests of `closure.rs` on synthetic trees: small ELF files are written by hand, so that each
//! search rule has its own case. Numbers are from elf(5).

use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

/// What a synthetic ELF file asks for.
#[derive(Default)]
struct Fake<'a> {
    interpreter: Option<&'a str>,
    needed: &'a [&'a str],
    rpath: Option<&'a str>,
    runpath: Option<&'a str>,
}

/// A 64-bit ELF file with program headers LOAD, DYNAMIC and perhaps INTERP, loaded at address 0.
fn elf_bytes(fake: &Fake<'_>) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut put = |text: &str| {
        let at = strings.len() as u64;
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at
    };
    let mut dynamic: Vec<(u64, u64)> = fake.needed.iter().map(|name| (1, put(name))).collect();
    dynamic.extend(fake.rpath.map(|text| (15, put(text))));
    dynamic.extend(fake.runpath.map(|text| (29, put(text))));
    let interp_at = fake.interpreter.map(&mut put);
    let dynamic_at = 64 + 3 * 56;
    let strings_at = dynamic_at + (dynamic.len() as u64 + 2) * 16;
    dynamic.extend([(5, strings_at), (0, 0)]);
    let total = strings_at + strings.len() as u64;
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend([3u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    out.extend(1u32.to_le_bytes());
    out.extend([0u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    out.extend(0u32.to_le_bytes());
    let count = if interp_at.is_some() { 3 } else { 2 };
    out.extend([64u16, 56, count, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    let interp_len = fake.interpreter.map_or(0, |text| text.len() as u64 + 1);
    let interp = strings_at + interp_at.unwrap_or(0);
    let dynamic_len = dynamic.len() as u64 * 16;
    for (kind, at, len) in [(1u32, 0, total), (2, dynamic_at, dynamic_len), (3, interp, interp_len)]
    {
        out.extend(kind.to_le_bytes());
        out.extend(5u32.to_le_bytes());
        out.extend([at, at, at, len, len, 8].iter().flat_map(|word: &u64| word.to_le_bytes()));
    }
    out.extend(
        dynamic.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat()),
    );
    out.extend(strings);
    out
}

struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary directory"))
    }

    fn file(&self, path: &str, bytes: &[u8]) -> &Self {
        let host = self.0.path().join(path);
        fs::create_dir_all(host.parent().expect("has one")).expect("directory");
        fs::write(&host, bytes).expect("file");
        fs::set_permissions(&host, fs::Permissions::from_mode(0o755)).expect("mode");
        self
    }

    fn elf(&self, path: &str, fake: Fake<'_>) -> &Self {
        self.file(path, &elf_bytes(&fake))
    }

    fn library(&self, path: &str) -> &Self {
        self.elf(path, Fake::default())
    }

    fn closure(&self, program: &str) -> Closure {
        self.closure_with(program, "")
    }

    fn closure_with(&self, program: &str, library_path: &str) -> Closure {
        let tree = Tree::new(self.0.path());
        let (path, library_path) = (OsStr::new("/bin"), OsStr::new(library_path));
        closure_of(&tree, Path::new(program), path, library_path).expect("program exists")
    }
}

fn paths(closure: &Closure) -> Vec<String> {
    closure.libraries.iter().map(|(_, path)| path.display().to_string()).collect()
}

#[test]
fn interpreter_and_built_in_folders() {
    let world = World::new();
    let needed = ["liba.so"];
    world.elf("bin/p", Fake { interpreter: Some("/ld"), needed: &needed, ..Fake::default() });
    world.library("ld").library("usr/lib/liba.so");
    let closure = world.closure("/bin/p");
    assert_eq!(paths(&closure), ["/usr/lib/liba.so"]);
    assert!(closure.files.file_mode(Path::new("/ld")).is_some());
    assert!(closure.missing.is_empty());
}

#[test]
fn missing_ones_are_named_with_who_needs_them() {
    let world = World::new();
    world.elf("bin/p", Fake { needed: &["libx.so"], ..Fake::default() });
    assert_eq!(world.closure("/bin/p").missing, ["libx.so: not found (needed by /bin/p)"]);
}

#[test]
fn rpath_counts_for_what_is_loaded_runpath_does_not() {
    let world = World::new();
    let middle = Fake { needed: &["libb.so"], ..Fake::default() };
    world.elf("opt/liba.so", middle).library("opt/libb.so");
    let needed = ["liba.so"];
    world.elf("bin/r", Fake { needed: &needed, rpath: Some("/opt"), ..Fake::default() });
    world.elf("bin/n", Fake { needed: &needed, runpath: Some("/opt"), ..Fake::default() });
    assert_eq!(paths(&world.closure("/bin/r")), ["/opt/liba.so", "/opt/libb.so"]);
    assert_eq!(world.closure("/bin/n").missing, ["libb.so: not found (needed by /opt/liba.so)"]);
}

#[test]
fn runpath_silences_rpath_and_comes_after_ld_library_path() {
    let world = World::new();
    for dir in ["r", "n", "l"] {
        world.library(&format!("{dir}/liba.so"));
    }
    let (rpath, runpath) = (Some("/r"), Some("/n"));
    world.elf("bin/p", Fake { needed: &["liba.so"], rpath, runpath, ..Fake::default() });
    assert_eq!(paths(&world.closure("/bin/p")), ["/n/liba.so"]);
    assert_eq!(paths(&world.closure_with("/bin/p", "/none:/l")), ["/l/liba.so"]);
}

#[test]
fn origin_is_where_the_file_really_is() {
    let world = World::new();
    world.elf(
        "app/bin/p",
        Fake { needed: &["liba.so"], runpath: Some("${ORIGIN}/../lib"), ..Fake::default() },
    );
    world.library("app/lib/liba.so");
    fs::create_dir_all(world.0.path().join("bin")).expect("directory");
    symlink("/app/bin/p", world.0.path().join("bin/p")).expect("link");
    let closure = world.closure("/bin/p");
    assert_eq!(closure.missing, [""; 0]);
    assert!(closure.files.file_mode(Path::new("/app/lib/liba.so")).is_some());
    assert!(closure.files.file_mode(Path::new("/app/bin/p")).is_some());
    assert!(closure.files.file_mode(Path::new("/bin/p")).is_none(), "a link stays a link");
}

#[test]
fn files_of_other_machines_are_passed_over() {
    let world = World::new();
    let mut other = elf_bytes(&Fake::default());
    other[18] = 40;
    world.file("lib/liba.so", &other).library("usr/lib/liba.so");
    world.elf("bin/p", Fake { needed: &["liba.so"], ..Fake::default() });
    assert_eq!(paths(&world.closure("/bin/p")), ["/usr/lib/liba.so"]);
}

#[test]
fn scripts_bring_their_interpreters() {
    let world = World::new();
    world.file("bin/s", b"#! /usr/bin/env -S A=b inner -x\n").file("bin/inner", b"#!/bin/sh\n");
    world.library("usr/bin/env").library("bin/sh");
    let closure = world.closure("/bin/s");
    for file in ["/usr/bin/env", "/bin/inner", "/bin/sh"] {
        assert!(closure.files.file_mode(Path::new(file)).is_some(), "{file}");
    }
    world.file("bin/t", b"#!/usr/bin/env none\n");
    assert_eq!(world.closure("/bin/t").missing, ["none: not found (needed by /bin/t)"]);
}

#[test]
fn loops_end() {
    let world = World::new();
    world.file("bin/a", b"#!/bin/b\n").file("bin/b", b"#!/bin/a\n");
    world.elf("lib/liba.so", Fake { needed: &["liba.so"], ..Fake::default() });
    assert!(world.closure("/bin/a").missing.is_empty());
    assert_eq!(world.closure("/lib/liba.so").missing, [""; 0]);
}
