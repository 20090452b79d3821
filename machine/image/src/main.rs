//! The bootable image.
#![no_std]
#![no_main]
use kernel as _;
use machine as _;
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
