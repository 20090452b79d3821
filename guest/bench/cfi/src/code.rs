//! Generates the code that is measured: a row of call sites, their targets, and a thunk.
//!
//! Checks and calls come byte for byte from `text_patching`, so what is measured is what the
//! kernel executes. A row is called as `fn(table, 0) -> calls`: every site loads a target from the
//! table into r11, checks, and calls; every target adds one to rsi, which the row returns. Between
//! sites there are random gaps, the same for all variants of a layout: a single layout measures
//! its own collisions in the branch-target buffer and nothing else.

use std::sync::OnceLock;

use text_patching::kcfi::{self, Check, Form};
use text_patching::poke::Code;
use text_patching::preamble::Prefix;
use text_patching::tail::{self, BranchKind, Shape, Via};

/// What the kernel's checks look like, where no image says otherwise.
const USUAL: Check =
    Check { hash: 0x56e5_b5a5, disp: Prefix::Nops11.disp(), register: 11, form: Form::Opt };
/// The call behind them.
const CALL: Shape = Shape { kind: BranchKind::Call, len: 6 };

/// The check of the image whose sequence is measured.
static LIKE: OnceLock<Check> = OnceLock::new();

/// Takes hash and layout from a site of a kernel image: 14 bytes of a check and 6 of a call.
///
/// # Errors
/// When what is generated here would not be those bytes, but for the call's displacement.
pub fn be_like(site: &[u8; 20]) -> Result<(), String> {
    let (bytes, call) = site.split_first_chunk().ok_or("too short")?;
    let check = kcfi::decode(0, bytes).map_err(|anomaly| anomaly.to_string())?;
    let usual = Check { hash: check.hash, form: check.form, ..USUAL };
    let same = check == usual && kcfi::encode(&check) == *bytes && call.starts_with(&[0x2e, 0xe8]);
    if !same {
        return Err(format!("another sequence than this bench measures: {site:02x?}"));
    }
    LIKE.set(check).map_err(|_| "set twice".to_owned())
}

/// The check that is measured, in a form.
#[must_use]
pub fn like(form: Form) -> Check {
    Check { form, ..*LIKE.get().unwrap_or(&USUAL) }
}

/// Most targets that a site alternates between in any point.
pub const TARGETS_MAX: usize = 64;
/// Distance between two targets: preamble, function, padding.
const TARGET_STRIDE: usize = 64;
/// Largest gap between two sites, in bytes.
const GAP_MAX: u64 = 48;

/// `mov disp32(%rdi), %r11`.
const LOAD: [u8; 3] = [0x4c, 0x8b, 0x9f];
/// `inc %rsi; ret`.
const TARGET: [u8; 4] = [0x48, 0xff, 0xc6, 0xc3];
/// `mov %rsi, %rax; ret`.
pub const FINISH: [u8; 4] = [0x48, 0x89, 0xf0, 0xc3];
/// The retpoline: `call 1f; 2: pause; lfence; jmp 2b; 1: mov %r11, (%rsp); ret`.
pub const THUNK: [u8; 17] =
    [0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x4c, 0x89, 0x1c, 0x24, 0xc3];

/// What stands before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A direct call: no target is loaded and nothing checked. The floor.
    Direct,
    /// Nothing.
    Plain,
    /// A form of the kernel's check.
    Check(Form),
    /// `jne` to a ud2 that stands elsewhere: the yardstick, not patchable in place.
    Cold,
}

/// A column of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name as printed.
    pub name: &'static str,
    /// Check.
    pub guard: Guard,
    /// Call through the thunk or directly.
    pub via: Via,
}

const fn variant(name: &'static str, guard: Guard, via: Via) -> Variant {
    Variant { name, guard, via }
}

/// All columns. [`PLAIN`] and [`PLAIN_THUNK`] are what the others are compared with.
pub const VARIANTS: [Variant; 9] = [
    variant("direct", Guard::Direct, Via::Direct),
    variant("plain", Guard::Plain, Via::Direct),
    variant("kcfi", Guard::Check(Form::Kcfi), Via::Direct),
    variant("opt", Guard::Check(Form::Opt), Via::Direct),
    variant("cold", Guard::Cold, Via::Direct),
    variant("thunk", Guard::Plain, Via::Thunk),
    variant("kcfi+thunk", Guard::Check(Form::Kcfi), Via::Thunk),
    variant("opt+thunk", Guard::Check(Form::Opt), Via::Thunk),
    variant("cold+thunk", Guard::Cold, Via::Thunk),
];
/// Index of the unchecked indirect call.
pub const PLAIN: usize = 1;
/// Index of the compiler's form; the optimised one is next, and both again behind [`PLAIN_THUNK`].
pub const KCFI: usize = 2;
/// Index of the unchecked call through the thunk.
pub const PLAIN_THUNK: usize = 5;

