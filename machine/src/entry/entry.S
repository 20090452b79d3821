// The boundary: how the CPU comes from programs into the kernel, and goes back.
//
// Three ways in:
//   syscall_entry     SYSCALL from a program; several, of which each CPU uses one
//   vector_N          interrupts and exceptions, from a program or from the kernel
//   paranoid_N        NMI, #DB, #DF, #MC: may come at any instruction of this very file, so neither
//                     the stack nor GS can be trusted; they run on their own stacks (IST)
// One way back to programs: return_to_user, by SYSRET where `entry::decide` allows it, else by
// IRET.
//
// Every way in builds a PtRegs (mechanisms/entry) at the top of the thread's kernel stack, and
// calls one Rust function. Offsets come from the Rust structures; there are no numbers here but
// vectors.
//
// The instructions between SWAPGS and the first kernel stack (and the reverse on the way out) are
// the windows in which a paranoid entry sees ring 0 with the program's GS or stack. It does not
// ask: it takes GS from its own stack and puts back what was there.

.pushsection .entry.text, "ax", @progbits

// ENDBR64 before an entry, for CPUs that track indirect branches and others that branch here: their
// entry is at it, that of others behind it (`descriptors`), so that only those pay for it.
.macro lands_here align
    .balign \align, 0xcc
    .fill \align - 4, 1, 0xcc
    endbr64
.endm

// Saves the general registers below `orig_rax`, then clears those a program could have left for the
// kernel's speculation to use. On entry RSP points at orig_rax.
.macro push_registers rax=%rax
    push %rdi
    push %rsi
    push_below_rsi \rax
.endm

.macro push_below_rsi rax=%rax
    push %rdx
    push %rcx
    push \rax
    push %r8
    push %r9
    push %r10
    push %r11
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
.endm

.macro clear_registers
    clear_registers_but_rbx
    xor %ebx, %ebx
.endm

.macro clear_registers_but_rbx
    xor %edx, %edx
    xor %ecx, %ecx
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    xor %r11d, %r11d
    xor %ebp, %ebp
    xor %r12d, %r12d
    xor %r13d, %r13d
    xor %r14d, %r14d
    xor %r15d, %r15d
.endm

// In a build with in-kernel tests: stops where a register that the program had is left. RBX is
// what it must be. Clobbers RAX.
.macro check_cleared rbx
    .if {CHECK_SYSRET}
    cmp \rbx, %rbx
    jne register_is_left
    xor %eax, %eax
    .irp register, rdx, rcx, r8, r9, r10, r11, rbp, r12, r13, r14, r15
    or %\register, %rax
    .endr
    jnz register_is_left
    .endif
.endm

// From here on this CPU is in the kernel: what was left pending for it is made good, and others
// interrupt it again. Changes flags; on the rare way what `clear_registers` cleared. Before it is a
// danger zone: text may be stale, and so may translations of all but the image, this CPU's entry
// data, and the stack in use (mechanisms/context_tracking).
//
// On a CPU that is interrupted always, the word is for the accounts.
.macro enter_told name
    movl ${IN_KERNEL}, %gs:{CONTEXT}
.globl context_entered_\name
context_entered_\name:
.endm

// The locked instruction sets the bit and is the barrier; what is pending then stays, since others
// change the word only while the bit is clear.
.macro enter_pending name
.globl context_entering_\name
context_entering_\name:
    lock btsl ${IN_KERNEL_BIT}, %gs:{CONTEXT}
    cmpl ${IN_KERNEL}, %gs:{CONTEXT}
    je context_entered_\name
    catch_up %gs:{CONTEXT}
.globl context_entered_\name
context_entered_\name:
.endm

.macro enter_always name
    lock btsl ${IN_KERNEL_BIT}, %gs:{CONTEXT}
    catch_up ${ALWAYS_PENDING}
.globl context_entered_\name
context_entered_\name:
.endm

// Where the write of CR3 is the catch-up it has been done: see `say_before_cr3`.
.macro enter_cr3 name
.globl context_entered_\name
context_entered_\name:
.endm

// Before the write of CR3 that is the catch-up (`defer=cr3`): the CPU says first that it is in the
// kernel, and then drops what it was not told of. Locked, since nothing says that the write makes a
// plain store seen before it drops anything. Changes flags.
.macro say_before_cr3 name
    lock btsl ${IN_KERNEL_BIT}, %gs:{CONTEXT}
