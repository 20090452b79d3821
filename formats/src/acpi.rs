//! The firmware's static tables (ACPI 6.5, chapter 5): which CPUs, interrupt controllers and clocks
//! a machine has.
//!
//! Only tables of plain fields are read. What is described in AML (the devices of a QEMU microVM,
//! for instance) would need an interpreter; the kernel finds those devices by their fixed places.
//!
//! Why it is hard: addresses and lengths come from outside the kernel and point anywhere. Every
//! read goes through [`Memory`], every length is checked before use and bounded, a table that is
//! cut off or whose checksum is wrong is left out, and the rest still counts.
//!
//! Neighbours: `machine/src/device/platform.rs` reads the tables with this and acts on them.

use alloc::vec::Vec;

/// Most tables looked at.
const MAX_TABLES: usize = 64;
/// Longest table read, in bytes.
const MAX_TABLE_BYTES: u32 = 64 * 1024;
/// Most CPUs, I/O APICs and overrides kept of each.
const MAX_ENTRIES: usize = 512;
/// Bytes of the header that all tables but the root pointer have.
const HEADER_BYTES: usize = 36;

/// Physical memory, as the tables refer to it.
pub trait Memory {
    /// Copies `len` bytes at physical address `phys`; `None` if there can be no memory.
    fn read(&self, phys: u64, len: usize) -> Option<Vec<u8>>;
}

/// An I/O APIC: its registers, and the first global system interrupt it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Physical address of its registers.
    pub address: u64,
    /// Number of its first input.
    pub gsi_base: u32,
}

/// An ISA interrupt that arrives elsewhere or in another way than its number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The ISA interrupt, 0 to 15.
    pub irq: u8,
    /// Where it arrives.
    pub gsi: u32,
    /// Whether the line is active when low.
    pub active_low: bool,
    /// Whether the line is level-triggered.
    pub level: bool,
}

/// The power management timer: 3.579545 MHz, read from an I/O port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmTimer {
    /// Its I/O port.
    pub port: u16,
    /// Whether it counts 32 bits, and not 24.
    pub wide: bool,
}

/// PCI configuration space in memory (PCI Firmware Specification 3.3, table 4-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Physical address of bus 0.
    pub base: u64,
    /// First bus decoded.
    pub first_bus: u8,
    /// Last bus decoded.
    pub last_bus: u8,
}

/// What the tables say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firmware {
    /// Local APIC ids of the enabled CPUs, in the order of the table.
    pub cpus: Vec<u32>,
    /// The I/O APICs.
    pub io_apics: Vec<IoApic>,
    /// Interrupt source overrides.
    pub overrides: Vec<Override>,
    /// Physical address of the HPET's registers.
    pub hpet: Option<u64>,
    /// The power management timer.
    pub pm_timer: Option<PmTimer>,
    /// PCI configuration space of segment 0.
    pub ecam: Option<Ecam>,
}

/// Why there are no tables to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no valid root pointer at the address.
    NoRootPointer,
    /// The table of tables is missing, cut off or damaged.
    NoRootTable,
}

/// Reads the tables that the root pointer at physical address `rsdp` leads to.
pub fn read(rsdp: u64, memory: &dyn Memory) -> Result<Firmware, Error> {
    let (root, entry_bytes) = root_table(rsdp, memory).ok_or(Error::NoRootPointer)?;
    let root = read_table(root, memory).ok_or(Error::NoRootTable)?;
    let mut firmware = Firmware::default();
    for entry in root[HEADER_BYTES..].chunks_exact(entry_bytes).take(MAX_TABLES) {
        let mut address = [0; 8];
        address[..entry_bytes].copy_from_slice(entry);
        if let Some(table) = read_table(u64::from_le_bytes(address), memory) {
            firmware.take(&table);
        }
    }
    Ok(firmware)
}

/// Offset of a valid root pointer in a copy of the BIOS area, where it lies on a multiple of 16
/// (ACPI 6.5, 5.2.5.1).
pub fn find_root_pointer(area: &[u8]) -> Option<usize> {
    (0..area.len()).step_by(16).find(|&at| is_root_pointer(&area[at..]))
}

fn is_root_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RSD PTR ") && bytes.get(..20).is_some_and(|bytes| sum(bytes) == 0)
}

/// Address of the table of tables, and the size of its entries.
fn root_table(rsdp: u64, memory: &dyn Memory) -> Option<(u64, usize)> {
    if rsdp == 0 {
        return None;
    }
    let first = memory.read(rsdp, 20)?;
    if !is_root_pointer(&first) {
        return None;
    }
    let revision = first[15];
    if revision >= 2
        && let Some(second) = memory.read(rsdp, 36)
        && sum(&second) == 0
        && let xsdt @ 1.. = u64_at(&second, 24)?
    {
        return Some((xsdt, 8));
    }
    Some((u64::from(u32_at(&first, 16)?), 4))
}

