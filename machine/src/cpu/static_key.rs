//! Static branches: a condition that changes rarely is a nop or a jump in text.
//!
//! A key is a type with a number; [`static_branch_unlikely`] costs five bytes of nop while the key
//! is off. The assembler notes each place in `__jump_table`.
//!
//! Numbers come from [`id`], the one list; two keys with one number would switch each other.
//! Neighbour: `text::static_branch` switches.

use text_patching::jump_label;

/// A key. Its value is what the text says; there is no variable.
pub trait StaticKey {
    /// From [`id`], and below 2^28, where the gates of static calls begin.
    const ID: u32;
}

/// From here on keys are the gates of static calls ([`crate::static_call`]), which nobody switches
/// by number.
pub(crate) const GATES: u32 = 1 << 28;

/// The key's number, which is no gate's.
pub(crate) const fn own_id<K: StaticKey>() -> u32 {
    assert!(K::ID < GATES, "a key's number is that of a gate");
    K::ID
}

/// The numbers of all keys.
pub mod id {
    /// Whether every return to a program is by IRET.
    pub const SYSRET_OFF: u32 = 4;
    /// Whether the scheduler measures how long threads wait for a CPU.
    pub const SCHEDSTATS: u32 = 5;
    /// Whether the boundary is traced.
    pub const TRACING: u32 = 6;
    /// Keys of `mitigations`, which are switched at boot and stay: entry code has such.
    pub const SYSCALL_GUARD: u32 = 8;
    /// See `mitigations`.
    pub const VECTOR_GUARD: u32 = 9;
    /// See `mitigations`.
    pub const ENTRY_IBPB: u32 = 10;
    /// See `mitigations`.
    pub const KERNEL_IBRS: u32 = 11;
    /// See `mitigations`.
    pub const ENTRY_BHB_SHORT: u32 = 12;
    /// See `mitigations`.
    pub const ENTRY_BHB_LONG: u32 = 13;
    /// See `mitigations`.
    pub const NO_FENCE_USER: u32 = 14;
    /// See `mitigations`.
    pub const NO_FENCE_KERNEL: u32 = 15;
    /// See `mitigations`.
    pub const NO_VERW_ON_EXIT: u32 = 16;
    /// See `mitigations`.
    pub const VERW_WHEN_IDLE: u32 = 17;
    /// See `mitigations`.
    pub const FILL_RETURN_STACK: u32 = 18;
    /// See `mitigations`.
    pub const AT_SWITCH: u32 = 19;
    /// See `mitigations`.
    pub const BEHIND_GUESTS: u32 = 20;
    /// See `mitigations`.
    pub const IBPB_BEHIND_GUESTS: u32 = 21;
    /// See `mitigations`.
    pub const FILL_BEHIND_GUESTS: u32 = 22;
    /// See `mitigations`.
    pub const CALL_BEHIND_GUESTS: u32 = 23;
    /// Whether system calls begin at one address of their stack.
    pub const NO_STACK_OFFSET: u32 = 24;
    /// See `mitigations`.
    pub const UNTRAIN: u32 = 25;
    /// See `mitigations`.
    pub const UNTRAIN_SAFE: u32 = 26;
    /// See `mitigations`.
    pub const UNTRAIN_ALIAS: u32 = 27;
    /// See `text::untrain`.
    pub const SAFE_RETURNS: u32 = 28;
    /// See `shadow_stack`.
    pub const SHADOW_STACK: u32 = 29;
    /// See `text::call_depth`.
    pub const COUNT_CALLS: u32 = 30;
    /// A key of the in-kernel tests.
    pub const KTEST: u32 = 2;
    /// A key of the in-kernel tests with a site of the other kind.
    pub const KTEST_LIKELY: u32 = 3;
}

/// The number of a key for the table, for assembly: it is switched before the first program runs,
/// and stays.
pub(crate) const fn at_boot(key: u32) -> u32 {
    key | jump_label::RO_AFTER_INIT
}

/// Whether the key is on; it is off at boot. The hot path falls through.
#[inline(always)]
pub fn static_branch_unlikely<K: StaticKey>() -> bool {
    'on: {
        // SAFETY: the five bytes are a nop until text_poke replaces them by a jump to `on`, which
        // the compiler knows as a successor; no register, flag or memory changes either way.
        unsafe {
            core::arch::asm!(
                "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                ".pushsection __jump_table, \"aR\", @progbits",
                ".balign 4",
                ".long 2b - .",
                ".long {on} - .",
                ".long {id}",
                ".popsection",
                on = label { break 'on true; },
                id = const own_id::<K>(),
                options(nomem, nostack, preserves_flags)
            );
        }
        false
    }
}

/// Whether the key is on; it is on at boot. The hot path falls through.
#[inline(always)]
pub fn static_branch_likely<K: StaticKey>() -> bool {
    'off: {
        // SAFETY: as in `static_branch_unlikely`, the jump leads to the disabled side.
        unsafe {
            core::arch::asm!(
                "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                ".pushsection __jump_table, \"aR\", @progbits",
                ".balign 4",
                ".long 2b - .",
                ".long {off} - .",
                ".long {id}",
                ".popsection",
                off = label { break 'off false; },
                id = const own_id::<K>() | jump_label::LIKELY,
                options(nomem, nostack, preserves_flags)
            );
        }
        true
    }
}
