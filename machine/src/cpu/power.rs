//! Leaving the machine.

use crate::cpu;

/// Value for the exit port after an orderly end.
pub const OK: u8 = 0x10;
/// Value for the exit port after a panic.
pub const PANIC: u8 = 0x11;

/// QEMU's isa-debug-exit device, as the command line configures it.
const DEBUG_EXIT: u16 = 0xf4;
const KEYBOARD_CONTROLLER: u16 = 0x64;
const RESET: u8 = 0xfe;

/// Ends the virtual machine. Where no exit device is (Firecracker), a reset through the keyboard
/// controller ends it.
pub fn off(value: u8) -> ! {
    // SAFETY: ending the machine is what the caller wants.
    unsafe { cpu::outb(DEBUG_EXIT, value) };
    // SAFETY: the same, where the first device does not exist.
    unsafe { cpu::outb(KEYBOARD_CONTROLLER, RESET) };
    cpu::halt_forever()
}
