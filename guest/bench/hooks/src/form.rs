//! Generates a row of call sites that ask security hooks, in six forms.
//!
//! Every site hands over an argument, asks its hook, and leaves the row if the answer is not 0, as
//! a kernel does. What differs is what lies between the site and the policies: a walked list with
//! a checked indirect call for each policy, slots of static calls behind static keys, a compiled
//! chain of direct calls, a gate before them, or a site that is itself patched. Policies count in
//! rsi and answer 0. Sites lie in random gaps, the same for all forms of a layout.

use limen_bench_cfi::code::{FINISH, Random, Row, THUNK, gap, like, pad};
use text_patching::kcfi::{self, Form as Check};
use text_patching::tail::{self, BranchKind, Shape as CallShape, Via};

/// What lies between a call site and the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A list of pointers; each call is checked and goes through the thunk.
    ListThunk,
    /// A list of pointers; each call is checked and predicted by the CPU.
    List,
    /// A function with room for [`SLOTS`] static calls, each behind a key; live ones stand out of
    /// line, as the first kernel with static calls for hooks has them.
    Slots,
    /// A function that makes the direct calls.
    Chain,
    /// A site that is nothing while nobody answers, its arguments included; else a jump to the
    /// call, out of line. What this kernel has for hooks that only attachable policies answer.
    Gate,
    /// The site: nothing, the policy, or the chain. What this kernel has.
    Site,
}

/// All forms; the first is what the others are compared with.
pub const FORMS: [(Form, &str); 6] = [
    (Form::ListThunk, "list+thunk"),
    (Form::List, "list"),
    (Form::Slots, "slots"),
    (Form::Chain, "chain"),
    (Form::Gate, "gate"),
    (Form::Site, "site"),
];

/// Room of the form with slots: as many as policies are ever asked, which is its best case.
pub const SLOTS: usize = 4;

/// `xor %eax, %eax; ret`, behind `inc %rsi`: a policy.
const POLICY: [u8; 6] = [0x48, 0xff, 0xc6, 0x31, 0xc0, 0xc3];
/// `lea (%rsp), %rdi`: the argument.
const ARGUMENT: [u8; 4] = [0x48, 0x8d, 0x3c, 0x24];
/// `test %eax, %eax`.
const TEST: [u8; 2] = [0x85, 0xc0];
/// `xor %eax, %eax`, five bytes long: a site that nobody answers.
const NOBODY: [u8; 5] = [0x2e, 0x2e, 0x2e, 0x31, 0xc0];
/// A gate that is closed: `nopl 0(%rax,%rax,1)`.
const CLOSED: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `push %rbp; mov %rsp, %rbp; push %rbx; push %rax; mov %rdi, %rbx`.
const OPEN: [u8; 9] = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x50, 0x48, 0x89, 0xfb];
/// `add $8, %rsp; pop %rbx; pop %rbp; ret`.
const CLOSE: [u8; 7] = [0x48, 0x83, 0xc4, 0x08, 0x5b, 0x5d, 0xc3];
/// `mov %rbx, %rdi`.
const AGAIN: [u8; 3] = [0x48, 0x89, 0xdf];

/// What a row asks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Call sites.
    pub sites: usize,
    /// Whether each site has a hook of its own; else all ask one.
    pub own_hooks: bool,
    /// Policies that each hook asks.
    pub policies: usize,
}

