//! Random places for the kernel: the image, the map of physical memory, and mapped memory (stacks,
//! blocks, devices) begin at other addresses at each boot.
//!
//! The threat is an attacker who can write or jump anywhere, and has to know where. The image is
//! linked for fixed addresses, with absolute ones in instructions, which costs nothing at run time;
//! objtool lists all of them (`.limen_relocs`, and proves that there are no others). Boot code
//! calls [`boot_choose_places`] where it was linked, adds what was chosen to each field of that
//! list, and jumps to the kernel where it then is. The bases of the other two areas are immediates
//! too ([`cpu::direct_map_base`]), so that nothing is loaded for them either.
//!
//! Not chosen: a position-independent image. The compiler drops kCFI checks there (ARCHITECTURE,
//! "Building"). What is in memory stays at its physical address: nobody who attacks by addresses
//! sees those.
//!
//! What leaves the kernel (backtraces, reports) names addresses of the image as it was linked
//! ([`cpu::linked`]): a debugger and objtool's tables understand them, and logs tell nothing.
//!
//! Neighbours: `boot.S` calls, `objtool::relocs` makes the list, `link.ld` names the bases.

use core::arch::global_asm;
use core::ops::Range;

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use formats::params;
use formats::pvh::{Memory as _, StartInfo};
use mitigations::Facts;
use mitigations::spec_rstack_overflow::untrains_by_alias;
use text_patching::untrain::has_alias_above;

use super::{LowMemory, loader_says};
use crate::cpu::{self, PAGE_SIZE, image_phys, kernel_base, phys_to_virt};
use crate::device::entropy;
use crate::memory::{index, span};

/// Room for the list, bytes: four for each field.
const ROOM: usize = if cfg!(feature = "large-tables") { 256 << 10 } else { 160 << 10 };

global_asm!(
    ".pushsection .limen_relocs, \"a\", @progbits",
    ".zero {room}",
    ".popsection",
    room = const ROOM,
);

unsafe extern "C" {
    static __limen_relocs_start: u32;
    static boot_slides: [u64; 3];
    static boot_pdpt_low: u8;
    static boot_pd: u8;
    static boot_moved_pml4: u8;
    static boot_moved_pdpts: u8;
    static boot_moved_pd: u8;
    static boot_moved_pts: u8;
}

/// Where the areas are linked: `link.ld`.
const IMAGE: u64 = crate::cpu::IMAGE_LINKED;
const DIRECT_MAP: u64 = crate::cpu::KERNEL_HALF_START;
const VMAP: u64 = 0xffff_c000_0000_0000;
/// Behind the last place for mapped memory: the last slot of the top table is the image's.
const VMAP_END: u64 = 0xffff_ff00_0000_0000;
const PAGE: u64 = PAGE_SIZE as u64;
/// What the image may move by: as far as all of it stays below one entry of the second table.
const IMAGE_ROOM: u64 = span(2);
/// Page tables for the image in `boot.S`.
const IMAGE_TABLES: u64 = 9;
/// Boot tables map so much of physical memory, by as many entries of the second table.
const LOW_ENTRIES: u64 = 4;
const ENTRIES: u64 = 512;
/// Present and writable: all that boot tables say.
const OPEN: u64 = 3;
const MAX_COMMAND_LINE: u64 = 4096;
/// Places that are tried for the image, where three of four will not do; if none does, which comes
/// once in 10^16 boots, it stays where it was linked.
const IMAGE_DRAWS: usize = 128;

/// What is added to the addresses of each area; `boot.S` knows the order.
#[derive(Clone, Copy)]
struct Slides {
    image: u64,
    direct_map: u64,
    vmap: u64,
}

impl Slides {
    const NONE: Slides = Slides { image: 0, direct_map: 0, vmap: 0 };

    /// Random ones, for an image with these physical addresses and memory that ends at
    /// `memory_end`. `alias`: an address of the image whose alias must stay one.
    fn draw(image: &Range<u64>, memory_end: u64, alias: Option<u64>) -> Slides {
        let mut generator = ChaCha20Rng::from_seed(entropy::early_seed());
        let mut below = |limit: u64| {
            let word = u128::from(generator.next_u64());
            ((word * u128::from(limit.max(1))) >> 64) as u64
        };
        let pages = (IMAGE_ROOM - image.end) / PAGE;
        let mapped = memory_end.max(LOW_ENTRIES * span(2)).next_multiple_of(span(2));
        let places = (VMAP - DIRECT_MAP).saturating_sub(mapped) / span(2);
        let mut place = below(places);
        // Boot tables have one second table for it.
        if place % ENTRIES > ENTRIES - LOW_ENTRIES {
            place -= LOW_ENTRIES;
        }
        let is_good = |slide: &u64| alias.is_none_or(|at| has_alias_above(at + slide));
        let mut draws = (0..IMAGE_DRAWS).map(|_| below(pages) * PAGE);
        let image = draws.find(is_good).unwrap_or(0);
        // All of mapped memory lies below one entry of the top table, which all roots share.
        let slot = below((VMAP_END - VMAP) / span(3));
        let in_slot = below((span(3) - cpu::VMAP_BYTES) / span(1));
        Slides { image, direct_map: place * span(2), vmap: slot * span(3) + in_slot * span(1) }
    }
}

