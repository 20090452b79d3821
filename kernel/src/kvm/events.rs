//! Eventfds at a guest: one that is signalled by what the guest writes (KVM_IOEVENTFD), and one
//! that is an interrupt line (KVM_IRQFD). Neither needs the VMM's thread.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::kvm::{self, IoEventFd, IrqFd};
use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::vm::Vm;
use crate::base::poll::{PollTable, events};
use crate::base::sync::Wake;
use crate::io::eventfd::EventFd;
use crate::process::current;
use crate::vfs::File;

/// Most of either kind at one guest.
const MAX_EVENTS: usize = 1024;

/// A place in the guest's memory or ports.
#[derive(Clone)]
pub(super) struct Doorbell {
    is_port: bool,
    address: u64,
    /// 0: any.
    len: usize,
    /// Only this value counts.
    value: Option<u64>,
    file: Arc<File>,
}

impl Doorbell {
    /// Whether a write is meant, and told.
    pub(super) fn ring(&self, is_port: bool, address: u64, from: &[u8]) -> bool {
        let matches_len = self.len == 0 || self.len == from.len();
        if self.is_port != is_port || self.address != address || !matches_len {
            return false;
        }
        let value = from.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
        let is_meant = self.value.is_none_or(|wanted| wanted == value);
        if is_meant && let Some(event) = self.file.ops_as::<EventFd>() {
            event.signal();
        }
        is_meant
    }

    fn is_same(&self, other: &Doorbell) -> bool {
        Arc::ptr_eq(self.file.ops(), other.file.ops())
            && (self.is_port, self.address, self.len, self.value)
                == (other.is_port, other.address, other.len, other.value)
    }
}

fn event_file(fd: u32) -> Result<Arc<File>> {
    let file = current().files().get(fd)?;
    if file.ops_as::<EventFd>().is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(file)
}

/// KVM_IOEVENTFD.
pub(super) fn set_doorbell(vm: &Vm, asked: &IoEventFd) -> Result<u64> {
    let known =
        kvm::IOEVENTFD_FLAG_DATAMATCH | kvm::IOEVENTFD_FLAG_PIO | kvm::IOEVENTFD_FLAG_DEASSIGN;
    let matches_value = asked.flags & kvm::IOEVENTFD_FLAG_DATAMATCH != 0;
    let ends = asked.addr.checked_add(asked.len.into()).is_some();
    let has_len = matches!(asked.len, 1 | 2 | 4 | 8) || asked.len == 0 && !matches_value;
    if asked.flags & !known != 0 || !ends || !has_len {
        return Err(Errno::EINVAL);
    }
    let bell = Doorbell {
        is_port: asked.flags & kvm::IOEVENTFD_FLAG_PIO != 0,
        address: asked.addr,
        len: asked.len as usize,
        value: matches_value.then_some(asked.datamatch),
        file: event_file(asked.fd as u32)?,
    };
    let removed = vm.change_doorbells(|bells| {
        let at = bells.iter().position(|other| other.is_same(&bell));
        if asked.flags & kvm::IOEVENTFD_FLAG_DEASSIGN != 0 {
            return Ok(Some(bells.remove(at.ok_or(Errno::ENOENT)?)));
        }
        if at.is_some() {
            return Err(Errno::EEXIST);
        }
        if bells.len() == MAX_EVENTS {
            return Err(Errno::ENOSPC);
        }
        bells.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        bells.push(bell.clone());
        Ok(None)
    })?;
    drop(removed);
    Ok(0)
}

/// An interrupt line that is an eventfd.
pub(super) struct Line {
    vm: Weak<Vm>,
    pub(super) number: u32,
    file: Arc<File>,
    /// The line stays up until its interrupt is ended, and this is signalled then.
    resample: Option<Arc<File>>,
    is_up: AtomicBool,
    /// Registered with the eventfd's queue while this is there.
    registration: SpinLock<Option<PollTable>>,
}

impl Line {
    fn fire(&self) {
        let Some(event) = self.file.ops_as::<EventFd>() else { return };
        let Some(vm) = self.vm.upgrade() else { return };
        let Some(chip) = vm.irqchip.get() else { return };
        if event.consume().is_none() {
            return;
        }
        chip.set_line(&vm, self.number, true);
        if self.resample.is_some() {
            self.is_up.store(true, Ordering::SeqCst);
        } else {
            chip.set_line(&vm, self.number, false);
        }
    }

    /// The CPUs have ended the interrupt of its line.
    pub(super) fn ended(&self, vm: &Vm) {
        let Some(resample) = &self.resample else { return };
        if !self.is_up.swap(false, Ordering::SeqCst) {
            return;
        }
        if let Some(chip) = vm.irqchip.get() {
            chip.set_line(vm, self.number, false);
        }
        if let Some(event) = resample.ops_as::<EventFd>() {
            event.signal();
        }
    }

    /// It is no line any more.
    pub(super) fn stop(&self) {
        let registration = self.registration.lock().take();
        drop(registration);
    }
}

impl Wake for Line {
    fn wake(&self, events: u32) -> bool {
        if events == 0 || events & events::IN != 0 {
            self.fire();
        }
        // A reader that waits still has its turn.
        false
    }
}

/// KVM_IRQFD.
pub(super) fn set_line(vm: &Arc<Vm>, asked: &IrqFd) -> Result<u64> {
    if asked.flags & !(kvm::IRQFD_FLAG_DEASSIGN | kvm::IRQFD_FLAG_RESAMPLE) != 0
        || asked.gsi as usize >= super::irqchip::MAX_ROUTES
        || vm.irqchip.get().is_none()
    {
        return Err(Errno::EINVAL);
    }
    let file = event_file(asked.fd)?;
    let is_same = |line: &Arc<Line>| Arc::ptr_eq(line.file.ops(), file.ops());
    if asked.flags & kvm::IRQFD_FLAG_DEASSIGN != 0 {
        let removed = vm.change_lines(|lines| {
            let at = lines.iter().position(|line| is_same(line) && line.number == asked.gsi);
            Ok(at.map(|at| lines.remove(at)))
        })?;
        removed.into_iter().for_each(|line| line.stop());
        return Ok(0);
    }
    let resample = match asked.flags & kvm::IRQFD_FLAG_RESAMPLE {
        0 => None,
        _ => Some(event_file(asked.resamplefd)?),
    };
    let line = Arc::new(Line {
        vm: Arc::downgrade(vm),
        number: asked.gsi,
        file: file.clone(),
        resample,
        is_up: AtomicBool::new(false),
        registration: SpinLock::new(None),
    });
    vm.change_lines(|lines| {
        if lines.iter().any(is_same) {
            return Err(Errno::EBUSY);
        }
        if lines.len() == MAX_EVENTS {
            return Err(Errno::ENOSPC);
        }
        lines.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        lines.push(line.clone());
        Ok(())
    })?;
    let mut table = PollTable::register(line.clone(), false);
    file.ops().poll(&file, &mut table);
    let registered = table.check();
    *line.registration.lock() = Some(table);
    if let Err(error) = registered {
        line.stop();
        vm.change_lines(|lines| {
            lines.retain(|other| !Arc::ptr_eq(other, &line));
            Ok(())
        })?;
        return Err(error);
    }
    // It may have been signalled before.
    line.fire();
    Ok(0)
}
