//! The tables of sites that objtool writes into the image and the kernel reads.
//!
//! One section, `.limen_sites`, little endian, filled after linking:
//!
//! | Offset | Size | Field |
//! |---|---|---|
//! | 0 | 8 | magic `LIMNSITE` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | number of tables |
//! | 16 | 8 | base: the address that entries count from |
//! | 24 | 4 | `__x86_indirect_thunk_r11` minus base; `ffff_ffff` if there is none |
//! | 28 | 1 | where checks read the hash (signed) |
//! | 29 | 1 | form of the checks in the image: 0 kcfi, 1 opt, 2 off |
//! | 30 | 2 | zero |
//! | 32 | 16 each | tables: kind, offset from the section's start, entries, words per entry |
//!
//! | Kind | Words of an entry |
//! |---|---|
//! | 1 check | place (flags: 1 jump, 2 five bytes, 4 no thunk), hash |
//! | 2 function with a preamble | place (flag 1: its address is taken), hash |
//! | 3 thunk branch without a check (allowed) | place (flags as 1) |
//! | 4 static branch | place (flags: 1 likely, 2 read-only after init), target minus base, key |
//! | 5 static call | place (flag 1: jump), key |
//! | 6 return | place |
//!
//! A place is 28 bits of offset from the base and 4 bits of flags on top; entries are sorted by
//! offset, strictly ascending, and found by binary search. Reading needs no allocation, no
//! relocation and no alignment. The reader trusts nothing: all bounds and the order are proved
//! once, in [`SiteTables::parse`]; afterwards no access can fail.

use core::marker::PhantomData;

use crate::kcfi::Form;
use crate::tail::{BranchKind, Shape};

/// Name of the section.
pub const SECTION: &str = ".limen_sites";
/// First eight bytes.
pub const MAGIC: [u8; 8] = *b"LIMNSITE";
/// Version of the layout.
pub const VERSION: u32 = 1;
/// Bytes before the list of tables.
pub const HEADER_LEN: usize = 32;
/// Bytes of the list per table.
pub const TABLE_LEN: usize = 16;
/// Most tables; each kind appears at most once.
pub const TABLES_MAX: u32 = 16;
/// Offsets from the base must be below this.
pub const OFFSET_MAX: u32 = (1 << 28) - 1;
/// Least room between the base and the end of the address space.
const REACH: u64 = OFFSET_MAX as u64 + 0x1000;
/// Place of "no thunk".
const NO_THUNK: u32 = u32::MAX;

/// Why a section is no site table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// All zero: objtool has not run.
    NotFilled,
    /// Another magic or version.
    Unknown,
    /// A table reaches beyond the section, or the section is shorter than its header.
    Truncated,
    /// A field has a value that it must not have.
    Field,
    /// Entries are not strictly ascending.
    Unsorted,
    /// The writer's buffer is too small; so many bytes are needed.
    NoRoom(usize),
    /// An address is not within [`OFFSET_MAX`] above the base.
    OutOfReach(u64),
}

impl core::fmt::Display for TableError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotFilled => write!(f, "site tables are empty: objtool has not run"),
            Self::Unknown => write!(f, "site tables have another version"),
            Self::Truncated => write!(f, "site tables are cut off"),
            Self::Field => write!(f, "site tables have an illegal field"),
            Self::Unsorted => write!(f, "site tables are not sorted"),
            Self::NoRoom(bytes) => write!(f, "site tables need {bytes} bytes"),
            Self::OutOfReach(address) => write!(f, "{address:#x} is too far from the base"),
        }
    }
}

/// Kind numbers of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TableKind {
    /// [`CheckEntry`].
    Checks = 1,
    /// [`FunctionEntry`].
    Functions = 2,
    /// [`ThunkEntry`].
    Thunks = 3,
    /// [`BranchEntry`].
    Branches = 4,
    /// [`CallEntry`].
    Calls = 5,
    /// [`ReturnEntry`].
    Returns = 6,
}

/// An entry: how it is spelt in words, and where its site is.
pub trait SiteEntry: Copy {
    /// Its table.
    const KIND: TableKind;
    /// Its words.
    const WORDS: usize;
    /// Decodes; `base` is the table's.
    fn from_words(base: u64, words: [u32; 3]) -> Self;
    /// Encodes.
    ///
    /// # Errors
    /// [`TableError::OutOfReach`].
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError>;
    /// Address of the site.
    fn site(&self) -> u64;
}

