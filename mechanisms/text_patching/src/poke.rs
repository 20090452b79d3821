//! Verify, then write: the one way in which text changes.
//!
//! A pass over text has two phases. Phase one ([`check`]) derives a [`Patch`] for every site, which
//! means that every byte of the site was read and recognised; it also asserts that sites ascend and
//! do not overlap, so that no write can change what another site's check has seen. It ends with the
//! first anomaly, text untouched, or with a [`Checked`] pass. Phase two ([`Checked::apply`]) takes
//! that claim, passes the POINT OF NO RETURN, and only stores; a store cannot fail because
//! [`TextPoke::poke`] has no error to return.
//!
//! The pass keeps no list: a kernel that patches itself at boot may have no allocator yet. It
//! walks the iterator of sites twice (three times with the verification), and therefore derives
//! each patch a second time right before its writes. Nobody may write text in between; if somebody
//! did, the site is left alone and reported in [`Broken`], and the caller stops the machine.
//!
//! Neighbours: [`crate::kcfi`], [`crate::tail`], [`crate::preamble`], static keys and
//! calls derive the patches; the int3 protocol is the other way to apply one, while
//! other CPUs execute the text.

use core::fmt;

/// The longest site: a kCFI check and the six bytes of its call are 20, but patched apart.
pub const CODE_MAX: usize = 16;

/// Up to [`CODE_MAX`] instruction bytes, by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; CODE_MAX],
    len: u8,
}

impl Code {
    /// Copies `bytes`; what lies beyond [`CODE_MAX`] is cut off (callers pass table rows).
    #[must_use]
    pub const fn new(bytes: &[u8]) -> Self {
        let len = if bytes.len() < CODE_MAX { bytes.len() } else { CODE_MAX };
        let mut out = [0; CODE_MAX];
        let mut i = 0;
        while i < len {
            out[i] = bytes[i];
            i += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "len <= CODE_MAX = 16")]
        Self { bytes: out, len: len as u8 }
    }

    /// An opcode followed by a 32-bit displacement or immediate, little endian.
    #[must_use]
    pub const fn with_imm32(opcode: &[u8], imm: u32) -> Self {
        let mut code = Self::new(opcode);
        let imm = imm.to_le_bytes();
        let mut i = 0;
        while i < 4 && (code.len as usize) < CODE_MAX {
            code.bytes[code.len as usize] = imm[i];
            code.len += 1;
            i += 1;
        }
        code
    }

    /// The low `len` bytes of a word, at most eight.
    #[must_use]
    pub const fn from_word(word: u64, len: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
        let len = if len < 8 { len } else { 8 };
        Self { bytes: [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0], len }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Overwrites the bytes from `offset` on; bytes beyond the end are ignored.
    #[must_use]
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Self {
        let end = usize::from(self.len);
        if let Some(room) = self.bytes.get_mut(offset.min(end)..end) {
            for (to, from) in room.iter_mut().zip(bytes) {
                *to = *from;
            }
        }
        self
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.as_slice().iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The address is not text that this reader can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped;

/// Readable kernel text (or an image of it in a file).
pub trait Text {
    /// Fills `out` with the bytes at `addr`.
    ///
    /// # Errors
    /// [`Unmapped`] when any of them is outside the text; `out` is then unspecified.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped>;
}

/// Text that can be written, at an address that [`Text::read`] accepts.
///
/// Contract of an implementation: a `poke` of 1, 2, 4 or 8 bytes is one store instruction, and so
/// is one of 5 or 6 where eight bytes of text begin, so that an NMI on the same CPU sees the old
/// bytes or the new ones and never a mixture; the store is visible to this CPU's instruction fetch
/// when `poke` returns or at the latest at the next interrupt; bytes outside the text are never
/// written.
pub trait TextPoke: Text {
    /// Writes `bytes` at `addr`. Cannot fail: the pass has read these very bytes before.
    fn poke(&mut self, addr: u64, bytes: &[u8]);

    /// The same of the low `N` bytes of a word, for a pass over thousands of sites.
    #[inline(always)]
    fn poke_word<const N: usize>(&mut self, addr: u64, word: u64) {
        if let Some(bytes) = word.to_le_bytes().get(..N) {
            self.poke(addr, bytes);
        }
    }
}

/// What is wrong with a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The site, or a part of it, is outside the text.
    Unmapped,
    /// A byte is not the one that this place must have.
    Byte {
        /// What the layout asks for (one representative where several are legal).
        expected: u8,
        /// What is there.
        found: u8,
    },
    /// A type hash of zero: it would match every poisoned function.
    ZeroHash,
    /// A form that only the whole image can have, callers and callees together.
    WholeImage,
    /// The hash in text is not the one that the site table recorded.
    Hash {
        /// From the table.
        expected: u32,
        /// From the text.
        found: u32,
    },
    /// The site's `add` reads the hash at another distance than the rest of the image does.
    Displacement {
        /// The image's.
        expected: i8,
        /// This site's.
        found: i8,
    },
    /// The check tests another register than the call goes through.
    Register {
        /// Hardware number of the right one.
        expected: u8,
        /// Hardware number of the one in the check.
        found: u8,
    },
    /// The bytes after the check are no call or jump form that is known.
    UnknownTail,
    /// A direct call, jump or thunk reference goes somewhere else than it must.
    Target {
        /// Where it must go.
        expected: u64,
        /// Where it goes.
        found: u64,
    },
    /// The wanted form does not fit: five bytes cannot hold `lfence; call *%r11`.
    NoRoom,
    /// A displacement does not fit into 32 bits.
    OutOfReach,
    /// The site begins before the previous one ended, or the list is not sorted.
    Overlap,
    /// No legal hash was found within the bounded number of steps.
    NoHash,
}

/// The first thing that phase one could not explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Start of the site.
    pub site: u64,
    /// Byte of the site at which it was found.
    pub offset: u8,
    /// What it is.
    pub what: What,
}

