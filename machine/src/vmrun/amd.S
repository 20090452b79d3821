// World switch of AMD's virtualisation (AMD APM 2, 15.5): from the kernel into a guest and back.
//
// VMRUN switches RAX, RSP, RIP, flags, control registers and four segments; VMLOAD and VMSAVE the
// rest of the segments (FS and GS with their bases, TR) and the MSRs of system calls; general
// registers are switched here. Between the VMLOAD of the guest's and that of the host's GS is not
// the kernel's: nothing may come in between. That is GIF=0, which holds back interrupts, NMIs and
// machine checks.
//
// From the store that says "guest" to the catch-up this CPU is not told of what may wait, so the
// code is entry text, in a danger zone as around user mode (mechanisms/context_tracking): it
// touches the stack, this CPU's data, and by physical addresses the blocks of both worlds.

.pushsection .entry.text, "ax", @progbits

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
    mov {RCX}(%rdi), %rcx
    mov {RDX}(%rdi), %rdx
    mov {RBX}(%rdi), %rbx
    mov {RBP}(%rdi), %rbp
    mov {RSI}(%rdi), %rsi
    .irp number, 8, 9, 10, 11, 12, 13, 14, 15
    mov {R0}+8*\number(%rdi), %r\number
    .endr
    mov {RDI}(%rdi), %rdi
    clgi
    // With virtual masking this is the host's IF while the guest runs: an interrupt is an exit.
    // GIF=0 keeps it out until then.
    sti
    movl ${IN_GUEST}, %gs:{CONTEXT}
.globl context_left_vmrun
context_left_vmrun:
    vmload %rax
    vmrun %rax
.globl vmrun_next
vmrun_next:
    // RAX and RSP are as before VMRUN; GS, TR and all other general registers are the guest's.
    vmsave %rax
    mov (%rsp), %rax
    vmload %rax
    // GS is the kernel's. The guest's registers wait on the stack: where they belong is not to be
    // touched yet.
    .irp register, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
    push %\register
    .endr
    behind_guest vmrun
    mov 15*8(%rsp), %rax
    .irp number, 15, 14, 13, 12, 11, 10, 9, 8
    pop {R0}+8*\number(%rax)
    .endr
    pop {RDI}(%rax)
    pop {RSI}(%rax)
    pop {RBP}(%rax)
    pop {RBX}(%rax)
    pop {RDX}(%rax)
    pop {RCX}(%rax)
    add $16, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    cli
    stgi
    jmp __x86_return_thunk
    int3
    behind_guest_out_of_line vmrun
.size vmrun_switch, . - vmrun_switch

.popsection
