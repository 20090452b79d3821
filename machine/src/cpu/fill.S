// Drops addresses that calls without a return have left on the shadow stack, where there is one:
// RDSSP does nothing elsewhere. Clobbers RCX and flags.
.macro drop_shadow words
    xor %ecx, %ecx
    rdsspq %rcx
    test %rcx, %rcx
    jz 76f
    mov $\words, %ecx
    incsspq %rcx
76:
.endm
// Fills the return stack (RSB): 32 calls whose returns are never taken, so that the next returns
// are predicted by none of a guest's or another program's. Clobbers RCX and flags; the stack is as
// before. No RET is executed: it can stand before the first one behind a guest.
.macro fill_the_return_stack
    mov $16, %ecx
77: call 78f
    int3
78: call 79f
    int3
79: add $16, %rsp
    dec %ecx
    jnz 77b
    drop_shadow 32
    // A misprediction of the branch above must not reach the next return.
    lfence
.endm