/// Generates a row. It is called as `fn(_, 0) -> answers`.
#[must_use]
pub fn row(form: Form, shape: Shape, layout: u64) -> Row {
    let mut random = Random::new(layout + 1);
    let mut out = Row {
        bytes: THUNK.to_vec(),
        entry: 0,
        // The row finds its functions itself; whoever maps it wants a table that is not empty.
        targets: vec![0],
        sites: Vec::new(),
        pointers: Vec::new(),
    };
    let policies: Vec<usize> = (0..shape.policies).map(|_| policy(&mut out.bytes)).collect();
    let hooks = if shape.own_hooks { shape.sites } else { 1 };
    let hooks: Vec<usize> = (0..hooks).map(|_| hook(&mut out, form, &policies)).collect();
    pad(&mut out.bytes, 64);
    out.entry = out.bytes.len();
    let mut refusals = Vec::new();
    let mut gates = Vec::new();
    for site in 0..shape.sites {
        gap(&mut out.bytes, &mut random);
        if form == Form::Gate {
            out.sites.push(out.bytes.len());
            match &*policies {
                [] => out.bytes.extend(CLOSED),
                _ => gates.push(jump(&mut out.bytes, &[0xe9])),
            }
            continue;
        }
        out.bytes.extend(ARGUMENT);
        out.sites.push(out.bytes.len());
        match (form, &*policies) {
            (Form::Site, []) => out.bytes.extend(NOBODY),
            (Form::Site, &[one]) => call(&mut out.bytes, one),
            _ => call(&mut out.bytes, hooks[site % hooks.len()]),
        }
        out.bytes.extend(TEST);
        refusals.push(jump(&mut out.bytes, &[0x0f, 0x85]));
    }
    refusals.into_iter().for_each(|jump| land(&mut out.bytes, jump));
    let end = out.bytes.len();
    out.bytes.extend(FINISH);
    for (site, gate) in gates.into_iter().enumerate() {
        let to = match &*policies {
            &[one] => one,
            _ => hooks[site % hooks.len()],
        };
        open_gate(&mut out.bytes, gate, to, end);
    }
    out
}

/// What a gate jumps to: the call, out of the row on a refusal, else back behind the gate.
fn open_gate(bytes: &mut Vec<u8>, gate: usize, to: usize, end: usize) {
    land(bytes, gate);
    bytes.extend(ARGUMENT);
    call(bytes, to);
    bytes.extend(TEST);
    let refusal = jump(bytes, &[0x0f, 0x85]);
    fill(bytes, refusal, end);
    let back = jump(bytes, &[0xe9]);
    fill(bytes, back, gate + 4);
}

/// A policy's function with its preamble.
fn policy(bytes: &mut Vec<u8>) -> usize {
    pad(bytes, 16);
    bytes.push(0xb8);
    bytes.extend(like(Check::Opt).hash.to_le_bytes());
    bytes.resize(bytes.len() + 11, 0x90);
    let start = bytes.len();
    bytes.extend(POLICY);
    pad(bytes, 64);
    start
}

/// What the sites of a hook call.
fn hook(out: &mut Row, form: Form, policies: &[usize]) -> usize {
    match form {
        Form::ListThunk => list(out, policies, Via::Thunk),
        Form::List => list(out, policies, Via::Direct),
        Form::Slots => slots(&mut out.bytes, policies),
        Form::Chain | Form::Gate | Form::Site => chain(&mut out.bytes, policies),
    }
}

/// Walks a linked list from its head: `next`, then the policy's address.
fn list(out: &mut Row, policies: &[usize], via: Via) -> usize {
    let bytes = &mut out.bytes;
    pad(bytes, 8);
    let head = bytes.len();
    bytes.extend([0; 8]);
    let mut last = head;
    for &policy in policies {
        let node = bytes.len();
        bytes.extend([0; 16]);
        out.pointers.extend([(last, node), (node + 8, policy)]);
        last = node;
    }
    pad(bytes, 16);
    let start = bytes.len();
    // push %rbp; mov %rsp, %rbp; push %r15; push %rbx; mov %rdi, %rbx; lea head(%rip), %r15
    bytes.extend([0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x53, 0x48, 0x89, 0xfb, 0x4c, 0x8d, 0x3d]);
    let rel = tail::rel32_to(bytes.len() as u64 + 4, head as u64).unwrap_or_default();
    bytes.extend(rel.to_le_bytes());
    // xor %eax, %eax; 1: mov (%r15), %r15; test %r15, %r15; je 2f
    bytes.extend([0x31, 0xc0]);
    let again = bytes.len();
    bytes.extend([0x4d, 0x8b, 0x3f, 0x4d, 0x85, 0xff]);
    let end = jump(bytes, &[0x0f, 0x84]);
    // mov 8(%r15), %r11; mov %rbx, %rdi; the check; call
    bytes.extend([0x4d, 0x8b, 0x5f, 0x08]);
    bytes.extend(AGAIN);
    bytes.extend(kcfi::encode(&like(Check::Opt)));
    let indirect = CallShape { kind: BranchKind::Call, len: 6 };
    match tail::encode(bytes.len() as u64, indirect, via, 0) {
        Ok(code) => bytes.extend(code.as_slice()),
        Err(anomaly) => panic!("{anomaly}"),
    }
    // test %eax, %eax; je 1b; 2: pop %rbx; pop %r15; pop %rbp; ret
    bytes.extend(TEST);
    let back = again as i64 - (bytes.len() as i64 + 2);
    bytes.extend([0x74, i8::try_from(back).unwrap_or_default().cast_unsigned()]);
    land(bytes, end);
    bytes.extend([0x5b, 0x41, 0x5f, 0x5d, 0xc3]);
    start
}

