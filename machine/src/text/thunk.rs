//! The retpoline thunk that the compiler calls for every indirect branch (`-Zretpoline-external-
//! thunk`): target in R11. A return whose prediction is a harmless loop.

use core::arch::global_asm;

global_asm!(
    r#"
    .pushsection .text.__x86_indirect_thunk_r11, "ax", @progbits
    .balign 32
    .globl __x86_indirect_thunk_r11
    .type __x86_indirect_thunk_r11, @function
    __x86_indirect_thunk_r11:
        call 2f
    1:  pause
        lfence
        jmp 1b
    2:  mov %r11, (%rsp)
        ret
        int3
    .size __x86_indirect_thunk_r11, . - __x86_indirect_thunk_r11
    .popsection
    "#,
    options(att_syntax)
);
