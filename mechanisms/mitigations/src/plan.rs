//! What a selection asks of the machine: values of registers, and which sequence runs at which
//! crossing. The machine does this and nothing else, then reads back what it can.

use core::fmt;

use crate::bhi::{BhbLoop, Bhi};
use crate::facts::mcu_opt::{GDS_MITG_DIS, RNGDS_MITG_DIS};
use crate::gather_data_sampling::GatherDataSampling;
use crate::options::Vector;
use crate::reg_file_data_sampling::RegFileDataSampling;
use crate::select::Selection;
use crate::spec_store_bypass::{self, Control};
use crate::spectre_v2::Mode as V2;
use crate::spectre_v2_user::For;
use crate::srbds::Srbds;
use crate::{
    Facts, Options, indirect_target_selection, mds, mmio_stale_data, retbleed,
    spec_rstack_overflow, tsx_async_abort, vmscape,
};

/// Bits of `SPEC_CTRL`, MSR 0x48 (SDM 4, table 2-2).
pub mod spec_ctrl {
    #![expect(missing_docs, reason = "the names of the manual")]
    pub const IBRS: u64 = 1;
    pub const STIBP: u64 = 1 << 1;
    pub const SSBD: u64 = 1 << 2;
    pub const RRSBA_DIS_S: u64 = 1 << 6;
    pub const BHI_DIS_S: u64 = 1 << 10;
}

/// Commands of `PRED_CMD`, MSR 0x49.
pub mod pred_cmd {
    #![expect(missing_docs, reason = "the names of the manual")]
    pub const IBPB: u64 = 1;
    pub const SBPB: u64 = 1 << 7;
}

/// How an indirect branch of the kernel is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// Through the retpoline.
    Thunk,
    /// Directly.
    Direct,
    /// Directly, behind an LFENCE.
    Lfence,
    /// By a thunk that only jumps, in the upper half of a cache line.
    Aligned,
}

/// How the kernel returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// In place.
    Plain,
    /// By a thunk that only returns, in the upper half of a cache line.
    Aligned,
    /// By one return, which each entry untrains by an instruction that it is a part of.
    Overlaid,
    /// By one return behind a call of the thunk's own, untrained in the same way.
    Safe,
    /// The same, untrained at an address that is the same to the predictor.
    SafeAlias,
    /// By a thunk that counts, as all calls are counted, and fills the return stack before it runs
    /// empty.
    Counted,
}

impl Returns {
    /// Whether each entry cleans what returns are predicted by.
    #[must_use]
    pub const fn untrains(self) -> bool {
        matches!(self, Self::Overlaid | Self::Safe | Self::SafeAlias)
    }

    /// Whether each entry does something for the returns behind it: it untrains them, or begins to
    /// count.
    #[must_use]
    pub const fn begin_at_entries(self) -> bool {
        self.untrains() || matches!(self, Self::Counted)
    }

    /// Whether a return goes behind a call of its own.
    #[must_use]
    pub const fn are_safe(self) -> bool {
        matches!(self, Self::Safe | Self::SafeAlias)
    }
}

/// What is done before the first return to a program behind a guest, on that CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing.
    None,
    /// IBPB.
    Ibpb,
    /// The loop that clears branch history.
    Bhb(BhbLoop),
}

/// What a hypervisor does at the exit of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Fills the return stack.
    pub fills_return_stack: bool,
    /// Makes one call before the first return.
    pub calls_once: bool,
    /// Clears branch history.
    pub bhb: Option<BhbLoop>,
    /// IBPB.
    pub ibpb: bool,
    /// VERW before the guest runs.
    pub verw: bool,
    /// Before the return to a program.
    pub exit_to_user: Flush,
}