fn place(base: u64, address: u64, flags: u32) -> Result<u32, TableError> {
    match u32::try_from(address.wrapping_sub(base)) {
        Ok(offset) if offset <= OFFSET_MAX => Ok(flags << 28 | offset),
        _ => Err(TableError::OutOfReach(address)),
    }
}

const fn address(base: u64, word: u32) -> u64 {
    base.wrapping_add((word & OFFSET_MAX) as u64)
}

fn shape(flags: u32) -> Shape {
    let kind = if flags & 1 == 1 { BranchKind::Jump } else { BranchKind::Call };
    Shape { kind, len: if flags & 2 == 2 { 5 } else { 6 } }
}

fn shape_flags(shape: Shape) -> u32 {
    u32::from(shape.kind == BranchKind::Jump) | u32::from(shape.len == 5) << 1
}

/// A kCFI check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckEntry {
    /// Its address.
    pub site: u64,
    /// Its hash in the image.
    pub hash: u32,
    /// The call or jump behind it.
    pub shape: Shape,
    /// Whether that goes through the thunk and can be rerouted.
    pub thunk: bool,
}

impl SiteEntry for CheckEntry {
    const KIND: TableKind = TableKind::Checks;
    const WORDS: usize = 2;
    fn from_words(base: u64, [word, hash, _]: [u32; 3]) -> Self {
        let flags = word >> 28;
        Self { site: address(base, word), hash, shape: shape(flags), thunk: flags & 4 == 0 }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        let flags = shape_flags(self.shape) | u32::from(!self.thunk) << 2;
        Ok([place(base, self.site, flags)?, self.hash, 0])
    }
    fn site(&self) -> u64 {
        self.site
    }
}

/// A function that carries a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionEntry {
    /// Its address (not its preamble's).
    pub function: u64,
    /// Its hash in the image.
    pub hash: u32,
    /// Whether anything takes its address; if not, its preamble may be poisoned.
    pub taken: bool,
}

impl SiteEntry for FunctionEntry {
    const KIND: TableKind = TableKind::Functions;
    const WORDS: usize = 2;
    fn from_words(base: u64, [word, hash, _]: [u32; 3]) -> Self {
        Self { function: address(base, word), hash, taken: word >> 28 & 1 == 1 }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        Ok([place(base, self.function, u32::from(self.taken))?, self.hash, 0])
    }
    fn site(&self) -> u64 {
        self.function
    }
}

/// A thunk branch that no check guards and the allow list covers; it can still be rerouted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThunkEntry {
    /// Its address.
    pub at: u64,
    /// What it is.
    pub shape: Shape,
}

impl SiteEntry for ThunkEntry {
    const KIND: TableKind = TableKind::Thunks;
    const WORDS: usize = 1;
    fn from_words(base: u64, [word, ..]: [u32; 3]) -> Self {
        Self { at: address(base, word), shape: shape(word >> 28) }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        Ok([place(base, self.at, shape_flags(self.shape))?, 0, 0])
    }
    fn site(&self) -> u64 {
        self.at
    }
}

/// A static branch ([`crate::jump_label`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchEntry {
    /// Its address.
    pub site: u64,
    /// Where the jump goes.
    pub target: u64,
    /// Its key.
    pub key: u32,
    /// Whether the fall-through side is the enabled one.
    pub likely: bool,
    /// Whether the key keeps its value after init.
    pub ro_after_init: bool,
}

impl SiteEntry for BranchEntry {
    const KIND: TableKind = TableKind::Branches;
    const WORDS: usize = 3;
    fn from_words(base: u64, [word, target, key]: [u32; 3]) -> Self {
        Self {
            site: address(base, word),
            target: address(base, target),
            key,
            likely: word >> 28 & 1 == 1,
            ro_after_init: word >> 28 & 2 == 2,
        }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        let target = place(base, self.target, 0)?;
        let flags = u32::from(self.likely) | u32::from(self.ro_after_init) << 1;
        Ok([place(base, self.site, flags)?, target, self.key])
    }
    fn site(&self) -> u64 {
        self.site
    }
}