/// Chooses, and builds tables that map the image and low memory where they are going to be. Called
/// by `boot.S` on the boot tables, before anything is moved: nothing here may keep an address.
#[unsafe(no_mangle)]
extern "C" fn boot_choose_places(start_info: u64, magic: u32) {
    let image = image_phys();
    // Where the loader's structures cannot be read, boot ends a little later, with a message.
    let mut line = [0; MAX_COMMAND_LINE as usize];
    let slides = match loader_says(start_info, magic) {
        Ok(start) => match command_line(&start, &mut line) {
            line if is_wanted(line) => Slides::draw(&image, start.memory.end(), alias(line)),
            _ => Slides::NONE,
        },
        Err(_) => Slides::NONE,
    };
    for (n, slide) in [slides.image, slides.direct_map, slides.vmap].into_iter().enumerate() {
        put(&raw const boot_slides as u64, n, slide);
    }
    map(&slides, &image);
}

fn is_wanted(line: &str) -> bool {
    // SAFETY: the linker script puts the symbol at the list's first word, which is never written.
    let is_listed = unsafe { (&raw const __limen_relocs_start).read_volatile() } != 0;
    is_listed && !params::has_flag(line, "nokaslr")
}

/// What must keep its alias (`text::untrain`), where the CPU needs it: the image has a quarter of
/// the places then.
fn alias(line: &str) -> Option<u64> {
    let facts = Facts::from_cpuid(cpu::cpuid);
    let is_needed = params::find(line, "cpu-facts").is_some() || untrains_by_alias(&facts);
    is_needed.then(crate::text::untrain::alias)
}

fn command_line<'a>(start: &StartInfo, line: &'a mut [u8]) -> &'a str {
    let mut len = 0;
    for at in 0..MAX_COMMAND_LINE {
        let byte = &mut line[len..=len];
        if start.command_line == 0 || !LowMemory.read(start.command_line + at, byte) || byte[0] == 0
        {
            break;
        }
        len += 1;
    }
    core::str::from_utf8(&line[..len]).unwrap_or("")
}

/// Writes a word of the boot section, which is linked at its physical address.
fn put(table: u64, slot: usize, word: u64) {
    let at = phys_to_virt(table).cast::<u64>().wrapping_add(slot);
    // SAFETY: callers give symbols of `boot.S` and slots within; the boot tables map them, and this
    // CPU is the only one.
    unsafe { at.write_volatile(word) };
}

fn map(slides: &Slides, image: &Range<u64>) {
    let pml4 = &raw const boot_moved_pml4 as u64;
    let pdpts = &raw const boot_moved_pdpts as u64;
    let (pd, pts) = (&raw const boot_moved_pd as u64, &raw const boot_moved_pts as u64);
    put(pml4, 0, &raw const boot_pdpt_low as u64 | OPEN);
    let direct = DIRECT_MAP + slides.direct_map;
    put(pml4, index(direct, 3), pdpts | OPEN);
    for n in 0..LOW_ENTRIES {
        let low = &raw const boot_pd as u64 + n * PAGE;
        put(pdpts, index(direct, 2) + n as usize, low | OPEN);
    }
    let base = IMAGE + slides.image;
    put(pml4, index(base, 3), (pdpts + PAGE) | OPEN);
    put(pdpts + PAGE, index(base + image.start, 2), pd | OPEN);
    let first = index(base + image.start, 1);
    for n in 0..IMAGE_TABLES {
        put(pd, (first + n as usize) % ENTRIES as usize, (pts + n * PAGE) | OPEN);
    }
    for at in image.clone().step_by(PAGE_SIZE) {
        let table = index(base + at, 1) - first;
        put(pts + table as u64 * PAGE, index(base + at, 0), at | OPEN);
    }
}

/// Tells in the log whether anything was moved.
pub(crate) fn log() {
    if kernel_base() == IMAGE {
        crate::log!("KASLR: off, the kernel is at fixed addresses");
    }
}

/// Where the areas begin in this boot, for tests that compare boots.
#[cfg(feature = "ktest")]
pub(crate) fn places() -> [(&'static str, u64); 3] {
    [
        ("image", kernel_base()),
        ("direct map", cpu::direct_map_base()),
        ("stacks and blocks", cpu::vmap_base()),
    ]
}
