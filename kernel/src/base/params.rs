//! Kernel parameters: the words of the command line. A word nobody knows gets a warning that names
//! it, because a misspelt protection is worse than none.

/// A parameter: its name, and what it means.
struct Param {
    name: &'static str,
    /// Whether it takes `=value`.
    has_value: bool,
}

const fn flag(name: &'static str) -> Param {
    Param { name, has_value: false }
}

const fn value(name: &'static str) -> Param {
    Param { name, has_value: true }
}

/// Every parameter that some part of the kernel or the machine reads, but those of mitigations.
const KNOWN: &[Param] = &[
    flag("nopcid"),
    flag("nokaslr"),
    flag("norandmaps"),
    value("cfi"),
    value("cpu-facts"),
    value("cpu-registers"),
    value("randomize_kstack_offset"),
    value("sysret"),
    value("syscall_work"),
    value("virtio_mmio.device"),
    value("isolcpus"),
    value("nohz_full"),
    value("defer"),
    value("lsm"),
    value("transparent_hugepage"),
    flag("ktest"),
    value("ktest"),
    // Boot loaders and monitors add these; they mean nothing here.
    value("console"),
    flag("quiet"),
    value("panic"),
    value("reboot"),
    value("pci"),
    value("root"),
    flag("ro"),
    flag("rw"),
    value("nomodule"),
    value("tsc"),
    value("i8042.noaux"),
];

pub use formats::params::{find, has_flag};

/// Logs a warning for each word that no part of the kernel reads.
pub fn warn_unknown(line: &str) {
    for word in line.split_ascii_whitespace() {
        let (name, with_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word, false),
        };
        let known = KNOWN.iter().any(|param| param.name == name && param.has_value == with_value)
            || mitigations::options::is_known(name, with_value);
        if !known {
            machine::log!("warning: unknown kernel parameter: {word}");
        }
    }
}
