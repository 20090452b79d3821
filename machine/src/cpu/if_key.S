// A choice made at boot (mitigations.rs): five bytes that are a nop, or where the key is on a jump.
// No CPU has been in user mode when it is made, and it stays.
.macro if_key key, to
.Lkey_\@:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    .pushsection __jump_table, "aR", @progbits
    .balign 4
    .long .Lkey_\@ - ., \to - ., \key
    .popsection
.endm
