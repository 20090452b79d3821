//! A small VMM on the rust-vmm crates, unmodified: judges /dev/kvm.
//!
//! `limen-vmm test [FILTER]` runs guests of a few instructions each and says `test NAME ... ok` or
//! `FAILED`, as `guest/tests` does; `limen-vmm list` has their names. On a host whose KVM does not
//! work it says so and fails.

mod machine;
mod tests;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("list") => tests::list(),
        Some("test") => tests::run_all(words.get(1).map_or("", String::as_str)),
        _ => {
            eprintln!("usage: limen-vmm test [FILTER] | list");
            ExitCode::from(2)
        }
    }
}