.globl context_said_\name
context_said_\name:
.endm

// The same where entries are shared by all ways of tracking.
.macro say_before_cr3_if_so name
    cmpl ${TRACKING_CR3}, %gs:{TRACKING}
    jne context_said_\name
    say_before_cr3 \name
.endm

// Where calls are instrumented: whichever of the above this CPU needs.
.macro enter_instrumented name
    lock btsl ${IN_KERNEL_BIT}, %gs:{CONTEXT}
    cmpl ${TRACKING_PENDING}, %gs:{TRACKING}
    ja 1f
    cmpl ${IN_KERNEL}, %gs:{CONTEXT}
    je context_entered_\name
    catch_up %gs:{CONTEXT}
    jmp context_entered_\name
1:  catch_up ${ALWAYS_PENDING}
.globl context_entered_\name
context_entered_\name:
.endm

.macro catch_up word
    push %rdi
    push %rsi
    mov \word, %edi
    call context_catch_up
    pop %rsi
    pop %rdi
.endm

// From here on this CPU counts as in user mode, and is not interrupted for what may wait: the
// second danger zone, until the program's first instruction. Interrupts are masked. Changes nothing
// else.
.macro leave_kernel name
    movl $0, %gs:{CONTEXT}
.globl context_left_\name
context_left_\name:
.endm

// Restores the general registers, RAX too or not, but RDI; RSP then points at that.
.macro pop_registers_above_rdi rax=1
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    .if \rax
    pop %rax
    .else
    lea 8(%rsp), %rsp
    .endif
    pop %rcx
    pop %rdx
    pop %rsi
.endm

// Restores the general registers, RAX too or not; RSP then points at orig_rax.
.macro pop_registers rax=1
    pop_registers_above_rdi \rax
    pop %rdi
.endm

// Page-table isolation: a program runs on a top table of its own, one page above the kernel's,
// which maps the program, this file's code, and the per-CPU entry data and stacks. Bit 12 of CR3
// tells which; with PCIDs bit 11, too. What to load is noted when a space is (`pcid.rs`). GS: the
// kernel's.
.macro load_kernel_cr3 scratch
    mov %gs:{KERNEL_CR3}, \scratch
    mov \scratch, %cr3
.endm

// To the program's. What was stale in its context is gone then, so the ways back after this one
// keep it.
.macro load_user_cr3 scratch
    mov %gs:{USER_CR3}, \scratch
    mov \scratch, %cr3
    mov %gs:{USER_CR3_KEEP}, \scratch
    mov \scratch, %gs:{USER_CR3}
.endm

// -----------------------------------------------------------------------------------------------
// SYSCALL. From the CPU: RCX = return address, R11 = flags, RSP = the program's, GS = the
// program's, IF, DF, TF, AC, NT clear (FMASK). CR3: the program's; without isolation it maps the
// kernel too.

// From the thread's empty stack to the frame, and the kernel's function called. Its first argument
// is the frame, whose address stays in RBX, which functions keep; its second is the number.
.macro serve_syscall name, tracking, serve
    push ${USER_DS}
    push %gs:{USER_RSP}
    push %r11
    push ${USER_CS}
    push %rcx
    push %rax
    push_registers rax=${MINUS_ENOSYS}
    mov %rsp, %rdi
    mov %rax, %rsi
    clear_registers_but_rbx
    mov %rsp, %rbx
    check_cleared %rsp
    // Before the catch-up, which returns.
    if_key {SYSCALL_GUARD}, guard_\name
guarded_\name:
    enter_\tracking \name
    // The kernel's frames begin at another address at each call, up to 1 KiB below this frame.
    if_key {NO_STACK_OFFSET}, 1f
    imul ${STACK_STEP}, %gs:{STACK_SECRET}, %rax
    mov %rax, %gs:{STACK_SECRET}
    shr $54, %rax
    and $0x3f0, %eax
    sub %rax, %rsp
    // IF=0.
1:  call \serve
.endm

// Behind `syscall_from_user`, with its result in RAX: goes on where the call goes out by SYSRET at
// once. That is so if nothing is to be done, neither by the thread nor by the CPU, and the frame is
// as SYSCALL left it, which a frame that was lent does not count as: RIP is canonical then, since
// an instruction lies before it, and RCX, R11, CS and SS are right. Two flags remain.
.macro end_syscall
    cli
    mov %gs:{EXIT_WORK}, %ecx
    mov %gs:{RUNNING_TASK}, %rdx
    or {WORK}(%rdx), %ecx
    jnz syscall_ends_slowly
    testl ${NEVER_BY_SYSRET}, {RFLAGS}(%rbx)
    jnz syscall_ends_slowly
    check_unlent
    incq %gs:{SYSCALL_SYSRETS}
    mov %rbx, %rsp
