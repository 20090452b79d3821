//! /sys/devices/system/cpu/cpuN: where each CPU sits, and which caches it has.
//!
//! A CPU's APIC id says where it sits: its lowest bits number the threads of a core, the next ones
//! cores, and so on up to packages. CPUID says how many bits are whose (SDM 3A, 9.9.3).
//! Neighbours: [`super::sysfs`] has the directory's other files, [`super::caches`] reads caches.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::cpu::{apic_id, cpu_count, cpuid};

use super::caches::{Cache, bits_for, caches, has_leaf, is_amd};
use super::sysfs::{CPUS, put_cpu_list, put_cpu_mask};
use crate::fs::pseudo::{Body, Content, Listing, PseudoInode, StaticListing, Text};
use crate::vfs::{DirEntry, FileType};

/// How many of an APIC id's lowest bits number what is in a core, a die, a package.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) thread_bits: u32,
    die_bits: u32,
    pub(super) package_bits: u32,
}

impl Shape {
    /// As the CPU that runs this says.
    pub(super) fn new() -> Shape {
        let by_levels = [0x1f, 0xb].into_iter().find_map(Shape::by_levels);
        by_levels.unwrap_or_else(Shape::by_counts)
    }

    /// By a leaf that lists levels, each with the bits of all below the next.
    fn by_levels(leaf: u32) -> Option<Shape> {
        const LEVELS_MAX: u32 = 8;
        const THREADS: u32 = 1;
        const DIE: u32 = 5;
        if !has_leaf(leaf) || cpuid(leaf, 0)[1] == 0 {
            return None;
        }
        let mut shape = Shape::default();
        let mut die_bits = None;
        for level in 0..LEVELS_MAX {
            let [a, _, c, _] = cpuid(leaf, level);
            let bits = a & 0x1f;
            match c >> 8 & 0xff {
                0 => break,
                THREADS => shape.thread_bits = bits,
                DIE => die_bits = Some(shape.package_bits),
                _ => {}
            }
            shape.package_bits = bits;
        }
        shape.die_bits = die_bits.unwrap_or(shape.package_bits);
        Some(shape)
    }

    /// By the numbers that older CPUs give: of a package's threads and of its cores.
    fn by_counts() -> Shape {
        const HAS_THREADS: u32 = 1 << 28;
        let [_, b, _, d] = cpuid(1, 0);
        let threads = if d & HAS_THREADS != 0 { b >> 16 & 0xff } else { 1 };
        let (package_bits, cores) = if is_amd() && has_leaf(0x8000_0008) {
            let c = cpuid(0x8000_0008, 0)[2];
            let cores = (c & 0xff) + 1;
            let bits = if c >> 12 & 0xf != 0 { c >> 12 & 0xf } else { bits_for(cores) };
            (bits.max(bits_for(threads)), cores)
        } else {
            let cores = if has_leaf(4) { (cpuid(4, 0)[0] >> 26) + 1 } else { 1 };
            (bits_for(threads), cores)
        };
        let thread_bits = if is_amd() { 0 } else { package_bits.saturating_sub(bits_for(cores)) };
        Shape { thread_bits, die_bits: package_bits, package_bits }
    }

    /// What the bits from `low` to `high` of an APIC id number.
    fn part(id: u32, low: u32, high: u32) -> u32 {
        let inside = u64::from(id) & ((1 << high) - 1);
        (inside >> low) as u32
    }

    pub(super) fn package(&self, id: u32) -> u32 {
        (u64::from(id) >> self.package_bits) as u32
    }

    /// Its number in the package.
    pub(super) fn core(&self, id: u32) -> u32 {
        Self::part(id, self.thread_bits, self.package_bits)
    }

    fn die(&self, id: u32) -> u32 {
        Self::part(id, self.die_bits, self.package_bits)
    }

    /// CPUs that differ from the one with this id in the lowest bits alone.
    pub(super) fn sharers(id: u32, bits: u32) -> u32 {
        let is_one = |&cpu: &usize| u64::from(apic_id(cpu) ^ id) >> bits == 0;
        (0..cpu_count()).filter(is_one).fold(0, |mask, cpu| mask | 1 << cpu)
    }

    /// Cores of its package, of which a CPU is there.
    pub(super) fn cores(&self, id: u32) -> usize {
        let inside = Self::sharers(id, self.package_bits);
        let is_first = |&cpu: &usize| {
            let threads = Self::sharers(apic_id(cpu), self.thread_bits);
            inside & 1 << cpu != 0 && threads.trailing_zeros() as usize == cpu
        };
        (0..cpu_count()).filter(is_first).count()
    }
}

