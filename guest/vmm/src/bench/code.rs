//! What the guests of the bench execute, in 64-bit mode: instructions with the exits they make.
//!
//! Bytes instead of an assembler's text, as in the tests, since each is a line or two; what is
//! longer (`transfer`) is assembled.

/// Instructions that leave RDI as it was.
pub(super) type Operation = &'static [u8];

/// Where the guest finds how often it is to do its operation.
pub(super) const COUNT: usize = 0x3000;
/// A port with an eventfd behind it.
pub(super) const BELL: u16 = 0x90;
/// Guest-physical memory that is touched page by page.
pub(super) const TOUCHED: u64 = 0x1000_0000;

/// xor eax,eax; cpuid
pub(super) const CPUID: Operation = &[0x31, 0xc0, 0x0f, 0xa2];
/// mov ecx,0x277; rdmsr (the PAT)
pub(super) const RDMSR: Operation = &[0xb9, 0x77, 0x02, 0, 0, 0x0f, 0x32];
/// mov ecx,0x277; mov eax,0x70406; mov edx,eax; wrmsr (what it is after reset)
pub(super) const WRMSR: Operation =
    &[0xb9, 0x77, 0x02, 0, 0, 0xb8, 0x06, 0x04, 0x07, 0, 0x89, 0xc2, 0x0f, 0x30];
/// in al,0x21
pub(super) const IN_PIC: Operation = &[0xe4, 0x21];
/// out BELL,al
pub(super) const OUT_BELL: Operation = &[0xe6, BELL as u8];
/// `mov esi,0xfee00080; mov eax,[rsi]`
pub(super) const READ_LAPIC: Operation = &[0xbe, 0x80, 0, 0xe0, 0xfe, 0x8b, 0x06];
/// `mov rsi,rdi; shl rsi,12; mov al,[rsi+TOUCHED-0x1000]`
pub(super) const TOUCH: Operation =
    &[0x48, 0x89, 0xfe, 0x48, 0xc1, 0xe6, 12, 0x8a, 0x86, 0, 0xf0, 0xff, 0x0f];
/// out 0x80,al
pub(super) const OUT: Operation = &[0xe6, 0x80];
/// in al,0x80
pub(super) const IN: Operation = &[0xe4, 0x80];
/// `mov esi,0x2000000; mov [rsi],eax`
pub(super) const MMIO_WRITE: Operation = &[0xbe, 0, 0, 0, 2, 0x89, 0x06];
/// `mov esi,0x2000000; mov eax,[rsi]`
pub(super) const MMIO_READ: Operation = &[0xbe, 0, 0, 0, 2, 0x8b, 0x06];
/// hlt
pub(super) const HLT: Operation = &[0xf4];

/// For ever: the operation as often as the word at [`COUNT`] says, then an exit to the VMM.
pub(super) fn looped(operation: Operation) -> Vec<u8> {
    // mov edi,[COUNT]; test edi,edi; jz behind; the operation; dec edi; jnz; out 0x80,al; jmp
    let mut code = vec![0x8b, 0x3c, 0x25];
    code.extend((COUNT as u32).to_le_bytes());
    let body = operation.len() as u8;
    code.extend([0x85, 0xff, 0x74, body + 4]);
    code.extend(operation);
    code.extend([0xff, 0xcf, 0x75, (body + 4).wrapping_neg(), 0xe6, 0x80]);
    let back = code.len() as u8 + 2;
    code.extend([0xeb, back.wrapping_neg()]);
    code
}

/// For ever: the operation.
pub(super) fn repeated(operation: Operation) -> Vec<u8> {
    let back = operation.len() as u8 + 2;
    [operation, &[0xeb, back.wrapping_neg()]].concat()
}