.endm

// In a build with in-kernel tests: a frame that was not lent passes the table of all frames.
.macro check_unlent
    .if {CHECK_SYSRET}
    mov %rax, {RAX}(%rbx)
    mov %rbx, %rdi
    call unlent_frame
    mov {RAX}(%rbx), %rax
    .endif
.endm

// The rest: looks at the exit work and decides. RBX: the frame, RAX: the result. IF=0.
syscall_ends_slowly:
    mov %rax, {RAX}(%rbx)
    mov %rbx, %rdi
    call prepare_return_from_call
// AL: whether SYSRET may be used. RBX: the frame.
syscall_ended:
    mov %rbx, %rsp
    jmp return_to_user

// One entry for each way of tracking, so that none pays for the others: `descriptors` chooses. The
// way out lies behind the first; the others jump there.
.macro syscall_way name, tracking, serve, has_shadow_stack=0
.globl \name
.type \name, @function
    lands_here 64
\name:
    swapgs
    mov %rsp, %gs:{USER_RSP}
    mov %gs:{KERNEL_STACK_TOP}, %rsp
    .if \has_shadow_stack
    // SYSCALL has left the kernel without one. The running thread's, as the CPU takes it for an
    // interrupt of a program.
    setssbsy
    .endif
    serve_syscall \name, \tracking, \serve
.endm

// The same with page-table isolation.
.macro syscall_way_pti name, tracking, serve
.globl \name
.type \name, @function
    lands_here 64
\name:
    swapgs
    mov %rsp, %gs:{USER_RSP}
    .ifc \tracking, cr3
    say_before_cr3 \name
    .endif
    .ifc \tracking, instrumented
    say_before_cr3_if_so \name
    .endif
    load_kernel_cr3 %rsp
    mov %gs:{KERNEL_STACK_TOP}, %rsp
    serve_syscall \name, \tracking, \serve
.endm

.macro other_ways tracking, serve=syscall_from_user, ends=syscall_ends, ends_pti=syscall_ends_pti
    syscall_way syscall_entry_\tracking, \tracking, \serve
    jmp \ends
.size syscall_entry_\tracking, . - syscall_entry_\tracking
    syscall_way_pti syscall_entry_pti_\tracking, \tracking, \serve
    jmp \ends_pti
.size syscall_entry_pti_\tracking, . - syscall_entry_pti_\tracking
.endm

// In a build with in-kernel tests: stops at what hardware would punish, and emulators do not. R11
// and RCX are loaded, RSP is the kernel's, GS the kernel's.
.macro check_sysret
    .if {CHECK_SYSRET}
    cmp %gs:{USER_LIMIT}, %rcx          // Intel: #GP in ring 0 on the program's stack
    jae sysret_would_fault
    test ${NEVER_IN_R11}, %r11d         // lost (RF, VM), or no progress (TF)
    jnz sysret_would_fault
    .endif
.endm

// Before the last registers are restored, where the kernel's branches were restricted and the
// program's are not. No return follows. Clobbers RCX, RDX and RBX.
.macro release name
    if_key {KERNEL_IBRS}, release_\name
released_\name:
.endm

.macro release_out_of_line name
release_\name:
    mov %rax, %rbx
    mov ${SPEC_CTRL_MSR}, %ecx
    mov %gs:{SPEC_CTRL_USER}, %eax
    xor %edx, %edx
    wrmsr
    mov %rbx, %rax
    jmp released_\name
.endm

// Buffers are cleared as the last thing: what came behind would fill them again. GS and tables: the
// program's. VERW clears only with its operand in memory (SDM 2B); it changes ZF, which the return
// loads.
.macro clear_cpu_buffers name
    if_key {NO_VERW_ON_EXIT}, kept_\name
.globl verw_\name
verw_\name:
    verw kernel_ds_selector(%rip)
kept_\name:
.endm

