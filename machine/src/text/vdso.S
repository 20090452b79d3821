// The vDSO: a small ELF shared object that every program finds mapped (AT_SYSINFO_EHDR, vdso(7)).
// It runs in user mode. Its data page, which the kernel writes, lies one page below it; the fields
// are those of `VdsoData`.
//
// Everything here is position-independent, and every address in the ELF structures is an offset
// from vdso_image, so the image needs no relocation.

.set CLOCK_REALTIME, 0
.set CLOCK_MONOTONIC, 1
.set CLOCK_MONOTONIC_RAW, 4
.set CLOCK_REALTIME_COARSE, 5
.set CLOCK_MONOTONIC_COARSE, 6
.set CLOCK_BOOTTIME, 7
.set NS_PER_S, 1000000000

.pushsection .vdso, "ax", @progbits
.balign 4096
.globl vdso_image
vdso_image:
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0
    .quad 0
    .word 3, 62                         // shared object, x86-64
    .long 1
    .quad 0                             // no entry
    .quad vdso_program_headers - vdso_image
    .quad 0
    .long 0
    .word 64, 56, 2, 64, 0, 0
vdso_program_headers:
    .long 1, 5                          // LOAD, read and execute
    .quad 0, 0, 0
    .quad vdso_end - vdso_image, vdso_end - vdso_image
    .quad 4096
    .long 2, 4                          // DYNAMIC
    .quad vdso_dynamic - vdso_image, vdso_dynamic - vdso_image, vdso_dynamic - vdso_image
    .quad vdso_dynamic_end - vdso_dynamic, vdso_dynamic_end - vdso_dynamic
    .quad 8

.balign 8
vdso_dynamic:
    .quad 4, vdso_hash - vdso_image     // DT_HASH
    .quad 5, vdso_strings - vdso_image  // DT_STRTAB
    .quad 6, vdso_symbols - vdso_image  // DT_SYMTAB
    .quad 10, vdso_strings_end - vdso_strings
    .quad 11, 24                        // DT_SYMENT
    .quad 14, vdso_name_soname - vdso_strings
    .quad 0x6ffffff0, vdso_versions - vdso_image     // DT_VERSYM
    .quad 0x6ffffffc, vdso_definitions - vdso_image  // DT_VERDEF
    .quad 0x6ffffffd, 2                              // DT_VERDEFNUM
    .quad 0, 0
vdso_dynamic_end:

vdso_strings:
    .byte 0
vdso_name_soname: .asciz "linux-vdso.so.1"
vdso_name_version: .asciz "LINUX_2.6"
vdso_name_clock_gettime: .asciz "__vdso_clock_gettime"
vdso_name_clock_getres: .asciz "__vdso_clock_getres"
vdso_name_gettimeofday: .asciz "__vdso_gettimeofday"
vdso_name_time: .asciz "__vdso_time"
vdso_name_getcpu: .asciz "__vdso_getcpu"
vdso_strings_end:

.macro vdso_symbol name
    .long vdso_name_\name - vdso_strings
    .byte 0x12, 0                       // global function
    .word 1                             // defined: any section index but 0
    .quad vdso_\name - vdso_image, vdso_\name\()_end - vdso_\name
.endm

.balign 8
vdso_symbols:
    .skip 24
    vdso_symbol clock_gettime
    vdso_symbol clock_getres
    vdso_symbol gettimeofday
    vdso_symbol time
    vdso_symbol getcpu
vdso_hash:                              // one bucket: a chain through all symbols
    .long 1, 6, 1
    .long 0, 2, 3, 4, 5, 0
vdso_versions:
    .word 0, 2, 2, 2, 2, 2
.balign 4
vdso_definitions:                       // Elf64_Verdef: the object itself, then LINUX_2.6
    .word 1, 1, 1, 1
    .long 0x0deebfa1                    // SysV hash of the soname
    .long 20, 28
    .long vdso_name_soname - vdso_strings, 0
    .word 1, 0, 2, 1
    .long 0x03ae75f6                    // SysV hash of "LINUX_2.6"
    .long 20, 0
    .long vdso_name_version - vdso_strings, 0

