//! The calls about timers that send signals: alarm(2) and setitimer(2) (`interval`),
//! timer_create(2) and its kin (`posix`). What such a timer is and how it expires is
//! `process::timers`.

pub mod interval;
pub mod posix;