// The shadow stack is given back, with no address of the kernel's on it: SSP names its token. No
// call follows. Clobbers RBX and RCX. The flag by which CLRSSBSY tells of a wrong token is not
// asked: Bochs 2.7 sets it for a right one.
.macro leave_shadow_stack
    rdsspq %rbx
    lea {BUSY}(%rbx), %rcx
    cmp %rcx, (%rbx)
    jne shadow_stack_in_use
    clrssbsy (%rbx)
.endm

    syscall_way syscall_entry, told, syscall_from_user
syscall_ends:
    end_syscall
    // RSP: the frame. RAX: the program's.
sysret:
    release sysret
    leave_kernel sysret
    pop_registers rax=0
    // Stack: orig_rax, rip, cs, rflags, rsp, ss. RCX = rip, R11 = rflags, as SYSCALL left them or
    // decide() checked.
    check_sysret
    mov {RSP_ABOVE_ORIG_RAX}(%rsp), %rsp
.globl sysret_window_start
sysret_window_start:
    // RSP is the program's, ring 0.
    swapgs
    clear_cpu_buffers before_sysret
    sysretq
.globl sysret_window_end
sysret_window_end:
    int3
.size syscall_entry, . - syscall_entry

    syscall_way_pti syscall_entry_pti, told, syscall_from_user
syscall_ends_pti:
    end_syscall
sysret_pti:
    release sysret_pti
    leave_kernel sysret_pti
    pop_registers_above_rdi rax=0
    check_sysret
    popq %gs:{USER_RDI}
    mov {RSP_ABOVE_ORIG_RAX}(%rsp), %rsp
.globl sysret_pti_window_start
sysret_pti_window_start:
    // RSP is the program's, ring 0.
    load_user_cr3 %rdi
    // On the program's tables: the thread's stack is gone, GS data is there.
    mov %gs:{USER_RDI}, %rdi
    swapgs
    clear_cpu_buffers before_sysret_pti
    sysretq
.globl sysret_pti_window_end
sysret_pti_window_end:
    int3
.size syscall_entry_pti, . - syscall_entry_pti

    other_ways pending
    other_ways always
    syscall_way_pti syscall_entry_pti_cr3, cr3, syscall_from_user
    jmp syscall_ends_pti
.size syscall_entry_pti_cr3, . - syscall_entry_pti_cr3

    // Where calls are instrumented, each is ended there.
    other_ways instrumented, instrumented_syscall_from_user, syscall_ended, syscall_ended

// Where the kernel's returns are checked. Page-table isolation is off there.
.macro shadow_way tracking, serve=masking_syscall_from_user, ends=shadowed_syscall_ends
    syscall_way syscall_entry_shadow_\tracking, \tracking, \serve, has_shadow_stack=1
    jmp \ends
.size syscall_entry_shadow_\tracking, . - syscall_entry_shadow_\tracking
.endm
    shadow_way told
    shadow_way pending
    shadow_way always
    shadow_way instrumented, instrumented_syscall_from_user, syscall_ended

// Interrupts are masked before the last address leaves the shadow stack. Where one came behind
// that, its IRET would find the stack's token above the frame that it takes, and free it as an
// interrupt stack's (SDM 2A, IRET).
.type masking_syscall_from_user, @function
masking_syscall_from_user:
    sub $8, %rsp
    call syscall_from_user
    add $8, %rsp
    cli
    jmp __x86_return_thunk
    int3
.size masking_syscall_from_user, . - masking_syscall_from_user

shadowed_syscall_ends:
    end_syscall
unshadow_sysret:
    leave_shadow_stack
    jmp sysret
shadow_stack_in_use:
    ud2

.if {CHECK_SYSRET}
sysret_would_fault:
    ud2
register_is_left:
    ud2
.endif

    release_out_of_line sysret
    release_out_of_line sysret_pti
    release_out_of_line iret
    release_out_of_line iret_pti

.balign 2
kernel_ds_selector:
    .word {KERNEL_DS}

// -----------------------------------------------------------------------------------------------
// What is done about speculation when a program has entered the kernel, before the first return or
// indirect branch: objtool walks every way in (objtool/src/untrained.rs). CR3 and GS: the kernel's.
// The CPU has not caught up. Clobbers RAX, RCX and RDX.
.globl guard_entry
.type guard_entry, @function
.balign 16
guard_entry:
    if_key {ENTRY_IBPB}, guard_ibpb
guarded_ibpb:
    if_key {KERNEL_IBRS}, guard_ibrs
