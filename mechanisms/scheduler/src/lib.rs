//! Which thread runs next, on which CPU, and for how long: decisions only, as values.
//!
//! Fair threads are served by "earliest eligible virtual deadline first" (EEVDF, Stoica and
//! Abdel-Wahab 1995, also Linux's since 6.6), real-time ones before them by priority, as sched(7)
//! says. What is hard is not the choice among threads that stay, but that the books balance when
//! they come and go: a thread that sleeps, moves to another CPU or changes its weight takes with it
//! exactly what it was owed or owes. Nothing here knows the time, a lock or a CPU: callers pass
//! the time in, and hold their lock.
//!
//! Reading order: [`class`], [`queue`] (one CPU), [`balance`] (several), `tree` (the data
//! structure); [`watch`] by itself. README.md derives the promise, and `tests/world` searches for
//! what breaks it.

#![no_std]

extern crate alloc;

pub mod balance;
pub mod class;
pub mod queue;
mod tree;
pub mod watch;

pub use class::{Class, Share};
pub use queue::{Arrival, Entity, Handle, Preempt, RunQueue};