/// What the machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Programs run on page tables of their own.
    pub pti: bool,
    /// How indirect branches are made.
    pub branches: Branches,
    /// How returns are made.
    pub returns: Returns,
    /// `SPEC_CTRL` exists.
    pub has_spec_ctrl: bool,
    /// The value of `SPEC_CTRL` in the kernel, and but for IBRS and what a program asked for, in
    /// programs.
    pub spec_ctrl: u64,
    /// IBRS is set at every entry and cleared before programs.
    pub ibrs_on_entry: bool,
    /// `EFER.AIBRSE`.
    pub auto_ibrs: bool,
    /// IBPB at every entry.
    pub ibpb_on_entry: bool,
    /// What is written to `PRED_CMD`; 0 without it.
    pub pred_cmd: u64,
    /// IBPB leaves return predictions: the return stack is filled behind it.
    pub ibpb_keeps_returns: bool,
    /// Branch history is cleared at every system call.
    pub bhb_on_entry: Option<BhbLoop>,
    /// A fence behind SWAPGS.
    pub fence_swapgs_user: bool,
    /// A fence where SWAPGS was passed by.
    pub fence_swapgs_kernel: bool,
    /// VERW before programs.
    pub verw_on_exit: bool,
    /// VERW before the CPU sleeps.
    pub verw_when_idle: bool,
    /// The return stack is filled at every switch between threads.
    pub fills_return_stack: bool,
    /// IBPB when the CPU goes to another program.
    pub ibpb_on_switch: For,
    /// STIBP, where programs choose.
    pub stibp: For,
    /// SSBD, where programs choose; and how it is switched.
    pub ssbd_by_program: bool,
    /// Where SSBD is switched.
    pub ssbd: Option<Control>,
    /// SSBD is on for all, by a register that is not `SPEC_CTRL`.
    pub ssbd_always_elsewhere: bool,
    /// Bits of `MCU_OPT_CTRL` to clear and to set, where one of them is this kernel's business.
    pub mcu_opt_ctrl: Option<(u64, u64)>,
    /// Transactions are switched off.
    pub disables_tsx: bool,
    /// AVX is taken from programs.
    pub disables_avx: bool,
    /// One thread of each core runs.
    pub one_thread_per_core: bool,
    /// At exits of guests.
    pub guest: Guest,
}

impl Plan {
    /// What `selection`, which was made of these facts and options, asks for.
    #[must_use]
    pub fn new(selection: &Selection, facts: &Facts, options: &Options) -> Self {
        let v2 = &selection.spectre_v2;
        let ssb = &selection.spec_store_bypass;
        let ssb_always = ssb.mode == spec_store_bypass::Mode::Everybody;
        let by_spec_ctrl = ssb.control == Some(Control::SpecCtrl);
        let flushes = selection.retbleed.mode == retbleed::Mode::Ibpb
            || selection.spec_rstack_overflow.mode == spec_rstack_overflow::Mode::Ibpb;
        Self {
            pti: selection.meltdown.pti,
            branches: branches(selection),
            returns: returns(selection, facts),
            has_spec_ctrl: facts.has_spec_ctrl(),
            spec_ctrl: spec_ctrl_value(selection, facts),
            ibrs_on_entry: v2.mode == V2::Ibrs,
            auto_ibrs: v2.mode.is_eibrs() && facts.auto_ibrs(),
            ibpb_on_entry: flushes,
            pred_cmd: pred_cmd_value(selection, facts),
            ibpb_keeps_returns: facts.amd_ibpb() && !facts.ibpb_ret(),
            bhb_on_entry: match v2.bhi {
                Bhi::Loop(counts) => Some(counts),
                _ => None,
            },
            fence_swapgs_user: selection.spectre_v1.fence_user,
            fence_swapgs_kernel: selection.spectre_v1.fence_kernel,
            verw_on_exit: verw_on_exit(selection),
            verw_when_idle: verw_when_idle(selection, facts),
            fills_return_stack: v2.fills_return_stack(),
            ibpb_on_switch: v2.user.ibpb,
            stibp: v2.user.stibp,
            ssbd_by_program: matches!(
                ssb.mode,
                spec_store_bypass::Mode::Prctl | spec_store_bypass::Mode::Seccomp
            ),
            ssbd: ssb.control,
            ssbd_always_elsewhere: ssb_always && !by_spec_ctrl,
            mcu_opt_ctrl: mcu_opt_ctrl(selection),
            disables_tsx: selection.tsx_async_abort.disables_tsx,
            disables_avx: selection.gather_data_sampling == GatherDataSampling::AvxDisabled,
            one_thread_per_core: selection.one_thread_per_core,
            guest: guest(selection, options),
        }
    }
}

fn branches(selection: &Selection) -> Branches {
    let its = selection.indirect_target_selection.mode;
    match selection.spectre_v2.mode {
        V2::Retpoline | V2::EibrsRetpoline => Branches::Thunk,
        V2::Lfence | V2::EibrsLfence => Branches::Lfence,
        V2::None | V2::Eibrs | V2::Ibrs => match its {
            indirect_target_selection::Mode::AlignedThunks => Branches::Aligned,
            _ => Branches::Direct,
        },
    }
}

