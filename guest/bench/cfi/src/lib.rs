//! What benches of call sequences share: generated code in random layouts, executable memory, and
//! timing by rounds of all variants in random order. `main.rs` measures kCFI's checks with it,
//! `guest/bench/hooks` the forms of a security hook.

pub mod code;
pub mod exec;
pub mod measure;
pub mod plot;
pub mod reach;
pub mod report;

/// Past the second-level cache every byte of code counts, and others' programs use it too: seen on
/// a Zen 5 with 32,768 sites, 1.01 of no check on a quiet machine and 1.05 at a load of 8, for the
/// optimised form and the yardstick alike.
pub fn warn_if_busy() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    if let Some(load) = load.filter(|&load| load > 1.5) {
        eprintln!("load {load}: on a busy machine the figures past the caches are too high");
    }
}
