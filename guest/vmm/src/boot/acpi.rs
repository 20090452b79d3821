//! What ACPI tells of the machine (ACPI 6.5, chapter 5): its CPUs and I/O APIC, how it is reset,
//! and, for kernels that take no devices from their parameters, the virtio devices and COM1.
//!
//! The machine is of the reduced kind: no fixed hardware, no firmware's memory. The tables stand
//! one behind the other where a BIOS would be, which the memory map leaves out.

use acpi_tables::Aml;
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Name, ONE, Path, ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::{COM1, COM1_IRQ, KEYBOARD};
use crate::machine::Result;

/// Where the root pointer is; the tables follow.
pub(super) const ROOT: u64 = 0xe_0000;
const TABLES: u64 = ROOT + 0x40;
/// The tables end below the first MiB.
const END: u64 = 0x10_0000;
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const OEM: [u8; 6] = *b"LIMEN ";
const OEM_TABLE: [u8; 8] = *b"LIMENVMM";

/// A device on virtio-mmio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Virtio {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) line: u32,
}

/// Writes all tables.
pub(super) fn write(memory: &GuestMemoryMmap, cpus: u8, devices: &[Virtio]) -> Result<()> {
    let mut at = TABLES;
    let mut put = |table: &dyn Aml| -> Result<u64> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let place = at;
        at = (at + bytes.len() as u64).next_multiple_of(16);
        if at > END {
            return Err("ACPI's tables are too long".into());
        }
        memory.write_slice(&bytes, GuestAddress(place)).map_err(|e| format!("ACPI: {e}"))?;
        Ok(place)
    };
    let dsdt = put(&description(devices))?;
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, 1)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup);
    let (port, value) = KEYBOARD;
    let byte = AccessSize::ByteAccess;
    fadt.reset_reg = GAS::new(AddressSpace::SystemIo, 8, 0, byte, port.into());
    fadt.reset_value = value;
    let fadt = put(&fadt.finalize())?;
    let local = LocalInterruptController::Address(LOCAL_APIC);
    let mut madt = MADT::new(OEM, OEM_TABLE, 1, local);
    for cpu in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, IO_APIC, 0));
    let madt = put(&madt)?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, 1);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = put(&xsdt)?;
    let mut root = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut root);
    memory.write_slice(&root, GuestAddress(ROOT)).map_err(|e| format!("ACPI: {e}"))
}

/// The table of devices.
fn description(devices: &[Virtio]) -> Sdt {
    const HEADER_BYTES: u32 = 36;
    let mut code = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let (at, bytes) = (device.address as u32, device.bytes as u32);
        in_the_system(
            &mut code,
            &format!("VIO{number}"),
            &[
                &Name::new(Path::new("_HID"), &"LNRO0005"),
                &Name::new(Path::new("_UID"), &(number as u32)),
                // It may be used by what it does by itself: no cache is to be kept up.
                &Name::new(Path::new("_CCA"), &ONE),
                &Name::new(
                    Path::new("_CRS"),
                    &ResourceTemplate::new(vec![
                        &Memory32Fixed::new(true, at, bytes),
                        &Interrupt::new(true, true, false, false, device.line),
                    ]),
                ),
            ],
        );
    }
    in_the_system(
        &mut code,
        "COM1",
        &[
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &ONE),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &IO::new(COM1, COM1, 1, 8),
                    &Interrupt::new(true, true, false, false, COM1_IRQ),
                ]),
            ),
        ],
    );
    let mut table = Sdt::new(*b"DSDT", HEADER_BYTES, 2, OEM, OEM_TABLE, 1);
    table.append_slice(&code);
    table
}

/// One device under `\_SB_`.
fn in_the_system(code: &mut Vec<u8>, name: &str, parts: &[&dyn Aml]) {
    let device = Device::new(Path::new(name), parts.to_vec());
    Scope::new(Path::new("\\_SB_"), vec![&device]).to_aml_bytes(code);
}