guarded_ibrs:
    if_key {UNTRAIN}, guard_untrain
    jmp __x86_return_thunk
    int3
// Takes from the predictor what others have left for the kernel's one return, and returns by it
// (machine/src/text/untrain.rs); or begins to count calls. Called behind guests, too. Clobbers RAX.
.globl guard_untrain
guard_untrain:
    if_key {UNTRAIN_SAFE}, untrain_safe
    if_key {UNTRAIN_ALIAS}, untrain_alias
    if_key {COUNT_CALLS}, call_depth_begin
    jmp untrain_overlaid
    int3
// One call has no return yet: that of this guard.
.globl call_depth_begin
call_depth_begin:
    movq $-1, %gs:{CALL_DEPTH}
    shlq ${ONE_CALL}, %gs:{CALL_DEPTH}
    jmp __x86_return_thunk
    int3
.globl guard_ibpb
guard_ibpb:
    mov ${PRED_CMD_MSR}, %ecx
    mov %gs:{PRED_CMD}, %eax
    xor %edx, %edx
    wrmsr
    jmp guarded_ibpb
.globl guard_ibrs
guard_ibrs:
    mov ${SPEC_CTRL_MSR}, %ecx
    mov %gs:{SPEC_CTRL}, %eax
    xor %edx, %edx
    wrmsr
    jmp guarded_ibrs
.size guard_entry, . - guard_entry

.macro guard_out_of_line name
guard_\name:
    call guard_entry
    jmp guarded_\name
.endm

// The same at system calls, whose number a program chooses, and with it what branch history steers.
.macro guard_syscall_out_of_line name
guard_\name:
    call guard_entry
    if_key {ENTRY_BHB_SHORT}, guard_bhb_short_\name
    if_key {ENTRY_BHB_LONG}, guard_bhb_long_\name
    jmp guarded_\name
guard_bhb_short_\name:
    call clear_bhb_short_fenced
    jmp guarded_\name
guard_bhb_long_\name:
    call clear_bhb_long_fenced
    jmp guarded_\name
.endm
    guard_syscall_out_of_line syscall_entry
    guard_syscall_out_of_line syscall_entry_pti
    guard_syscall_out_of_line syscall_entry_pending
    guard_syscall_out_of_line syscall_entry_pti_pending
    guard_syscall_out_of_line syscall_entry_always
    guard_syscall_out_of_line syscall_entry_pti_always
    guard_syscall_out_of_line syscall_entry_pti_cr3
    guard_syscall_out_of_line syscall_entry_instrumented
    guard_syscall_out_of_line syscall_entry_pti_instrumented
    guard_syscall_out_of_line syscall_entry_shadow_told
    guard_syscall_out_of_line syscall_entry_shadow_pending
    guard_syscall_out_of_line syscall_entry_shadow_always
    guard_syscall_out_of_line syscall_entry_shadow_instrumented
    guard_out_of_line vector

// A paranoid entry may have hit a place where the program's value is in `SPEC_CTRL` already: what
// it finds goes to the upper half of R13, and back behind the handler.
guard_paranoid:
    if_key {KERNEL_IBRS}, guard_paranoid_ibrs
guard_paranoid_rest:
    call guard_entry
    jmp guarded_paranoid
guard_paranoid_ibrs:
    mov ${SPEC_CTRL_MSR}, %ecx
    rdmsr
    shl $32, %rax
    or %rax, %r13
    jmp guard_paranoid_rest
release_paranoid:
    mov ${SPEC_CTRL_MSR}, %ecx
    mov %r13, %rax
    shr $32, %rax
    xor %edx, %edx
    wrmsr
    jmp released_paranoid

// The way back for everything else. AL: whether SYSRET may be used. IF=0.
.globl return_to_user
.type return_to_user, @function
return_to_user:
    test %al, %al
    mov {RAX}(%rsp), %rax
    jz 1f
    cmpq $0, %gs:{PTI}
    jne sysret_pti
    if_key {SHADOW_STACK}, unshadow_sysret
    jmp sysret
1:  cmpq $0, %gs:{PTI}
    jne iret_pti
    jmp return_by_iret

return_by_iret:
    release iret
    leave_kernel iret
    pop_registers
    add $8, %rsp
    swapgs
before_iret:
    clear_cpu_buffers before_iret
.globl iret_to_user
iret_to_user:
    // The frame was checked when it was made. A fault here all the same becomes the program's
    // (`bad_iret`).
    iretq
    int3

