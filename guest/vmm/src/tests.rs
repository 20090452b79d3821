//! What the VMMs of others rely on, each on a guest of a few instructions.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, Msrs, kvm_msr_entry, kvm_sregs};
use kvm_ioctls::VcpuExit;

use crate::capabilities;
use crate::machine::{CODE, Guest, Memory, Result, StartMode, say, set_region, start_real};
use crate::races;

type Test = (&'static str, fn() -> Result<()>);

const TESTS: &[Test] = &[
    ("kvm::halt", halt),
    ("kvm::ports", ports),
    ("kvm::port_strings", port_strings),
    ("kvm::device_memory", device_memory),
    ("kvm::device_memory_by_every_width", device_memory_by_every_width),
    ("kvm::protected_mode", protected_mode),
    ("kvm::long_mode", long_mode),
    ("kvm::long_mode_comes_and_goes", long_mode_comes_and_goes),
    ("kvm::interrupts_and_windows", interrupts_and_windows),
    ("kvm::exceptions_reach_their_handler", exceptions_reach_their_handler),
    ("kvm::registers_are_kept", registers_are_kept),
    ("kvm::floating_point_is_the_guests_own", floating_point_is_the_guests_own),
    ("kvm::extended_state_is_the_guests_own", extended_state_is_the_guests_own),
    ("kvm::model_specific_registers", model_specific_registers),
    ("kvm::cpuid", cpuid),
    ("kvm::memory_that_leaves", memory_that_leaves),
    ("kvm::dirty_log", dirty_log),
    ("kvm::two_cpus", two_cpus),
    ("kvm::immediate_exit", immediate_exit),
    ("kvm::a_signal_ends_a_loop", a_signal_ends_a_loop),
    ("kvm::triple_fault", triple_fault),
    ("kvm::refusals", refusals),
    ("kvm::another_process", another_process),
    ("kvm::interrupts_of_the_kernel", interrupts_of_the_kernel),
    ("kvm::ticks_of_the_kernel", ticks_of_the_kernel),
    ("kvm::tsc_deadlines", tsc_deadlines),
    ("kvm::eventfds", eventfds),
    ("kvm::one_cpu_starts_another", one_cpu_starts_another),
    ("kvm::state_of_controllers", state_of_controllers),
    ("kvm::clock", clock),
    ("kvm::coalesced_writes", coalesced_writes),
    ("kvm::local_controllers_alone", local_controllers_alone),
    ("kvm::capabilities_are_true", capabilities_are_true),
    ("kvm::every_capability_is_as_its_table_says", capabilities::as_the_table_says),
    ("kvm::a_capability_has_its_call", capabilities::have_their_calls),
    ("kvm::what_is_read_is_what_is_there", races::what_is_read_is_what_is_there),
    ("kvm::what_may_not_be_written_is_not", races::what_may_not_be_written_is_not),
    ("kvm::a_child_has_its_own_copy", races::a_child_has_its_own_copy),
    ("kvm::no_count_is_lost_by_huge_pages", races::no_count_is_lost_by_huge_pages),
    ("kvm::a_copy_by_the_log_is_the_memory", races::a_copy_by_the_log_is_the_memory),
    ("kvm::a_copy_by_a_cleared_log_is_the_memory", races::a_copy_by_a_cleared_log_is_the_memory),
    ("kvm::what_a_log_forgets", races::what_a_log_forgets),
    ("kvm::any_call_at_any_time", crate::hostile::any_call_at_any_time),
    ("kvm::any_call_by_other_seeds", crate::hostile::other_seeds),
];

/// Prints the names.
pub fn list() -> ExitCode {
    TESTS.iter().for_each(|(name, _)| println!("{name}"));
    ExitCode::SUCCESS
}

/// Runs those whose name contains the filter, and none of the words that follow it.
pub fn run_all(words: &[String]) -> ExitCode {
    let (filter, but) = words.split_first().map_or(("", &[][..]), |(f, but)| (f.as_str(), but));
    let is_wanted = |name: &str| name.contains(filter) && !but.iter().any(|no| name.contains(no));
    let wanted = TESTS.iter().filter(|(name, _)| is_wanted(name));
    finish(wanted.map(|(name, run)| (*name, run())))
}

/// Says how each test went.
pub fn finish<'a>(results: impl Iterator<Item = (&'a str, Result<()>)>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    for (name, result) in results {
        match result {
            Ok(()) => {
                println!("test {name} ... ok");
                passed += 1;
            }
            Err(why) => {
                println!("test {name} ... FAILED: {why}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(why()) }
}

/// An exit in words that do not borrow from the CPU.
pub fn step(guest: &mut Guest) -> Result<String> {
    loop {
        return match guest.cpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => Ok(format!("out {port:#x} {data:x?}")),
            Ok(VcpuExit::IoIn(port, data)) => Ok(format!("in {port:#x} {}", data.len())),
            Ok(VcpuExit::MmioRead(at, data)) => Ok(format!("read {at:#x} {}", data.len())),
            Ok(VcpuExit::MmioWrite(at, data)) => Ok(format!("write {at:#x} {data:x?}")),
            Ok(VcpuExit::Hlt) => Ok("hlt".into()),
            Ok(VcpuExit::Shutdown) => Ok("shutdown".into()),
            Ok(VcpuExit::IrqWindowOpen) => Ok("window".into()),
            Ok(VcpuExit::InternalError) => guest.internal_error(),
            Ok(other) => Ok(format!("{other:?}")),
            Err(error) if error.errno() == libc::EAGAIN => continue,
            Err(error) => Ok(format!("error {}", error.errno())),
        };
    }
}

pub fn expect(guest: &mut Guest, wanted: &str) -> Result<()> {
    let got = step(guest)?;
    let at = guest.regs()?.rip;
    ensure(got == wanted, || format!("{got}, not {wanted} (at {at:#x})"))
}

fn halt() -> Result<()> {
    let mut guest = Guest::real(&[0xf4])?;
    expect(&mut guest, "hlt")?;
    let rip = guest.regs()?.rip;
    ensure(rip == CODE + 1, || format!("stopped at {rip:#x}"))
}

fn ports() -> Result<()> {
    // mov dx,0x3f8; in al,dx; inc al; out dx,al; mov ax,0x1234; out 0x80,ax; in eax,0x60; hlt
    let code = [
        0xba, 0xf8, 0x03, 0xec, 0xfe, 0xc0, 0xee, 0xb8, 0x34, 0x12, 0xe7, 0x80, 0x66, 0xe5, 0x60,
        0xf4,
    ];
    let mut guest = Guest::real(&code)?;
    match guest.cpu.run() {
        Ok(VcpuExit::IoIn(0x3f8, data)) => data.copy_from_slice(&[0x41]),
        other => return Err(format!("{other:?}")),
    }
    expect(&mut guest, "out 0x3f8 [42]")?;
    expect(&mut guest, "out 0x80 [34, 12]")?;
    match guest.cpu.run() {
        Ok(VcpuExit::IoIn(0x60, data)) => data.copy_from_slice(&[1, 2, 3, 4]),
        other => return Err(format!("{other:?}")),
    }
    expect(&mut guest, "hlt")?;
    let rax = guest.regs()?.rax;
    ensure(rax == 0x0403_0201, || format!("rax {rax:#x}"))
}

fn port_strings() -> Result<()> {
    // mov dx,0x1f0; mov cx,6; mov si,0x2000; rep outsb; mov cx,3; mov di,0x3000; rep insw; hlt
    let code = [
        0xba, 0xf0, 0x01, 0xb9, 6, 0, 0xbe, 0x00, 0x20, 0xf3, 0x6e, 0xb9, 3, 0, 0xbf, 0x00, 0x30,
        0xf3, 0x6d, 0xf4,
    ];
    let mut guest = Guest::real(&code)?;
    guest.memory.write(0x2000, b"string");
    let mut sent = Vec::new();
    let mut next = 0u8;
    loop {
        match guest.cpu.run() {
            Ok(VcpuExit::IoOut(0x1f0, data)) => sent.extend_from_slice(data),
            Ok(VcpuExit::IoIn(0x1f0, data)) => {
                for byte in data {
                    next += 1;
                    *byte = next;
                }
            }
            Ok(VcpuExit::Hlt) => break,
            other => return Err(format!("{other:?}")),
        }
    }
    let got: Vec<u8> = (0..7).map(|n| guest.memory.byte(0x3000 + n)).collect();
    ensure(sent == b"string", || format!("out: {sent:?}"))?;
    ensure(got == [1, 2, 3, 4, 5, 6, 0], || format!("in: {got:?}"))?;
    let regs = guest.regs()?;
    let ends = (regs.rcx, regs.rsi, regs.rdi);
    ensure(ends == (0, 0x2006, 0x3006), || format!("{ends:x?}"))
}

fn device_memory() -> Result<()> {
    // mov ax,0xffff; mov es,ax; mov al,es:[0x20]; add byte es:[0x21],5; mov es:[0x22],al; hlt
    let code = [
        0xb8, 0xff, 0xff, 0x8e, 0xc0, 0x26, 0xa0, 0x20, 0x00, 0x26, 0x80, 0x06, 0x21, 0x00, 0x05,
        0x26, 0xa2, 0x22, 0x00, 0xf4,
    ];
    let mut guest = Guest::real(&code)?;
    match guest.cpu.run() {
        Ok(VcpuExit::MmioRead(0x10_0010, data)) => data.copy_from_slice(&[0x77]),
        other => return Err(format!("{other:?}")),
    }
    match guest.cpu.run() {
        Ok(VcpuExit::MmioRead(0x10_0011, data)) => data.copy_from_slice(&[0x10]),
        other => return Err(format!("{other:?}")),
    }
    expect(&mut guest, "write 0x100011 [15]")?;
    expect(&mut guest, "write 0x100012 [77]")?;
    expect(&mut guest, "hlt")
}

fn device_memory_by_every_width() -> Result<()> {
    // mov rbx,0x3000000; mov [rbx],rax; mov [rbx+8],eax; movzx ecx,word [rbx+16];
    // movsx rdx,byte [rbx+24]; xchg [rbx+32],esi; lock cmpxchg [rbx+40],edi; hlt
    let code = [
        0x48, 0xc7, 0xc3, 0, 0, 0, 3, 0x48, 0x89, 0x03, 0x89, 0x43, 8, 0x0f, 0xb7, 0x4b, 16, 0x48,
        0x0f, 0xbe, 0x53, 24, 0x87, 0x73, 32, 0xf0, 0x0f, 0xb1, 0x7b, 40, 0xf4,
    ];
    let mut guest = Guest::long(&code)?;
    let mut regs = guest.regs()?;
    (regs.rax, regs.rsi, regs.rdi) = (0x1122_3344_5566_7788, 0xaaaa, 0xbbbb);
    guest.set_regs(&regs)?;
    expect(&mut guest, "write 0x3000000 [88, 77, 66, 55, 44, 33, 22, 11]")?;
    expect(&mut guest, "write 0x3000008 [88, 77, 66, 55]")?;
    for (at, answer) in [(16, &[0x34, 0x12][..]), (24, &[0x80]), (32, &[1, 0, 0, 0])] {
        match guest.cpu.run() {
            Ok(VcpuExit::MmioRead(address, data)) if address == 0x300_0000 + at => {
                data.copy_from_slice(answer);
            }
            other => return Err(format!("at {at}: {other:?}")),
        }
    }
    expect(&mut guest, "write 0x3000020 [aa, aa, 0, 0]")?;
    match guest.cpu.run() {
        // Equal to EAX: EDI is stored.
        Ok(VcpuExit::MmioRead(0x300_0028, data)) => data.copy_from_slice(&[0x88, 0x77, 0x66, 0x55]),
        other => return Err(format!("{other:?}")),
    }
    expect(&mut guest, "write 0x3000028 [bb, bb, 0, 0]")?;
    expect(&mut guest, "hlt")?;
    let regs = guest.regs()?;
    let got = (regs.rcx, regs.rdx, regs.rsi, regs.rflags & 0x40);
    ensure(got == (0x1234, 0xffff_ffff_ffff_ff80, 1, 0x40), || format!("{got:x?}"))
}

fn protected_mode() -> Result<()> {
    // mov ebx,0x9000; mov dword [ebx],0x12345678; mov eax,[ebx]; out 0x80,eax; hlt
    let code =
        [0xbb, 0x00, 0x90, 0, 0, 0xc7, 0x03, 0x78, 0x56, 0x34, 0x12, 0x8b, 0x03, 0xe7, 0x80, 0xf4];
    let mut guest = Guest::protected(&code)?;
    expect(&mut guest, "out 0x80 [78, 56, 34, 12]")?;
    expect(&mut guest, "hlt")
}

fn long_mode() -> Result<()> {
    // mov r9,0x123456789abcdef0; mov [0x9000],r9; out 0x80,al; hlt
    let code = [
        0x49, 0xb9, 0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0x4c, 0x89, 0x0c, 0x25, 0x00,
        0x90, 0, 0, 0xe6, 0x80, 0xf4,
    ];
    let mut guest = Guest::long(&code)?;
    expect(&mut guest, "out 0x80 [0]")?;
    expect(&mut guest, "hlt")?;
    let low = guest.memory.byte(0x9000);
    ensure(low == 0xf0, || format!("stored {low:#x}"))
}

/// EFER.LME without PAE and without paging, by the guest and then the VMM; into long mode and out
/// of it; LMSW from memory; paging without PAE is #GP.
fn long_mode_comes_and_goes() -> Result<()> {
    // mov ecx,0xc0000080; rdmsr; or ah,1; wrmsr; out 0x80,al; hlt; mov eax,0x20; mov cr4,eax
    // mov eax,cr0; bts eax,31; mov cr0,eax; rdmsr; out 0x81,eax
    // mov eax,cr0; btr eax,31; mov cr0,eax; rdmsr; out 0x82,eax; xor eax,eax; mov cr4,eax; hlt
    // lmsw [0x9000]; smsw eax; out 0x83,al; mov eax,cr0; bts eax,31; mov cr0,eax; hlt
    let code = [
        0xb9, 0x80, 0, 0, 0xc0, 0x0f, 0x32, 0x80, 0xcc, 0x01, 0x0f, 0x30, 0xe6, 0x80, 0xf4, 0xb8,
        0x20, 0, 0, 0, 0x0f, 0x22, 0xe0, 0x0f, 0x20, 0xc0, 0x0f, 0xba, 0xe8, 0x1f, 0x0f, 0x22,
        0xc0, 0x0f, 0x32, 0xe7, 0x81, 0x0f, 0x20, 0xc0, 0x0f, 0xba, 0xf0, 0x1f, 0x0f, 0x22, 0xc0,
        0x0f, 0x32, 0xe7, 0x82, 0x31, 0xc0, 0x0f, 0x22, 0xe0, 0xf4, 0x0f, 0x01, 0x35, 0, 0x90, 0,
        0, 0x0f, 0x01, 0xe0, 0xe6, 0x83, 0x0f, 0x20, 0xc0, 0x0f, 0xba, 0xe8, 0x1f, 0x0f, 0x22,
        0xc0, 0xf4,
    ];
    // Its page tables are those of a 64-bit guest.
    let mut guest = Guest::long(&code)?;
    let mut sregs = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    (sregs.cr0, sregs.cr4, sregs.efer) = (0x11, 0, 0);
    (sregs.cs.l, sregs.cs.db) = (0, 1);
    guest.cpu.set_sregs(&sregs).map_err(say("KVM_SET_SREGS"))?;
    // PE, MP and EM.
    guest.memory.write(0x9000, &[7, 0]);
    expect(&mut guest, "out 0x80 [0]")?;
    let sregs = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    let state = (sregs.cr0 >> 31, sregs.cr4, sregs.efer);
    ensure(state == (0, 0, 0x100), || format!("{state:x?}"))?;
    // The same by the VMM.
    guest.cpu.set_sregs(&sregs).map_err(say("KVM_SET_SREGS"))?;
    expect(&mut guest, "hlt")?;
    expect(&mut guest, "out 0x81 [0, 5, 0, 0]")?;
    expect(&mut guest, "out 0x82 [0, 1, 0, 0]")?;
    expect(&mut guest, "hlt")?;
    expect(&mut guest, "out 0x83 [17]")?;
    expect(&mut guest, "shutdown")
}

/// The VMM gives an interrupt when the window opens, and the handler runs.
fn interrupts_and_windows() -> Result<()> {
    // cli; out 0x80,al; sti; nop; nop; jmp -3 (to the nops); handler: out 0x81,al; hlt
    let code = [0xfa, 0xe6, 0x80, 0xfb, 0x90, 0x90, 0xeb, 0xfc];
    let mut guest = Guest::real(&code)?;
    guest.memory.write(0x1100, &[0xe6, 0x81, 0xf4]);
    // The vector's entry in the table of real mode: offset, segment.
    guest.memory.write(0x30 * 4, &[0x00, 0x11, 0, 0]);
    expect(&mut guest, "out 0x80 [0]")?;
    guest.cpu.get_kvm_run().request_interrupt_window = 1;
    expect(&mut guest, "window")?;
    guest.cpu.get_kvm_run().request_interrupt_window = 0;
    interrupt(&guest, 0x30)?;
    expect(&mut guest, "out 0x81 [0]")?;
    expect(&mut guest, "hlt")
}

/// KVM_INTERRUPT, which kvm-ioctls does not have.
fn interrupt(guest: &Guest, vector: u32) -> Result<()> {
    use std::os::fd::AsRawFd;
    const KVM_INTERRUPT: u64 = 0x4004_ae86;
    // SAFETY: the ioctl reads four bytes.
    let done = unsafe { libc::ioctl(guest.cpu.as_raw_fd(), KVM_INTERRUPT, &raw const vector) };
    ensure(done == 0, || format!("KVM_INTERRUPT: {}", std::io::Error::last_os_error()))
}

fn exceptions_reach_their_handler() -> Result<()> {
    // #UD by ud2, #DE by div, hlt; the handler: out 0x81,al; pop ax; add ax,2; push ax; iret
    let code = [0x0f, 0x0b, 0x31, 0xdb, 0xf7, 0xf3, 0xf4];
    let mut guest = Guest::real(&code)?;
    let handler = [0xe6, 0x81, 0x58, 0x05, 2, 0, 0x50, 0xcf];
    guest.memory.write(0x1100, &handler);
    for vector in [0, 6] {
        guest.memory.write(vector * 4, &[0x00, 0x11, 0, 0]);
    }
    expect(&mut guest, "out 0x81 [0]")?;
    // AX is where the handler has sent the program: behind the first one.
    expect(&mut guest, "out 0x81 [2]")?;
    expect(&mut guest, "hlt")
}

fn registers_are_kept() -> Result<()> {
    let mut guest = Guest::long(&[0xe6, 0x80, 0xf4])?;
    let mut regs = guest.regs()?;
    let fields = [
        &mut regs.rax,
        &mut regs.rbx,
        &mut regs.rcx,
        &mut regs.rdx,
        &mut regs.rsi,
        &mut regs.rdi,
        &mut regs.rbp,
        &mut regs.r8,
        &mut regs.r9,
        &mut regs.r10,
        &mut regs.r11,
        &mut regs.r12,
        &mut regs.r13,
        &mut regs.r14,
        &mut regs.r15,
    ];
    for (n, field) in fields.into_iter().enumerate() {
        *field = 0x0101_0101_0101_0101 * (n as u64 + 1);
    }
    guest.set_regs(&regs)?;
    expect(&mut guest, "out 0x80 [1]")?;
    let after = guest.regs()?;
    regs.rip += 2;
    ensure(after == regs, || format!("{after:x?}, not {regs:x?}"))?;
    let sregs = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    guest.cpu.set_sregs(&sregs).map_err(say("KVM_SET_SREGS"))?;
    let again = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    ensure(again == sregs, || format!("{again:x?}, not {sregs:x?}"))?;
    let events = guest.cpu.get_vcpu_events().map_err(say("KVM_GET_VCPU_EVENTS"))?;
    guest.cpu.set_vcpu_events(&events).map_err(say("KVM_SET_VCPU_EVENTS"))?;
    let debug = guest.cpu.get_debug_regs().map_err(say("KVM_GET_DEBUGREGS"))?;
    guest.cpu.set_debug_regs(&debug).map_err(say("KVM_SET_DEBUGREGS"))?;
    let xcrs = guest.cpu.get_xcrs().map_err(say("KVM_GET_XCRS"))?;
    guest.cpu.set_xcrs(&xcrs).map_err(say("KVM_SET_XCRS"))?;
    expect(&mut guest, "hlt")
}

/// XMM0 of the guest and of the program are two registers.
fn floating_point_is_the_guests_own() -> Result<()> {
    // movq rax,xmm0; out 0x80,eax; movq xmm0,rbx; hlt
    let code = [0x66, 0x48, 0x0f, 0x7e, 0xc0, 0xe7, 0x80, 0x66, 0x48, 0x0f, 0x6e, 0xc3, 0xf4];
    let mut guest = Guest::long(&code)?;
    let mut fpu = guest.cpu.get_fpu().map_err(say("KVM_GET_FPU"))?;
    fpu.xmm[0][..4].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
    guest.cpu.set_fpu(&fpu).map_err(say("KVM_SET_FPU"))?;
    let mut regs = guest.regs()?;
    regs.rbx = 0x0bad_cafe;
    guest.set_regs(&regs)?;
    let own = core::hint::black_box(1.5f64) * core::hint::black_box(2.0);
    expect(&mut guest, "out 0x80 [11, 22, 33, 44]")?;
    expect(&mut guest, "hlt")?;
    let fpu = guest.cpu.get_fpu().map_err(say("KVM_GET_FPU"))?;
    let got = u32::from_le_bytes([fpu.xmm[0][0], fpu.xmm[0][1], fpu.xmm[0][2], fpu.xmm[0][3]]);
    ensure(got == 0x0bad_cafe, || format!("xmm0 {got:#x}"))?;
    ensure(core::hint::black_box(own) == 3.0, || "the program's own value is gone".into())
}

/// XCR0 is what the guest has set, from one exit to the next, and KVM_GET_XCRS tells it.
fn extended_state_is_the_guests_own() -> Result<()> {
    // mov rax,cr4; or eax,OSXSAVE; mov cr4,rax; xor ecx,ecx; xor edx,edx; mov eax,3; xsetbv;
    // xor ecx,ecx; xgetbv; out 0x80,eax; jmp xor
    let code = [
        0x0f, 0x20, 0xe0, 0x0d, 0, 0, 4, 0, 0x0f, 0x22, 0xe0, 0x31, 0xc9, 0x31, 0xd2, 0xb8, 3, 0,
        0, 0, 0x0f, 0x01, 0xd1, 0x31, 0xc9, 0x0f, 0x01, 0xd0, 0xe7, 0x80, 0xeb, 0xf7,
    ];
    let mut guest = Guest::long(&code)?;
    let list = guest.kvm.get_supported_cpuid(80).map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
    guest.cpu.set_cpuid2(&list).map_err(say("KVM_SET_CPUID2"))?;
    for _ in 0..3 {
        expect(&mut guest, "out 0x80 [3, 0, 0, 0]")?;
        let xcrs = guest.cpu.get_xcrs().map_err(say("KVM_GET_XCRS"))?;
        ensure(xcrs.xcrs[0].value == 3, || format!("XCR0 {:#x}", xcrs.xcrs[0].value))?;
    }
    Ok(())
}

fn model_specific_registers() -> Result<()> {
    // mov ecx,0xc0000082; rdmsr; out 0x80,eax; mov ecx,0x12345; rdmsr (#GP: no handler)
    let code = [
        0xb9, 0x82, 0, 0, 0xc0, 0x0f, 0x32, 0xe7, 0x80, 0xb9, 0x45, 0x23, 0x01, 0, 0x0f, 0x32, 0xf4,
    ];
    let mut guest = Guest::long(&code)?;
    let entry =
        kvm_msr_entry { index: 0xc000_0082, data: 0xffff_8000_1234_5678, ..Default::default() };
    let msrs = Msrs::from_entries(&[entry]).map_err(|e| format!("{e:?}"))?;
    let set = guest.cpu.set_msrs(&msrs).map_err(say("KVM_SET_MSRS"))?;
    ensure(set == 1, || format!("{set} set"))?;
    let bad = kvm_msr_entry { index: 0x1234_5678, data: 1, ..Default::default() };
    let bad = Msrs::from_entries(&[entry, bad]).map_err(|e| format!("{e:?}"))?;
    let set = guest.cpu.set_msrs(&bad).map_err(say("KVM_SET_MSRS"))?;
    ensure(set == 1, || format!("{set} of a good and a bad one"))?;
    // What Linux reads of an AMD CPU in its boot.
    let pending = kvm_msr_entry { index: 0xc001_0055, data: 1, ..Default::default() };
    let mut pending = Msrs::from_entries(&[pending]).map_err(|e| format!("{e:?}"))?;
    let got = guest.cpu.get_msrs(&mut pending).map_err(say("KVM_GET_MSRS"))?;
    ensure(got == 1 && pending.as_slice()[0].data == 0, || format!("{pending:?}"))?;
    expect(&mut guest, "out 0x80 [78, 56, 34, 12]")?;
    expect(&mut guest, "shutdown")
}

fn cpuid() -> Result<()> {
    // xor ecx,ecx; mov eax,0x40000000; cpuid; out 0x80,ebx via mov eax,ebx; hlt
    let code = [0x31, 0xc9, 0xb8, 0, 0, 0, 0x40, 0x0f, 0xa2, 0x89, 0xd8, 0xe7, 0x80, 0xf4];
    let mut guest = Guest::long(&code)?;
    let list = guest.kvm.get_supported_cpuid(80).map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
    guest.cpu.set_cpuid2(&list).map_err(say("KVM_SET_CPUID2"))?;
    let svm = list.as_slice().iter().find(|e| e.function == 0x8000_0001);
    let svm = svm.is_some_and(|e| e.ecx & 4 != 0);
    ensure(!svm || std::path::Path::new("/sys/module/kvm").exists(), || "nested SVM".into())?;
    // QEMU's emulation has wrong flags behind CMPXCHG16B, which an exit would keep.
    let name = core::arch::x86_64::__cpuid(0x4000_0000).ebx;
    let cmpxchg16b = list.as_slice().iter().any(|e| e.function == 1 && e.ecx & 1 << 13 != 0);
    ensure(name != u32::from_le_bytes(*b"TCGT") || !cmpxchg16b, || "CMPXCHG16B in QEMU".into())?;
    expect(&mut guest, "out 0x80 [4b, 56, 4d, 4b]")?;
    expect(&mut guest, "hlt")
}

/// What the program unmaps, protects or forgets is so for the guest at once.
fn memory_that_leaves() -> Result<()> {
    // inc byte [0x5000]; hlt; jmp back
    let code = [0xfe, 0x06, 0x00, 0x50, 0xf4, 0xeb, 0xf9];
    let mut guest = Guest::real(&code)?;
    for round in 1..4 {
        expect(&mut guest, "hlt")?;
        let count = guest.memory.byte(0x5000);
        ensure(count == round, || format!("counted {count}, not {round}"))?;
    }
    guest.memory.forget(0x5000, 4096);
    expect(&mut guest, "hlt")?;
    ensure(guest.memory.byte(0x5000) == 1, || "an old page was written".into())?;
    guest.memory.protect(0x5000, 4096, libc::PROT_READ);
    let got = step(&mut guest)?;
    ensure(got == "error 14", || format!("read-only: {got}"))?;
    guest.memory.protect(0x5000, 4096, libc::PROT_READ | libc::PROT_WRITE);
    expect(&mut guest, "hlt")?;
    ensure(guest.memory.byte(0x5000) == 2, || "not counted on".into())
}

fn dirty_log() -> Result<()> {
    let code = [0xfe, 0x06, 0x00, 0x50, 0xf4, 0xeb, 0xf9];
    let mut guest = Guest::real(&code)?;
    expect(&mut guest, "hlt")?;
    let bytes = crate::machine::BYTES;
    set_region(&guest.vm, 0, 0, &guest.memory, bytes, KVM_MEM_LOG_DIRTY_PAGES)?;
    let log = |guest: &Guest| guest.vm.get_dirty_log(0, bytes).map_err(say("KVM_GET_DIRTY_LOG"));
    log(&guest)?;
    for _ in 0..2 {
        expect(&mut guest, "hlt")?;
        let written = log(&guest)?;
        ensure(written[0] == 1 << 5, || format!("written: {written:x?}"))?;
        let again = log(&guest)?;
        ensure(again.iter().all(|&word| word == 0), || format!("not written: {again:x?}"))?;
    }
    Ok(())
}

/// Two CPUs of one guest hand a counter back and forth.
fn two_cpus() -> Result<()> {
    // wait: mov al,[0x5000]; and al,1; cmp al,bl; jne wait; inc byte [0x5000]; dec cx; jnz wait;
    // hlt
    let code = [
        0xa0, 0x00, 0x50, 0x24, 1, 0x38, 0xd8, 0x75, 0xf7, 0xfe, 0x06, 0x00, 0x50, 0x49, 0x75,
        0xf0, 0xf4,
    ];
    let mut guest = Guest::real(&code)?;
    let mut second = guest.vm.create_vcpu(1).map_err(say("KVM_CREATE_VCPU"))?;
    start_real(&second)?;
    let mut regs = guest.regs()?;
    regs.rcx = 50;
    guest.set_regs(&regs)?;
    regs.rbx = 1;
    second.set_regs(&regs).map_err(say("KVM_SET_REGS"))?;
    let other = std::thread::spawn(move || match second.run() {
        Ok(VcpuExit::Hlt) => Ok(()),
        other => Err(format!("second: {other:?}")),
    });
    expect(&mut guest, "hlt")?;
    other.join().map_err(|_| "the thread panicked")??;
    let count = guest.memory.byte(0x5000);
    ensure(count == 100, || format!("counted to {count}"))
}

fn immediate_exit() -> Result<()> {
    let mut guest = Guest::real(&[0xe6, 0x80, 0xf4])?;
    guest.cpu.set_kvm_immediate_exit(1);
    expect(&mut guest, "error 4")?;
    let rip = guest.regs()?.rip;
    ensure(rip == CODE, || format!("went to {rip:#x}"))?;
    guest.cpu.set_kvm_immediate_exit(0);
    expect(&mut guest, "out 0x80 [0]")
}

static SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: i32) {
    SIGNALLED.store(true, Ordering::SeqCst);
}

fn a_signal_ends_a_loop() -> Result<()> {
    let mut guest = Guest::real(&[0xeb, 0xfe])?;
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    // SAFETY: this thread lives until the other has been joined.
    let me = unsafe { libc::pthread_self() } as usize;
    let other = std::thread::spawn(move || {
        while !SIGNALLED.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the thread of that id joins this one before it ends, so the id is its own.
            unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
        }
    });
    let result = expect(&mut guest, "error 4");
    other.join().map_err(|_| "the thread panicked")?;
    result
}

