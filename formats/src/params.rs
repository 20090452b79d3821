//! Kernel parameters: the words of the command line.
//!
//! The last word of a name counts, as in Linux. Neighbours: `kernel/src/base/params.rs` warns of
//! names that are not known; the machine and the kernel ask for values.

/// A parameter that some part of the kernel or the machine reads.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it may be set to; empty for a flag. With bars between them, these and nothing else.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Param {
    /// Whether it is spelt with a value.
    #[must_use]
    pub const fn has_value(&self) -> bool {
        !self.values.is_empty()
    }
}

const fn param(name: &'static str, values: &'static str, meaning: &'static str) -> Param {
    Param { name, values, meaning }
}

/// What boot loaders and monitors add.
const IGNORED: &str = "Means nothing here; boot loaders and monitors add it.";

/// Every parameter but those of mitigations. `docs/parameters.md` is made from it.
pub const KNOWN: &[Param] = &[
    param("nopcid", "", "Every load of CR3 drops all translations."),
    param("nokaslr", "", "The kernel stays at the addresses it was linked for."),
    param("norandmaps", "", "Programs lie at the same addresses in every run."),
    param("cfi", "WORDS", "Checks of indirect calls: off, warn, norand and others, with commas."),
    param("cpu-facts", "FACTS", "Facts of another CPU in the place of this one's, for tests."),
    param("cpu-registers", "real|deaf", "What stands behind the facts of another CPU, for tests."),
    param(
        "randomize_kstack_offset",
        "on|off",
        "Whether system calls begin at random offsets of their stacks.",
    ),
    param(
        "kernel_shstk",
        "auto|on|off",
        "Whether the CPU checks the kernel's returns by shadow stacks.",
    ),
    param("nousershstk", "", "Programs get no shadow stacks."),
    param("sysret", "on|off", "off: every return to a program is by IRET."),
    param(
        "syscall_work",
        "on|off",
        "on: every call goes the way of calls that are instrumented, for benches.",
    ),
    param("virtio_mmio.device", "SIZE@ADDRESS:GSI", "A device and where its registers are."),
    param("isolcpus", "LIST", "CPUs that threads come to only by their affinity."),
    param("nohz_full", "LIST", "CPUs without a tick, which other CPUs do not interrupt."),
    param("defer", "pending|always|cr3|off", "How such a CPU learns of what it was not told."),
    param("lsm", "LIST", "Policies of the security hooks, in their order."),
    param("transparent_hugepage", "always|madvise|never", "Whose memory gets huge pages."),
    param("ktest", "", "Runs the in-kernel tests, in builds that have them."),
    param("ktest", "FILTER", "Those whose name contains this."),
    param("console", "NAME", IGNORED),
    param("quiet", "", IGNORED),
    param("panic", "SECONDS", IGNORED),
    param("reboot", "HOW", IGNORED),
    param("pci", "WORDS", IGNORED),
    param("root", "DEVICE", IGNORED),
    param("ro", "", IGNORED),
    param("rw", "", IGNORED),
    param("nomodule", "WORD", IGNORED),
    param("tsc", "WORD", IGNORED),
    param("i8042.noaux", "WORD", IGNORED),
];

/// The value of the last `name=value` on the command line.
#[must_use]
pub fn find<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    values(line, name).next_back()
}

/// The values of all words `name=value`, in their order.
pub fn values<'a>(line: &'a str, name: &str) -> impl DoubleEndedIterator<Item = &'a str> {
    let value = move |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    line.split_ascii_whitespace().filter_map(value)
}

/// Whether the flag `name` is on the command line.
#[must_use]
pub fn has_flag(line: &str, name: &str) -> bool {
    line.split_ascii_whitespace().any(|word| word == name)
}

/// A device's registers, as `virtio_mmio.device=` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioDevice {
    /// Where its registers are.
    pub address: u64,
    /// How many bytes of them there are.
    pub bytes: usize,
    /// The global system interrupt it raises.
    pub gsi: u32,
}

impl MmioDevice {
    /// `SIZE@ADDRESS:GSI[:ID]`: numbers in C's notation, SIZE with an optional K or M.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (size, rest) = text.split_once('@')?;
        let mut rest = rest.split(':');
        let address = number(rest.next()?)?;
        let gsi = u32::try_from(number(rest.next()?)?).ok()?;
        let (digits, unit) = match size.strip_suffix(['K', 'k']) {
            Some(digits) => (digits, 1024),
            None => match size.strip_suffix(['M', 'm']) {
                Some(digits) => (digits, 1024 * 1024),
                None => (size, 1),
            },
        };
        let bytes = usize::try_from(number(digits)?.checked_mul(unit)?).ok()?;
        Some(Self { address, bytes, gsi })
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts() {
        let line = " a=1  b ab=3 a=2 a \ta==";
        assert_eq!(find(line, "a"), Some("="));
        assert_eq!(find(line, "b"), None);
        assert_eq!((has_flag(line, "b"), has_flag(line, "ab")), (true, false));
        assert!(values(line, "a").eq(["1", "2", "="]));
        assert_eq!(find("", ""), None);
    }

    #[test]
    fn devices() {
        let device = MmioDevice { address: 0xfeb0_0e00, bytes: 4096, gsi: 12 };
        assert_eq!(MmioDevice::parse("4K@0xfeb00e00:12"), Some(device));
        assert_eq!(MmioDevice::parse("4096@0xfeb00e00:0xc:7"), Some(device));
        for bad in ["", "@", "K@:", "4K", "4K@1", "4\u{e9}@1:2", "99999999999999M@1:2", "1@1:-1"] {
            assert_eq!(MmioDevice::parse(bad), None, "{bad}");
        }
    }
}
