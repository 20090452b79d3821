// The world switch of AMD's virtualisation (AMD APM 2, 15.5): from the kernel into a guest and
// back.
//
// VMRUN switches RAX, RSP, RIP, flags, control registers and four segments; VMLOAD and VMSAVE the
// rest of the segments (FS and GS with their bases, TR) and the MSRs of system calls; general
// registers are switched here. Between the VMLOAD of the guest's and that of the host's GS is not
// the kernel's: nothing may come in between. That is GIF=0, which holds back interrupts, NMIs and
// machine checks.

.pushsection .text.vmrun, "ax", @progbits

// vmrun_switch(rdi: &mut Extra, rsi: physical address of the guest's block, rdx: of the host's)
// IF=0, GIF=1. The same afterwards.
.balign 64
.globl vmrun_switch
.type vmrun_switch, @function
vmrun_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    push %rdi
    push %rdx
    mov %rdx, %rax
    vmsave %rax
    mov %rsi, %rax
    clgi
    // With virtual masking this is the host's IF while the guest runs: an interrupt is an exit.
    // GIF=0 keeps it out until then.
    sti
    vmload %rax
    mov {RCX}(%rdi), %rcx
    mov {RDX}(%rdi), %rdx
    mov {RBX}(%rdi), %rbx
    mov {RBP}(%rdi), %rbp
    mov {RSI}(%rdi), %rsi
    .irp number, 8, 9, 10, 11, 12, 13, 14, 15
    mov {R0}+8*\number(%rdi), %r\number
    .endr
    mov {RDI}(%rdi), %rdi
    vmrun %rax
    // RAX and RSP are as before VMRUN; GS, TR and all other general registers are the guest's.
    vmsave %rax
    mov 8(%rsp), %rax
    mov %rcx, {RCX}(%rax)
    mov %rdx, {RDX}(%rax)
    mov %rbx, {RBX}(%rax)
    mov %rbp, {RBP}(%rax)
    mov %rsi, {RSI}(%rax)
    mov %rdi, {RDI}(%rax)
    .irp number, 8, 9, 10, 11, 12, 13, 14, 15
    mov %r\number, {R0}+8*\number(%rax)
    .endr
    pop %rax
    vmload %rax
    pop %rax
    // Nothing of the guest's is left for the kernel's speculation to use.
    xor %ecx, %ecx
    xor %edx, %edx
    xor %esi, %esi
    xor %edi, %edi
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    xor %r11d, %r11d
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    cli
    stgi
    // Nothing above was predicted by the return stack or by an indirect branch: what the guest has
    // left in predictors goes before the first RET.
    if_key {IBPB_BEHIND_GUESTS}, vmrun_barrier
vmrun_behind_barrier:
    if_key {FILL_BEHIND_GUESTS}, vmrun_fill
    if_key {CALL_BEHIND_GUESTS}, vmrun_call
    ret
    int3
vmrun_barrier:
    mov ${PRED_CMD_MSR}, %ecx
    mov %gs:{PRED_CMD}, %eax
    xor %edx, %edx
    wrmsr
    jmp vmrun_behind_barrier
vmrun_fill:
    fill_the_return_stack
    ret
    int3
vmrun_call:
    call 1f
    int3
1:  add $8, %rsp
    lfence
    ret
    int3
.size vmrun_switch, . - vmrun_switch

.popsection
