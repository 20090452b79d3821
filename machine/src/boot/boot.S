// Boot code: from the ways a CPU starts (PVH, or Multiboot2 as in `multiboot.S`, for the first,
// INIT-SIPI for the others) to 64-bit mode on the kernel's high addresses. Runs once per CPU, at
// physical addresses, before any Rust code of its CPU but `kaslr.rs`. All tables it builds are
// thrown away by `memory::init`.

.set PVH_NOTE_TYPE, 18                  // XEN_ELFNOTE_PHYS32_ENTRY
.set KERNEL_BASE, 0xffffffff80000000

.pushsection .note.pvh, "a", @note
.balign 4
    .long 4, 8, PVH_NOTE_TYPE
    .asciz "Xen"
    .quad pvh_entry
.popsection

// ---------------------------------------------------------------------------------------------
// PVH entry (hvm/start_info.h): 32-bit protected mode, paging off, flat segments, IF=0.
//   EBX = physical address of hvm_start_info
.pushsection .boot, "awx", @progbits
.code32
.globl pvh_entry
.type pvh_entry, @function
pvh_entry:
    xor %eax, %eax
// EAX = 0 for PVH, else the magic number of whichever loader it was; the rest as above.
.globl boot_32
boot_32:
    cld
    mov $boot_stack_top, %esp
    mov %ebx, boot_start_info
    mov %eax, boot_magic

    // First 4 GiB by 2 MiB pages: 4 page directories, 2048 entries.
    mov $boot_pd, %edi
    mov $0x83, %eax                     // present, writable, 2 MiB
    xor %ecx, %ecx
boot_fill_pd:
    mov %eax, (%edi, %ecx, 8)
    movl $0, 4(%edi, %ecx, 8)
    add $0x200000, %eax
    inc %ecx
    cmp $2048, %ecx
    jne boot_fill_pd

    mov $boot_pd + 3, %eax              // present, writable
    mov %eax, boot_pdpt_low
    add $0x1000, %eax
    mov %eax, boot_pdpt_low + 8
    add $0x1000, %eax
    mov %eax, boot_pdpt_low + 16
    add $0x1000, %eax
    mov %eax, boot_pdpt_low + 24
    movl $boot_pd + 3, boot_pdpt_high + 510 * 8
    movl $boot_pdpt_low + 3, boot_pml4
    movl $boot_pdpt_low + 3, boot_pml4 + 256 * 8
    movl $boot_pdpt_high + 3, boot_pml4 + 511 * 8

    mov $boot_pml4, %eax
    mov %eax, %cr3
    call boot_enable_long_mode
    lgdt boot_gdt_pointer
    ljmp $8, $boot_long_mode

// Turns on PAE, NX, long mode and paging with the CR3 already loaded. Clobbers EAX, ECX, EDX.
boot_enable_long_mode:
    mov %cr4, %eax
    or $0x20, %eax                      // PAE
    mov %eax, %cr4
    mov $0xc0000080, %ecx               // EFER
    rdmsr
    or $0x900, %eax                     // LME, NXE
    wrmsr
    mov %cr0, %eax
    or $0x80010001, %eax                // PG, WP, PE
    mov %eax, %cr0
    ret

// Adds \value to the next fields of the table at RSI, as many as the word at \count says; RDI is
// where their addresses are. Clobbers RCX, RDX.
.macro move_fields count, add, value
    mov \count(%rsi), %ecx
    test %ecx, %ecx
    jz 2f
1:  mov (%rdi), %edx
    \add \value, (%rdx)
    add $4, %rdi
    dec %ecx
    jnz 1b
2:
.endm

.code64
boot_long_mode:
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %eax, %fs
    mov %eax, %gs
    // Choose where everything is to be (kaslr.rs), while it is still where it was linked.
    mov boot_start_info, %edi           // first argument: start_info, zero-extended
    mov boot_magic, %esi                // second argument
    movabs $boot_cpu_stack_top, %rsp
    xor %ebp, %ebp
    movabs $boot_choose_places, %rax
    call *%rax

    // Move it: all fields of the table (objtool's `relocs`) that hold an address. This code runs at
    // its physical address, and so stays.
    movabs $__limen_relocs_start, %rsi
    lea 16(%rsi), %rdi
    mov boot_slides, %rax
    move_fields 0, addl, %eax
    move_fields 4, addq, %rax
    mov boot_slides + 8, %rax
    move_fields 8, addq, %rax
    mov boot_slides + 16, %rax
    move_fields 12, addq, %rax

    // Loading CR3 is serialising: the next instruction is fetched as it is now.
    mov $boot_moved_pml4, %eax
    mov %rax, %cr3
    mov boot_start_info, %edi
    mov boot_magic, %esi
    movabs $boot_high, %rax
    jmp *%rax