/// xorshift64*, seeded per layout.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From any seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit` (which is not 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// A generated row, position independent as a whole.
#[derive(Clone, Debug)]
pub struct Row {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Offset of the function that calls all sites.
    pub entry: usize,
    /// Offsets of the targets.
    pub targets: Vec<usize>,
    /// Offset of each site's check (or of its call, where there is none).
    pub sites: Vec<usize>,
    /// Words that hold addresses: where, and the offset of what they point to.
    pub pointers: Vec<(usize, usize)>,
}

/// Generates a row of `sites` sites in the layout numbered `layout`.
///
/// Site `i` calls the table's entry `i % targets`; who wants a site to alternate passes a table
/// that begins somewhere else every time.
#[must_use]
pub fn row(variant: Variant, sites: usize, targets: usize, layout: u64) -> Row {
    let mut random = Random::new(layout + 1);
    let mut bytes = THUNK.to_vec();
    let targets: Vec<usize> = (0..targets).map(|_| target(&mut bytes, &mut random)).collect();
    pad(&mut bytes, 64);
    let entry = bytes.len();
    let sites_of = Vec::with_capacity(sites);
    let mut row = Row { bytes, entry, targets, sites: sites_of, pointers: Vec::new() };
    let mut cold = Vec::new();
    for site in 0..sites {
        gap(&mut row.bytes, &mut random);
        emit_site(&mut row, variant, site, &mut cold);
    }
    row.bytes.extend(FINISH);
    for jump in cold {
        let here = row.bytes.len();
        row.bytes.extend([0x0f, 0x0b]);
        let rel = tail::rel32_to(jump as u64 + 4, here as u64).unwrap_or_default();
        row.bytes[jump..jump + 4].copy_from_slice(&rel.to_le_bytes());
    }
    row
}

/// A function with its preamble, as `-Zpatchable-function-entry=11,11` lays it out.
fn target(bytes: &mut Vec<u8>, random: &mut Random) -> usize {
    pad(bytes, 16);
    bytes.resize(bytes.len() + 16 * usize::try_from(random.below(4)).unwrap_or_default(), 0xcc);
    bytes.push(0xb8);
    bytes.extend(like(Form::Opt).hash.to_le_bytes());
    bytes.resize(bytes.len() + 11, 0x90);
    let start = bytes.len();
    bytes.extend(TARGET);
    bytes.resize(start + TARGET_STRIDE - 16, 0xcc);
    start
}

fn emit_site(row: &mut Row, variant: Variant, site: usize, cold: &mut Vec<usize>) {
    let index = site % row.targets.len();
    let bytes = &mut row.bytes;
    if variant.guard == Guard::Direct {
        row.sites.push(bytes.len());
        let rel = tail::rel32_to(bytes.len() as u64 + 5, row.targets[index] as u64);
        bytes.extend(Code::with_imm32(&[0xe8], rel.unwrap_or_default()).as_slice());
        return;
    }
    let disp = u32::try_from(index * 8).unwrap_or_default();
    bytes.extend(Code::with_imm32(&LOAD, disp).as_slice());
    row.sites.push(bytes.len());
    let check = |form| kcfi::encode(&like(form));
    match variant.guard {
        Guard::Check(form) => bytes.extend(check(form)),
        Guard::Cold => {
            bytes.extend(&check(Form::Kcfi)[..10]);
            bytes.extend([0x0f, 0x85]);
            cold.push(bytes.len());
            bytes.extend([0; 4]);
        }
        Guard::Plain | Guard::Direct => {}
    }
    // The thunk is at offset 0; both displacements are relative, so the row can lie anywhere.
    match tail::encode(bytes.len() as u64, CALL, variant.via, 0) {
        Ok(code) => bytes.extend(code.as_slice()),
        Err(anomaly) => panic!("{anomaly}"),
    }
}

/// Pads with int3 to a multiple of `align`.
pub fn pad(bytes: &mut Vec<u8>, align: usize) {
    bytes.resize(bytes.len().next_multiple_of(align), 0xcc);
}

/// A random number of bytes of long nops.
pub fn gap(bytes: &mut Vec<u8>, random: &mut Random) {
    /// `cs nopw 0(%rax,%rax)`: eleven bytes, cut from the front.
    const NOP: [u8; 11] = [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let mut left = usize::try_from(random.below(GAP_MAX + 1)).unwrap_or_default();
    while left >= NOP.len() {
        bytes.extend(NOP);
        left -= NOP.len();
    }
    bytes.resize(bytes.len() + left, 0x90);
}
