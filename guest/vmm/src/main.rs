//! A small VMM on the rust-vmm crates, unmodified: judges /dev/kvm.
//!
//! `limen-vmm test [FILTER]` runs guests of a few instructions each and says `test NAME ... ok` or
//! `FAILED`, as `guest/tests` does; `limen-vmm list` has their names. On a host whose KVM does not
//! work it says so and fails. `limen-vmm vmscape KIND [FILTER]` does the same for what is flushed
//! behind guests. `limen-vmm branches` needs no KVM, `limen-vmm boot` boots a kernel,
//! `limen-vmm bench` measures.

mod bench;
mod boot;
mod branches;
mod capabilities;
mod hostile;
mod machine;
mod races;
mod tests;
mod vmscape;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("bench") => bench::command(&words[1..]),
        Some("boot") => boot::command(&words[1..]),
        Some("list") => tests::list(),
        Some("vmscape-list") => {
            vmscape::list();
            ExitCode::SUCCESS
        }
        Some("vmscape") => {
            let word = |n: usize| words.get(n).map_or("", String::as_str);
            vmscape::run_all(word(1), word(2))
        }
        Some("branches") => match branches::command() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("limen-vmm: {why}");
                ExitCode::FAILURE
            }
        },
        Some("test") => tests::run_all(words.get(1).map_or("", String::as_str)),
        _ => {
            eprintln!("usage: limen-vmm test [FILTER] | list | vmscape KIND [FILTER] | branches");
            ExitCode::from(2)
        }
    }
}
