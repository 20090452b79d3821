//! The kernel's text and what may change in it: checks of calls (`cfi`), static keys and calls, and
//! code that comes after boot (`late_text`, `seccomp`).
//!
//! Everything that writes text goes through `text_poke`; where it may write is said by the tables
//! that objtool has left in the image (`sites`). The decisions are `mechanisms/text_patching`'s.

pub(crate) mod call_depth;
pub mod cfi;
pub(crate) mod late_text;
pub mod seccomp;
pub mod sites;
pub mod static_branch;
pub mod static_call;
pub(crate) mod text_poke;
pub(crate) mod thunk;
pub(crate) mod untrain;
pub mod vdso;