fn triple_fault() -> Result<()> {
    let mut guest = Guest::long(&[0x0f, 0x0b])?;
    expect(&mut guest, "shutdown")
}

fn refusals() -> Result<()> {
    let guest = Guest::real(&[0xf4])?;
    let memory = Memory::new(1 << 16);
    let is_refused = |result: Result<()>| result.is_err();
    let vm = &guest.vm;
    ensure(is_refused(set_region(vm, 1, 0x800, &memory, 4096, 0)), || "unaligned".into())?;
    ensure(is_refused(set_region(vm, 1, 0xff000, &memory, 8192, 0)), || "overlap".into())?;
    ensure(is_refused(set_region(vm, 1, u64::MAX - 4095, &memory, 4096, 0)), || "far".into())?;
    ensure(is_refused(set_region(vm, 7, 0, &memory, 0, 0)), || "none there".into())?;
    ensure(is_refused(set_region(vm, 1, 1 << 20, &memory, 4096, 1 << 9)), || "flags".into())?;
    ensure(guest.vm.create_vcpu(0).is_err(), || "a second CPU 0".into())?;
    ensure(guest.vm.create_vcpu(100_000).is_err(), || "CPU 100000".into())?;
    let mut sregs = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    sregs.efer = 0x500;
    ensure(guest.cpu.set_sregs(&sregs).is_err(), || "long mode without paging".into())?;
    let good = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    // SMXE, and what has no name.
    for bit in [14, 15, 19, 25, 31, 32, 63] {
        let bad = kvm_sregs { cr4: good.cr4 | 1 << bit, ..good };
        ensure(guest.cpu.set_sregs(&bad).is_err(), || format!("bit {bit} of CR4"))?;
    }
    let bad = kvm_sregs { cr0: good.cr0 & !(1 << 30) | 1 << 29, ..good };
    ensure(guest.cpu.set_sregs(&bad).is_err(), || "no write-through caches that are on".into())?;
    let now = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    ensure(now == good, || "a refused state has changed something".into())
}