/// A safe return is as good for retbleed as the one that is only untrained.
fn returns(selection: &Selection, facts: &Facts) -> Returns {
    let its = selection.indirect_target_selection.mode;
    if selection.spec_rstack_overflow.returns_safely() {
        match spec_rstack_overflow::untrains_by_alias(facts) {
            true => Returns::SafeAlias,
            false => Returns::Safe,
        }
    } else if selection.retbleed.mode == retbleed::Mode::Unret {
        Returns::Overlaid
    } else if its == indirect_target_selection::Mode::Stuff
        || selection.retbleed.mode == retbleed::Mode::Stuff
    {
        Returns::Counted
    } else if its == indirect_target_selection::Mode::AlignedThunks {
        Returns::Aligned
    } else {
        Returns::Plain
    }
}

fn spec_ctrl_value(selection: &Selection, facts: &Facts) -> u64 {
    let v2 = &selection.spectre_v2;
    let ssb = &selection.spec_store_bypass;
    let by_ibrs = v2.mode.is_eibrs() && !facts.auto_ibrs() || v2.mode == V2::Ibrs;
    let smt = facts.smt == crate::facts::Smt::Active && !selection.one_thread_per_core;
    let ssbd =
        ssb.mode == spec_store_bypass::Mode::Everybody && ssb.control == Some(Control::SpecCtrl);
    [
        (by_ibrs, spec_ctrl::IBRS),
        (v2.user.stibp.is_everybody() && smt, spec_ctrl::STIBP),
        (ssbd, spec_ctrl::SSBD),
        (v2.disables_rrsba, spec_ctrl::RRSBA_DIS_S),
        (v2.bhi == Bhi::Hardware, spec_ctrl::BHI_DIS_S),
    ]
    .into_iter()
    .fold(0, |all, (on, bit)| if on { all | bit } else { all })
}

/// SBPB keeps more predictions, and is enough where SRSO is none of the barrier's business.
fn pred_cmd_value(selection: &Selection, facts: &Facts) -> u64 {
    if !facts.ibpb() {
        0
    } else if selection.spec_rstack_overflow.mode == spec_rstack_overflow::Mode::None
        && facts.sbpb()
    {
        pred_cmd::SBPB
    } else {
        pred_cmd::IBPB
    }
}

fn verw_on_exit(selection: &Selection) -> bool {
    // MMIO stale data alone is met before guests; where it is met before programs one of these is.
    matches!(selection.mds.mode, mds::Mode::Clear | mds::Mode::NoMicrocode)
        || matches!(
            selection.tsx_async_abort.mode,
            tsx_async_abort::Mode::Clear | tsx_async_abort::Mode::NoMicrocode
        )
        || selection.reg_file_data_sampling == RegFileDataSampling::Clear
        || selection.tsa.clears_before_programs()
}

fn verw_when_idle(selection: &Selection, facts: &Facts) -> bool {
    let smt = facts.smt == crate::facts::Smt::Active && !selection.one_thread_per_core;
    let tsa = selection.tsa.clears_before_programs() || selection.tsa.clears_before_guests();
    selection.mds.clears_when_idle(smt) || selection.mmio_stale_data.clears_when_idle || tsa && smt
}

fn mcu_opt_ctrl(selection: &Selection) -> Option<(u64, u64)> {
    let srbds = match selection.srbds {
        Srbds::Microcode => (RNGDS_MITG_DIS, 0),
        _ => (0, 0),
    };
    let gds = match selection.gather_data_sampling {
        GatherDataSampling::Microcode | GatherDataSampling::MicrocodeLocked => (GDS_MITG_DIS, 0),
        GatherDataSampling::Off => (0, GDS_MITG_DIS),
        _ => (0, 0),
    };
    let (clear, set) = (srbds.0 | gds.0, srbds.1 | gds.1);
    (clear | set != 0).then_some((clear, set))
}

fn guest(selection: &Selection, options: &Options) -> Guest {
    let v2 = &selection.spectre_v2;
    let ibpb = selection.vmscape.mode == vmscape::Mode::IbpbOnVmexit
        || matches!(
            selection.spec_rstack_overflow.mode,
            spec_rstack_overflow::Mode::Ibpb | spec_rstack_overflow::Mode::IbpbOnVmexit
        )
        || selection.retbleed.mode == retbleed::Mode::Ibpb;
    let clears_mmio = matches!(
        selection.mmio_stale_data.mode,
        mmio_stale_data::Mode::Clear | mmio_stale_data::Mode::NoMicrocode
    );
    Guest {
        // A barrier takes the return stack along.
        fills_return_stack: v2.fills_return_stack() && !ibpb,
        calls_once: v2.calls_once_after_guest(),
        bhb: match v2.bhi {
            Bhi::Loop(counts) | Bhi::LoopAfterGuest(counts) => Some(counts),
            _ => None,
        },
        ibpb: ibpb && options.meets(&[Vector::GuestHost]),
        verw: verw_on_exit(selection) || clears_mmio || selection.tsa.clears_before_guests(),
        exit_to_user: match selection.vmscape.mode {
            vmscape::Mode::None | vmscape::Mode::IbpbOnVmexit => Flush::None,
            vmscape::Mode::IbpbExitToUser => Flush::Ibpb,
            vmscape::Mode::ClearBhbExitToUser(counts) => Flush::Bhb(counts),
        },
    }
}