iret_pti:
    release iret_pti
    // The CPU reads the frame after the switch of tables: it moves to the entry stack.
    mov %gs:{ENTRY_STACK_TOP}, %rdi
    sub $({IRET_FRAME_SIZE} + 8), %rdi
    mov {RDI}(%rsp), %rax
    mov %rax, (%rdi)
    lea {RIP}(%rsp), %rsi
    lea 8(%rdi), %rdi
    mov $({IRET_FRAME_SIZE} / 8), %ecx
    rep movsq
    leave_kernel iret_pti
    pop_registers
    mov %gs:{ENTRY_STACK_TOP}, %rsp
    sub $({IRET_FRAME_SIZE} + 8), %rsp
    load_user_cr3 %rdi
    pop %rdi
    swapgs
    jmp before_iret
.size return_to_user, . - return_to_user

// -----------------------------------------------------------------------------------------------
// Interrupts and exceptions. From the CPU: SS, RSP, RFLAGS, CS, RIP and for some an error code on
// the thread's kernel stack (from a program: TSS.RSP0, its top). GS: the program's or the kernel's.
// The stubs add a zero error code where the CPU gives none, and the vector.
.macro vector_stub vector
    .balign 16
vector_\vector:
    endbr64                             // as `lands_here`
    .if \vector == 3
    jmp breakpoint
    .else
    // Vectors for which the CPU pushes an error code (SDM 3A, 6.13).
    .set low_code, (\vector == 8) || (\vector >= 10 && \vector <= 14) || (\vector == 17)
    .set high_code, (\vector == 21) || (\vector == 29) || (\vector == 30)
    .if !(low_code || high_code)
    push $0
    .endif
    push $\vector
    jmp common_vector
    .endif
.endm

.balign 64
.globl vector_stubs
vector_stubs:
.set vector_number, 0
.altmacro
.rept 256
    vector_stub %vector_number
    .set vector_number, vector_number + 1
.endr
.noaltmacro

// #BP. From the kernel it may stand for a call that is being patched in (text_poke.rs): its handler
// then pushes a return address where the interrupted code would have. So the CPU's five words move
// down by two.
.balign 16
.type breakpoint, @function
breakpoint:
    testb $3, 8(%rsp)                   // CS
    jnz 1f
    sub $16, %rsp
    .irp word, 0, 8, 16, 24, 32
    push 16+\word(%rsp)
    pop \word(%rsp)
    .endr
1:  push $0
    push $3
    jmp common_vector
.size breakpoint, . - breakpoint

.balign 64
.type common_vector, @function
common_vector:
    cld
    // The vector lies where RDI belongs: exchange them, by way of RSI.
    push %rsi
    mov 8(%rsp), %rsi
    mov %rdi, 8(%rsp)
    push_below_rsi
    mov %rsp, %rdi
    testb $3, {CS}(%rsp)
    jz vector_of_ring_0
    swapgs
    // A mispredicted branch above must not use the program's GS below: a fence, unless that was
    // found not to be needed.
    if_key {NO_FENCE_USER}, unfenced_user
    lfence
.globl unfenced_user
unfenced_user:
    cmpq $0, %gs:{PTI}
    jne vector_from_user_pti
vector_from_user_stack:
    clear_registers
    xor %eax, %eax
    .if {CHECK_SYSRET}
    test %rax, %rax
    jnz register_is_left
    .endif
    check_cleared $0
    if_key {VECTOR_GUARD}, guard_vector
guarded_vector:
    cmpl ${TRACKING_PENDING}, %gs:{TRACKING}
    jae vector_tracked
    enter_told vector
    // rdi: &mut PtRegs, rsi: vector. GS: the kernel's. IF=0.
    call vector_from_user
    jmp return_to_user

vector_from_user_pti:
    // On this CPU's entry stack: switch tables, and move the frame to the thread's stack.
    say_before_cr3_if_so vector
    load_kernel_cr3 %rax
move_to_thread_stack:
    // rdi: the frame, rsi: vector
    mov %rsi, %rax
    mov %rdi, %rsi
    mov %gs:{KERNEL_STACK_TOP}, %rdi
    sub ${PT_REGS_SIZE}, %rdi
    mov %rdi, %rsp
    mov ${PT_REGS_WORDS}, %ecx
    rep movsq
    mov %rsp, %rdi
    mov %rax, %rsi
    jmp vector_from_user_stack

