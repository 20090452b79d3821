//! Who may trace whom beyond what the ids say: Yama's ptrace scopes.

/// /proc/sys/kernel/yama/ptrace_scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// As the ids say.
    Classic,
    /// Descendants only, and whom the target has named (PR_SET_PTRACER).
    Restricted,
    /// Whoever has CAP_SYS_PTRACE.
    AdminOnly,
    /// Nobody, for good.
    NoAttach,
}

/// What holds until somebody writes another: as Debian ships it, so that programs which attach to
/// their siblings find what they find there.
pub const DEFAULT: Scope = Scope::Classic;

impl Scope {
    /// By its number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Scope> {
        match number {
            0 => Some(Scope::Classic),
            1 => Some(Scope::Restricted),
            2 => Some(Scope::AdminOnly),
            3 => Some(Scope::NoAttach),
            _ => None,
        }
    }

    /// Whether it may become another: the last one stays.
    #[must_use]
    pub fn may_become(self, other: Scope) -> bool {
        self != Scope::NoAttach || other == Scope::NoAttach
    }

    /// Whether somebody may attach. `related`: the target is a descendant, has named the tracer or
    /// one of its ancestors, or is traced by it already. `capable`: of CAP_SYS_PTRACE. Both are
    /// asked only where they count.
    pub fn may_attach(
        self,
        related: impl FnOnce() -> bool,
        capable: impl FnOnce() -> bool,
    ) -> bool {
        match self {
            Scope::Classic => true,
            Scope::Restricted => related() || capable(),
            Scope::AdminOnly => capable(),
            Scope::NoAttach => false,
        }
    }

    /// Whether a parent may trace a child that asks for it; `capable`: the parent is.
    pub fn may_trace_child(self, capable: impl FnOnce() -> bool) -> bool {
        match self {
            Scope::Classic | Scope::Restricted => true,
            Scope::AdminOnly => capable(),
            Scope::NoAttach => false,
        }
    }
}