impl Anomaly {
    /// An anomaly at `offset` of `site`.
    #[must_use]
    pub const fn new(site: u64, offset: u8, what: What) -> Self {
        Self { site, offset, what }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "site {:#x}+{}: ", self.site, self.offset)?;
        match self.what {
            What::Unmapped => write!(f, "outside the text"),
            What::Byte { expected, found } => {
                write!(f, "byte is {found:02x}, expected {expected:02x}")
            }
            What::ZeroHash => write!(f, "type hash is zero"),
            What::WholeImage => write!(f, "this form is given to a whole image, or not at all"),
            What::Hash { expected, found } => {
                write!(f, "type hash is {found:#010x}, the table says {expected:#010x}")
            }
            What::Displacement { expected, found } => {
                write!(f, "hash is read at {found}, the image has it at {expected}")
            }
            What::Register { expected, found } => {
                write!(f, "checks register {found}, the call uses {expected}")
            }
            What::UnknownTail => write!(f, "no known call or jump"),
            What::Target { expected, found } => {
                write!(f, "goes to {found:#x}, expected {expected:#x}")
            }
            What::NoRoom => write!(f, "the wanted form does not fit"),
            What::OutOfReach => write!(f, "target is out of reach of 32 bits"),
            What::Overlap => write!(f, "overlaps the previous site or is out of order"),
            What::NoHash => write!(f, "no legal hash could be derived"),
        }
    }
}

/// Reads `N` bytes of a site.
///
/// # Errors
/// [`What::Unmapped`] when they are not all text.
#[inline]
pub fn read_site<const N: usize>(text: &impl Text, site: u64) -> Result<[u8; N], Anomaly> {
    let mut bytes = [0; N];
    text.read(site, &mut bytes).map_err(|Unmapped| Anomaly::new(site, 0, What::Unmapped))?;
    Ok(bytes)
}

