//! m
#![no_std]
