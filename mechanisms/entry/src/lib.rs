//! Placeholder header, replaced with the first content.
#![no_std]
