#![doc = include_str!("../README.md")]
#![no_std]

pub mod shadow_stack;

/// The registers of a program (or of interrupted kernel code), as entry code saves them.
/// The layout is that of Linux's `struct pt_regs` and `user_regs_struct` up to `ss`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct PtRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The system call number, or the error code of an exception.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// A system call's arguments (syscall(2), x86-64). The entry code leaves them where they are.
#[expect(missing_docs, reason = "argument n")]
impl PtRegs {
    #[inline(always)]
    #[must_use]
    pub fn a0(&self) -> u64 {
        self.rdi
    }
    #[inline(always)]
    #[must_use]
    pub fn a1(&self) -> u64 {
        self.rsi
    }
    #[inline(always)]
    #[must_use]
    pub fn a2(&self) -> u64 {
        self.rdx
    }
    #[inline(always)]
    #[must_use]
    pub fn a3(&self) -> u64 {
        self.r10
    }
    #[inline(always)]
    #[must_use]
    pub fn a4(&self) -> u64 {
        self.r8
    }
    #[inline(always)]
    #[must_use]
    pub fn a5(&self) -> u64 {
        self.r9
    }
}

/// Segment selectors. Their order in the GDT is what SYSCALL and SYSRET require (SDM 2B, SYSRET):
/// STAR names the kernel's pair by CS and the user's by the 32-bit CS below DS and the 64-bit CS.
pub mod selector {
    /// Kernel code.
    pub const KERNEL_CS: u16 = 0x10;
    /// Kernel data.
    pub const KERNEL_DS: u16 = 0x18;
    /// 32-bit user code: only names the base of the user's group in STAR.
    pub const USER_CS32: u16 = 0x23;
    /// User data.
    pub const USER_DS: u16 = 0x2b;
    /// 64-bit user code.
    pub const USER_CS: u16 = 0x33;
    /// Task state segment (two GDT slots).
    pub const TSS: u16 = 0x40;
}

/// RFLAGS bits (SDM 1, 3.4.3).
pub mod flags {
    /// Carry.
    pub const CF: u64 = 1;
    /// Always 1.
    pub const FIXED: u64 = 1 << 1;
    /// Parity.
    pub const PF: u64 = 1 << 2;
    /// Adjust.
    pub const AF: u64 = 1 << 4;
    /// Zero.
    pub const ZF: u64 = 1 << 6;
    /// Sign.
    pub const SF: u64 = 1 << 7;
    /// Trap: single-step.
    pub const TF: u64 = 1 << 8;
    /// Interrupts enabled.
    pub const IF: u64 = 1 << 9;
    /// Direction of string instructions.
    pub const DF: u64 = 1 << 10;
    /// Overflow.
    pub const OF: u64 = 1 << 11;
    /// I/O privilege level.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume.
    pub const RF: u64 = 1 << 16;
    /// Virtual-8086 mode.
    pub const VM: u64 = 1 << 17;
    /// Alignment check; with SMAP also "kernel may touch user pages".
    pub const AC: u64 = 1 << 18;
    /// CPUID may be toggled.
    pub const ID: u64 = 1 << 21;
    /// What SYSCALL clears (FMASK), as Linux does.
    pub const SYSCALL_MASK: u64 =
        CF | PF | AF | ZF | SF | TF | IF | DF | OF | IOPL | NT | RF | AC | ID;
    /// What a tracer may set in a program's flags.
    pub const USER_SETTABLE: u64 = SIGRETURN_SETTABLE | NT;
    /// What sigreturn takes from its frame.
    pub const SIGRETURN_SETTABLE: u64 = CF | PF | AF | ZF | SF | TF | DF | OF | RF | AC;
    /// What SYSRET can load from R11 (SDM 2B): RF and VM always become 0.
    pub const SYSRET_LOADS: u64 = 0x3c_7fd7;
}

/// How to return to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// SYSRET gives exactly this register frame.
    Sysret,
    /// Only IRET does, because of the first condition that fails.
    Iret(IretReason),
    /// Neither may load it: IRET would fault in the kernel, or the program would run with
    /// interrupts masked or with I/O rights.
    Refuse,
}

