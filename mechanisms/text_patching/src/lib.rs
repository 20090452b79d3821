#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod kcfi;
pub mod poke;
pub mod preamble;
pub mod tail;

pub use poke::{Anomaly, Code, Patch, Text, TextPoke, Unmapped, What};
