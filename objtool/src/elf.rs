//! A bounded view of a linked x86-64 ELF image: executable bytes, symbols, relocations.
//!
//! The file may be hostile. The `object` crate checks every offset against the file; what is left
//! to this module are limits (so that a forged header cannot make the tool allocate or loop
//! without end) and the decision what counts: only sections that are loaded, only x86-64
//! executables (`ET_EXEC`, `ET_DYN`), relocations only where they patch loaded bytes. Images
//! without section headers are read through their program headers: then there are executable
//! bytes and nothing else, and the audit says what it could not prove.
//!
//! Addresses are the image's virtual addresses throughout; file offsets appear only in
//! [`Piece::file_offset`], for writing back. See `man 5 elf`.

use std::collections::BTreeMap;

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{
    FileHeader as _, ProgramHeader as _, Rela as _, SectionHeader as _, SectionTable, Sym as _,
    SymbolTable,
};

use crate::Error;

/// Largest accepted file: a Linux vmlinux with debug information stays below.
pub const FILE_MAX: usize = 2 << 30;
/// Most symbols and most relocations that are looked at.
pub const ENTRIES_MAX: usize = 8 << 20;
/// Most bytes of executable code.
pub const TEXT_MAX: u64 = 512 << 20;

type Header = FileHeader64<Endianness>;
type Sections<'a> = SectionTable<'a, Header>;
type Symbols<'a> = SymbolTable<'a, Header>;

/// A piece of loaded file contents.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// Section name, or `segment N`.
    pub name: String,
    /// Virtual address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Where they are in the file.
    pub file_offset: u64,
    /// Whether they are executable.
    pub executable: bool,
    /// Whether they are writable once loaded.
    pub writable: bool,
}

#[cfg(test)]
impl<'a> Piece<'a> {
    /// A piece that nobody writes, of an image that a test makes.
    pub(crate) fn read_only(name: &str, address: u64, bytes: &'a [u8], executable: bool) -> Self {
        let name = name.to_owned();
        Piece { name, address, bytes, file_offset: 0, executable, writable: false }
    }
}

impl Piece<'_> {
    /// First address behind the piece.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.len() as u64)
    }

    /// The bytes from `address` to the end of the piece, if it is inside.
    #[must_use]
    pub fn from(&self, address: u64) -> Option<&[u8]> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(offset..)
    }
}

/// A symbol of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value.
    pub address: u64,
    /// Its size in bytes; 0 for most assembly labels.
    pub size: u64,
    /// `STT_FUNC`.
    pub function: bool,
}

/// A relocation that the linker has applied and kept (`--emit-relocs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloc {
    /// Address of the patched field.
    pub at: u64,
    /// `R_X86_64_*`.
    pub kind: u32,
    /// Value of the symbol.
    pub symbol: u64,
    /// Addend.
    pub addend: i64,
}

/// The image.
#[derive(Clone, Debug, Default)]
pub struct Image<'a> {
    /// Loaded pieces with file contents, sorted by address, not overlapping.
    pub pieces: Vec<Piece<'a>>,
    /// Symbols with a name and an address in the image, sorted by address.
    pub symbols: Vec<Symbol<'a>>,
    /// Relocations of loaded sections, sorted by address.
    pub relocs: Vec<Reloc>,
    /// Whether there were section headers.
    pub has_sections: bool,
}