/// Whether any core has several CPUs.
pub(super) fn has_siblings() -> bool {
    let bits = Shape::new().thread_bits;
    (0..cpu_count()).any(|cpu| Shape::sharers(apic_id(cpu), bits).count_ones() > 1)
}

/// Where a CPU sits.
#[derive(Clone, Copy)]
struct Seat {
    shape: Shape,
    id: u32,
    /// The second level's cache, by which CPUs are a cluster.
    cluster: Option<Cache>,
}

impl Seat {
    fn of(cpu: usize) -> Seat {
        let shape = Shape::new();
        let caches = caches(shape.thread_bits, shape.package_bits);
        let cluster = caches.into_iter().find(|cache| cache.level == 2);
        Seat { shape, id: apic_id(cpu), cluster }
    }

    fn cluster_bits(&self) -> u32 {
        self.cluster.map_or(self.shape.thread_bits, |cache| cache.shared_bits)
    }

    /// Its number; all ones of 16 bits where no cache says it.
    fn cluster_id(&self) -> u32 {
        self.cluster.map_or(u16::MAX.into(), |cache| id_of(&cache, self.id))
    }
}

/// Among caches of its kind.
fn id_of(cache: &Cache, id: u32) -> u32 {
    (u64::from(id) >> cache.shared_bits) as u32
}

/// Makes the text of a file about `T`, but for its newline.
type Show<T> = fn(&T, &mut Text);

/// Files about `T`.
struct Files<T: 'static>(T, &'static [(&'static str, Show<T>)]);

/// One of them.
struct FileAbout<T: 'static>(T, Show<T>);

impl<T: Send + Sync> Content for FileAbout<T> {
    fn generate(&self, out: &mut Text) -> Result<()> {
        (self.1)(&self.0, out);
        out.bytes(b"\n");
        Ok(())
    }
}

impl<T: Copy + Send + Sync> Listing for Files<T> {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let found = self.1.iter().find(|(known, _)| known.as_bytes() == name);
        let (_, show) = found.ok_or(Errno::ENOENT)?;
        Ok(child(directory, name, Body::File(Box::new(FileAbout(self.0, *show)))))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let files = self.1.iter().map(|(name, _)| name.as_bytes().to_vec());
        Ok(entries(directory, files, FileType::Regular, from, max))
    }
}

macro_rules! mask {
    ($bits:expr) => {
        |seat, out| put_cpu_mask(out, Shape::sharers(seat.id, $bits(seat)))
    };
}

macro_rules! list {
    ($bits:expr) => {
        |seat, out| put_cpu_list(out, Shape::sharers(seat.id, $bits(seat)))
    };
}

fn thread(seat: &Seat) -> u32 {
    seat.shape.thread_bits
}

fn die(seat: &Seat) -> u32 {
    seat.shape.die_bits
}

fn package(seat: &Seat) -> u32 {
    seat.shape.package_bits
}

static TOPOLOGY: &[(&str, Show<Seat>)] = &[
    ("cluster_cpus", mask!(Seat::cluster_bits)),
    ("cluster_cpus_list", list!(Seat::cluster_bits)),
    ("cluster_id", |seat, out| out.decimal(seat.cluster_id().into(), 0)),
    ("core_cpus", mask!(thread)),
    ("core_cpus_list", list!(thread)),
    ("core_id", |seat, out| out.decimal(seat.shape.core(seat.id).into(), 0)),
    // An older name for package_cpus.
    ("core_siblings", mask!(package)),
    ("core_siblings_list", list!(package)),
    ("die_cpus", mask!(die)),
    ("die_cpus_list", list!(die)),
    ("die_id", |seat, out| out.decimal(seat.shape.die(seat.id).into(), 0)),
    ("package_cpus", mask!(package)),
    ("package_cpus_list", list!(package)),
    ("physical_package_id", |seat, out| out.decimal(seat.shape.package(seat.id).into(), 0)),
    // An older name for core_cpus.
    ("thread_siblings", mask!(thread)),
    ("thread_siblings_list", list!(thread)),
];

/// A cache of a CPU with this APIC id.
type CacheOf = (Cache, u32);

fn sharers((cache, id): &CacheOf) -> u32 {
    Shape::sharers(*id, cache.shared_bits)
}

static CACHE: &[(&str, Show<CacheOf>)] = &[
    ("coherency_line_size", |(cache, _), out| out.decimal(cache.line_bytes.into(), 0)),
    ("id", |(cache, id), out| out.decimal(id_of(cache, *id).into(), 0)),
    ("level", |(cache, _), out| out.decimal(cache.level.into(), 0)),
    ("number_of_sets", |(cache, _), out| out.decimal(cache.sets.into(), 0)),
    ("physical_line_partition", |(cache, _), out| out.decimal(cache.partitions.into(), 0)),
    ("shared_cpu_list", |of, out| put_cpu_list(out, sharers(of))),
    ("shared_cpu_map", |of, out| put_cpu_mask(out, sharers(of))),
    ("size", |(cache, _), out| write!(out, "{}K", cache.kib())),
    ("type", |(cache, _), out| out.bytes(cache.kind.as_bytes())),
    ("ways_of_associativity", |(cache, _), out| out.decimal(cache.ways.into(), 0)),
];

fn child(directory: &PseudoInode, name: &[u8], body: Body) -> Arc<PseudoInode> {
    let mode = if matches!(body, Body::Directory(_)) { 0o555 } else { 0o444 };
    PseudoInode::new(directory.fs(), directory.child_number(name), mode, (0, 0), body)
}

/// Entries of one kind from position `from` on.
fn entries(
    directory: &PseudoInode,
    names: impl Iterator<Item = Vec<u8>>,
    file_type: FileType,
    from: u64,
    max: usize,
) -> Vec<DirEntry> {
    let numbered = names.zip(1..).skip(from as usize).take(max);
    let entry = |(name, next): (Vec<u8>, u64)| DirEntry {
        inode: directory.child_number(&name),
        name: name.into(),
        file_type,
        next,
    };
    numbered.map(entry).collect()
}

/// The directory of all CPUs.
pub(super) fn directory() -> Box<dyn Listing> {
    Box::new(Cpus)
}

/// A directory for each CPU, and a table.
struct Cpus;

fn cpu_names() -> impl Iterator<Item = Vec<u8>> {
    (0..cpu_count()).map(|cpu| alloc::format!("cpu{cpu}").into_bytes())
}

impl Listing for Cpus {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        match cpu_names().position(|known| known == name) {
            Some(cpu) => Ok(child(directory, name, Body::Directory(Box::new(Cpu(cpu))))),
            None => StaticListing(CPUS).lookup(directory, name),
        }
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let count = cpu_count() as u64;
        let mut found = entries(directory, cpu_names(), FileType::Directory, from, max);
        let rest = from.saturating_sub(count);
        for mut entry in StaticListing(CPUS).list(directory, rest, max - found.len())? {
            entry.next += count;
            found.push(entry);
        }
        Ok(found)
    }
}

