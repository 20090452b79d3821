//! Static calls: a call whose target changes rarely is a direct call in text.
//!
//! A static call is a trampoline, an ordinary typed function that callers call; objtool finds
//! their direct calls and makes each a site. [`update`] gives all sites, and the trampoline for
//! whoever holds its address, another target: a function of the same type, nothing (for calls that
//! return nothing), or "return 0". Callers are plain Rust and are not touched; no indirect call is
//! involved.
//!
//! The macro below makes trampolines. It is used in this crate only, since it contains `unsafe`.
//! Neighbours: `text_patching::static_call` has the bytes, `text_poke` the protocol.
#![cfg_attr(not(feature = "ktest"), expect(dead_code, reason = "hooks are the next users"))]

use text_patching::site_table::{CallEntry, SiteTables};
use text_patching::static_call::{Target, decode, update as site_patch, update_trampoline};
use text_patching::{Anomaly, Patch, Text, What};

use crate::text_poke::LiveText;
use crate::{cfi, text_poke};

unsafe extern "C" {
    static __static_call_tramps_start: [i32; 0];
    static __static_call_tramps_end: [i32; 0];
}

/// A static call of type `F`, a function pointer: its number and its trampoline.
pub(crate) struct StaticCall<F> {
    pub(crate) key: u32,
    pub(crate) trampoline: F,
}

/// Defines a trampoline. `static_call!(NAME = 1, symbol: fn(u64) -> u64, default)`: `symbol` is
/// the function to call (through `unsafe extern "C" { safe fn … }`, which this writes), `default`
/// what it calls at boot, and `NAME` the handle for [`update`].
macro_rules! static_call {
    ($name:ident = $key:literal, $symbol:ident: fn($($arg:ident: $type:ty),*) -> $ret:ty,
     $default:path) => {
        unsafe extern "C" {
            /// The trampoline.
            pub(crate) safe fn $symbol($($arg: $type),*) -> $ret;
        }
        pub(crate) static $name:
            $crate::static_call::StaticCall<extern "C" fn($($type),*) -> $ret> =
            $crate::static_call::StaticCall { key: $key, trampoline: $symbol };
        core::arch::global_asm!(
            ".pushsection .text.static_call, \"ax\", @progbits",
            ".balign 8",
            concat!(".globl ", stringify!($symbol)),
            concat!(".type ", stringify!($symbol), ", @function"),
            concat!(stringify!($symbol), ":"),
            // jmp rel32, then the signature ud1 %esp,%ecx
            ".byte 0xe9",
            ".long {default} - . - 4",
            ".byte 0x0f, 0xb9, 0xcc",
            concat!(".size ", stringify!($symbol), ", . - ", stringify!($symbol)),
            ".popsection",
            ".pushsection __static_call_tramps, \"aR\", @progbits",
            ".balign 4",
            concat!(".long ", stringify!($symbol), " - ."),
            ".long {key}",
            ".popsection",
            default = sym $default,
            key = const $key,
        );
    };
}
pub(crate) use static_call;

/// What a static call shall do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee<F> {
    /// Call this function.
    Function(F),
    /// Nothing; for calls without a result.
    Nothing,
    /// Return 0.
    Return0,
}

/// Each trampoline of the image and its key.
fn trampolines() -> impl Iterator<Item = (u64, u32)> {
    let start = (&raw const __static_call_tramps_start).cast::<[i32; 2]>();
    let bytes = (&raw const __static_call_tramps_end).addr() - start.addr();
    (0..bytes / size_of::<[i32; 2]>()).map(move |i| {
        let entry = start.wrapping_add(i);
        // SAFETY: the linker script bounds the table; entries are two aligned words.
        let [offset, key] = unsafe { entry.read() };
        ((entry as u64).wrapping_add_signed(i64::from(offset)), key.cast_unsigned())
    })
}

/// Whether a trampoline begins at `address`.
pub(crate) fn is_trampoline(address: u64) -> bool {
    trampolines().any(|(trampoline, _)| trampoline == address)
}

/// Points the call at `callee` on all CPUs; when it returns no CPU enters the old one through this
/// call any more. Must not be called from an interrupt handler.
///
/// # Errors
/// The first site that is not as expected; nothing was changed.
///
/// # Safety
/// `target` is a function of the trampoline's type; with [`Target::Nothing`] that has no result.
unsafe fn update_sites(key: u32, target: Target) -> Result<usize, Anomaly> {
    let unknown = Anomaly::new(0, 0, What::Unmapped);
    let tables = cfi::tables().ok_or(unknown)?;
    let (trampoline, _) = trampolines().find(|&(_, number)| number == key).ok_or(unknown)?;
    let own = CallEntry { site: trampoline, key, tail: true };
    let mut bytes = [0; 5];
    LiveText.read(trampoline, &mut bytes).map_err(|_| unknown)?;
    // The trampoline's bytes are the record of where the sites go now.
    let now = decode(&own, bytes).ok_or(unknown)?;
    let mut sites = Sites::new(tables, own);
    text_poke::switch(|text, _| sites.next().map(|entry| patch(text, &entry, &own, now, target)))
}

/// The sites of a key and its trampoline, ascending.
struct Sites<I: Iterator<Item = CallEntry>> {
    calls: core::iter::Peekable<I>,
    trampoline: Option<CallEntry>,
}

impl Sites<core::iter::Empty<CallEntry>> {
    fn new(
        tables: SiteTables<'static>,
        trampoline: CallEntry,
    ) -> Sites<impl Iterator<Item = CallEntry>> {
        let calls = tables.calls().iter().filter(move |call| call.key == trampoline.key);
        Sites { calls: calls.peekable(), trampoline: Some(trampoline) }
    }
}

impl<I: Iterator<Item = CallEntry>> Iterator for Sites<I> {
    type Item = CallEntry;

    fn next(&mut self) -> Option<CallEntry> {
        let before = |own: &CallEntry, call: Option<&CallEntry>| {
            call.is_none_or(|call| own.site < call.site)
        };
        match self.trampoline {
            Some(own) if before(&own, self.calls.peek()) => self.trampoline.take(),
            _ => self.calls.next(),
        }
    }
}

fn patch(
    text: &LiveText,
    entry: &CallEntry,
    own: &CallEntry,
    now: Target,
    target: Target,
) -> Result<Patch, Anomaly> {
    if entry.site == own.site {
        return update_trampoline(text, own, now, target);
    }
    // Before the first update a site calls the trampoline itself.
    let first = Target::Function(own.site);
    site_patch(text, entry, first, target).or_else(|_| site_patch(text, entry, now, target))
}

/// Makes [`StaticCall::update`] for one arity.
macro_rules! typed {
    ($($arg:ident),*) => {
        impl<R, $($arg),*> StaticCall<extern "C" fn($($arg),*) -> R> {
            /// See [`update_sites`].
            pub(crate) fn update(
                &self,
                callee: Callee<extern "C" fn($($arg),*) -> R>,
            ) -> Result<usize, Anomaly> {
                let target = match callee {
                    Callee::Function(function) => Target::Function(function as usize as u64),
                    Callee::Nothing => {
                        assert!(size_of::<R>() == 0, "a call with a result cannot be nothing");
                        Target::Nothing
                    }
                    Callee::Return0 => Target::Return0,
                };
                // SAFETY: the types of trampoline and callee are the same.
                unsafe { update_sites(self.key, target) }
            }
        }
    };
}
// One line for each arity in use.
typed!();
typed!(A);