/// Why a frame needs IRET, in the order in which the conditions are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IretReason {
    /// RCX is not RIP: SYSRET jumps to RCX and the program would see it.
    RcxDiffers,
    /// R11 is not RFLAGS.
    R11Differs,
    /// RIP is not below the limit of user space: on Intel, SYSRET to a non-canonical RIP faults in
    /// the kernel on the user's stack.
    RipBeyondLimit,
    /// RF is set, or a flag that SYSRET does not load: it would be lost.
    ResumeFlag,
    /// TF is set: SYSRET traps before the first instruction, IRET after it.
    TrapFlag,
    /// SYSRET is switched off (`sysret=off`).
    SwitchedOff,
}

impl IretReason {
    /// All reasons, in the order of their numbers (`reason as usize`).
    pub const ALL: [IretReason; 6] = [
        IretReason::RcxDiffers,
        IretReason::R11Differs,
        IretReason::RipBeyondLimit,
        IretReason::ResumeFlag,
        IretReason::TrapFlag,
        IretReason::SwitchedOff,
    ];

    /// The column of `/proc/limen/exits`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IretReason::RcxDiffers => "iret-rcx",
            IretReason::R11Differs => "iret-r11",
            IretReason::RipBeyondLimit => "iret-rip",
            IretReason::ResumeFlag => "iret-rf",
            IretReason::TrapFlag => "iret-tf",
            IretReason::SwitchedOff => "iret-off",
        }
    }
}

/// How the kernel was entered that is now left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// SYSCALL.
    Syscall,
    /// An exception or an interrupt.
    Vector,
    /// Nothing: the thread is new.
    NewThread,
}

impl Origin {
    /// All origins, in the order of their numbers (`origin as usize`).
    pub const ALL: [Origin; 3] = [Origin::Syscall, Origin::Vector, Origin::NewThread];

    /// The row of `/proc/limen/exits`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Origin::Syscall => "syscall",
            Origin::Vector => "vector",
            Origin::NewThread => "new-thread",
        }
    }
}

/// Flags that keep SYSRET from being used, or must have one value in any frame. The upper half and
/// the reserved bits are in it, so R11 needs no mask: SYSRET loads all of what is left.
const SYSRET_CARES: u64 = !flags::SYSRET_LOADS | flags::TF | flags::IF | flags::IOPL;

/// Decides how the program whose registers are in `regs` continues. `LIMIT` is the end of user
/// space, exclusive. The caller has done all exit work, and interrupts stay off until the return.
#[inline(always)]
pub fn decide<const LIMIT: u64>(regs: &PtRegs) -> Exit {
    let (rip, rflags) = (regs.rip, regs.rflags);
    // One condition a line, with exits of two kinds, so that each is one compare and branch.
    if regs.cs != u64::from(selector::USER_CS) {
        return Exit::Refuse;
    }
    if regs.rcx != rip || rip >= LIMIT {
        return decide_slowly::<LIMIT>(regs);
    }
    if regs.r11 != rflags || rflags & SYSRET_CARES != flags::IF {
        return decide_slowly::<LIMIT>(regs);
    }
    if regs.ss != u64::from(selector::USER_DS) {
        return Exit::Refuse;
    }
    Exit::Sysret
}

/// Flags that keep a frame from SYSRET which SYSCALL left and nobody has changed: [`decide`] for
/// those. RIP is canonical, since an instruction lies before it; RCX, R11, CS and SS are right, and
/// no program has rights to ports or runs with interrupts masked.
pub const NEVER_BY_SYSRET: u64 = flags::TF | flags::RF;