/// What a crossing costs more than without the mitigations of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions.
    pub instructions: u32,
    /// Of these, writes of MSRs that restrict or flush: hundreds to thousands of cycles each.
    pub msr_writes: u32,
    /// VERW with the microcode that clears buffers: hundreds of cycles.
    pub clears: u32,
    /// Writes of CR3.
    pub cr3_writes: u32,
}

/// Instructions of `machine/src/entry/entry.S` and `speculation.rs`, by what is switched on there.
mod price {
    /// Out of line and back, and the questions there that say no.
    pub(super) const GUARD: u32 = 7;
    /// The same for what only system calls have.
    pub(super) const SYSCALL_GUARD: u32 = 4;
    /// What untrains, but for the return that is its end: see `text_patching::untrain`.
    pub(super) const OVERLAID: u32 = 6;
    pub(super) const SAFE: u32 = 5;
    pub(super) const ALIAS: u32 = 7;
    /// What sets the counter, and what its return counts: see `text_patching::call_depth`.
    pub(super) const COUNT: u32 = 8;
    /// The guard's own return finds the counter empty: sixteen calls, and what is around them.
    pub(super) const COUNTED_OUT: u32 = 16 + 2;
    /// Register, value, write, and back.
    pub(super) const MSR: u32 = 5;
    /// VERW and the jump back.
    pub(super) const VERW: u32 = 2;
    /// The fence behind the loop.
    pub(super) const FENCE: u32 = 1;
    /// Sixteen rounds of two calls, what is around them, and that the counter is full.
    pub(super) const FILL: u32 = 16 * 5 + 7;
    /// Two instructions for each write.
    pub(super) const CR3: u32 = 2;
}

impl Plan {
    /// One system call, both ways.
    #[must_use]
    pub fn system_call(&self) -> Cost {
        let mut cost = self.interrupt();
        let guarded = self.is_guarded();
        if self.fence_swapgs_user {
            cost.instructions -= price::FENCE;
        }
        if let Some(counts) = self.bhb_on_entry {
            cost.instructions += counts.instructions() + price::FENCE;
            cost.instructions += if guarded { 0 } else { price::GUARD };
        }
        if guarded || self.bhb_on_entry.is_some() {
            cost.instructions += price::SYSCALL_GUARD;
            cost.instructions +=
                if self.returns.begin_at_entries() { self.one_return().instructions } else { 0 };
            let counted = self.returns == Returns::Counted && self.bhb_on_entry.is_none();
            cost.instructions += if counted { price::COUNTED_OUT } else { 0 };
        }
        cost
    }

    /// Whether something is done at every entry.
    const fn is_guarded(&self) -> bool {
        self.ibpb_on_entry || self.ibrs_on_entry || self.returns.begin_at_entries()
    }

    /// One interrupt of a program, both ways.
    #[must_use]
    pub fn interrupt(&self) -> Cost {
        let mut cost = Cost::default();
        if self.is_guarded() {
            cost.instructions += price::GUARD;
        }
        cost.instructions += match self.returns {
            Returns::Plain | Returns::Aligned => 0,
            Returns::Overlaid => price::OVERLAID,
            Returns::Safe => price::SAFE,
            Returns::SafeAlias => price::ALIAS,
            Returns::Counted => price::COUNT,
        };
        // IBRS is taken back on the way out.
        let writes = u32::from(self.ibpb_on_entry) + 2 * u32::from(self.ibrs_on_entry);
        cost.msr_writes += writes;
        cost.instructions += writes * price::MSR;
        cost.instructions += if self.fence_swapgs_user { price::FENCE } else { 0 };
        if self.verw_on_exit {
            cost.clears += 1;
            cost.instructions += price::VERW;
        }
        if self.pti {
            cost.cr3_writes += 2;
            cost.instructions += 2 * price::CR3;
        }
        cost
    }

    /// One return of the kernel: a system call makes some dozens.
    #[must_use]
    pub fn one_return(&self) -> Cost {
        let instructions = match self.returns {
            Returns::Plain => 0,
            Returns::Aligned | Returns::Overlaid => 1,
            // To the thunk, its call, and what takes that call's address away.
            Returns::Safe | Returns::SafeAlias => 3,
            // To the thunk, the shift, and whether anything is left; seldom a fill.
            Returns::Counted => 3,
        };
        Cost { instructions, ..Cost::default() }
    }

