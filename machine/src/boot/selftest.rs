//! The boot self-test: are the protections that this CPU has really on? It reads the registers and
//! walks the page tables that are in use, and trusts nothing that was "set up" before. A machine
//! that fails it does not boot.

use crate::context_tracking::pcid;
use crate::cpu::{self, cr, features, msr, sealed};
use crate::memory::{self, KernelRights, stack};

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
}

/// The stack of the first CPU.
#[cfg(feature = "ktest")]
pub(crate) fn boot_stack_range() -> core::ops::Range<u64> {
    unsafe extern "C" {
        static boot_cpu_stack: u8;
        static boot_cpu_stack_top: u8;
    }
    (&raw const boot_cpu_stack) as u64..(&raw const boot_cpu_stack_top) as u64
}

/// The image's data, written or not.
#[cfg(feature = "ktest")]
pub(crate) fn data_range() -> core::ops::Range<u64> {
    (&raw const __data_start) as u64..(&raw const __data_end) as u64
}

/// Checks this CPU's control registers. Every CPU calls it before it runs programs.
pub(crate) fn check_registers() {
    let f = features();
    let (cr0, cr4, efer) = (cpu::read_cr0(), cpu::read_cr4(), cpu::rdmsr(msr::EFER));
    let must: [(&str, bool, bool); 8] = [
        ("CR0.WP", true, cr0 & cr::CR0_WP != 0),
        ("EFER.NXE", true, efer & cr::EFER_NXE != 0),
        ("EFER.SCE", true, efer & cr::EFER_SCE != 0),
        ("CR4.SMEP", f.smep, cr4 & cr::CR4_SMEP != 0),
        ("CR4.SMAP", f.smap, cr4 & cr::CR4_SMAP != 0),
        ("CR4.UMIP", f.umip, cr4 & cr::CR4_UMIP != 0),
        ("CR4.FSGSBASE", f.fsgsbase, cr4 & cr::CR4_FSGSBASE != 0),
        ("CR4.PGE", f.pge, cr4 & cr::CR4_PGE != 0),
    ];
    for (name, has, on) in must {
        assert!(!has || on, "self-test: this CPU has {name}, and it is off");
    }
}

/// Checks that what is set at boot cannot be written any more, at its own address, through the
/// direct map, or on programs' tables. When all CPUs run.
pub(crate) fn check_seal() {
    assert!(sealed::is_closed(), "self-test: nothing was sealed");
    for page in sealed::ranges().into_iter().flatten().step_by(cpu::PAGE_SIZE) {
        let alias = page - cpu::kernel_base() + cpu::direct_map_base();
        for at in [page, alias] {
            let KernelRights { present, write, exec, user } = memory::kernel_rights(at);
            assert!(present && !write && !exec && !user, "self-test: {at:#x} is not sealed");
        }
    }
    memory::for_each_shared(|leaf| {
        let is_sealed = sealed::ranges().iter().any(|range| range.contains(&leaf.address));
        assert!(
            !(is_sealed && leaf.write) && leaf.is_kernels,
            "self-test: programs' page tables map {:#x} with other rights",
            leaf.address
        );
    });
}

/// Checks that this CPU's CR3 names contexts exactly if it was to: a flush would be missing, or the
/// load of CR3 on every entry would fault.
pub(crate) fn check_pcid() {
    let is_on = cpu::read_cr4() & cr::CR4_PCIDE != 0;
    assert!(is_on == pcid::in_use(), "self-test: CR4.PCIDE is not what was decided");
}

/// Checks the rights of every page of the kernel image, of its aliases in the direct map, and of
/// the guard below a stack. On the first CPU.
pub(crate) fn check_page_tables() {
    crate::text::text_poke::assert_alias_gone();
    let ranges = [
        ("text", &raw const __text_start, &raw const __text_end, false, true),
        ("rodata", &raw const __rodata_start, &raw const __rodata_end, false, false),
        ("data", &raw const __data_start, &raw const __data_end, true, false),
    ];
    for (name, start, end, want_write, want_exec) in ranges {
        for page in (start as u64..end as u64).step_by(crate::memory::frame::PAGE_SIZE) {
            let KernelRights { present, write, exec, user } = memory::kernel_rights(page);
            assert!(
                present && write == want_write && exec == want_exec && !user,
                "self-test: {name} page {page:#x} has wrong rights"
            );
            let alias = page - cpu::kernel_base() + cpu::direct_map_base();
            let alias = memory::kernel_rights(alias);
            assert!(
                alias.write == want_write && !alias.exec && !alias.user,
                "self-test: the alias of {name} page {page:#x} has wrong rights"
            );
        }
    }
    memory::for_each_shared(|leaf| {
        let page = leaf.address;
        // Entry code, entry data, and stacks of interrupts; nothing of the direct map.
        let is_image = page >= cpu::kernel_base();
        assert!(
            is_image || stack::is_stack(page),
            "self-test: programs' page tables map kernel page {page:#x}"
        );
        let is_open = leaf.user || leaf.write && leaf.exec || leaf.bytes != 4096;
        assert!(
            !is_open && leaf.is_kernels,
            "self-test: programs' page tables map {page:#x} with other rights than the kernel's"
        );
    });
    let stack = stack::KernelStack::new().expect("memory for a stack");
    let bottom = stack.top() - stack::KERNEL_STACK_SIZE as u64;
    assert!(memory::kernel_rights(bottom).write, "self-test: a kernel stack is not writable");
    assert!(
        !memory::kernel_rights(bottom - 1).present,
        "self-test: a kernel stack has no guard page"
    );
}