/// Reads `N` bytes of a site, at most eight, as a word.
///
/// # Errors
/// [`What::Unmapped`] when they are not all text.
#[inline]
pub fn read_word<const N: usize>(text: &impl Text, site: u64) -> Result<u64, Anomaly> {
    let bytes: [u8; N] = read_site(text, site)?;
    Ok(word_of(&bytes))
}

/// At most eight bytes as a word.
#[inline]
pub(crate) const fn word_of<const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(N <= 8, "a word has eight bytes") };
    let mut word = 0;
    let mut i = 0;
    while i < N {
        word |= (bytes[i] as u64) << (8 * i);
        i += 1;
    }
    word
}

/// A site of at most eight bytes before and after, as words: [`Patch`] for a pass that has
/// thousands of them to derive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its bytes now.
    pub old: u64,
    /// Its bytes afterwards.
    pub new: u64,
    /// How many.
    pub len: u8,
}

impl Change {
    /// Whether nothing has to change.
    #[must_use]
    pub const fn is_noop(&self) -> bool {
        self.old == self.new
    }

    /// Its bytes afterwards.
    #[must_use]
    pub const fn code(&self) -> Code {
        Code::from_word(self.new, self.len)
    }

    /// The same at `at`, by these stores.
    #[must_use]
    pub const fn patch(&self, at: u64, stores: [Store; 2]) -> Patch {
        Patch::in_order(at, Code::from_word(self.old, self.len), self.code(), stores)
    }
}

/// One store of a patch: `len` bytes of the new code from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// First byte, relative to the site.
    pub offset: u8,
    /// Number of bytes.
    pub len: u8,
}

impl Store {
    /// All `len` bytes at once.
    #[must_use]
    pub const fn one(len: u8) -> [Self; 2] {
        [Self { offset: 0, len }, Self { offset: 0, len: 0 }]
    }
}

/// The whole of a site before and after, and the stores in the order in which they must happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Address of the site.
    pub at: u64,
    /// Every byte of it now.
    pub old: Code,
    /// Every byte of it afterwards; as long as `old`.
    pub new: Code,
    stores: [Store; 2],
}

impl Patch {
    /// A patch that is one store of all bytes.
    #[must_use]
    pub const fn whole(at: u64, old: Code, new: Code) -> Self {
        Self::in_order(at, old, new, Store::one(new.len))
    }

    /// A patch with its stores; a store of length 0 is skipped.
    #[must_use]
    pub const fn in_order(at: u64, old: Code, new: Code, stores: [Store; 2]) -> Self {
        Self { at, old, new, stores }
    }

    /// Whether nothing has to change.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.old == self.new
    }

    /// Address and bytes of each store, in order; those that change nothing are left out.
    pub fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.stores.iter().filter_map(move |store| {
            let from = usize::from(store.offset);
            let range = from..from + usize::from(store.len);
            let new = self.new.as_slice().get(range.clone())?;
            let same = self.old.as_slice().get(range) == Some(new);
            (!new.is_empty() && !same).then_some((self.at + u64::from(store.offset), new))
        })
    }
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sites seen.
    pub sites: usize,
    /// Sites that were written; the others had the wanted bytes already.
    pub written: usize,
}

/// Text changed under the pass, or a store did not arrive. The machine must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// First site that is not as it must be.
    pub site: u64,
    /// What is wrong there.
    pub found: Anomaly,
}

/// All sites were derived and are in order: the claim that [`Checked::apply`] needs.
#[derive(Clone, Debug)]
pub struct Checked<I, F> {
    sites: I,
    derive: F,
    count: usize,
}