/// A static call ([`crate::static_call`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEntry {
    /// Its address.
    pub site: u64,
    /// Its key: the low 32 bits of its trampoline's address.
    pub key: u32,
    /// Whether it is a jump (tail call).
    pub tail: bool,
    /// Whether it may change once the calls are sealed.
    pub dynamic: bool,
}

impl SiteEntry for CallEntry {
    const KIND: TableKind = TableKind::Calls;
    const WORDS: usize = 2;
    fn from_words(base: u64, [word, key, _]: [u32; 3]) -> Self {
        let flags = word >> 28;
        Self { site: address(base, word), key, tail: flags & 1 == 1, dynamic: flags & 2 == 2 }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        let flags = u32::from(self.tail) | u32::from(self.dynamic) << 1;
        Ok([place(base, self.site, flags)?, self.key, 0])
    }
    fn site(&self) -> u64 {
        self.site
    }
}

/// A return ([`crate::return_site`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnEntry {
    /// Its address.
    pub site: u64,
}

impl SiteEntry for ReturnEntry {
    const KIND: TableKind = TableKind::Returns;
    const WORDS: usize = 1;
    fn from_words(base: u64, [word, ..]: [u32; 3]) -> Self {
        Self { site: address(base, word) }
    }
    fn to_words(&self, base: u64) -> Result<[u32; 3], TableError> {
        Ok([place(base, self.site, 0)?, 0, 0])
    }
    fn site(&self) -> u64 {
        self.site
    }
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// An entry of its words.
#[inline]
fn decode<E: SiteEntry>(base: u64, entry: &[u8]) -> E {
    let (words, _) = entry.as_chunks();
    E::from_words(
        base,
        core::array::from_fn(|n| words.get(n).copied().map_or(0, u32::from_le_bytes)),
    )
}

/// One sorted table.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a, E> {
    bytes: &'a [u8],
    base: u64,
    entry: PhantomData<E>,
}

