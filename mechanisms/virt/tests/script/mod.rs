//! A CPU that exits as a script says, and a world that remembers what was done to it.

use std::collections::{BTreeMap, VecDeque};

use virt::exit::{Entered, Exit, Vmrun, Windows};
use virt::regs::{Gprs, Segment, System};
use virt::vcpu::{Host, Interrupts, Mapped, Signals, Vcpu, Waited};
use virt::{Event, msr};

/// The CPU.
pub(crate) struct Script {
    pub(crate) exits: VecDeque<Exit>,
    pub(crate) injected: Vec<Event>,
    pub(crate) windows: Vec<Windows>,
    pub(crate) cut: Option<Event>,
    pub(crate) gprs: Gprs,
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
    pub(crate) system: System,
    pub(crate) shadow: bool,
    pub(crate) debug: [u64; 8],
    pub(crate) offset: u64,
    pub(crate) xcr0: u64,
    pub(crate) priority: u8,
    pub(crate) msrs: BTreeMap<u32, u64>,
}

pub(crate) fn cpu(exits: &[Exit]) -> Vcpu<Script> {
    let script = Script {
        exits: exits.iter().copied().collect(),
        injected: vec![],
        windows: vec![],
        cut: None,
        gprs: [0; 16],
        rip: 0,
        rflags: 2,
        system: System::reset(),
        shadow: false,
        debug: [0; 8],
        offset: 0,
        xcr0: 1,
        priority: 0,
        msrs: [(msr::STAR, 0), (msr::LSTAR, 0)].into(),
    };
    let mut cpu = Vcpu::new(script).expect("memory");
    cpu.hardware.system.segments[1].base = 0;
    cpu.hardware.rip = 0x100;
    cpu
}

impl Vmrun for Script {
    fn gprs(&mut self) -> &mut Gprs {
        &mut self.gprs
    }
    fn rip(&self) -> u64 {
        self.rip
    }
    fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }
    fn rflags(&self) -> u64 {
        self.rflags
    }
    fn set_rflags(&mut self, rflags: u64) {
        self.rflags = rflags;
    }
    fn system(&self) -> System {
        self.system
    }
    fn set_system(&mut self, system: &System) {
        self.system = *system;
    }
    fn segment(&self, index: usize) -> Segment {
        self.system.segments[index & 7]
    }
    fn cpl(&self) -> u8 {
        0
    }
    fn shadow(&self) -> bool {
        self.shadow
    }
    fn set_shadow(&mut self, shadow: bool) {
        self.shadow = shadow;
    }
    fn msr(&self, number: u32) -> Option<u64> {
        self.msrs.get(&number).copied()
    }
    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        self.msrs.get_mut(&number).map(|slot| *slot = value).is_some()
    }
    fn debug_registers(&mut self) -> &mut [u64; 8] {
        &mut self.debug
    }
    fn tsc_offset(&mut self) -> &mut u64 {
        &mut self.offset
    }
    fn xcr0(&mut self) -> &mut u64 {
        &mut self.xcr0
    }
    fn priority(&self) -> u8 {
        self.priority
    }
    fn set_priority(&mut self, priority: u8) {
        self.priority = priority;
    }
    fn next_rip(&self) -> Option<u64> {
        None
    }
    fn inject(&mut self, event: Event) {
        self.injected.push(event);
    }
    fn cut_short(&mut self) -> Option<Event> {
        self.cut.take()
    }
    fn flush_translations(&mut self) {}
    fn enter(&mut self, windows: Windows, is_busy: &mut dyn FnMut() -> bool) -> Entered {
        self.windows.push(windows);
        if is_busy() {
            return Entered::Busy;
        }
        Entered::Left(self.exits.pop_front().unwrap_or(Exit::Shutdown))
    }
}

/// The world: memory from 0 on, devices above.
pub(crate) struct World {
    pub(crate) memory: Vec<u8>,
    pub(crate) controller: Option<Interrupts>,
    pub(crate) acknowledged: u32,
    pub(crate) signals: Signals,
    pub(crate) works: u32,
    pub(crate) busy: VecDeque<bool>,
    pub(crate) leave_after: u32,
}

pub(crate) fn world(code: &[u8]) -> World {
    let mut memory = vec![0; 0x4000];
    memory[0x100..0x100 + code.len()].copy_from_slice(code);
    World {
        memory,
        controller: None,
        acknowledged: 0,
        signals: Signals::default(),
        works: 0,
        busy: VecDeque::new(),
        leave_after: 1000,
    }
}

impl Host for World {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let Ok(at) = usize::try_from(address) else { return false };
        let end = at.saturating_add(into.len());
        self.memory.get(at..end).map(|from| into.copy_from_slice(from)).is_some()
    }
    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        let Ok(at) = usize::try_from(address) else { return false };
        let end = at.saturating_add(from.len());
        self.memory.get_mut(at..end).map(|to| to.copy_from_slice(from)).is_some()
    }
    fn map(&mut self, address: u64, _write: bool, _exec: bool) -> Mapped {
        if address < self.memory.len() as u64 { Mapped::Memory } else { Mapped::Device }
    }
    fn device_read(&mut self, _address: u64, _into: &mut [u8]) -> bool {
        false
    }
    fn device_write(&mut self, _address: u64, _from: &[u8]) -> bool {
        false
    }
    fn port_read(&mut self, _port: u16, _into: &mut [u8]) -> bool {
        false
    }
    fn port_write(&mut self, _port: u16, _from: &[u8]) -> bool {
        false
    }
    fn is_busy(&mut self) -> bool {
        self.busy.pop_front().unwrap_or(false)
    }
    fn work(&mut self) -> bool {
        self.works += 1;
        self.works > self.leave_after
    }
    fn has_controller(&self) -> bool {
        self.controller.is_some()
    }
    fn interrupts(&mut self) -> Interrupts {
        self.controller.unwrap_or_default()
    }
    fn acknowledge(&mut self) -> Option<u8> {
        self.acknowledged += 1;
        if let Some(controller) = &mut self.controller {
            controller.ready = false;
        }
        Some(0x41)
    }
    fn set_priority(&mut self, priority: u8) {
        if let Some(controller) = &mut self.controller {
            controller.priority = priority;
        }
    }
    fn signals(&mut self) -> Signals {
        core::mem::take(&mut self.signals)
    }
    fn wait(&mut self) -> Waited {
        Waited::Interrupted
    }
    fn pause(&mut self) {}
    fn read_msr(&mut self, _number: u32) -> Option<u64> {
        None
    }
    fn write_msr(&mut self, _number: u32, _value: u64) -> Option<bool> {
        None
    }
    fn is_boot_cpu(&self) -> bool {
        false
    }
    fn tsc(&self) -> u64 {
        1000
    }
    fn tsc_offset(&mut self, value: u64, _by_guest: bool) -> u64 {
        value.wrapping_sub(1000)
    }
    fn xcr0_allowed(&self) -> u64 {
        7
    }
}
