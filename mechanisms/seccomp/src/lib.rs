#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod action;
mod compile;
mod emit;
mod instruction;
mod program;
mod run;

pub use action::{Action, SeccompData, Verdict};
pub use compile::{CODE_MAX, Code, compile};
pub use instruction::Instruction;
pub use program::{INSTRUCTIONS_MAX, Program, Refusal, Why};