/// A whole table with its header; `None` unless its length and checksum are right.
fn read_table(phys: u64, memory: &dyn Memory) -> Option<Vec<u8>> {
    if phys == 0 {
        return None;
    }
    let len = u32_at(&memory.read(phys, 8)?, 4)?;
    if !(HEADER_BYTES as u32..=MAX_TABLE_BYTES).contains(&len) {
        return None;
    }
    let table = memory.read(phys, len as usize)?;
    (table.len() == len as usize && sum(&table) == 0).then_some(table)
}

impl Firmware {
    fn take(&mut self, table: &[u8]) {
        match &table[..4] {
            b"APIC" => self.take_madt(table),
            b"FACP" => self.pm_timer = pm_timer(table),
            b"HPET" => self.hpet = hpet(table),
            b"MCFG" => self.ecam = ecam(table),
            _ => {}
        }
    }

    /// The MADT (ACPI 6.5, 5.2.12): entries of kind, length, fields, from byte 44 on.
    fn take_madt(&mut self, table: &[u8]) {
        let mut rest = table.get(44..).unwrap_or(&[]);
        while let [kind, len, ..] = *rest
            && len >= 2
            && let Some((entry, next)) = rest.split_at_checked(usize::from(len))
        {
            // An entry shorter than its kind demands is left out.
            let _ = self.take_madt_entry(kind, entry);
            rest = next;
        }
    }

    fn take_madt_entry(&mut self, kind: u8, entry: &[u8]) -> Option<()> {
        const ENABLED: u32 = 1;
        match kind {
            0 if u32_at(entry, 4)? & ENABLED != 0 => self.add_cpu(u32::from(entry[3])),
            9 if u32_at(entry, 8)? & ENABLED != 0 => self.add_cpu(u32_at(entry, 4)?),
            1 if self.io_apics.len() < MAX_ENTRIES => self.io_apics.push(IoApic {
                address: u64::from(u32_at(entry, 4)?),
                gsi_base: u32_at(entry, 8)?,
            }),
            2 if self.overrides.len() < MAX_ENTRIES => {
                let flags = u16_at(entry, 8)?;
                self.overrides.push(Override {
                    irq: entry[3],
                    gsi: u32_at(entry, 4)?,
                    active_low: flags & 3 == 3,
                    level: flags >> 2 & 3 == 3,
                });
            }
            _ => {}
        }
        Some(())
    }

    fn add_cpu(&mut self, apic_id: u32) {
        if self.cpus.len() < MAX_ENTRIES && !self.cpus.contains(&apic_id) {
            self.cpus.push(apic_id);
        }
    }
}

/// The timer's port, from the FADT (ACPI 6.5, 5.2.9). A hardware-reduced machine has none.
fn pm_timer(table: &[u8]) -> Option<PmTimer> {
    const HARDWARE_REDUCED: u32 = 1 << 20;
    const TIMER_IS_32_BITS: u32 = 1 << 8;
    let flags = u32_at(table, 112)?;
    let port = u16::try_from(u32_at(table, 76)?).ok()?;
    (port != 0 && table[91] == 4 && flags & HARDWARE_REDUCED == 0)
        .then_some(PmTimer { port, wide: flags & TIMER_IS_32_BITS != 0 })
}

/// Address from the HPET table (IA-PC HPET 1.0a, 3.2.4), if it is in memory.
fn hpet(table: &[u8]) -> Option<u64> {
    const SYSTEM_MEMORY: u8 = 0;
    let address = u64_at(table, 44)?;
    (table[40] == SYSTEM_MEMORY && address != 0).then_some(address)
}

