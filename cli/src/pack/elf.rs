//! What an ELF file says about what it needs: interpreter, libraries, where to look for them.
//!
//! elf(5) and ld.so(8). Only files for this machine (64-bit, little-endian, x86-64) count.
//! Neighbour: `closure.rs`.

use std::path::Path;

use object::elf::{
    DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_STRTAB, EM_X86_64, FileHeader64, PT_DYNAMIC,
    PT_INTERP, PT_LOAD, ProgramHeader64,
};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, ReadRef as _};

/// Needs of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// PT_INTERP.
    pub(crate) interpreter: Option<String>,
    /// DT_NEEDED, in order.
    pub(crate) libraries: Vec<String>,
    /// DT_RPATH, split at colons, `$ORIGIN` unexpanded.
    pub(crate) rpath: Vec<String>,
    /// DT_RUNPATH, likewise.
    pub(crate) runpath: Vec<String>,
}

type Header = FileHeader64<LittleEndian>;
type Segment = ProgramHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

/// True if the bytes begin an ELF file for this machine.
pub(crate) fn is_ours(first_bytes: &[u8]) -> bool {
    Header::parse(first_bytes)
        .is_ok_and(|header| header.endian().is_ok() && header.e_machine(ENDIAN) == EM_X86_64)
}

/// Reads the needs of the file; `None` if it is no ELF file for this machine or is broken.
pub(crate) fn needs(host: &Path) -> Option<Needs> {
    parse(&std::fs::read(host).ok()?)
}

fn parse(data: &[u8]) -> Option<Needs> {
    let header = Header::parse(data).ok().filter(|_| is_ours(data))?;
    header.endian().ok()?;
    let segments: &[Segment] = header.program_headers(ENDIAN, data).ok()?;
    let mut needs = Needs::default();
    for segment in segments {
        match segment.p_type(ENDIAN) {
            PT_INTERP => {
                let text = segment.interpreter(ENDIAN, data).ok()??;
                needs.interpreter = Some(String::from_utf8_lossy(text).into_owned());
            }
            PT_DYNAMIC => read_dynamic(&mut needs, segments, segment, data)?,
            _ => {}
        }
    }
    Some(needs)
}

/// DT_NEEDED and its kin: offsets into the string table, which is given by address.
fn read_dynamic(
    needs: &mut Needs,
    segments: &[Segment],
    dynamic: &Segment,
    data: &[u8],
) -> Option<()> {
    let entries = dynamic.dynamic(ENDIAN, data).ok()??;
    let tags = || {
        // No tag that is looked for is wider than 32 bits.
        let value = |entry: &object::elf::Dyn64<LittleEndian>| {
            (entry.tag32(ENDIAN).unwrap_or(u32::MAX), entry.d_val(ENDIAN))
        };
        entries.iter().map(value).take_while(|(tag, _)| *tag != DT_NULL)
    };
    let table_address = tags().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let strings_at = file_offset(segments, table_address)?;
    let string = |offset: u64| {
        let at = strings_at.checked_add(offset)?;
        let text = data.read_bytes_at_until(at..data.len() as u64, 0).ok()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let split = |text: String| text.split(':').map(str::to_owned).collect();
    for (tag, value) in tags() {
        match tag {
            DT_NEEDED => needs.libraries.push(string(value)?),
            DT_RPATH => needs.rpath = split(string(value)?),
            DT_RUNPATH => needs.runpath = split(string(value)?),
            _ => {}
        }
    }
    Some(())
}

/// Where in the file a loaded address comes from.
fn file_offset(segments: &[Segment], address: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.p_type(ENDIAN) == PT_LOAD).find_map(|segment| {
        let within = address.checked_sub(segment.p_vaddr(ENDIAN))?;
        let in_file = within < segment.p_filesz(ENDIAN);
        in_file.then(|| segment.p_offset(ENDIAN).checked_add(within))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_libc() {
        let needs = needs(Path::new("/proc/self/exe")).expect("an ELF");
        assert!(needs.libraries.iter().any(|name| name == "libc.so.6"), "{needs:?}");
        assert!(needs.interpreter.is_some_and(|path| path.contains("ld-linux-x86-64")));
    }

    #[test]
    fn broken_files_are_none_and_never_panic() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"#!/bin/sh\n"), None);
        let good = std::fs::read("/proc/self/exe").expect("readable");
        let mut bytes = good[..8192].to_vec();
        for at in 0..1024 {
            for value in [0, 0x7f, 0xff] {
                let old = std::mem::replace(&mut bytes[at], value);
                let _ = parse(&bytes);
                bytes[at] = old;
            }
            let _ = parse(&bytes[..at]);
        }
    }
}