/// Phase one: derives a patch for every site, and writes nothing.
///
/// `derive` must read and recognise every byte of the site, and must accept the site both before
/// and after it was patched (the verification of phase two asks it again).
///
/// # Errors
/// The first anomaly.
pub fn check<T, S, I, F>(text: &T, sites: I, derive: F) -> Result<Checked<I, F>, Anomaly>
where
    T: Text,
    I: Iterator<Item = S> + Clone,
    F: Fn(&T, S) -> Result<Patch, Anomaly>,
{
    let mut count = 0;
    let mut end = 0;
    for site in sites.clone() {
        let patch = derive(text, site)?;
        if patch.at < end || patch.old.len != patch.new.len {
            return Err(Anomaly::new(patch.at, 0, What::Overlap));
        }
        end = patch.at.saturating_add(u64::from(patch.old.len));
        count += 1;
    }
    Ok(Checked { sites, derive, count })
}

impl<S, I: Iterator<Item = S> + Clone, F> Checked<I, F> {
    /// Number of sites.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Phase two: stores, then verifies.
    ///
    /// # Errors
    /// [`Broken`] when text was changed by somebody else since [`check`], or when a byte does not
    /// read back as written. There is no way back at that point; a kernel stops.
    pub fn apply<T>(self, text: &mut T) -> Result<Applied, Broken>
    where
        T: TextPoke,
        F: Fn(&T, S) -> Result<Patch, Anomaly>,
    {
        // POINT OF NO RETURN: from here on every site is written, and no store can fail.
        let mut done = Applied::default();
        let mut broken = None;
        for site in self.sites.clone() {
            match (self.derive)(text, site) {
                Ok(patch) => {
                    for (addr, bytes) in patch.writes() {
                        text.poke(addr, bytes);
                    }
                    done.written += usize::from(!patch.is_noop());
                }
                Err(found) => broken = broken.or(Some(Broken { site: found.site, found })),
            }
            done.sites += 1;
        }
        // Verified by the same decoder: a patched site derives a patch that changes nothing.
        for site in self.sites {
            match (self.derive)(text, site) {
                Ok(patch) if patch.is_noop() => {}
                Ok(patch) => {
                    let found = first_difference(&patch);
                    broken = broken.or(Some(Broken { site: patch.at, found }));
                }
                Err(found) => broken = broken.or(Some(Broken { site: found.site, found })),
            }
        }
        broken.map_or(Ok(done), Err)
    }
}

fn first_difference(patch: &Patch) -> Anomaly {
    let pairs = patch.old.as_slice().iter().zip(patch.new.as_slice());
    for (offset, (&found, &expected)) in (0_u8..).zip(pairs) {
        if found != expected {
            return Anomaly::new(patch.at, offset, What::Byte { expected, found });
        }
    }
    Anomaly::new(patch.at, 0, What::Overlap)
}

/// Text in a byte vector: what host tools and tests patch.
///
/// ```
/// use text_patching::{Text, TextPoke, poke::SliceText};
/// let mut bytes = [0x90; 4];
/// let mut text = SliceText::new(0x1000, &mut bytes);
/// text.poke(0x1001, &[0xcc]);
/// let mut out = [0; 2];
/// assert_eq!(text.read(0x1000, &mut out), Ok(()));
/// assert_eq!(out, [0x90, 0xcc]);
/// ```
#[derive(Debug)]
pub struct SliceText<'a> {
    base: u64,
    bytes: &'a mut [u8],
}

impl<'a> SliceText<'a> {
    /// `bytes` seen at address `base`.
    #[must_use]
    pub const fn new(base: u64, bytes: &'a mut [u8]) -> Self {
        Self { base, bytes }
    }

    fn range(&self, addr: u64, len: usize) -> Option<core::ops::Range<usize>> {
        let from = usize::try_from(addr.checked_sub(self.base)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.bytes.len()).then_some(from..to)
    }
}

impl Text for SliceText<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        let range = self.range(addr, out.len()).ok_or(Unmapped)?;
        out.copy_from_slice(self.bytes.get(range).ok_or(Unmapped)?);
        Ok(())
    }
}

impl TextPoke for SliceText<'_> {
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.range(addr, bytes.len());
        if let Some(to) = range.and_then(|range| self.bytes.get_mut(range)) {
            to.copy_from_slice(bytes);
        }
    }
}
