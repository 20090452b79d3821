//! The floor under everything: threads on CPUs, waiting, time, a program's memory and arguments.
//! It knows no file, no process and no policy.
//!
//! Reading order: `sched`, `sync` (waiting), `time`, `user` and `io` (a program's memory), `poll`.

pub mod accounts;
pub mod args;
pub mod balance;
pub mod counters;
pub mod device_number;
pub mod id_map;
pub mod id_shards;
pub mod identity;
pub mod io;
pub mod lists;
pub mod names;
pub mod params;
pub mod poll;
pub mod random;
pub mod remembered;
pub mod reserve;
pub mod sched;
pub mod schedstats;
pub mod sync;
pub mod tally;
pub mod thread;
pub mod thread_settings;
pub mod time;
pub mod timer_queue;
pub mod transfers;
pub mod user;
pub mod watchdog;
