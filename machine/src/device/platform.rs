//! What the machine consists of: CPUs, interrupt controllers, clocks, as the firmware says.
//!
//! A machine without tables, or with damaged ones, is used as what every PC is: one CPU, one I/O
//! APIC at its customary place. Neighbours: `formats::acpi` decodes, `smp`, `ioapic`, `time` and
//! `pci` ask here.

use alloc::vec::Vec;

use formats::acpi::{self, Firmware, IoApic};

use crate::cpu::features;
use crate::cpu::sealed::sealed;
use crate::cpu::sync::Once;
use crate::device::ioapic;
use crate::device::mmio::Registers;
use crate::memory::frame::phys_to_virt;

sealed! {
    static FIRMWARE: Once<Firmware> = Once::new();
    static COMMAND_LINE: Once<&'static str> = Once::new();
}

/// Where I/O APICs are when nobody says otherwise.
const IO_APIC_ADDRESS: u64 = 0xfec0_0000;
/// The first MiB is always mapped; the BIOS keeps its read-only part from here on.
const BIOS_AREA: core::ops::Range<u64> = 0xe_0000..0x10_0000;
/// The word that holds the segment of the extended BIOS data area (ACPI 6.5, 5.2.5.1).
const EBDA_SEGMENT: u64 = 0x40e;
const EBDA_BYTES: u64 = 1024;

/// Physical memory by uncached mappings made for the purpose: tables may lie outside of RAM.
struct Phys;

impl acpi::Memory for Phys {
    fn read(&self, phys: u64, len: usize) -> Option<Vec<u8>> {
        let end = phys.checked_add(len as u64)?;
        if end > 1 << features().physical_bits.clamp(32, 52) {
            return None;
        }
        let bytes = Registers::map(phys, len).ok()?;
        Some((0..len).map(|i| bytes.read8(i)).collect())
    }
}

/// Reads the tables and silences the old interrupt controllers. Needs the heap; before `time` and
/// `smp`.
pub(crate) fn init(rsdp: u64, command_line: &'static str) {
    COMMAND_LINE.call_once(|| command_line);
    let rsdp = if rsdp != 0 { rsdp } else { search_root_pointer().unwrap_or(0) };
    let mut firmware = acpi::read(rsdp, &Phys).unwrap_or_else(|_| {
        crate::log!("no ACPI tables: using one CPU and the customary I/O APIC");
        Firmware::default()
    });
    if firmware.io_apics.is_empty() {
        firmware.io_apics.push(IoApic { address: IO_APIC_ADDRESS, gsi_base: 0 });
    }
    FIRMWARE.call_once(|| firmware);
    ioapic::silence_8259();
}

fn search_root_pointer() -> Option<u64> {
    let low = |start: u64, len: u64| -> &'static [u8] {
        // SAFETY: inside the first MiB, which the direct map has and only the BIOS wrote.
        unsafe { core::slice::from_raw_parts(phys_to_virt(start), len as usize) }
    };
    let segment = low(EBDA_SEGMENT, 2);
    let ebda = u64::from(u16::from_le_bytes([segment[0], segment[1]])) << 4;
    let ebda = if ebda < BIOS_AREA.start { ebda } else { 0 };
    [(ebda, EBDA_BYTES), (BIOS_AREA.start, BIOS_AREA.end - BIOS_AREA.start)]
        .into_iter()
        .find_map(|(start, len)| Some(start + acpi::find_root_pointer(low(start, len))? as u64))
}

/// What the firmware says. Available after `init`.
pub(crate) fn firmware() -> &'static Firmware {
    FIRMWARE.get().expect("platform::init has run")
}

/// The kernel's command line, where devices are listed too. Available after `init`.
pub(crate) fn command_line() -> &'static str {
    COMMAND_LINE.get().expect("platform::init has run")
}

/// APIC ids of the CPUs, in the order of the tables; empty if nobody says.
pub(crate) fn cpus() -> &'static [u32] {
    &firmware().cpus
}
