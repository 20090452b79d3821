//! Names and lines for the addresses of a kernel panic.
//!
//! The kernel prints `  #N 0xffffffff8xxxxxxx` (it carries no symbols); the image has them. A
//! return address points behind its call, so all but the first are looked up one byte earlier.
//! Neighbours: `klog.rs` finds the lines.

use std::path::{Path, PathBuf};

use addr2line::gimli::{self, EndianSlice, RunTimeEndian};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use rustc_demangle::demangle;

/// A backtrace line's frame number and address.
pub(crate) fn parse_frame(line: &str) -> Option<(u32, u64)> {
    let (number, address) = line.trim().strip_prefix('#')?.split_once(" 0x")?;
    let address = address.split(' ').next().unwrap_or(address);
    Some((number.trim().parse().ok()?, u64::from_str_radix(address, 16).ok()?))
}

/// What an image knows about addresses.
struct Symbols<'a> {
    lines: addr2line::Context<EndianSlice<'a, RunTimeEndian>>,
    /// Function symbols by address.
    functions: Vec<(u64, String)>,
}

impl<'a> Symbols<'a> {
    fn parse(image: &'a [u8]) -> Option<Self> {
        let file = object::File::parse(image).ok()?;
        let section = |id: gimli::SectionId| -> Result<_, gimli::Error> {
            let data = file.section_by_name(id.name()).and_then(|found| found.data().ok());
            Ok(EndianSlice::new(data.unwrap_or_default(), RunTimeEndian::Little))
        };
        let lines = addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()?;
        let code = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text);
        let name = |symbol: &object::Symbol<'_, '_>| symbol.name().ok().map(str::to_owned);
        let mut functions: Vec<(u64, String)> =
            code.filter_map(|symbol| Some((symbol.address(), name(&symbol)?))).collect();
        functions.sort();
        Some(Self { lines, functions })
    }

    /// The function that an address is in, demangled, and the offset of `address` in it.
    fn function(&self, probe: u64, address: u64) -> Option<String> {
        let above = self.functions.partition_point(|(start, _)| *start <= probe);
        let (start, name) = self.functions.get(above.checked_sub(1)?)?;
        Some(format!("{:#}+{:#x}", demangle(name), address.saturating_sub(*start)))
    }
}

/// The file that has the image's symbols and debug information: where they were split off, it has
/// the image's name with `.debug` behind it.
pub(crate) fn with_symbols(image: &Path) -> PathBuf {
    let mut split = image.as_os_str().to_owned();
    split.push(".debug");
    let split = PathBuf::from(split);
    if split.is_file() { split } else { image.to_owned() }
}

/// Its contents: tens of megabytes, so only read where there is something to look up.
fn read(image: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(with_symbols(image))
}

/// The lines, each frame followed by what `image` knows about its address.
pub(crate) fn symbolise(image: &Path, lines: &[String]) -> Vec<String> {
    if lines.is_empty() {
        return vec![];
    }
    let bytes = read(image).unwrap_or_default();
    let symbols = Symbols::parse(&bytes);
    let describe = |line: &String| {
        let frame = parse_frame(line);
        match (&symbols, frame) {
            (Some(symbols), Some((number, address))) => {
                let probe = address.saturating_sub(u64::from(number > 0));
                format!("{line}{}", describe_address(symbols, probe, address))
            }
            (Some(symbols), None) => format!("{line}{}", describe_cfi_failure(symbols, line)),
            _ => line.clone(),
        }
    };
    lines.iter().map(describe).collect()
}

/// What a failed kCFI check says (`machine::cfi::CfiReport`): the addresses of check and target.
fn parse_cfi_failure(line: &str) -> Option<[u64; 2]> {
    let (_, rest) = line.split_once("CFI failure at 0x")?;
    let (site, rest) = rest.split_once(" (target: 0x")?;
    let (target, _) = rest.split_once(';')?;
    let number = |hex| u64::from_str_radix(hex, 16).ok();
    Some([number(site)?, number(target)?])
}

/// The names of both, as far as they have one.
fn describe_cfi_failure(symbols: &Symbols<'_>, line: &str) -> String {
    let Some(addresses) = parse_cfi_failure(line) else { return String::new() };
    let mut text = String::new();
    for (what, address) in ["site", "target"].into_iter().zip(addresses) {
        if let Some(function) = symbols.function(address, address) {
            text += &format!("; {what} {function}");
        }
    }
    text
}

fn describe_address(symbols: &Symbols<'_>, probe: u64, address: u64) -> String {
    let mut text = String::new();
    if let Some(function) = symbols.function(probe, address) {
        text += &format!("  {function}");
    }
    if let Ok(Some(location)) = symbols.lines.find_location(probe)
        && let (Some(file), Some(line)) = (location.file, location.line)
    {
        text += &format!("  at {file}:{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        assert_eq!(parse_frame("  #3 0xffffffff80001000"), Some((3, 0xffff_ffff_8000_1000)));
        assert_eq!(parse_frame("#0 0x10 (irq)"), Some((0, 0x10)));
        for other in ["limen: panic: #1 0x", "  #x 0x1", "  # 0x1", "#1 0xg", "#1"] {
            assert_eq!(parse_frame(other), None, "{other}");
        }
    }

    #[test]
    fn failed_checks() {
        let line = "limen: panic: CFI failure at 0xffff80 (target: 0x10; expected type: 0x3; x";
        assert_eq!(parse_cfi_failure(line), Some([0x00ff_ff80, 0x10]));
        assert_eq!(parse_cfi_failure("limen: panic: CFI failure at 0xg (target: 0x1;"), None);
        assert_eq!(parse_cfi_failure("limen: panic: oh"), None);
    }

    #[test]
    fn own_functions_are_found() {
        // This test program stands in for a kernel image; its symbols are at link addresses.
        let image = std::env::current_exe().expect("own path");
        let lines = [format!("  #0 {:#x}", object_address(&image)), "other".to_owned()];
        let out = symbolise(&image, &lines);
        assert!(out[0].contains("main+0x0"), "{}", out[0]);
        assert_eq!(out[1], "other");
    }

    /// Address of the symbol `main` of an ELF file.
    fn object_address(image: &Path) -> u64 {
        let bytes = std::fs::read(image).expect("readable");
        let file = object::File::parse(&*bytes).expect("an ELF");
        file.symbols().find(|s| s.name() == Ok("main")).expect("has main").address()
    }
}