/// A forked child has the descriptors, and not the guest.
fn another_process() -> Result<()> {
    let mut guest = Guest::real(&[0xf4])?;
    // SAFETY: the child only makes one call and ends.
    match unsafe { libc::fork() } {
        0 => {
            let refused = matches!(guest.cpu.run(), Err(error) if error.errno() == libc::EIO);
            // SAFETY: `_exit` runs no handlers of the parent's and touches none of its memory.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the child is this process's.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            ensure(status == 0, || format!("the child: {status:#x}"))?;
        }
    }
    expect(&mut guest, "hlt")
}

/// Real-mode code that sets both 8259s up: vectors 0x20 and 0x28, nothing masked.
const SET_UP_PIC: [u8; 32] = [
    0xb0, 0x11, 0xe6, 0x20, 0xe6, 0xa0, 0xb0, 0x20, 0xe6, 0x21, 0xb0, 0x28, 0xe6, 0xa1, 0xb0, 0x04,
    0xe6, 0x21, 0xb0, 0x02, 0xe6, 0xa1, 0xb0, 0x01, 0xe6, 0x21, 0xe6, 0xa1, 0xb0, 0x00, 0xe6, 0x21,
];

/// Halts until a handler has set the byte at 0x6000, whenever that was: cli; cmp byte \[0x6000\],1;
/// je end; sti; hlt; jmp cli.
const WAIT: [u8; 12] = [0xfa, 0x80, 0x3e, 0x00, 0x60, 1, 0x74, 4, 0xfb, 0xf4, 0xeb, 0xf4];