/// The directory of one CPU.
struct Cpu(usize);

impl Cpu {
    fn caches(&self) -> Vec<CacheOf> {
        let shape = Shape::new();
        let all = caches(shape.thread_bits, shape.package_bits);
        all.into_iter().map(|cache| (cache, apic_id(self.0))).collect()
    }
}

impl Listing for Cpu {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let body: Box<dyn Listing> = match name {
            b"cache" if !self.caches().is_empty() => Box::new(Caches(self.caches())),
            b"topology" => Box::new(Files(Seat::of(self.0), TOPOLOGY)),
            _ => return Err(Errno::ENOENT),
        };
        Ok(child(directory, name, Body::Directory(body)))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let without_caches = usize::from(self.caches().is_empty());
        let names = ["cache", "topology"].into_iter().skip(without_caches);
        let names = names.map(|name| name.as_bytes().to_vec());
        Ok(entries(directory, names, FileType::Directory, from, max))
    }
}

/// Its caches, each a directory.
struct Caches(Vec<CacheOf>);

impl Caches {
    fn names(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.0.len()).map(|index| alloc::format!("index{index}").into_bytes())
    }
}

impl Listing for Caches {
    fn lookup(&self, directory: &PseudoInode, name: &[u8]) -> Result<Arc<PseudoInode>> {
        let index = self.names().position(|known| known == name).ok_or(Errno::ENOENT)?;
        let files = Files(self.0[index], CACHE);
        Ok(child(directory, name, Body::Directory(Box::new(files))))
    }

    fn list(&self, directory: &PseudoInode, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        Ok(entries(directory, self.names(), FileType::Directory, from, max))
    }
}