vector_tracked:
    ja vector_always
    enter_pending vector_pending
    jmp context_entered_vector
vector_always:
    enter_always vector_always
    jmp context_entered_vector

vector_of_ring_0:
    lea iret_to_user(%rip), %rax
    cmp %rax, {RIP}(%rsp)
    je bad_iret
.globl vector_from_kernel
vector_from_kernel:
    // Nor must an entry of a program that was taken for one of the kernel use the program's GS.
    if_key {NO_FENCE_KERNEL}, unfenced_kernel
    lfence
unfenced_kernel:
    // RBP stays, so that backtraces cross the interrupt.
    call vector_from_kernel_rust
    if_key {SHADOW_STACK}, settle_shadow_stack
settled_shadow_stack:
    cmpl $0, %gs:{IN_NMI}
    jne return_without_iret
    pop_registers
    add $8, %rsp
    iretq
    int3

// IRET would let NMIs come again (SDM 3A, 6.7.1) in the middle of the handler of one, onto the very
// stack that it runs on. So what interrupted that handler returns by RET: flags and address go
// below what was interrupted, whose stack pointer is read before they are written. What they
// replace of this frame is SS, and words that `breakpoint` left free. No #DB comes there: a
// program's breakpoints are on its own memory, which no such handler uses, and TF is clear; #MC
// ends the machine.
.macro write_return
    mov {RSP}(%rsp), %rax
    mov {RIP}(%rsp), %rcx
    mov {RFLAGS}(%rsp), %rdx
    mov %rcx, -8(%rax)
    mov %rdx, -16(%rax)
    sub $16, %rax
    mov %rax, {ORIG_RAX}(%rsp)
.endm
return_without_iret:
    if_key {SHADOW_STACK}, return_on_shadow_stack
returning_on_shadow_stack:
    write_return
    if_key {COUNT_CALLS}, return_uncounted
    pop_registers
    mov (%rsp), %rsp
    popfq
    jmp __x86_return_thunk
    int3
// Where calls are counted, which would change the flags: what this return is predicted by is an
// entry that leads to a trap. The rest of the return stack is as good as empty.
.globl return_uncounted
.type return_uncounted, @function
return_uncounted:
    movq $0, %gs:{CALL_DEPTH}
    call 1f
    int3
1:  add $8, %rsp
    pop_registers
    mov (%rsp), %rsp
    popfq
    ret
    int3
.size return_uncounted, . - return_uncounted

// The shadow stack has SSP, LIP and CS of what was interrupted, and IRET compares. Where the
// handler has changed what it returns to, the second is changed, too. Below it a word is kept for
// an address that the handler has put on the stack (`breakpoint`): it then lies above the frame.
settle_shadow_stack:
    rdsspq %rsi
    mov {RIP}(%rsp), %rax
    cmp 8(%rsi), %rax
    je settled_shadow_stack
    mov %rsp, %rdi
    // Not to the next byte: such a call leaves no word there (SDM 2A, CALL).
    call 1f
    int3
1:  add $8, %rsp
    call shadow_stack_settle
    test %al, %al
    jnz settled_shadow_stack
    mov $1, %eax
    incsspq %rax
    jmp settled_shadow_stack

// To the word that the RET takes.
return_on_shadow_stack:
    mov %rsp, %rdi
    rdsspq %rsi
    call shadow_stack_before_return
    incsspq %rax
    if_key {UNTRAIN_ALIAS}, return_by_alias
    jmp returning_on_shadow_stack
// The thunk of safe returns would change R11, which what was interrupted gets back: so this is
// behind a call of its own, whose word goes before there are registers to keep, and goes to the
// one instruction that returns.
return_by_alias:
    call 1f
    int3
1:  add $8, %rsp
    mov $1, %eax
    incsspq %rax
    write_return
    pop_registers
    mov (%rsp), %rsp
    popfq
    jmp untrain_alias_return + {SAFE_RET}
    int3

// The IRET to a program has faulted: its registers are there, GS and tables are the program's, and
// the state word says so. The fault becomes the program's: a frame of its registers and of the
// words that IRET was given, at the top of the thread's stack, with this fault's error code.
bad_iret:
    swapgs
    lfence
    if_key {SHADOW_STACK}, bad_iret_shadow_stack