/// A guest with the kernel's controllers that sets them up, and then does `then`; interrupts of
/// `vector` end in a handler at 0x1200 (mov byte \[0x6000\],1; out 0x81,al; mov al,0x20; out
/// 0x20,al; iret).
fn with_controllers(then: &[u8], vector: usize) -> Result<Guest> {
    let code = [&SET_UP_PIC[..], then].concat();
    let guest = Guest::of(StartMode::Real, &code, true)?;
    let handler = [0xc6, 0x06, 0x00, 0x60, 1, 0xe6, 0x81, 0xb0, 0x20, 0xe6, 0x20, 0xcf];
    guest.memory.write(0x1200, &handler);
    guest.memory.write(vector * 4, &[0x00, 0x12, 0, 0]);
    Ok(guest)
}

/// A line of the VMM's wakes a guest that has halted, in the kernel.
fn interrupts_of_the_kernel() -> Result<()> {
    // wait; out 0x82,al
    let mut guest = with_controllers(&[&WAIT[..], &[0xe6, 0x82]].concat(), 0x24)?;
    std::thread::scope(|scope| {
        let vm = &guest.vm;
        let line = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            vm.set_irq_line(4, true).map_err(say("KVM_IRQ_LINE"))?;
            vm.set_irq_line(4, false).map_err(say("KVM_IRQ_LINE"))
        });
        let got = format!("{:?}", guest.cpu.run());
        line.join().map_err(|_| "the thread panicked")??;
        ensure(got.contains("IoOut(129"), || got)
    })?;
    expect(&mut guest, "out 0x82 [20]")
}

