// What both world switches do between an exit and the first return behind it. `world` makes the
// names: WORLD_behind_barrier and so on. The guest's registers are on the stack.
.macro behind_guest world
    // Nothing of the guest's is left for the kernel's speculation to use.
    .irp register, ecx, edx, ebx, ebp, esi, edi, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d
    xor %\register, %\register
    .endr
    // Nothing above was predicted by the return stack or by an indirect branch: what the guest has
    // left in predictors goes before the first RET.
    if_key {IBPB_BEHIND_GUESTS}, \world\()_barrier
\world\()_behind_barrier:
    if_key {FILL_BEHIND_GUESTS}, \world\()_fill
\world\()_behind_fill:
    if_key {CALL_BEHIND_GUESTS}, \world\()_call
\world\()_behind_call:
    if_key {UNTRAIN}, \world\()_untrain
\world\()_behind_untrain:
    // Aligned by 16, as a call wants it.
    sub $8, %rsp
    call context_leave_guest
    add $8, %rsp
.globl context_entered_\world
context_entered_\world:
.endm

// Behind the switch: where its keys lead.
.macro behind_guest_out_of_line world
\world\()_barrier:
    mov ${PRED_CMD_MSR}, %ecx
    mov %gs:{PRED_CMD}, %eax
    xor %edx, %edx
    wrmsr
    jmp \world\()_behind_barrier
\world\()_fill:
    fill_the_return_stack
    jmp \world\()_behind_fill
\world\()_call:
    call 1f
    int3
1:  add $8, %rsp
    drop_shadow 1
    lfence
    jmp \world\()_behind_call
\world\()_untrain:
    call guard_untrain
    jmp \world\()_behind_untrain
.endm