bad_iret_shadowed:
    mov %rsi, %rbx
    mov %gs:{KERNEL_STACK_TOP}, %rsi
    mov %gs:{KERNEL_STACK_TOP}, %rdx
    cmpq $0, %gs:{PTI}
    je 1f
    say_before_cr3_if_so bad_iret
    load_kernel_cr3 %rax
    mov %gs:{ENTRY_STACK_TOP}, %rsi
    // Downwards, for without isolation the two places overlap.
1:  mov %rdi, %rax
    lea -8(%rdx), %rdi
    sub $8, %rsi
    mov $({IRET_FRAME_SIZE} / 8), %ecx
    std
    rep movsq
    lea {ORIG_RAX}(%rax), %rsi
    mov $(({PT_REGS_SIZE} - {IRET_FRAME_SIZE}) / 8), %ecx
    rep movsq
    cld
    lea 8(%rdi), %rsp
    mov %rsp, %rdi
    mov %rbx, %rsi
    jmp vector_from_user_stack

// What this fault has pushed goes: the shadow stack is as for an interrupt of the program.
bad_iret_shadow_stack:
    mov $3, %eax
    incsspq %rax
    jmp bad_iret_shadowed
.size common_vector, . - common_vector

// -----------------------------------------------------------------------------------------------
// NMI, #DB, #DF, #MC on their own stacks. GS unknown.
.macro paranoid_stub vector, error
.globl paranoid_\vector
    .balign 16
    endbr64                             // as `lands_here`
paranoid_\vector:
    .if !\error
    push $0
    .endif
    push_registers
    mov $\vector, %esi
    jmp paranoid_entry
.endm
paranoid_stub 1, 0
paranoid_stub 2, 0
paranoid_stub 8, 1
paranoid_stub 18, 0

.balign 64
.type paranoid_entry, @function
paranoid_entry:
    cld
    testb $3, {CS}(%rsp)
    jnz paranoid_from_user
    // From the kernel, or from one of this file's windows: this stack's last words name this CPU.
    mov %rsi, %r13
    mov ${GS_BASE_MSR}, %ecx
    rdmsr
    mov %eax, %r14d
    mov %edx, %r15d                     // r15:r14 = the GS base to put back
    mov %rsp, %rbx
    or $({STACK_SIZE} - 1), %rbx
    mov {CPU_ABOVE_STACK_MASK}(%rbx), %rax
    mov %rax, %rdx
    shr $32, %rdx
    wrmsr
    // WRMSR to the GS base need not wait for what is before it (APM 2, 7.6.4).
    lfence
    // CR3 may be the program's, if one of the windows was hit. GS now leads to this CPU's data.
    mov %cr3, %r12
    // The kernel may be on its own root: what is noted does not count.
    cmpq $0, %gs:{PTI}
    je 1f
    mov %r12, %rax
    and $~{USER_CR3_BITS}, %rax
    mov %rax, %cr3
    // A danger zone may have been hit: the word tells, not CR3, which may be the kernel's there.
1:  if_key {VECTOR_GUARD}, guard_paranoid
guarded_paranoid:
    call context_paranoid_enter
    mov %eax, %ebx
.globl context_entered_paranoid
context_entered_paranoid:
    mov %rsp, %rdi
    mov %r13d, %esi
    call paranoid_from_kernel
.globl context_left_paranoid
context_left_paranoid:
    // Or soon, if a danger zone was hit.
    mov %ebx, %edi
    call context_paranoid_exit
    if_key {KERNEL_IBRS}, release_paranoid
released_paranoid:
    cmpq $0, %gs:{PTI}
    je 2f
    mov %r12, %cr3
2:
    mov ${GS_BASE_MSR}, %ecx
    mov %r14d, %eax
    mov %r15d, %edx
    wrmsr
    pop_registers
    add $8, %rsp
    iretq
    int3

paranoid_from_user:
    // A program was running, so the thread's own stack is empty: go on there as any vector.
    swapgs
    lfence
    if_key {SHADOW_STACK}, paranoid_shadow_stack
paranoid_shadowed:
    mov %rsp, %rdi
    cmpq $0, %gs:{PTI}
    jne vector_from_user_pti
    jmp move_to_thread_stack

// From this vector's shadow stack to the thread's, which is empty, too.
paranoid_shadow_stack:
    leave_shadow_stack
    setssbsy
    jmp paranoid_shadowed
.size paranoid_entry, . - paranoid_entry

.popsection
