//! Kernel parameters: the words of the command line. A word nobody knows gets a warning that names
//! it, because a misspelt protection is worse than none.

/// A parameter: its name, and what it means.
struct Param {
    name: &'static str,
    /// Whether it takes `=value`.
    has_value: bool,
    /// The values there are; empty: whoever reads it knows.
    values: &'static [&'static str],
}

const fn flag(name: &'static str) -> Param {
    Param { name, has_value: false, values: &[] }
}

const fn value(name: &'static str) -> Param {
    Param { name, has_value: true, values: &[] }
}

const fn one_of(name: &'static str, values: &'static [&'static str]) -> Param {
    Param { name, has_value: true, values }
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
    one_of("sysret", &["on", "off"]),
    one_of("syscall_work", &["on", "off"]),
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

/// Logs a warning for each word that no part of the kernel reads, and for values that are none.
pub fn warn_unknown(line: &str) {
    for word in line.split_ascii_whitespace() {
        let (name, given) = match word.split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (word, None),
        };
        let mut named = KNOWN.iter().filter(|param| param.name == name);
        let param = named.find(|param| param.has_value == given.is_some());
        if param.is_none() && !mitigations::options::is_known(name, given.is_some()) {
            machine::log!("warning: unknown kernel parameter: {word}");
        }
        let values = param.map_or(&[][..], |param| param.values);
        if !values.is_empty() && !values.iter().any(|value| Some(*value) == given) {
            machine::log!("warning: ignoring {word}: the values are {}", values.join(", "));
        }
    }
}