// rdi: clock. Out: rax = its nanoseconds, CF clear; or CF set if the kernel must be asked. Clobbers
// rdx, r8 to r11, rcx. The kernel changes `realtime` rarely: the sequence is odd meanwhile.
.balign 64
vdso_read_clock:
    cmp $CLOCK_BOOTTIME, %edi
    ja 9f
    mov $1, %eax
    mov %edi, %ecx
    shl %cl, %eax
    test ${SUPPORTED_CLOCKS}, %eax
    jz 9f
    lea vdso_image - 4096(%rip), %r9
1:  mov {SEQUENCE}(%r9), %r8d
    test $1, %r8d
    jnz 2f
    lfence
    rdtsc
    shl $32, %rdx
    or %rdx, %rax
    xor %r10d, %r10d
    sub {TSC_BASE}(%r9), %rax
    cmovc %r10, %rax                    // another CPU's counter may be behind by a few ticks
    mulq {MULT}(%r9)
    shrd $32, %rdx, %rax
    add {NS_BASE}(%r9), %rax
    mov {REALTIME}(%r9), %r11
    cmp %r8d, {SEQUENCE}(%r9)
    jne 1b
    mov $1, %edx
    shl %cl, %edx
    test ${REALTIME_CLOCKS}, %edx
    cmovz %r10, %r11
    add %r11, %rax
    clc
    ret
2:  pause
    jmp 1b
9:  stc
    ret

.balign 16
vdso_clock_gettime:                     // edi: clock, rsi: struct timespec *
    call vdso_read_clock
    jc 1f
    xor %edx, %edx
    mov $NS_PER_S, %ecx
    div %rcx
    mov %rax, (%rsi)
    mov %rdx, 8(%rsi)
    xor %eax, %eax
    ret
1:  mov ${NR_CLOCK_GETTIME}, %eax
    syscall
    ret
vdso_clock_gettime_end:

.balign 16
vdso_clock_getres:                      // edi: clock, rsi: struct timespec * or null
    mov ${NR_CLOCK_GETRES}, %eax
    syscall
    ret
vdso_clock_getres_end:

.balign 16
vdso_gettimeofday:          // rdi: struct timeval * or null, rsi: struct timezone * or null
    push %rdi
    push %rsi
    mov $CLOCK_REALTIME, %edi
    call vdso_read_clock
    pop %rsi
    pop %rdi
    test %rdi, %rdi
    jz 1f
    xor %edx, %edx
    mov $NS_PER_S, %ecx
    div %rcx
    mov %rax, (%rdi)
    mov %rdx, %rax
    xor %edx, %edx
    mov $1000, %ecx
    div %rcx
    mov %rax, 8(%rdi)
1:  test %rsi, %rsi
    jz 2f
    movq $0, (%rsi)
2:  xor %eax, %eax
    ret
vdso_gettimeofday_end:

.balign 16
vdso_time:                              // rdi: time_t * or null
    push %rdi
    mov $CLOCK_REALTIME, %edi
    call vdso_read_clock
    pop %rdi
    xor %edx, %edx
    mov $NS_PER_S, %ecx
    div %rcx
    test %rdi, %rdi
    jz 1f
    mov %rax, (%rdi)
1:  ret
vdso_time_end:

.balign 16
vdso_getcpu:                            // rdi: unsigned * or null, rsi: unsigned * or null
    lea vdso_image - 4096(%rip), %r9
    cmpl $0, {HAS_RDTSCP}(%r9)
    je 3f
    rdtscp                              // ecx = this CPU, as `cpu::init` set TSC_AUX
    test %rdi, %rdi
    jz 1f
    mov %ecx, (%rdi)
1:  test %rsi, %rsi
    jz 2f
    movl $0, (%rsi)
2:  xor %eax, %eax
    ret
3:  mov ${NR_GETCPU}, %eax
    syscall
    ret
vdso_getcpu_end:

vdso_end:
.balign 4096
.globl vdso_image_end
vdso_image_end:
.popsection