/// The interval timer's channel 0, at about 1000 Hz: three ticks.
fn ticks_of_the_kernel() -> Result<()> {
    // mov al,0x34; out 0x43,al; mov al,0xa9; out 0x40,al; mov al,4; out 0x40,al; sti; hlt; jmp hlt
    let code = [
        0xb0, 0x34, 0xe6, 0x43, 0xb0, 0xa9, 0xe6, 0x40, 0xb0, 4, 0xe6, 0x40, 0xfb, 0xf4, 0xeb, 0xfd,
    ];
    let mut guest = with_controllers(&code, 0x20)?;
    for _ in 0..3 {
        let got = step(&mut guest)?;
        ensure(got.starts_with("out 0x81"), || got)?;
    }
    Ok(())
}

/// The local controller's timer fires at a value of the TSC: one to come, and one that has passed.
fn tsc_deadlines() -> Result<()> {
    const VECTOR: usize = 0x40;
    const DEADLINES: u32 = 1 << 24;
    for ahead in [0x10_0000i32, -0x10_0000] {
        // rdtsc; add eax,AHEAD; adc edx,SIGN; mov ecx,0x6e0; wrmsr; sti; hlt; jmp hlt
        let [a, b, c, d] = ahead.to_le_bytes();
        let sign = if ahead < 0 { 0xff } else { 0 };
        let code = [
            0x0f, 0x31, 0x66, 0x05, a, b, c, d, 0x66, 0x83, 0xd2, sign, 0x66, 0xb9, 0xe0, 0x06, 0,
            0, 0x0f, 0x30, 0xfb, 0xf4, 0xeb, 0xfd,
        ];
        let mut guest = with_controllers(&code, VECTOR)?;
        let most = kvm_bindings::KVM_MAX_CPUID_ENTRIES;
        let cpuid = guest.kvm.get_supported_cpuid(most);
        let mut cpuid = cpuid.map_err(say("KVM_GET_SUPPORTED_CPUID"))?;
        let leaf = cpuid.as_mut_slice().iter_mut().find(|entry| entry.function == 1);
        leaf.ok_or("no leaf 1")?.ecx |= DEADLINES;
        guest.cpu.set_cpuid2(&cpuid).map_err(say("KVM_SET_CPUID2"))?;
        let mut lapic = guest.cpu.get_lapic().map_err(say("KVM_GET_LAPIC"))?;
        // Switched on; the timer by deadlines, to the handler.
        for (register, value) in [(0xf0, 0x1ff), (0x320, 2 << 17 | VECTOR as u32)] {
            for (n, byte) in value.to_le_bytes().into_iter().enumerate() {
                lapic.regs[register + n] = byte as _;
            }
        }
        guest.cpu.set_lapic(&lapic).map_err(say("KVM_SET_LAPIC"))?;
        let got = step(&mut guest)?;
        ensure(got.starts_with("out 0x81"), || format!("{ahead}: {got}"))?;
    }
    Ok(())
}

