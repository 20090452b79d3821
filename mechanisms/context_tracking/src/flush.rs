//! How one CPU drops every kernel translation it has, whatever the PCID (SDM 3A, 4.10.4.1).
//!
//! Programs' tables share the kernel's half, so a kernel translation may be cached once for each
//! PCID, and once more as a global one. `tests/tlb.rs` has a TLB in software that shows which of
//! the ways drop all of them; this is the choice among those that do.

/// What a CPU offers for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// INVPCID exists.
    pub invpcid: bool,
    /// CR4.PGE is set: global translations exist.
    pub global_pages: bool,
    /// CR4.PCIDE is set: there is more than one PCID.
    pub pcid: bool,
}

/// A way to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// INVPCID, type 2: all contexts, global translations included. Does not serialise.
    InvpcidAll,
    /// CR4.PGE off and on again: drops everything of all PCIDs. Serialises.
    PgeToggle,
    /// CR3 written with its own value and without NOFLUSH: drops one PCID, not the global ones.
    /// Serialises.
    Cr3Reload,
}

impl Method {
    /// The cheapest way that drops everything.
    #[must_use]
    pub const fn choose(features: Features) -> Method {
        if features.invpcid {
            Method::InvpcidAll
        } else if features.global_pages || features.pcid {
            // Toggling PGE drops other PCIDs too; with PCID, PGE is always there.
            Method::PgeToggle
        } else {
            Method::Cr3Reload
        }
    }
}