    /// One direct call of the kernel.
    #[must_use]
    pub fn one_call(&self) -> Cost {
        let instructions = u32::from(self.returns == Returns::Counted);
        Cost { instructions, ..Cost::default() }
    }

    /// One switch to a thread of another program that asked for what programs can ask for.
    #[must_use]
    pub fn switch(&self) -> Cost {
        let barrier = u32::from(self.ibpb_on_switch != For::Nobody);
        let bits = self.stibp.is_by_program() || self.ssbd_by_program;
        let writes = barrier + u32::from(bits);
        let fills = self.fills_return_stack || self.returns == Returns::Counted;
        let fill = if fills { price::FILL } else { 0 };
        Cost { instructions: fill + writes * price::MSR, msr_writes: writes, ..Cost::default() }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instructions", self.instructions)?;
        for (count, what) in [
            (self.msr_writes, "MSR write"),
            (self.clears, "buffer clear"),
            (self.cr3_writes, "CR3 write"),
        ] {
            match count {
                0 => {}
                1 => write!(f, ", 1 {what}")?,
                _ => write!(f, ", {count} {what}s")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for For {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Prctl => "prctl",
            Self::Seccomp => "prctl and seccomp",
            Self::Everybody | Self::EverybodyPreferred => "everybody",
        })
    }
}

/// One clause for each thing that is done: what boot logs and tables show.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.branches {
            Branches::Thunk => "retpolines",
            Branches::Direct => "direct branches",
            Branches::Lfence => "LFENCE before branches",
            Branches::Aligned => "branches by an aligned thunk",
        })?;
        f.write_str(match self.returns {
            Returns::Plain => "",
            Returns::Aligned => "; returns by an aligned thunk",
            Returns::Overlaid => "; returns by a thunk that entries untrain",
            Returns::Safe => "; safe returns by a thunk that entries untrain",
            Returns::SafeAlias => "; safe returns by a thunk that entries untrain by its alias",
            Returns::Counted => "; calls and returns counted, RSB filled before it is empty",
        })?;
        if self.spec_ctrl != 0 {
            write!(f, "; SPEC_CTRL {:#x}", self.spec_ctrl)?;
        }
        if let Some(counts) = self.bhb_on_entry {
            write!(f, "; BHB loop {}/{} at system calls", counts.outer, counts.inner)?;
        }
        for (on, what) in [
            (self.pti, "page tables isolated"),
            (self.auto_ibrs, "EFER.AIBRSE"),
            (self.ibrs_on_entry, "IBRS at entries"),
            (self.ibpb_on_entry, "IBPB at entries"),
            (self.fence_swapgs_user, "fence behind SWAPGS"),
            (self.fence_swapgs_kernel, "fence instead of SWAPGS"),
            (self.verw_on_exit, "VERW before programs"),
            (self.verw_when_idle, "VERW before sleep"),
            (self.fills_return_stack, "RSB filled at switches"),
            (self.ssbd_by_program, "SSBD by program"),
            (self.ssbd_always_elsewhere, "SSBD for all, by another register"),
            (self.disables_tsx, "TSX off"),
            (self.disables_avx, "AVX off"),
            (self.one_thread_per_core, "one thread per core"),
        ] {
            if on {
                write!(f, "; {what}")?;
            }
        }
        for (whom, what) in [(self.ibpb_on_switch, "IBPB at switches"), (self.stibp, "STIBP")] {
            if whom != For::Nobody {
                write!(f, "; {what} for {whom}")?;
            }
        }
        if let Some((clear, set)) = self.mcu_opt_ctrl {
            write!(f, "; MCU_OPT_CTRL -{clear:#x} +{set:#x}")?;
        }
        self.guest.fmt(f)
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (on, what) in [
            (self.fills_return_stack, "RSB filled"),
            (self.calls_once, "one call"),
            (self.bhb.is_some(), "BHB loop"),
            (self.ibpb, "IBPB"),
            (self.verw, "VERW"),
        ] {
            if on {
                write!(f, "; {what} around guests")?;
            }
        }
        match self.exit_to_user {
            Flush::None => Ok(()),
            Flush::Ibpb => f.write_str("; IBPB before programs behind guests"),
            Flush::Bhb(counts) => {
                let BhbLoop { outer, inner } = counts;
                write!(f, "; BHB loop {outer}/{inner} before programs behind guests")
            }
        }
    }
}