// ---------------------------------------------------------------------------------------------
// Start of another CPU: real mode, CS:IP = page:0 by SIPI. `smp::start` copies this code to a page
// below 1 MiB and patches nothing: what the CPU needs lies in the mailbox at the end of the page.
.code16
// Aligned, so that offsets in it are the same whatever comes before it: objtool reads 16-bit code
// as 64-bit code, where some of them would be returns.
.balign 16
.globl ap_trampoline_start
ap_trampoline_start:
    cli
    cld
    mov %cs, %ax
    mov %ax, %ds
    xor %ebx, %ebx
    mov %ax, %bx
    shl $4, %ebx                        // EBX = physical address of this page
    lgdtl ap_gdt_pointer - ap_trampoline_start
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl *(ap_jump_32 - ap_trampoline_start)

.code32
ap_protected_mode:
    mov $24, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov ap_mailbox_cr3 - ap_trampoline_start(%ebx), %eax
    mov %eax, %cr3
    lea ap_stack_32_top - ap_trampoline_start(%ebx), %esp
    // Same steps as boot_enable_long_mode, which is not mapped executable any more.
    mov %cr4, %eax
    or $0x20, %eax
    mov %eax, %cr4
    mov $0xc0000080, %ecx
    rdmsr
    or $0x900, %eax
    wrmsr
    mov %cr0, %eax
    or $0x80010001, %eax
    mov %eax, %cr0
    ljmp *ap_jump_64 - ap_trampoline_start(%ebx)

.code64
ap_long_mode:
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %eax, %fs
    mov %eax, %gs
    // The kernel's GS, before the first call: each of them may count (text/call_depth.rs).
    mov ap_mailbox_gs - ap_trampoline_start(%rbx), %rax
    mov %rax, %rdx
    shr $32, %rdx
    mov $0xc0000101, %ecx
    wrmsr
    mov ap_mailbox_stack - ap_trampoline_start(%rbx), %rsp
    mov ap_mailbox_cpu - ap_trampoline_start(%rbx), %rdi
    mov ap_mailbox_entry - ap_trampoline_start(%rbx), %rax
    xor %ebp, %ebp
    push %rbp                           // a zero return address ends backtraces
    jmp *%rax

.balign 8
ap_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff            // 8: 32-bit code
    .quad 0x00af9b000000ffff            // 16: 64-bit code, as in the kernel's own (descriptors.rs)
    .quad 0x00cf93000000ffff            // 24: data
.globl ap_gdt_pointer
ap_gdt_pointer:
    .word 31
.globl ap_gdt_base
ap_gdt_base:
    .long 0                             // filled with the physical address of ap_gdt
.balign 4
.globl ap_jump_32
ap_jump_32:
    .long 0                             // filled: physical address of ap_protected_mode
    .word 8
.balign 4
.globl ap_jump_64
ap_jump_64:
    .long 0                             // filled: physical address of ap_long_mode
    .word 16
.balign 8
.globl ap_mailbox_cr3
ap_mailbox_cr3:   .quad 0
.globl ap_mailbox_stack
ap_mailbox_stack: .quad 0
.globl ap_mailbox_cpu
ap_mailbox_cpu:   .quad 0
.globl ap_mailbox_gs
ap_mailbox_gs:    .quad 0
.globl ap_mailbox_entry
ap_mailbox_entry: .quad 0
    .skip 64
ap_stack_32_top:
.globl ap_trampoline_end
ap_trampoline_end:
.globl ap_gdt, ap_protected_mode, ap_long_mode

.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            // 8: 64-bit code
boot_gdt_pointer:
    .word 15
    .long boot_gdt
.balign 8
boot_start_info:
    .long 0
boot_magic:
    .long 0
.balign 8
// What is added to addresses of the image, of the direct map and of mapped memory: kaslr.rs.
.globl boot_slides
boot_slides:
    .quad 0, 0, 0

.balign 4096
boot_pml4:      .skip 4096
.globl boot_pdpt_low, boot_pd
boot_pdpt_low:  .skip 4096
boot_pdpt_high: .skip 4096
boot_pd:        .skip 4 * 4096
// The tables of the places that were chosen: kaslr.rs fills them.
.globl boot_moved_pml4, boot_moved_pdpts, boot_moved_pd, boot_moved_pts
boot_moved_pml4:  .skip 4096
boot_moved_pdpts: .skip 2 * 4096        // direct map, image
boot_moved_pd:    .skip 4096
boot_moved_pts:   .skip 9 * 4096        // the image: less than 16 MiB, and one for where it begins
    .skip 4096
boot_stack_top:
.popsection

// ---------------------------------------------------------------------------------------------
.pushsection .text, "ax", @progbits
.code64
.type boot_high, @function
boot_high:
    lea boot_cpu_stack_top(%rip), %rsp
    xor %ebp, %ebp
    push %rbp                           // a zero return address ends backtraces
    jmp boot_first_cpu
.size boot_high, . - boot_high
.popsection

.pushsection .bss
.balign 4096
boot_cpu_stack: .skip 65536
.globl boot_cpu_stack, boot_cpu_stack_top
boot_cpu_stack_top:
.popsection