#[cold]
fn decide_slowly<const LIMIT: u64>(regs: &PtRegs) -> Exit {
    use IretReason::*;
    let must_be = regs.rflags & (flags::IF | flags::IOPL | flags::VM) == flags::IF;
    let is_user = regs.ss == u64::from(selector::USER_DS) && regs.rip < CANONICAL_END;
    if !is_user || !must_be {
        return Exit::Refuse;
    }
    Exit::Iret(if regs.rcx != regs.rip {
        RcxDiffers
    } else if regs.r11 != regs.rflags {
        R11Differs
    } else if regs.rip >= LIMIT {
        RipBeyondLimit
    } else if regs.rflags & flags::TF != 0 {
        TrapFlag
    } else {
        ResumeFlag
    })
}

/// Whether SYSRET leaves the attributes of SS as they are, null ones included (AMD, and Hygon whose
/// CPUs are of the same design; APM 3, SYSRET). An interrupt of a program makes SS null, so the
/// kernel has to load it before the next SYSRET. Intel's SYSRET sets all of it.
#[must_use]
pub fn sysret_keeps_ss(vendor: &[u8; 12]) -> bool {
    matches!(vendor, b"AuthenticAMD" | b"HygonGenuine")
}

/// End of the lower half of 48-bit addresses. IRET to a RIP beyond it, up to the upper half,
/// faults in the kernel (SDM 2A, IRET).
const CANONICAL_END: u64 = 1 << 47;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = (1 << 47) - 4096;

    fn plain() -> PtRegs {
        PtRegs {
            rip: 0x401000,
            rcx: 0x401000,
            rflags: 0x202,
            r11: 0x202,
            cs: selector::USER_CS.into(),
            ss: selector::USER_DS.into(),
            ..PtRegs::default()
        }
    }

    /// The architectural state after SYSRET, by the manual: (rip, rflags, cs, ss).
    fn model_sysret(regs: &PtRegs) -> Option<(u64, u64, u64, u64)> {
        let canonical = regs.rcx < 1 << 47 || regs.rcx >= !0 << 47;
        let rflags = regs.r11 & flags::SYSRET_LOADS & !(flags::RF | flags::VM) | flags::FIXED;
        (canonical && rflags & flags::TF == 0).then_some((
            regs.rcx,
            rflags,
            selector::USER_CS.into(),
            selector::USER_DS.into(),
        ))
    }

    #[test]
    fn plain_syscall_leaves_by_sysret() {
        assert_eq!(decide::<LIMIT>(&plain()), Exit::Sysret);
    }

    #[test]
    fn each_condition_alone_forces_iret() {
        use IretReason::*;
        type Change = fn(&mut PtRegs);
        let cases: [(Change, IretReason); 6] = [
            (|r| r.rcx += 1, RcxDiffers),
            (|r| r.r11 ^= 1, R11Differs),
            (|r| (r.rip, r.rcx) = (LIMIT, LIMIT), RipBeyondLimit),
            (|r| (r.rflags, r.r11) = (0x10202, 0x10202), ResumeFlag),
            (|r| (r.rflags, r.r11) = (1 << 40 | 0x202, 1 << 40 | 0x202), ResumeFlag),
            (|r| (r.rflags, r.r11) = (0x302, 0x302), TrapFlag),
        ];
        for (edit, reason) in cases {
            let mut regs = plain();
            edit(&mut regs);
            assert_eq!(decide::<LIMIT>(&regs), Exit::Iret(reason), "{regs:x?}");
        }
    }

    #[test]
    fn what_no_return_may_load_is_refused() {
        let cases: [fn(&mut PtRegs); 8] = [
            |r| r.cs = selector::USER_CS32.into(),
            |r| r.cs = selector::KERNEL_CS.into(),
            |r| r.ss = 0,
            |r| (r.rip, r.rcx) = (1 << 47, 1 << 47),
            |r| (r.rip, r.rcx) = (!0 << 47, !0 << 47),
            |r| (r.rflags, r.r11) = (0x20202, 0x20202),
            |r| (r.rflags, r.r11) = (0x002, 0x002),
            |r| (r.rflags, r.r11) = (0x3202, 0x3202),
        ];
        for edit in cases {
            let mut regs = plain();
            edit(&mut regs);
            assert_eq!(decide::<LIMIT>(&regs), Exit::Refuse, "{regs:x?}");
        }
    }

    #[test]
    fn numbers_index_the_lists() {
        for (number, reason) in IretReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        for (number, origin) in Origin::ALL.into_iter().enumerate() {
            assert_eq!(origin as usize, number);
        }
    }

    /// What IRET does with a frame, by the manual (SDM 2A): the same four, or None if it faults or
    /// if the program must not have the result.
    fn model_iret(regs: &PtRegs) -> Option<(u64, u64, u64, u64)> {
        let canonical = regs.rip < 1 << 47 || regs.rip >= !0 << 47;
        let rflags = regs.rflags & IRET_LOADS | flags::FIXED;
        let is_user = regs.cs == 0x33 && regs.ss == 0x2b && regs.rip >> 63 == 0;
        let rights = rflags & flags::IF != 0 && rflags & flags::IOPL == 0;
        let mode = regs.rflags & flags::VM == 0;
        (canonical && is_user && rights && mode).then_some((regs.rip, rflags, regs.cs, regs.ss))
    }

    /// Bits of RFLAGS that exist below VM, with RF, AC, VIF, VIP and ID.
    const IRET_LOADS: u64 = 0x3d_7fd7;

    #[test]
    fn the_decision_agrees_with_both_instructions() {
        // A small generator (xorshift) over frames that are near the conditions.
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut seen = [0u32; 3];
        for _ in 0..10_000_000 {
            let mut regs = plain();
            let r = next();
            if r & 1 != 0 {
                regs.rip = next() >> (next() % 64);
            }
            regs.rcx = if r & 6 != 0 { regs.rip } else { next() };
            if r & 8 != 0 {
                regs.rflags = next() & IRET_LOADS & !flags::IOPL | 0x202;
            }
            if r & 0xf000 == 0 {
                regs.rflags = next();
            }
            regs.r11 = if r & 0x30 != 0 { regs.rflags } else { next() };
            if r & 0xf00 == 0 {
                regs.cs = next() & 0xffff;
            }
            let exit = decide::<LIMIT>(&regs);
            let iret = model_iret(&regs);
            match exit {
                Exit::Sysret => {
                    seen[0] += 1;
                    assert!(iret.is_some(), "{regs:x?}");
                    assert_eq!(model_sysret(&regs), iret, "{regs:x?}");
                    // SYSRET leaves its two sources in RCX and R11.
                    assert_eq!((regs.rcx, regs.r11), (regs.rip, regs.rflags), "{regs:x?}");
                }
                Exit::Iret(_) => {
                    seen[1] += 1;
                    assert!(iret.is_some(), "{regs:x?}");
                }
                Exit::Refuse => {
                    seen[2] += 1;
                    assert_eq!(iret, None, "{regs:x?}");
                }
            }
        }
        assert!(seen.iter().all(|&n| n > 10_000), "the generator misses a branch: {seen:?}");
    }

    #[test]
    fn frames_of_syscall_need_two_flags_alone() {
        // What a program can have in RFLAGS: IRET's bits without rights, interrupts on.
        let can_have = IRET_LOADS & !flags::IOPL;
        let mut seen = [0u32; 2];
        for bits in 0..1u64 << 22 {
            let rflags = bits & can_have | flags::IF | flags::FIXED;
            for rip in [2, 0x401000, LIMIT - 1] {
                let regs = PtRegs { rip, rcx: rip, rflags, r11: rflags, ..plain() };
                let by_sysret = decide::<LIMIT>(&regs) == Exit::Sysret;
                assert_eq!(rflags & NEVER_BY_SYSRET == 0, by_sysret, "{regs:x?}");
                seen[usize::from(by_sysret)] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n > 1000), "{seen:?}");
    }

    #[test]
    fn ss_is_loaded_for_those_who_keep_it() {
        assert!(sysret_keeps_ss(b"AuthenticAMD") && sysret_keeps_ss(b"HygonGenuine"));
        assert!(!sysret_keeps_ss(b"GenuineIntel") && !sysret_keeps_ss(b"CentaurHauls"));
    }
}