impl<'a, E: SiteEntry> Table<'a, E> {
    const STRIDE: usize = E::WORDS * 4;

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / Self::STRIDE
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entry number `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<E> {
        let at = index.checked_mul(Self::STRIDE)?;
        Some(decode(self.base, self.bytes.get(at..)?.get(..Self::STRIDE)?))
    }

    /// The entry whose site is exactly `site`.
    #[must_use]
    pub fn find(&self, site: u64) -> Option<E> {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.get(middle)?;
            match entry.site().cmp(&site) {
                core::cmp::Ordering::Equal => return Some(entry),
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// All entries, ascending.
    #[must_use]
    #[inline]
    pub fn iter(&self) -> Iter<'a, E> {
        Iter { rest: self.bytes, base: self.base, entry: PhantomData }
    }
}

/// Iterator of [`Table::iter`]; cloning it starts a second pass at the same place.
#[derive(Clone, Debug)]
pub struct Iter<'a, E> {
    rest: &'a [u8],
    base: u64,
    entry: PhantomData<E>,
}

impl<E: SiteEntry> Iterator for Iter<'_, E> {
    type Item = E;
    #[inline]
    fn next(&mut self) -> Option<E> {
        let (entry, rest) = self.rest.split_at_checked(Table::<E>::STRIDE)?;
        self.rest = rest;
        Some(decode(self.base, entry))
    }
}

/// The parsed section.
#[derive(Clone, Copy, Debug)]
pub struct SiteTables<'a> {
    bytes: &'a [u8],
    base: u64,
    thunk: Option<u64>,
    disp: i8,
    form: Form,
}

impl<'a> SiteTables<'a> {
    /// Proves the whole section.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TableError> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(TableError::Truncated)?;
        if header.iter().all(|&byte| byte == 0) {
            return Err(TableError::NotFilled);
        }
        let field = |offset| word(header, offset).ok_or(TableError::Truncated);
        if header.first_chunk() != Some(&MAGIC) || field(8)? != VERSION {
            return Err(TableError::Unknown);
        }
        let base = u64::from(field(16)?) | u64::from(field(20)?) << 32;
        // No address of an entry, nor of a byte of its site, may wrap: lookups compare addresses.
        if base.checked_add(REACH).is_none() {
            return Err(TableError::Field);
        }
        let thunk = match field(24)? {
            NO_THUNK => None,
            offset if offset <= OFFSET_MAX => Some(address(base, offset)),
            _ => return Err(TableError::Field),
        };
        let [disp, form, zero @ ..] = field(28)?.to_le_bytes();
        let form = match (form, zero) {
            (0, [0, 0]) => Form::Kcfi,
            (1, [0, 0]) => Form::Opt,
            (2, [0, 0]) => Form::Off,
            _ => return Err(TableError::Field),
        };
        if field(12)? > TABLES_MAX {
            return Err(TableError::Field);
        }
        let tables = Self { bytes, base, thunk, disp: disp.cast_signed(), form };
        tables.prove::<CheckEntry>()?;
        tables.prove::<FunctionEntry>()?;
        tables.prove::<ThunkEntry>()?;
        tables.prove::<BranchEntry>()?;
        tables.prove::<CallEntry>()?;
        tables.prove::<ReturnEntry>()?;
        Ok(tables)
    }

    fn prove<E: SiteEntry>(&self) -> Result<(), TableError> {
        let table = self.locate::<E>()?;
        let mut last = None;
        for entry in table.iter() {
            if last >= Some(entry.site()) {
                return Err(TableError::Unsorted);
            }
            last = Some(entry.site());
        }
        Ok(())
    }

    fn locate<E: SiteEntry>(&self) -> Result<Table<'a, E>, TableError> {
        let count = word(self.bytes, 12).ok_or(TableError::Truncated)?.min(TABLES_MAX);
        for index in 0..count as usize {
            let at = HEADER_LEN + index * TABLE_LEN;
            let field = |offset| word(self.bytes, at + offset).ok_or(TableError::Truncated);
            if field(0)? != E::KIND as u32 {
                continue;
            }
            if field(12)? as usize != E::WORDS {
                return Err(TableError::Field);
            }
            let from = field(4)? as usize;
            let len = (field(8)? as usize).checked_mul(E::WORDS * 4);
            let end = len.and_then(|len| from.checked_add(len)).ok_or(TableError::Truncated)?;
            let bytes = self.bytes.get(from..end).ok_or(TableError::Truncated)?;
            return Ok(Table { bytes, base: self.base, entry: PhantomData });
        }
        Ok(Table { bytes: &[], base: self.base, entry: PhantomData })
    }

    fn table<E: SiteEntry>(&self) -> Table<'a, E> {
        // Proved in `parse`; an empty table stands for the impossible.
        self.locate().unwrap_or(Table { bytes: &[], base: self.base, entry: PhantomData })
    }

    /// kCFI checks.
    #[must_use]
    pub fn checks(&self) -> Table<'a, CheckEntry> {
        self.table()
    }

    /// Functions with a preamble.
    #[must_use]
    pub fn functions(&self) -> Table<'a, FunctionEntry> {
        self.table()
    }

    /// Allowed thunk branches without a check.
    #[must_use]
    pub fn thunks(&self) -> Table<'a, ThunkEntry> {
        self.table()
    }

    /// Static branches.
    #[must_use]
    pub fn branches(&self) -> Table<'a, BranchEntry> {
        self.table()
    }

    /// Static calls.
    #[must_use]
    pub fn calls(&self) -> Table<'a, CallEntry> {
        self.table()
    }

    /// Returns.
    #[must_use]
    pub fn returns(&self) -> Table<'a, ReturnEntry> {
        self.table()
    }

    /// `__x86_indirect_thunk_r11`.
    #[must_use]
    pub const fn thunk(&self) -> Option<u64> {
        self.thunk
    }

    /// Where checks read the hash.
    #[must_use]
    pub const fn disp(&self) -> i8 {
        self.disp
    }

    /// The form that objtool gave the checks.
    #[must_use]
    pub const fn form(&self) -> Form {
        self.form
    }
}

/// Notes in a filled section that the checks have another form now.
pub fn set_form(section: &mut [u8], form: Form) {
    if let Some(byte) = section.get_mut(FORM_AT) {
        *byte = form_byte(form);
    }
}

/// Offset of the form in the header.
const FORM_AT: usize = 29;

const fn form_byte(form: Form) -> u8 {
    match form {
        Form::Kcfi => 0,
        Form::Opt => 1,
        Form::Off => 2,
        // Never of an image: no reader takes it.
        Form::FineIbt => 3,
    }
}

/// Everything that goes into the section. Lists must be sorted by site.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents<'a> {
    /// Address that entries count from.
    pub base: u64,
    /// `__x86_indirect_thunk_r11`.
    pub thunk: Option<u64>,
    /// Where checks read the hash.
    pub disp: i8,
    /// Form of the checks; `None` is the compiler's.
    pub form: Option<Form>,
    /// Checks.
    pub checks: &'a [CheckEntry],
    /// Functions.
    pub functions: &'a [FunctionEntry],
    /// Allowed thunk branches.
    pub thunks: &'a [ThunkEntry],
    /// Static branches.
    pub branches: &'a [BranchEntry],
    /// Static calls.
    pub calls: &'a [CallEntry],
    /// Returns.
    pub returns: &'a [ReturnEntry],
}

impl Contents<'_> {
    const TABLES: u32 = 6;

    /// Bytes that [`Self::write`] needs.
    #[must_use]
    pub const fn size(&self) -> usize {
        let words = self.checks.len() * CheckEntry::WORDS
            + self.functions.len() * FunctionEntry::WORDS
            + self.thunks.len() * ThunkEntry::WORDS
            + self.branches.len() * BranchEntry::WORDS
            + self.calls.len() * CallEntry::WORDS
            + self.returns.len() * ReturnEntry::WORDS;
        HEADER_LEN + Self::TABLES as usize * TABLE_LEN + words * 4
    }

    /// Writes the section into `out` and clears the rest of it; returns the bytes used.
    ///
    /// # Errors
    /// [`TableError::NoRoom`], [`TableError::OutOfReach`]; [`TableError::Unsorted`] when the result
    /// does not parse. `out` is then unspecified.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, TableError> {
        let size = self.size();
        if size > out.len() {
            return Err(TableError::NoRoom(size));
        }
        out.fill(0);
        let thunk = match self.thunk {
            Some(thunk) => place(self.base, thunk, 0)?,
            None => NO_THUNK,
        };
        let form = form_byte(self.form.unwrap_or(Form::Kcfi));
        let mut writer = Writer { out, next: 0 };
        writer.bytes(&MAGIC);
        writer.word(VERSION);
        writer.word(Self::TABLES);
        writer.bytes(&self.base.to_le_bytes());
        writer.word(thunk);
        writer.bytes(&[self.disp.cast_unsigned(), form, 0, 0]);
        let mut start = HEADER_LEN + Self::TABLES as usize * TABLE_LEN;
        writer.describe::<CheckEntry>(&mut start, self.checks.len())?;
        writer.describe::<FunctionEntry>(&mut start, self.functions.len())?;
        writer.describe::<ThunkEntry>(&mut start, self.thunks.len())?;
        writer.describe::<BranchEntry>(&mut start, self.branches.len())?;
        writer.describe::<CallEntry>(&mut start, self.calls.len())?;
        writer.describe::<ReturnEntry>(&mut start, self.returns.len())?;
        writer.entries(self.base, self.checks)?;
        writer.entries(self.base, self.functions)?;
        writer.entries(self.base, self.thunks)?;
        writer.entries(self.base, self.branches)?;
        writer.entries(self.base, self.calls)?;
        writer.entries(self.base, self.returns)?;
        SiteTables::parse(writer.out)?;
        Ok(size)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    next: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        // The size was compared with the buffer before the first byte.
        if let Some(room) = self.out.get_mut(self.next..self.next + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.next += bytes.len();
    }

    fn word(&mut self, word: u32) {
        self.bytes(&word.to_le_bytes());
    }

    fn describe<E: SiteEntry>(
        &mut self,
        start: &mut usize,
        count: usize,
    ) -> Result<(), TableError> {
        let small = |value: usize| u32::try_from(value).map_err(|_| TableError::NoRoom(value));
        self.word(E::KIND as u32);
        self.word(small(*start)?);
        self.word(small(count)?);
        self.word(small(E::WORDS)?);
        *start += count * E::WORDS * 4;
        Ok(())
    }

    fn entries<E: SiteEntry>(&mut self, base: u64, entries: &[E]) -> Result<(), TableError> {
        for entry in entries {
            let words = entry.to_words(base)?;
            for &word in words.iter().take(E::WORDS) {
                self.word(word);
            }
        }
        Ok(())
    }
}
