#![doc = include_str!("../README.md")]
#![no_std]

pub mod capabilities;
pub mod fold;
pub mod landlock;
pub mod order;
pub mod table;
pub mod yama;
