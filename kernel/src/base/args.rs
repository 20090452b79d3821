//! The arguments of a system call: words in the program's registers, and the types that a call
//! takes them for.
//!
//! A call is a function with typed arguments in the order of registers. [`Handler`] is implemented
//! for all of those, so that the table of calls names a function and nothing else: what a word is
//! taken for stands in the function's own head. Few calls need the registers, too (fork, exec,
//! sigreturn), or the thread that calls: they take them first.

use abi::{Errno, Result};

use crate::base::user::UserPtr;

/// The program's registers, seen as a call's six arguments `a0()` to `a5()` (syscall(2)).
pub use machine::entry::CallRegs as Args;

/// A word of flags; EINVAL for one outside `known`.
pub fn check_flags(flags: u64, known: u32) -> Result<u32> {
    let flags = flags as u32;
    if flags & !known != 0 { Err(Errno::EINVAL) } else { Ok(flags) }
}

/// Flags of one kind as those of another, by a table of what each is there.
#[must_use]
pub fn translate(flags: u32, table: &[(u32, u32)]) -> u32 {
    let named = table.iter().filter(|(from, _)| flags & from != 0);
    named.fold(0, |all, (_, to)| all | to)
}

/// What an argument's word can be taken for. Narrow types take its low half, as Linux does.
pub trait Argument {
    /// From a program's word.
    fn of(word: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Argument for $number {
            #[inline(always)]
            fn of(word: u64) -> Self {
                word as $number
            }
        })*
    };
}

numbers! { u32 i32 u64 i64 usize }

impl<T> Argument for UserPtr<T> {
    #[inline(always)]
    fn of(word: u64) -> Self {
        UserPtr::new(word)
    }
}

/// What a call's function gives back.
pub trait Answer {
    /// What the program finds in RAX.
    fn to_raw(self) -> u64;
}

impl Answer for Result<u64> {
    // Not worth the call: it would cost small calls a tenth.
    #[inline(always)]
    fn to_raw(self) -> u64 {
        match self {
            Ok(value) => value,
            Err(errno) => errno.to_raw(),
        }
    }
}

/// RAX itself: for calls that do next to nothing, so that turning their answer into it costs none.
pub struct Word(u64);

impl Answer for Word {
    #[inline(always)]
    fn to_raw(self) -> u64 {
        self.0
    }
}

impl From<u32> for Word {
    #[inline(always)]
    fn from(value: u32) -> Self {
        Word(value.into())
    }
}

impl From<Result<u64>> for Word {
    #[inline(always)]
    fn from(result: Result<u64>) -> Self {
        Word(result.to_raw())
    }
}

/// A function that serves a call of a thread `Th`. `Form` is its list of arguments, which the
/// compiler finds.
pub trait Handler<Form, Th> {
    /// Arguments that it takes from registers by type.
    const ARITY: usize;

    /// Serves the call that these registers make, and says what the program finds in RAX.
    fn serve(self, regs: &mut Args, thread: Th) -> u64;
}

/// In the form of a function that takes the registers first.
pub struct Registers;

/// In the form of a function that takes the thread first.
pub struct Caller;

macro_rules! handlers {
    ($($arity:literal: $($argument:ident $register:ident)*;)*) => {
        $(impl<F, R: Answer, Th, $($argument: Argument),*> Handler<($($argument,)*), Th> for F
        where
            F: FnOnce($($argument),*) -> R,
        {
            const ARITY: usize = $arity;

            #[inline(always)]
            fn serve(self, _regs: &mut Args, _thread: Th) -> u64 {
                self($($argument::of(_regs.$register())),*).to_raw()
            }
        }

        impl<F, R: Answer, Th, $($argument: Argument),*> Handler<(Caller, $($argument,)*), Th> for F
        where
            F: FnOnce(Th, $($argument),*) -> R,
        {
            const ARITY: usize = $arity;

            #[inline(always)]
            fn serve(self, _regs: &mut Args, thread: Th) -> u64 {
                self(thread, $($argument::of(_regs.$register())),*).to_raw()
            }
        }

        impl<F, R: Answer, Th, $($argument: Argument),*> Handler<(Registers, $($argument,)*), Th>
            for F
        where
            F: FnOnce(&mut Args, $($argument),*) -> R,
        {
            const ARITY: usize = $arity;

            #[inline(always)]
            fn serve(self, regs: &mut Args, _thread: Th) -> u64 {
                $(let $register = $argument::of(regs.$register());)*
                self(regs, $($register),*).to_raw()
            }
        })*
    };
}

handlers! {
    0: ;
    1: A a0;
    2: A a0 B a1;
    3: A a0 B a1 C a2;
    4: A a0 B a1 C a2 D a3;
    5: A a0 B a1 C a2 D a3 E a4;
    6: A a0 B a1 C a2 D a3 E a4 G a5;
}

/// How many registers `handler` takes by type.
#[must_use]
pub const fn arity_of<Form, Th, F: Handler<Form, Th>>(_handler: &F) -> usize {
    F::ARITY
}