/// A write of the guest's signals one, another one is its interrupt.
fn eventfds() -> Result<()> {
    use vmm_sys_util::eventfd::EventFd;
    let fail = |error: std::io::Error| format!("eventfd: {error}");
    let (bell, line) = (EventFd::new(0).map_err(fail)?, EventFd::new(0).map_err(fail)?);
    // mov al,7; out 0x77,al; out 0x78,al; wait; out 0x82,al
    let code = [&[0xb0, 7, 0xe6, 0x77, 0xe6, 0x78][..], &WAIT, &[0xe6, 0x82]].concat();
    let mut guest = with_controllers(&code, 0x25)?;
    let at = kvm_ioctls::IoEventAddress::Pio(0x77);
    guest.vm.register_ioevent(&bell, &at, 7u8).map_err(say("KVM_IOEVENTFD"))?;
    let again = guest.vm.register_ioevent(&bell, &at, 7u8);
    ensure(again.is_err(), || "the same twice".into())?;
    guest.vm.register_irqfd(&line, 5).map_err(say("KVM_IRQFD"))?;
    expect(&mut guest, "out 0x78 [7]")?;
    let count = bell.read().map_err(fail)?;
    ensure(count == 1, || format!("signalled {count} times"))?;
    line.write(1).map_err(fail)?;
    expect(&mut guest, "out 0x81 [7]")?;
    expect(&mut guest, "out 0x82 [20]")?;
    guest.vm.unregister_irqfd(&line, 5).map_err(say("KVM_IRQFD"))?;
    guest.vm.unregister_ioevent(&bell, &at, 7u8).map_err(say("KVM_IOEVENTFD"))
}

