//! The one function: facts and options in, what is done about each vulnerability out.
//!
//! Why one function for all: they lean on each other. IBRS for retbleed replaces retpolines, VERW
//! for one of four serves the others, IBPB at every entry makes three others unnecessary. So each
//! first chooses for itself (`select` in its file), and then hears what the others chose
//! (`update`), in the order below; no circle remains.

use core::fmt;

use crate::facts::Smt;
use crate::options::NoSmt;
use crate::{
    Facts, Options, bhi, gather_data_sampling, indirect_target_selection, itlb_multihit, l1tf, mds,
    meltdown, mmio_stale_data, old_microcode, reg_file_data_sampling, retbleed,
    spec_rstack_overflow, spec_store_bypass, spectre_v1, spectre_v2, spectre_v2_user, srbds, tsa,
    tsx_async_abort, vmscape,
};

/// Which means a kernel has. What it does not have it must not choose, nor report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Every return is a jump to a thunk, which can be aligned (ITS) or filled (stuffing).
    pub return_thunks: bool,
    /// A return thunk that untrains the branch predictor of Zen 1 and 2.
    pub untrained_returns: bool,
    /// A return thunk that SRSO cannot mislead.
    pub safe_returns: bool,
    /// Calls are counted, and the return stack is refilled before it runs empty.
    pub call_depth: bool,
    /// Branch history can be cleared before a hypervisor returns to its own program.
    pub bhb_clear_exit_to_user: bool,
    /// A hypervisor for Intel's VMX is part of the kernel.
    pub vmx: bool,
    /// AVX can be taken from programs.
    pub avx_off: bool,
}

impl Built {
    /// This kernel.
    pub const LIMEN: Self = Self {
        return_thunks: true,
        untrained_returns: true,
        safe_returns: true,
        call_depth: true,
        bhb_clear_exit_to_user: true,
        vmx: false,
        avx_off: false,
    };
    /// Linux 6.18 as distributions configure it.
    pub const LINUX: Self = Self {
        return_thunks: true,
        untrained_returns: true,
        safe_returns: true,
        call_depth: true,
        bhb_clear_exit_to_user: false,
        vmx: true,
        avx_off: true,
    };
}

/// What everybody chooses from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) options: &'a Options,
    pub(crate) built: &'a Built,
    /// Threads of a core run at the same time.
    pub(crate) smt_active: bool,
    /// They may be switched on later.
    pub(crate) smt_possible: bool,
}

/// What is done about each vulnerability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is described in the file of its name")]
pub struct Selection {
    pub meltdown: meltdown::Meltdown,
    pub spectre_v1: spectre_v1::SpectreV1,
    pub spectre_v2: spectre_v2::SpectreV2,
    pub spec_store_bypass: spec_store_bypass::SpecStoreBypass,
    pub l1tf: l1tf::L1tf,
    pub mds: mds::Mds,
    pub tsx_async_abort: tsx_async_abort::TsxAsyncAbort,
    pub mmio_stale_data: mmio_stale_data::MmioStaleData,
    pub srbds: srbds::Srbds,
    pub retbleed: retbleed::Retbleed,
    pub spec_rstack_overflow: spec_rstack_overflow::SpecRstackOverflow,
    pub gather_data_sampling: gather_data_sampling::GatherDataSampling,
    pub reg_file_data_sampling: reg_file_data_sampling::RegFileDataSampling,
    pub indirect_target_selection: indirect_target_selection::IndirectTargetSelection,
    pub tsa: tsa::Tsa,
    pub vmscape: vmscape::Vmscape,
    pub itlb_multihit: itlb_multihit::ItlbMultihit,
    pub old_microcode: old_microcode::OldMicrocode,
    /// Only one thread of each core may run.
    pub one_thread_per_core: bool,
}

/// How many files `/sys/devices/system/cpu/vulnerabilities` has.
pub const FILES: usize = 19;

/// What the file of a vulnerability that x86 does not have says.
struct NotAffected;

impl fmt::Display for NotAffected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NOT_AFFECTED)
    }
}

/// In Linux's words.
pub(crate) const NOT_AFFECTED: &str = "Not affected";
pub(crate) const VULNERABLE: &str = "Vulnerable";

