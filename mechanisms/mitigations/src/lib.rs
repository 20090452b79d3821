#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

pub mod behind_guests;
pub mod bhi;
pub mod by_program;
pub mod facts;
pub mod gather_data_sampling;
pub mod indirect_target_selection;
pub mod itlb_multihit;
pub mod l1tf;
pub mod mds;
pub mod meltdown;
pub mod mmio_stale_data;
pub mod model;
pub mod old_microcode;
pub mod options;
pub mod plan;
pub mod profiles;
pub mod reg_file_data_sampling;
pub mod retbleed;
pub mod select;
pub mod shadow_stack;
pub mod spec_rstack_overflow;
pub mod spec_store_bypass;
pub mod spectre_v1;
pub mod spectre_v2;
pub mod spectre_v2_user;
pub mod srbds;
pub mod table;
pub mod tsa;
pub mod tsx_async_abort;
pub mod vmscape;

pub use facts::{Facts, Vendor};
pub use options::{Ignored, Options, Vector};
pub use plan::Plan;
pub use select::{Built, Selection, select};
