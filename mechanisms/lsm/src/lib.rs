#![doc = include_str!("../README.md")]
#![no_std]

extern crate alloc;

pub mod capabilities;
pub mod fold;
pub mod landlock;
pub mod order;
pub mod profile;
pub mod table;
pub mod yama;
