// Multiboot2: the header that loaders such as GRUB look for in the image's first 32 KiB, and where
// they begin (Multiboot2 Specification 2.0, 3.1 and 3.3). Multiboot 1 would serve as well, but
// QEMU's `-kernel` looks for that header before PVH's note, and refuses 64-bit images that have it.

.set HEADER_MAGIC, 0xe85250d6
.set ARCHITECTURE_I386, 0
.set TAG_END, 0
.set TAG_ENTRY_ADDRESS, 3
.set TAG_MODULE_ALIGNMENT, 6

.pushsection .multiboot, "ax", @progbits
.balign 8
multiboot_header:
    .long HEADER_MAGIC, ARCHITECTURE_I386, multiboot_header_end - multiboot_header
    .long -(HEADER_MAGIC + ARCHITECTURE_I386 + (multiboot_header_end - multiboot_header))
    .word TAG_ENTRY_ADDRESS, 0
    .long 12, multiboot_entry
.balign 8
    .word TAG_MODULE_ALIGNMENT, 0       // modules begin on pages
    .long 8
    .word TAG_END, 0
    .long 8
multiboot_header_end:

// 32-bit protected mode, paging off, flat segments, IF=0, no stack, no descriptors of ours.
//   EAX = the loader's magic number, EBX = physical address of its list of tags
.code32
.type multiboot_entry, @function
multiboot_entry:
    jmp boot_32
    int3
.size multiboot_entry, . - multiboot_entry
.code64
.popsection
