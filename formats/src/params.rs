//! Kernel parameters: the words of the command line.
//!
//! The last word of a name counts, as in Linux. Neighbours: `kernel/src/base/params.rs` knows all
//! names and warns of others; the machine and the kernel ask for values.

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
