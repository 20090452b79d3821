#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod flush;
pub mod isolation;
pub mod pcid;
pub mod state;
pub mod work;