impl Selection {
    /// The files of `/sys/devices/system/cpu/vulnerabilities`, in the order of their names, and
    /// what each says, in Linux's words.
    #[must_use]
    pub fn files(&self) -> [(&'static str, &dyn fmt::Display); FILES] {
        [
            ("gather_data_sampling", &self.gather_data_sampling),
            ("ghostwrite", &NotAffected),
            ("indirect_target_selection", &self.indirect_target_selection),
            ("itlb_multihit", &self.itlb_multihit),
            ("l1tf", &self.l1tf),
            ("mds", &self.mds),
            ("meltdown", &self.meltdown),
            ("mmio_stale_data", &self.mmio_stale_data),
            ("old_microcode", &self.old_microcode),
            ("reg_file_data_sampling", &self.reg_file_data_sampling),
            ("retbleed", &self.retbleed),
            ("spec_rstack_overflow", &self.spec_rstack_overflow),
            ("spec_store_bypass", &self.spec_store_bypass),
            ("spectre_v1", &self.spectre_v1),
            ("spectre_v2", &self.spectre_v2),
            ("srbds", &self.srbds),
            ("tsa", &self.tsa),
            ("tsx_async_abort", &self.tsx_async_abort),
            ("vmscape", &self.vmscape),
        ]
    }
}

/// What this kernel does about each vulnerability on this CPU with these options.
#[must_use]
pub fn select(facts: &Facts, options: &Options, built: &Built) -> Selection {
    let first = choose(facts, options, built, options.nosmt);
    if !first.one_thread_per_core || options.nosmt != NoSmt::No {
        return first;
    }
    // Somebody wants the threads off: then all report so.
    let mut second = choose(facts, options, built, NoSmt::Yes);
    second.one_thread_per_core = true;
    second
}

fn choose(facts: &Facts, options: &Options, built: &Built, nosmt: NoSmt) -> Selection {
    let input = Input {
        facts,
        options,
        built,
        smt_active: facts.smt == Smt::Active && nosmt == NoSmt::No,
        smt_possible: facts.smt == Smt::Active && nosmt != NoSmt::Force,
    };
    let mut v2 = spectre_v2::select(&input);
    let mut retbleed = retbleed::select(&input);
    let mut srso = spec_rstack_overflow::select(&input);
    let its = indirect_target_selection::select(&input);
    v2.update(&input, &retbleed);
    retbleed.update(&input, &v2, &srso, &its);
    let its = its.update(&input, &v2, &retbleed);
    srso.update(&input, &retbleed);
    let user = spectre_v2_user::select(&input, &v2, &retbleed);
    let bhi = bhi::select(&input, &v2);
    let verw = mds::Verw::wanted(&input);
    let selection = Selection {
        meltdown: meltdown::select(&input),
        spectre_v1: spectre_v1::select(&input),
        spectre_v2: v2.with(&input, user, bhi),
        spec_store_bypass: spec_store_bypass::select(&input),
        l1tf: l1tf::select(&input),
        mds: mds::select(&input, verw),
        tsx_async_abort: tsx_async_abort::select(&input, verw),
        mmio_stale_data: mmio_stale_data::select(&input, verw),
        srbds: srbds::select(&input),
        retbleed: retbleed.with_stibp(&user),
        spec_rstack_overflow: srso,
        gather_data_sampling: gather_data_sampling::select(&input),
        reg_file_data_sampling: reg_file_data_sampling::select(&input, verw),
        indirect_target_selection: its,
        tsa: tsa::select(&input),
        vmscape: vmscape::select(&input, &retbleed, &srso),
        itlb_multihit: itlb_multihit::select(&input),
        old_microcode: old_microcode::select(&input),
        one_thread_per_core: nosmt != NoSmt::No,
    };
    let wants_one = selection.wants_one_thread(&input);
    Selection { one_thread_per_core: selection.one_thread_per_core || wants_one, ..selection }
}

impl Selection {
    fn wants_one_thread(&self, input: &Input<'_>) -> bool {
        input.facts.smt == Smt::Active
            && (mds::wants_one_thread(input, &self.mds)
                || tsx_async_abort::wants_one_thread(input, &self.tsx_async_abort)
                || mmio_stale_data::wants_one_thread(input, &self.mmio_stale_data)
                || l1tf::wants_one_thread(input)
                || retbleed::wants_one_thread(input, &self.retbleed))
    }
}
