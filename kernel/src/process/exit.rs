//! How threads and processes end, and how their parents learn of it.

/// Ends the current thread with exit code `code` (0 to 255).
pub fn exit_thread(code: i32) -> ! {
    exit_group(code)
}

/// Ends the current process with wait(2) status `status`.
pub fn exit_group(status: i32) -> ! {
    machine::log!("init ended with status {status:#x}");
    machine::power::off(machine::power::OK)
}
