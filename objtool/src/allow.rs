//! The indirect branches that Limen itself has without a check, each with its reason.
//!
//! A name ends here only if the branch cannot have a check and its target cannot be written by
//! anybody who can write data. Everything else is a bug in the build.

/// An exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// The symbol in which the branch is; a trailing `*` matches any ending.
    pub symbol: String,
    /// Why that is sound.
    pub why: String,
}

impl Allow {
    /// An exception for `symbol`.
    #[must_use]
    pub fn new(symbol: &str, why: &str) -> Self {
        Self { symbol: symbol.into(), why: why.into() }
    }

    /// Whether it covers `name`.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        match self.symbol.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == self.symbol,
        }
    }
}

/// Limen's own list.
#[must_use]
pub fn limen() -> Vec<Allow> {
    const BOOT: &str = "boot code that runs once, before user mode; the target is a constant in \
                        text or was stored by the boot CPU, and the page is unmapped afterwards";
    let allow = |symbol| Allow::new(symbol, BOOT);
    vec![
        Allow::new(
            "__x86_indirect_thunk_*",
            "the thunk itself: it branches to the register that its caller has just checked",
        ),
        Allow::new(
            "__x86_indirect_its_thunk_r11",
            "as the thunk: it branches to the register that its caller has just checked",
        ),
        allow("boot_long_mode"),
        allow("ap_trampoline_start"),
        allow("ap_protected_mode"),
        allow("ap_long_mode"),
    ]
}