/// INIT and SIPI by way of the local APIC's registers.
fn one_cpu_starts_another() -> Result<()> {
    // mov dword [0xfee00310],1<<24; mov dword [0xfee00300],0x4500; then 0x4602; out 0x80,al; hlt
    let code = [
        0xc7, 0x05, 0x10, 0x03, 0xe0, 0xfe, 0, 0, 0, 1, 0xc7, 0x05, 0x00, 0x03, 0xe0, 0xfe, 0,
        0x45, 0, 0, 0xc7, 0x05, 0x00, 0x03, 0xe0, 0xfe, 2, 0x46, 0, 0, 0xe6, 0x80, 0xf4,
    ];
    let mut guest = Guest::of(StartMode::Protected, &code, true)?;
    guest.memory.write(0x2000, &[0xe6, 0x81, 0xf4]);
    let mut second = guest.vm.create_vcpu(1).map_err(say("KVM_CREATE_VCPU"))?;
    let other = std::thread::spawn(move || format!("{:?}", second.run()));
    expect(&mut guest, "out 0x80 [0]")?;
    let got = other.join().map_err(|_| "the thread panicked")?;
    ensure(got.contains("IoOut(129"), || got)
}

fn state_of_controllers() -> Result<()> {
    let guest = Guest::of(StartMode::Real, &[0xf4], true)?;
    for chip_id in 0..3 {
        let mut chip = kvm_bindings::kvm_irqchip { chip_id, ..Default::default() };
        guest.vm.get_irqchip(&mut chip).map_err(say("KVM_GET_IRQCHIP"))?;
        guest.vm.set_irqchip(&chip).map_err(say("KVM_SET_IRQCHIP"))?;
    }
    let lapic = guest.cpu.get_lapic().map_err(say("KVM_GET_LAPIC"))?;
    guest.cpu.set_lapic(&lapic).map_err(say("KVM_SET_LAPIC"))?;
    let after = guest.cpu.get_lapic().map_err(say("KVM_GET_LAPIC"))?;
    ensure(after == lapic, || "the local APIC's registers".into())?;
    let pit = guest.vm.get_pit2().map_err(say("KVM_GET_PIT2"))?;
    guest.vm.set_pit2(&pit).map_err(say("KVM_SET_PIT2"))?;
    ensure(guest.vm.create_irq_chip().is_err(), || "controllers twice".into())
}

/// The clock that the guest reads from its memory is the one that KVM_GET_CLOCK tells.
fn clock() -> Result<()> {
    const AT: usize = 0x9000;
    // mov ecx,0x4b564d01; xor edx,edx; mov eax,AT|1; wrmsr; rdtsc; out 0x80,eax; mov eax,edx;
    // out 0x80,eax; jmp rdtsc
    let code = [
        0xb9, 0x01, 0x4d, 0x56, 0x4b, 0x31, 0xd2, 0xb8, 0x01, 0x90, 0, 0, 0x0f, 0x30, 0x0f, 0x31,
        0xe7, 0x80, 0x89, 0xd0, 0xe7, 0x80, 0xeb, 0xf6,
    ];
    let mut guest = Guest::long(&code)?;
    let word = |guest: &Guest, at: usize, len: usize| {
        (0..len).rev().fold(0, |v, n| v << 8 | u64::from(guest.memory.byte(AT + at + n)))
    };
    let mut times = Vec::new();
    for _ in 0..3 {
        let before = guest.vm.get_clock().map_err(say("KVM_GET_CLOCK"))?.clock;
        let mut tsc = 0;
        for shift in [0, 32] {
            match guest.cpu.run() {
                Ok(VcpuExit::IoOut(0x80, &[a, b, c, d])) => {
                    tsc |= u64::from(u32::from_le_bytes([a, b, c, d])) << shift;
                }
                other => return Err(format!("{other:?}")),
            }
        }
        let after = guest.vm.get_clock().map_err(say("KVM_GET_CLOCK"))?.clock;
        ensure(word(&guest, 0, 4) % 2 == 0, || "an odd version".into())?;
        let (shift, ticks) = (word(&guest, 28, 1) as u8 as i8, tsc - word(&guest, 8, 8));
        let ticks = if shift < 0 { ticks >> -shift } else { ticks << shift };
        let scaled = (u128::from(ticks) * u128::from(word(&guest, 24, 4))) >> 32;
        let time = word(&guest, 16, 8) + scaled as u64;
        ensure((before..=after).contains(&time), || format!("{time}, not {before} to {after}"))?;
        times.push(time);
    }
    ensure(times.is_sorted(), || format!("{times:?}"))?;
    let ahead = kvm_bindings::kvm_clock_data { clock: 1 << 50, ..Default::default() };
    guest.vm.set_clock(&ahead).map_err(say("KVM_SET_CLOCK"))?;
    step(&mut guest)?;
    let (set, now) = (word(&guest, 16, 8), guest.vm.get_clock().map_err(say("KVM_GET_CLOCK"))?);
    ensure(set == 1 << 50 && now.clock > set, || format!("set to {set}, now {}", now.clock))
}

/// Writes to a zone are in the ring at the next exit, in their order; a full ring is an exit.
fn coalesced_writes() -> Result<()> {
    const ZONE: u64 = 0x20_0000;
    const RING: usize = 2 * 4096;
    const ENTRIES: u32 = 170;
    // mov ebx,ZONE; mov eax,[0x5000] as a count: write until it is 0: mov [ebx],eax; dec eax;
    // jnz write; hlt; jmp to the start
    let code =
        [0xbb, 0, 0, 0x20, 0, 0xa1, 0, 0x50, 0, 0, 0x89, 0x03, 0x48, 0x75, 0xfb, 0xf4, 0xeb, 0xee];
    let mut guest = Guest::protected(&code)?;
    let address = kvm_ioctls::IoEventAddress::Mmio(ZONE);
    guest.vm.register_coalesced_mmio(address, 4).map_err(say("KVM_REGISTER_COALESCED_MMIO"))?;
    // SAFETY: the descriptor is a virtual CPU's, and the page is its ring.
    let ring = unsafe {
        use std::os::fd::AsRawFd as _;
        let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, guest.cpu.as_raw_fd());
        libc::mmap(core::ptr::null_mut(), 4096, rights, libc::MAP_SHARED, fd, RING as i64)
    };
    ensure(ring != libc::MAP_FAILED, || "mmap of the ring".into())?;
    // SAFETY: the page is mapped until the end of the process, and only read and written so.
    let word = |n: usize| unsafe { ring.cast::<u32>().add(n).read_volatile() };
    guest.memory.set_word(0x5000, 5);
    expect(&mut guest, "hlt")?;
    ensure((word(0), word(1)) == (0, 5), || format!("from {} to {}", word(0), word(1)))?;
    // Six words each: address (2), length, kind, data (2).
    let entries: Vec<_> =
        (0..5).map(|n| (word(2 + 6 * n), word(4 + 6 * n), word(6 + 6 * n))).collect();
    let wanted: Vec<_> = (1..=5).rev().map(|value| (ZONE as u32, 4, value)).collect();
    ensure(entries == wanted, || format!("{entries:x?}"))?;
    guest.memory.set_word(0x5000, 200);
    expect(&mut guest, "write 0x200000 [24, 0, 0, 0]")?;
    ensure(word(1) == ENTRIES - 1, || format!("full at {}", word(1)))?;
    // What makes no sense is a full ring.
    // SAFETY: the ring's page is mapped until the end of the process; this is its second word.
    unsafe { ring.cast::<u32>().add(1).write_volatile(u32::MAX) };
    expect(&mut guest, "write 0x200000 [23, 0, 0, 0]")?;
    guest.vm.unregister_coalesced_mmio(address, 4).map_err(say("KVM_UNREGISTER_COALESCED_MMIO"))?;
    // SAFETY: the second word of the ring's page, which stays mapped.
    unsafe { ring.cast::<u32>().add(1).write_volatile(0) };
    expect(&mut guest, "write 0x200000 [22, 0, 0, 0]")
}