impl<'a> Image<'a> {
    /// Reads an image.
    ///
    /// # Errors
    /// [`Error::Elf`] for what is no well-formed x86-64 executable, [`Error::TooLarge`] when a
    /// limit is exceeded.
    pub fn parse(data: &'a [u8]) -> Result<Self, Error> {
        if data.len() > FILE_MAX {
            return Err(Error::TooLarge("file"));
        }
        // Magic of the boot protocol's header, which a bzImage carries.
        if data.get(0x202..0x206) == Some(b"HdrS") && !data.starts_with(b"\x7fELF") {
            return Err(Error::Elf(
                "a bzImage, which holds the image compressed: unpack it".into(),
            ));
        }
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        if header.e_machine(endian) != elf::EM_X86_64 {
            return Err(Error::Elf("not an x86-64 image".into()));
        }
        if !matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN) {
            return Err(Error::Elf("not a linked image (ET_EXEC or ET_DYN)".into()));
        }
        let mut image = Self::default();
        image.read_sections(header, endian, data)?;
        if !image.has_sections {
            image.read_segments(header, endian, data)?;
        }
        image.finish()
    }

    fn read_sections(
        &mut self,
        header: &Header,
        e: Endianness,
        data: &'a [u8],
    ) -> Result<(), Error> {
        let sections = header.sections(e, data)?;
        let segments = header.program_headers(e, data)?;
        // What the loader maps without execute permission is data to this image, whatever its
        // section says: the vDSO is code of programs, not of the kernel.
        let mapped = |address: u64| {
            segments.iter().filter(|segment| segment.p_type(e) == elf::PT_LOAD).find_map(
                |segment| {
                    let offset = address.checked_sub(segment.p_vaddr(e))?;
                    (offset < segment.p_memsz(e)).then(|| segment.p_flags(e) & elf::PF_X != 0)
                },
            )
        };
        for section in sections.iter() {
            let flags = section.sh_flags(e);
            let loaded = flags & u64::from(elf::SHF_ALLOC) != 0;
            if !loaded || section.sh_type(e) == elf::SHT_NOBITS {
                continue;
            }
            let bytes = section.data(e, data)?;
            if bytes.is_empty() {
                continue;
            }
            let name = sections.section_name(e, section)?;
            self.pieces.push(Piece {
                name: String::from_utf8_lossy(name).into_owned(),
                address: section.sh_addr(e),
                bytes,
                file_offset: section.sh_offset(e),
                executable: flags & u64::from(elf::SHF_EXECINSTR) != 0
                    && mapped(section.sh_addr(e)).unwrap_or(true),
                writable: flags & u64::from(elf::SHF_WRITE) != 0,
            });
        }
        self.has_sections = !self.pieces.is_empty();
        let symbols = sections.symbols(e, data, elf::SHT_SYMTAB)?;
        self.read_symbols(&symbols, e)?;
        self.read_relocs(&sections, &symbols, e, data)
    }

    fn read_symbols(&mut self, symbols: &Symbols<'a>, e: Endianness) -> Result<(), Error> {
        if symbols.len() > ENTRIES_MAX {
            return Err(Error::TooLarge("symbol table"));
        }
        for symbol in symbols.iter() {
            let kind = symbol.st_type();
            let named = matches!(kind, elf::STT_FUNC | elf::STT_NOTYPE | elf::STT_OBJECT);
            if !named || symbol.st_shndx(e) == elf::SHN_UNDEF {
                continue;
            }
            let Ok(name) = std::str::from_utf8(symbol.name(e, symbols.strings())?) else {
                continue;
            };
            self.symbols.push(Symbol {
                name,
                address: symbol.st_value(e),
                size: symbol.st_size(e),
                function: kind == elf::STT_FUNC,
            });
        }
        Ok(())
    }

    fn read_relocs(
        &mut self,
        sections: &Sections<'a>,
        symbols: &Symbols<'a>,
        e: Endianness,
        data: &'a [u8],
    ) -> Result<(), Error> {
        for section in sections.iter() {
            let Some((relas, link)) = section.rela(e, data)? else {
                continue;
            };
            let target = sections.section(section.info_link(e)).ok();
            let loaded = target.is_some_and(|to| to.sh_flags(e) & u64::from(elf::SHF_ALLOC) != 0);
            if !loaded || link != symbols.section() {
                continue;
            }
            if self.relocs.len() + relas.len() > ENTRIES_MAX {
                return Err(Error::TooLarge("relocations"));
            }
            for rela in relas {
                let symbol = rela.symbol(e, false);
                let value = match symbol {
                    Some(index) => symbols.symbol(index)?.st_value(e),
                    None => 0,
                };
                self.relocs.push(Reloc {
                    at: rela.r_offset(e),
                    kind: rela.r_type(e, false),
                    symbol: value,
                    addend: rela.r_addend(e),
                });
            }
        }
        Ok(())
    }

    fn read_segments(
        &mut self,
        header: &Header,
        e: Endianness,
        data: &'a [u8],
    ) -> Result<(), Error> {
        for (index, segment) in header.program_headers(e, data)?.iter().enumerate() {
            if segment.p_type(e) != elf::PT_LOAD {
                continue;
            }
            let bytes =
                segment.data(e, data).map_err(|()| Error::Elf("segment outside file".into()))?;
            if bytes.is_empty() {
                continue;
            }
            let flags = segment.p_flags(e);
            self.pieces.push(Piece {
                name: format!("segment {index}"),
                address: segment.p_vaddr(e),
                bytes,
                file_offset: segment.p_offset(e),
                executable: flags & elf::PF_X != 0,
                writable: flags & elf::PF_W != 0,
            });
        }
        Ok(())
    }

    /// Sorts, and refuses what the rest relies on not being there.
    fn finish(mut self) -> Result<Self, Error> {
        self.pieces.sort_by_key(|piece| piece.address);
        for pair in self.pieces.windows(2) {
            if let [a, b] = pair
                && a.end() > b.address
            {
                return Err(Error::Elf(format!("{} and {} overlap", a.name, b.name)));
            }
        }
        if self.pieces.iter().any(|p| p.address.checked_add(p.bytes.len() as u64).is_none()) {
            return Err(Error::Elf("section wraps around the address space".into()));
        }
        let text: u64 = self.text().map(|piece| piece.bytes.len() as u64).sum();
        if text > TEXT_MAX {
            return Err(Error::TooLarge("executable code"));
        }
        self.symbols.sort_by_key(|symbol| (symbol.address, !symbol.function, symbol.name));
        self.relocs.sort_by_key(|reloc| reloc.at);
        Ok(self)
    }

    /// The executable pieces.
    pub fn text(&self) -> impl Iterator<Item = &Piece<'a>> {
        self.pieces.iter().filter(|piece| piece.executable)
    }

    /// The piece that contains `address`.
    #[must_use]
    pub fn piece_at(&self, address: u64) -> Option<&Piece<'a>> {
        let index = self.pieces.partition_point(|piece| piece.address <= address);
        self.pieces.get(index.checked_sub(1)?).filter(|piece| address < piece.end())
    }

    /// The piece of a section.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Piece<'a>> {
        self.pieces.iter().find(|piece| piece.name == name)
    }

    /// The loaded bytes between two addresses of one piece.
    #[must_use]
    pub fn between(&self, start: u64, end: u64) -> Option<&'a [u8]> {
        let piece = self.piece_at(start)?;
        let from = usize::try_from(start - piece.address).ok()?;
        let to = usize::try_from(end.checked_sub(piece.address)?).ok()?;
        piece.bytes.get(from..to)
    }

    /// Whether the linker has kept the relocations of code.
    #[must_use]
    pub fn has_text_relocs(&self) -> bool {
        // Sorted by address, so each executable piece is a range of the list.
        self.text().any(|piece| {
            let first = self.relocs.partition_point(|reloc| reloc.at < piece.address);
            self.relocs.get(first).is_some_and(|reloc| reloc.at < piece.end())
        })
    }

    /// The address of the symbol `name`.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// The symbol that `address` is in: the last one at or before it, functions preferred, as long
    /// as it has no size or the address is inside.
    #[must_use]
    pub fn symbolize(&self, address: u64) -> Option<&Symbol<'a>> {
        /// How many labels may stand between a function's start and one of its instructions.
        const LABELS_MAX: usize = 256;
        let end = self.symbols.partition_point(|symbol| symbol.address <= address);
        let before = self.symbols.get(end.saturating_sub(LABELS_MAX)..end)?;
        let inside = |s: &&Symbol<'_>| address - s.address < s.size.max(1);
        let function = before.iter().rev().find(|s| s.function && inside(s));
        let visible = |s: &&Symbol<'_>| !s.name.is_empty() && !s.name.starts_with(".L");
        function.or_else(|| before.iter().rev().find(|s| s.size == 0 && visible(s)))
    }

    /// Distinct addresses of symbols, for quick membership tests.
    #[must_use]
    pub fn symbol_addresses(&self) -> BTreeMap<u64, &Symbol<'a>> {
        let mut map = BTreeMap::new();
        for symbol in &self.symbols {
            map.entry(symbol.address).or_insert(symbol);
        }
        map
    }
}

impl From<object::read::Error> for Error {
    fn from(error: object::read::Error) -> Self {
        Self::Elf(error.to_string())
    }
}

impl text_patching::Text for Image<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), text_patching::Unmapped> {
        let piece = self.piece_at(addr).ok_or(text_patching::Unmapped)?;
        let bytes = piece.from(addr).and_then(|bytes| bytes.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(text_patching::Unmapped)?);
        Ok(())
    }
}