/// A key for each of [`SLOTS`], two bytes of nop or a jump to a call that jumps back.
fn slots(bytes: &mut Vec<u8>, policies: &[usize]) -> usize {
    pad(bytes, 16);
    let start = bytes.len();
    bytes.extend(OPEN);
    let keys = bytes.len();
    bytes.extend([0x66, 0x90].repeat(SLOTS));
    bytes.extend([0x31, 0xc0]);
    let close = bytes.len();
    bytes.extend(CLOSE);
    for (slot, &policy) in policies.iter().enumerate().take(SLOTS) {
        let key = keys + 2 * slot;
        let away = bytes.len() - (key + 2);
        bytes[key..key + 2].copy_from_slice(&[0xeb, u8::try_from(away).unwrap_or_default()]);
        bytes.extend(AGAIN);
        call(bytes, policy);
        bytes.extend(TEST);
        let out = close as i64 - (bytes.len() as i64 + 2);
        bytes.extend([0x75, i8::try_from(out).unwrap_or_default().cast_unsigned()]);
        let back = (key + 2) as i64 - (bytes.len() as i64 + 2);
        bytes.extend([0xeb, i8::try_from(back).unwrap_or_default().cast_unsigned()]);
    }
    start
}

/// Direct calls one after the other; a jump for one, nothing for none.
fn chain(bytes: &mut Vec<u8>, policies: &[usize]) -> usize {
    pad(bytes, 16);
    let start = bytes.len();
    match policies {
        [] => bytes.extend([0x31, 0xc0, 0xc3]),
        &[one] => {
            let jump = jump(bytes, &[0xe9]);
            fill(bytes, jump, one);
        }
        all => {
            bytes.extend(OPEN);
            let mut refusals = Vec::new();
            for (place, &policy) in all.iter().enumerate() {
                if place > 0 {
                    bytes.extend(TEST);
                    refusals.push(jump(bytes, &[0x0f, 0x85]));
                    bytes.extend(AGAIN);
                }
                call(bytes, policy);
            }
            refusals.into_iter().for_each(|jump| land(bytes, jump));
            bytes.extend(CLOSE);
        }
    }
    start
}

fn call(bytes: &mut Vec<u8>, to: usize) {
    let at = jump(bytes, &[0xe8]);
    fill(bytes, at, to);
}

/// A branch whose displacement is not known yet: where that is.
fn jump(bytes: &mut Vec<u8>, opcode: &[u8]) -> usize {
    bytes.extend(opcode);
    bytes.extend([0; 4]);
    bytes.len() - 4
}

/// Lets the branch lead to what comes next.
fn land(bytes: &mut [u8], jump: usize) {
    fill(bytes, jump, bytes.len());
}

fn fill(bytes: &mut [u8], jump: usize, to: usize) {
    let rel = tail::rel32_to(jump as u64 + 4, to as u64).unwrap_or_default();
    bytes[jump..jump + 4].copy_from_slice(&rel.to_le_bytes());
}