/// Split controllers: messages reach the local one, and the end of a level-triggered interrupt is
/// told to the VMM, whose I/O APIC it came from.
fn local_controllers_alone() -> Result<()> {
    let kvm = kvm_ioctls::Kvm::new().map_err(say("/dev/kvm"))?;
    let vm = kvm.create_vm().map_err(say("KVM_CREATE_VM"))?;
    let split = kvm_bindings::kvm_enable_cap {
        cap: kvm_bindings::KVM_CAP_SPLIT_IRQCHIP,
        args: [24, 0, 0, 0],
        ..Default::default()
    };
    vm.enable_cap(&split).map_err(say("KVM_ENABLE_CAP"))?;
    ensure(vm.enable_cap(&split).is_err(), || "controllers twice".into())?;
    ensure(vm.create_pit2(Default::default()).is_err(), || "a timer without the 8259s".into())?;
    let mut chip = kvm_bindings::kvm_irqchip::default();
    ensure(vm.get_irqchip(&mut chip).is_err(), || "the state of an 8259".into())?;
    let memory = Memory::new(crate::machine::BYTES);
    // lidt [0x2000]; mov dword [0xfee000f0],0x1ff; sti; hlt; jmp hlt
    let code = [
        0x0f, 0x01, 0x1d, 0, 0x20, 0, 0, 0xc7, 0x05, 0xf0, 0, 0xe0, 0xfe, 0xff, 1, 0, 0, 0xfb,
        0xf4, 0xeb, 0xfd,
    ];
    memory.write(CODE as usize, &code);
    // out 0x81,al; mov dword [0xfee000b0],0 (its end); out 0x82,al; iret
    let handler = [0xe6, 0x81, 0xc7, 0x05, 0xb0, 0, 0xe0, 0xfe, 0, 0, 0, 0, 0xe6, 0x82, 0xcf];
    memory.write(0x1200, &handler);
    memory.write(0x2000, &[0xff, 7, 0, 0x30, 0, 0]);
    memory.write(0x3000 + 8 * 0x41, &[0, 0x12, 8, 0, 0, 0x8e, 0, 0]);
    // A table of descriptors, for what the handler's IRET and the gate load: flat code at 8.
    memory.write(0x4008, &[0xff, 0xff, 0, 0, 0, 0x9a, 0xcf, 0]);
    set_region(&vm, 0, 0, &memory, crate::machine::BYTES, 0)?;
    let cpu = vm.create_vcpu(0).map_err(say("KVM_CREATE_VCPU"))?;
    let mut guest = Guest { cpu, vm, memory, kvm };
    guest.start_protected()?;
    let mut sregs = guest.cpu.get_sregs().map_err(say("KVM_GET_SREGS"))?;
    (sregs.gdt.base, sregs.gdt.limit) = (0x4000, 0x1f);
    guest.cpu.set_sregs(&sregs).map_err(say("KVM_SET_SREGS"))?;
    // Level-triggered, vector 0x41, to CPU 0.
    let message =
        kvm_bindings::kvm_msi { address_lo: 0xfee0_0000, data: 0xc041, ..Default::default() };
    std::thread::scope(|scope| {
        let vm = &guest.vm;
        let sender = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            vm.signal_msi(message).map_err(say("KVM_SIGNAL_MSI"))
        });
        let got = format!("{:?}", guest.cpu.run());
        sender.join().map_err(|_| "the thread panicked")??;
        ensure(got.contains("IoOut(129"), || got)
    })?;
    expect(&mut guest, "IoapicEoi(65)")?;
    expect(&mut guest, "out 0x82 [0]")
}

/// What is announced works, what does not work is not announced.
fn capabilities_are_true() -> Result<()> {
    use std::os::fd::AsRawFd as _;

    use kvm_bindings as raw;
    let guest = Guest::real(&[0xf4])?;
    let has = |cap: u32| guest.kvm.check_extension_raw(cap.into()) > 0;
    let clock = guest.vm.get_clock().is_ok();
    ensure(has(raw::KVM_CAP_ADJUST_CLOCK) == clock, || "KVM_CAP_ADJUST_CLOCK".into())?;
    let at = kvm_ioctls::IoEventAddress::Pio(0x70);
    let coalesced = guest.vm.register_coalesced_mmio(at, 1).is_ok();
    ensure(has(raw::KVM_CAP_COALESCED_PIO) == coalesced, || "KVM_CAP_COALESCED_PIO".into())?;
    let debug = raw::kvm_guest_debug { control: 1, ..Default::default() };
    let debugs = guest.cpu.set_guest_debug(&debug).is_ok();
    ensure(has(raw::KVM_CAP_SET_GUEST_DEBUG) == debugs, || "KVM_CAP_SET_GUEST_DEBUG".into())?;
    let nested = guest.cpu.get_tsc_khz().is_ok();
    ensure(has(raw::KVM_CAP_GET_TSC_KHZ) == nested, || "KVM_CAP_GET_TSC_KHZ".into())?;
    // SAFETY: the call takes no memory.
    let of_vm = unsafe { libc::ioctl(guest.vm.as_raw_fd(), abi::kvm::KVM_GET_TSC_KHZ.into(), 0) };
    let of_cpu = guest.cpu.get_tsc_khz().ok();
    ensure(u32::try_from(of_vm).ok() == of_cpu, || format!("TSC: {of_vm}, {of_cpu:?} kHz"))?;
    let enable = raw::kvm_enable_cap { cap: raw::KVM_CAP_X86_DISABLE_EXITS, ..Default::default() };
    let exits = guest.vm.enable_cap(&enable).is_ok();
    ensure(exits <= has(raw::KVM_CAP_X86_DISABLE_EXITS), || "KVM_CAP_X86_DISABLE_EXITS".into())
}
