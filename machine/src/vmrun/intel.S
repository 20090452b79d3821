// World switch of Intel's virtualisation (SDM 3C, 27 and 28): into a guest and back.
//
// VMLAUNCH and exits switch RSP, RIP, flags, control registers, all segments with their bases and
// some MSRs; general registers and CR2 are switched here, all else by the caller (`intel.rs`). GS
// is the kernel's on both sides. There is no GIF: an NMI may come between the store that says
// "guest" and VMLAUNCH, and behind an exit. Its handler finds the kernel's GS and stack, and the
// word as it finds it around user mode (mechanisms/context_tracking).

.pushsection .entry.text, "ax", @progbits

// vmx_switch(rdi: &mut Extra) -> 0: the guest was left; 1: it was not entered.
// IF=0, the control structure is loaded and complete but for HOST_RSP.
.balign 64
.globl vmx_switch
.type vmx_switch, @function
vmx_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    push %rdi
    // What is returned, unless an exit comes.
    push $1
    mov ${HOST_RSP}, %eax
    vmwrite %rsp, %rax
    mov {CR2}(%rdi), %rax
    mov %rax, %cr2
    mov {RAX}(%rdi), %rax
    mov {RCX}(%rdi), %rcx
    mov {RDX}(%rdi), %rdx
    mov {RBX}(%rdi), %rbx
    mov {RBP}(%rdi), %rbp
    mov {RSI}(%rdi), %rsi
    .irp number, 8, 9, 10, 11, 12, 13, 14, 15
    mov {R0}+8*\number(%rdi), %r\number
    .endr
    mov {RDI}(%rdi), %rdi
    movl ${IN_GUEST}, %gs:{CONTEXT}
.globl context_left_vmx
context_left_vmx:
    vmlaunch
    // Refused: nothing was switched. The registers go back to where they came from.
    jmp 1f
// Where exits lead: HOST_RIP.
.globl context_left_vmx_exit
context_left_vmx_exit:
    movq $0, (%rsp)
1:
    // Where the guest's registers belong is not to be touched yet.
    .irp register, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
    push %\register
    .endr
    mov %cr2, %rax
    push %rax
    behind_guest vmx
    mov 17*8(%rsp), %rax
    pop {CR2}(%rax)
    .irp number, 15, 14, 13, 12, 11, 10, 9, 8
    pop {R0}+8*\number(%rax)
    .endr
    pop {RDI}(%rax)
    pop {RSI}(%rax)
    pop {RBP}(%rax)
    pop {RBX}(%rax)
    pop {RDX}(%rax)
    pop {RCX}(%rax)
    pop {RAX}(%rax)
    pop %rax
    add $8, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    jmp __x86_return_thunk
    int3
    behind_guest_out_of_line vmx
.size vmx_switch, . - vmx_switch

.popsection
