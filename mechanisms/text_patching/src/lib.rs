#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod boot;
pub mod call_depth;
pub mod fineibt;
pub mod int3;
pub mod jump_label;
pub mod kcfi;
pub mod options;
pub mod poke;
pub mod preamble;
pub mod return_site;
pub mod site_table;
pub mod static_call;
pub mod tail;
pub mod trap;
pub mod untrain;

pub use poke::{Anomaly, Code, Patch, Text, TextPoke, Unmapped, What};