fn ecam(table: &[u8]) -> Option<Ecam> {
    table.get(44..)?.chunks_exact(16).find_map(|entry| {
        let (base, segment) = (u64_at(entry, 0)?, u16_at(entry, 8)?);
        (segment == 0 && base != 0 && entry[10] <= entry[11]).then_some(Ecam {
            base,
            first_bus: entry[10],
            last_bus: entry[11],
        })
    })
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// Memory from address 0 on.
    struct Flat(Vec<u8>);

    impl Memory for Flat {
        fn read(&self, phys: u64, len: usize) -> Option<Vec<u8>> {
            let start = usize::try_from(phys).ok()?;
            Some(self.0.get(start..start.checked_add(len)?)?.to_vec())
        }
    }

    fn fix_checksum(bytes: &mut [u8], at: usize) {
        bytes[at] = 0;
        bytes[at] = 0u8.wrapping_sub(sum(bytes));
    }

    fn table(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut table = vec![0; HEADER_BYTES];
        table[..4].copy_from_slice(name);
        table.extend_from_slice(body);
        let len = table.len() as u32;
        table[4..8].copy_from_slice(&len.to_le_bytes());
        fix_checksum(&mut table, 9);
        table
    }

    fn madt() -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend([0, 8, 0, 0, 1, 0, 0, 0]); // CPU 0
        body.extend([0, 8, 1, 5, 1, 0, 0, 0]); // CPU with id 5
        body.extend([0, 8, 2, 6, 0, 0, 0, 0]); // disabled
        body.extend([9, 16, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]); // id 256
        body.extend([1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        body.extend([2, 10, 0, 9, 9, 0, 0, 0, 0xf, 0]);
        table(b"APIC", &body)
    }

    /// A machine whose XSDT, at 64, lists `tables` laid from 4096 on.
    fn machine(tables: &[Vec<u8>]) -> Flat {
        let mut memory = vec![0; 64 * 1024];
        let mut at = 4096;
        let mut list = Vec::new();
        for table in tables {
            memory[at..at + table.len()].copy_from_slice(table);
            list.extend((at as u64).to_le_bytes());
            at += table.len().next_multiple_of(16);
        }
        let xsdt = table(b"XSDT", &list);
        memory[64..64 + xsdt.len()].copy_from_slice(&xsdt);
        let root = &mut memory[16..52];
        root[..8].copy_from_slice(b"RSD PTR ");
        root[15] = 2;
        root[20] = 36;
        root[24] = 64;
        fix_checksum(&mut root[..20], 8);
        fix_checksum(root, 32);
        Flat(memory)
    }

    #[test]
    fn all_tables_are_read() {
        let mut fadt = vec![0; 129 - HEADER_BYTES];
        fadt[76 - 36..78 - 36].copy_from_slice(&0x608u16.to_le_bytes());
        fadt[91 - 36] = 4;
        fadt[113 - 36] = 1;
        let mut hpet = vec![0; 20];
        hpet[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
        let mut mcfg = vec![0; 24];
        mcfg[8..16].copy_from_slice(&0xb000_0000u64.to_le_bytes());
        mcfg[19] = 255;
        let memory = machine(&[
            madt(),
            table(b"FACP", &fadt),
            table(b"HPET", &hpet),
            table(b"MCFG", &mcfg),
            table(b"ZZZZ", &[]),
        ]);
        let expected = Firmware {
            cpus: vec![0, 5, 256],
            io_apics: vec![IoApic { address: 0xfec0_0000, gsi_base: 0 }],
            overrides: vec![Override { irq: 9, gsi: 9, active_low: true, level: true }],
            hpet: Some(0xfed0_0000),
            pm_timer: Some(PmTimer { port: 0x608, wide: true }),
            ecam: Some(Ecam { base: 0xb000_0000, first_bus: 0, last_bus: 255 }),
        };
        assert_eq!(read(16, &memory), Ok(expected));
    }

    #[test]
    fn a_damaged_table_is_left_out_and_the_others_count() {
        let mut bad = table(b"HPET", &[1; 20]);
        bad[50] ^= 1;
        let firmware = read(16, &machine(&[bad, madt()])).unwrap();
        assert_eq!(firmware.hpet, None);
        assert_eq!(firmware.cpus, [0, 5, 256]);
    }

    #[test]
    fn a_missing_root_is_an_error() {
        let memory = machine(&[]);
        assert_eq!(read(0, &memory), Err(Error::NoRootPointer));
        assert_eq!(read(32, &memory), Err(Error::NoRootPointer));
        assert_eq!(read(u64::MAX - 3, &memory), Err(Error::NoRootPointer));
        let mut damaged = machine(&[]);
        damaged.0[64] ^= 1;
        assert_eq!(read(16, &damaged), Err(Error::NoRootTable));
    }

    #[test]
    fn the_root_pointer_is_found_by_search() {
        assert_eq!(find_root_pointer(&machine(&[]).0), Some(16));
        assert_eq!(find_root_pointer(&[0; 4096]), None);
        assert_eq!(find_root_pointer(b"RSD PTR "), None);
    }

    #[test]
    fn entries_of_length_zero_end_the_walk() {
        let firmware = read(16, &machine(&[table(b"APIC", &[0; 4096])])).unwrap();
        assert_eq!(firmware, Firmware::default());
    }

    proptest! {
        /// Nothing in a table's body makes the reader panic or run long.
        #[test]
        fn hostile_bodies_are_survived(
            name in prop::sample::select(vec![*b"APIC", *b"FACP", *b"HPET", *b"MCFG"]),
            body in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let firmware = read(16, &machine(&[table(&name, &body)])).unwrap();
            prop_assert!(firmware.cpus.len() <= MAX_ENTRIES);
        }

        /// Nor does memory in which any byte of the root was changed.
        #[test]
        fn hostile_memory_is_survived(
            changes in prop::collection::vec((0..6000usize, any::<u8>()), 0..8),
        ) {
            let mut memory = machine(&[madt()]);
            for (at, byte) in changes {
                memory.0[at] = byte;
            }
            let _ = read(16, &memory);
        }
    }
}
