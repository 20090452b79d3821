//! RDMSR and WRMSR, of the guest and of the VMM.

use super::{Host, Outcome, Vcpu};
use crate::event::vector;
use crate::exit::Vmrun;
use crate::msr;
use crate::regs::{cr, gpr};

/// EFER bits that can be written; LMA follows LME and CR0.PG.
const EFER_WRITABLE: u64 = cr::EFER_SCE | cr::EFER_LME | cr::EFER_NXE | cr::EFER_FFXSR;

impl<H: Vmrun> Vcpu<H> {
    /// A model-specific register; None: the guest has no such.
    pub fn read_msr(&mut self, host: &mut impl Host, number: u32) -> Option<u64> {
        if let Some(value) = self.hardware.msr(number) {
            return Some(value);
        }
        match number {
            msr::EFER => Some(self.hardware.system().efer),
            msr::TSC => Some(host.tsc().wrapping_add(*self.hardware.tsc_offset())),
            _ => host
                .read_msr(number)
                .or_else(|| Some(self.msrs[msr::plain_index(number)?]))
                .or_else(|| msr::constant(number)),
        }
    }

    /// Sets one; false: there is no such, or not with that value. `by_guest`: as WRMSR, else as a
    /// VMM restores state.
    pub fn write_msr(
        &mut self,
        host: &mut impl Host,
        number: u32,
        value: u64,
        by_guest: bool,
    ) -> bool {
        if number == msr::PAT && !is_valid_pat(value) {
            return false;
        }
        if is_address(number) && !is_canonical(value) {
            return false;
        }
        if self.hardware.set_msr(number, value) {
            return true;
        }
        match number {
            msr::EFER => self.write_efer(value, by_guest),
            msr::TSC => {
                *self.hardware.tsc_offset() = host.tsc_offset(value, by_guest);
                true
            }
            _ => {
                if let Some(done) = host.write_msr(number, value) {
                    return done;
                }
                if let Some(at) = msr::plain_index(number) {
                    self.msrs[at] = value;
                    return true;
                }
                msr::constant(number).is_some()
            }
        }
    }

    fn write_efer(&mut self, value: u64, by_guest: bool) -> bool {
        let mut system = self.hardware.system();
        let value = value & !cr::EFER_LMA;
        if value & !EFER_WRITABLE != 0 {
            return false;
        }
        let changes_mode = (system.efer ^ value) & cr::EFER_LME != 0;
        if by_guest && changes_mode && system.cr0 & cr::CR0_PG != 0 {
            return false;
        }
        system.efer = value | system.efer & cr::EFER_LMA;
        self.hardware.set_system(&system);
        true
    }

    pub(super) fn read_msr_exit(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let number = self.hardware.gprs()[gpr::RCX] as u32;
        let Some(value) = self.read_msr(host, number) else {
            return self.raise(vector::GP, Some(0));
        };
        let outcome = self.skip(host);
        if outcome.is_none() && self.pending.exception.is_none() {
            let gprs = self.hardware.gprs();
            gprs[gpr::RAX] = value & 0xffff_ffff;
            gprs[gpr::RDX] = value >> 32;
        }
        outcome
    }

    pub(super) fn write_msr_exit(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let gprs = self.hardware.gprs();
        let number = gprs[gpr::RCX] as u32;
        let value = gprs[gpr::RDX] << 32 | gprs[gpr::RAX] & 0xffff_ffff;
        if !self.write_msr(host, number, value, true) {
            return self.raise(vector::GP, Some(0));
        }
        self.skip(host)
    }
}

/// Registers that hold linear addresses.
fn is_address(number: u32) -> bool {
    matches!(
        number,
        msr::FS_BASE
            | msr::GS_BASE
            | msr::KERNEL_GS_BASE
            | msr::LSTAR
            | msr::CSTAR
            | msr::SYSENTER_ESP
            | msr::SYSENTER_EIP
    )
}

fn is_canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// Each byte of the PAT is one of six memory types (AMD APM 2, 7.8.1).
fn is_valid_pat(value: u64) -> bool {
    value.to_le_bytes().iter().all(|kind| matches!(kind, 0 | 1 | 4..=7))
}
