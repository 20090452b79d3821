//! Mitigations on this machine: what the CPU is, what was chosen, what is switched on, and whether
//! the CPU says so too.
//!
//! `mechanisms/mitigations` chooses. Here the choice is made real, in three places: text (which
//! sequence stands at which crossing, [`switch_sequences`], before the door to text closes),
//! registers of each CPU ([`init_cpu`]), and what runs at a switch between programs ([`switched`]).
//! Then everything is read back ([`verify_text`], `verify_cpu`): a difference between what was
//! chosen and what is there ends the boot, with its name. A file that tells of a protection is
//! never about one that is not on.
//!
//! `cpu-facts=` puts facts of another CPU in the place of this one's, for tests: registers that
//! such a CPU has are then a model in memory, so that every path runs in emulation. With
//! `cpu-registers=deaf` the model forgets what is written, which the boot must notice; with
//! `cpu-registers=real` the facts lie about the CPU that is there.
//!
//! Neighbours: `speculation` has the sequences, `entry.S` those around programs, `cfi` rewrites
//! indirect branches.

use core::sync::atomic::{AtomicU64, Ordering};

use formats::params;
use mitigations::plan::{Branches, Flush, Returns, spec_ctrl};
use mitigations::shadow_stack::{Asked, Cpu, NAME, choose};
use mitigations::spec_store_bypass::Control;
use mitigations::spectre_v2_user::For;
use mitigations::{Built, Facts, Options, Plan, Selection, Vendor, by_program};
use text_patching::jump_label;
use text_patching::return_site::Return;
use text_patching::tail::Via;

use crate::cpu::percpu::{self, PerCpu};
use crate::cpu::sealed::sealed;
use crate::cpu::shadow_stack::{self, ShadowStack};
use crate::cpu::sync::Once;
use crate::cpu::{self, cpuid, msr, speculation};
use crate::memory;
use crate::text::cfi;
use crate::text::static_branch::{self, StaticKey, id, static_branch_unlikely};
use crate::text::text_poke::LiveText;
use crate::text::{call_depth, sites, thunk, untrain};

pub mod behind_guests;

/// What was chosen, of which facts.
struct Chosen {
    facts: Facts,
    selection: Selection,
    plan: Plan,
    registers: Registers,
}

sealed! {
    static CHOSEN: Once<Chosen> = Once::new();
}

fn chosen() -> &'static Chosen {
    CHOSEN.get().expect("`init` has run")
}

/// What is done about each vulnerability.
pub fn selection() -> &'static Selection {
    &chosen().selection
}

/// What the machine does for that.
pub fn plan() -> &'static Plan {
    &chosen().plan
}

/// The facts that the choice was made of.
pub fn facts() -> &'static Facts {
    &chosen().facts
}

// ------------------------------------------------------------------------------------------------
// Facts and choice

/// Where registers of mitigations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registers {
    /// In the CPU.
    Real,
    /// In memory, for facts that are not this CPU's.
    Model,
    /// Nowhere.
    Deaf,
}

/// Chooses, from the CPU and the command line. On the first CPU, before page tables are made, which
/// depend on it.
pub(crate) fn init(command_line: &str) {
    let options = Options::parse(command_line, |bad| {
        crate::log!("warning: ignoring {}={}: no such value", bad.name, bad.value);
    });
    let (facts, registers) = match params::find(command_line, "cpu-facts") {
        None => (own_facts(), Registers::Real),
        Some(text) => injected(text, command_line),
    };
    let selection = mitigations::select(&facts, &options, &Built::LIMEN);
    if mitigations::vmscape::misses_neighbours(&selection, &facts) {
        crate::log!("{}", mitigations::vmscape::SMT_WARNING);
    }
    let plan = Plan::new(&selection, &facts, &options);
    choose_shadow_stacks(command_line, &plan);
    CHOSEN.call_once(|| Chosen { facts, selection, plan, registers });
}

/// Chooses whether returns are checked, and says so: by what this CPU is, whatever facts stand for
/// it.
fn choose_shadow_stacks(command_line: &str, plan: &Plan) {
    let value = params::find(command_line, NAME).unwrap_or("auto");
    let asked = Asked::parse(value).unwrap_or_else(|| {
        crate::log!("warning: {NAME}: ignoring unknown value {value}");
        Asked::default()
    });
    let features = cpu::features();
    let own = Cpu {
        has_shadow_stacks: features.shstk,
        is_virtual: features.hypervisor,
        keeps_tokens: features.sss,
    };
    let choice = choose(asked, own, plan);
    if !sites::are_filled() {
        // Text says who uses them: an image whose text stays as it was built has none.
        return;
    }
    let warning = if asked == Asked::On && !choice.is_on() { "warning: " } else { "" };
    crate::log!("{warning}{choice}");
    shadow_stack::set_on(choice.is_on());
}

fn injected(text: &str, command_line: &str) -> (Facts, Registers) {
    let facts = match Facts::parse(text) {
        Ok(facts) => facts,
        Err(bad) => panic!("cpu-facts: {bad}"),
    };
    crate::log!("mitigations: facts are the command line's, not this CPU's");
    let registers = match params::find(command_line, "cpu-registers") {
        Some("real") => Registers::Real,
        Some("deaf") => Registers::Deaf,
        _ => Registers::Model,
    };
    (facts, registers)
}

/// What the CPU that boots says of itself. Whether AMD's older microcode takes SBPB would have to
/// be tried; newer ones say it by CPUID.
fn own_facts() -> Facts {
    let mut facts = Facts::from_cpuid(cpuid);
    if facts.has_arch_capabilities() {
        facts.arch_capabilities = cpu::rdmsr(msr::ARCH_CAPABILITIES);
    }
    if facts.srbds_ctrl() || facts.arch_cap(mitigations::facts::arch_cap::GDS_CTRL) {
        facts.mcu_opt_ctrl = cpu::rdmsr(msr::MCU_OPT_CTRL);
    }
    facts.microcode = microcode(&facts);
    facts
}

/// The microcode's revision; 0 where a hypervisor would make it up (SDM 3A, 9.11.7.1).
fn microcode(facts: &Facts) -> u32 {
    match facts.vendor {
        _ if facts.hypervisor() => 0,
        Vendor::Intel => {
            // SAFETY: the register exists on all of Intel's 64-bit CPUs; CPUID fills it anew.
            unsafe { cpu::wrmsr(msr::BIOS_SIGN_ID, 0) };
            let _ = cpuid(1, 0);
            (cpu::rdmsr(msr::BIOS_SIGN_ID) >> 32) as u32
        }
        Vendor::Amd | Vendor::Hygon => cpu::rdmsr(msr::BIOS_SIGN_ID) as u32,
        Vendor::Zhaoxin | Vendor::Other => 0,
    }
}

/// How indirect branches behind kCFI's checks are made.
pub(crate) fn branches() -> Via {
    match plan().branches {
        Branches::Thunk if plan().returns == Returns::Counted => call_depth::branches(),
        Branches::Thunk => Via::Thunk,
        Branches::Direct => Via::Direct,
        Branches::Lfence => Via::Lfence,
        Branches::Aligned => Via::Aligned(thunk::aligned_thunk()),
    }
}

/// How the kernel returns.
pub(crate) fn returns() -> Return {
    match plan().returns {
        Returns::Plain => Return::Plain,
        Returns::Aligned => Return::Thunk(thunk::return_thunk()),
        Returns::Overlaid => Return::Thunk(untrain::overlaid_thunk()),
        Returns::Safe => Return::Thunk(untrain::safe_thunk()),
        Returns::SafeAlias => Return::Thunk(untrain::alias_thunk()),
        Returns::Counted => Return::Thunk(call_depth::return_thunk()),
    }
}

// ------------------------------------------------------------------------------------------------
// Text

/// Defines keys, and the list of what each of them is to be by the plan.
macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $id:ident, $on:expr;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;
            impl StaticKey for $name {
                const ID: u32 = id::$id;
            }
        )*

        /// Puts every sequence where the plan wants it. On the first CPU, while the door to entry
        /// text is open.
        pub(crate) fn switch_sequences() {
            $(set::<$name>($on(plan()));)*
            set::<untrain::SafeReturns>(plan().returns.are_safe());
            set::<ShadowStack>(shadow_stack::is_on());
            set::<call_depth::CountCalls>(plan().returns == Returns::Counted);
        }

        /// Compares text with the plan: each site of each key.
        fn verify_keys() {
            $(verify_key(stringify!($name), id::$id, $on(plan()));)*
            verify_key("SafeReturns", id::SAFE_RETURNS, plan().returns.are_safe());
            verify_key("ShadowStack", id::SHADOW_STACK, shadow_stack::is_on());
            verify_key("CountCalls", id::COUNT_CALLS, plan().returns == Returns::Counted);
        }
    };
}

keys! {
    /// Something runs at system calls before the kernel's first function.
    SyscallGuard = SYSCALL_GUARD,
        |plan: &Plan| plan.bhb_on_entry.is_some() || at_every_entry(plan);
    /// The same at interrupts and exceptions of programs, and paranoid entries.
    VectorGuard = VECTOR_GUARD, at_every_entry;
    EntryIbpb = ENTRY_IBPB, |plan: &Plan| plan.ibpb_on_entry;
    KernelIbrs = KERNEL_IBRS, |plan: &Plan| plan.ibrs_on_entry;
    /// What returns are predicted by is cleaned, or calls begin to be counted; also behind guests.
    Untrain = UNTRAIN, |plan: &Plan| plan.returns.begin_at_entries();
    UntrainSafe = UNTRAIN_SAFE, |plan: &Plan| plan.returns == Returns::Safe;
    UntrainAlias = UNTRAIN_ALIAS, |plan: &Plan| plan.returns == Returns::SafeAlias;
    EntryBhbShort = ENTRY_BHB_SHORT,
        |plan: &Plan| plan.bhb_on_entry == Some(mitigations::bhi::BhbLoop::SHORT);
    EntryBhbLong = ENTRY_BHB_LONG,
        |plan: &Plan| plan.bhb_on_entry == Some(mitigations::bhi::BhbLoop::LONG);
    NoFenceUser = NO_FENCE_USER, |plan: &Plan| !plan.fence_swapgs_user;
    NoFenceKernel = NO_FENCE_KERNEL, |plan: &Plan| !plan.fence_swapgs_kernel;
    NoVerwOnExit = NO_VERW_ON_EXIT, |plan: &Plan| !plan.verw_on_exit;
    VerwWhenIdle = VERW_WHEN_IDLE, |plan: &Plan| plan.verw_when_idle;
    /// Who counts calls counts those of another thread anew.
    FillReturnStack = FILL_RETURN_STACK,
        |plan: &Plan| plan.fills_return_stack || plan.returns == Returns::Counted;
    /// Something may be written when the CPU goes to another thread.
    AtSwitch = AT_SWITCH, at_switch;
    /// A guest may have left predictions that concern programs.
    BehindGuests = BEHIND_GUESTS, |plan: &Plan| plan.guest.exit_to_user != Flush::None;
    /// Those that concern the kernel go before its first return (`vmrun/behind.S`).
    IbpbBehindGuests = IBPB_BEHIND_GUESTS, |plan: &Plan| plan.guest.ibpb;
    FillBehindGuests = FILL_BEHIND_GUESTS, |plan: &Plan| {
        plan.guest.fills_return_stack || plan.guest.ibpb && plan.ibpb_keeps_returns
    };
    CallBehindGuests = CALL_BEHIND_GUESTS,
        |plan: &Plan| plan.guest.calls_once && !plan.guest.fills_return_stack && !plan.guest.ibpb;
}

fn at_every_entry(plan: &Plan) -> bool {
    plan.ibpb_on_entry || plan.ibrs_on_entry || plan.returns.begin_at_entries()
}

fn at_switch(plan: &Plan) -> bool {
    plan.ibpb_on_switch != For::Nobody || plan.stibp.is_by_program() || plan.ssbd_by_program
}

/// Switches a key that only changes now.
fn set<K: StaticKey>(on: bool) {
    if static_branch::set::<K>(on).is_err() && on {
        crate::log!("mitigations: this image has no site tables, text stays as it was built");
    }
}

/// Stops unless each site of the key is on or off as it should be.
fn verify_key(name: &str, key: u32, on: bool) {
    let Some(tables) = cfi::tables() else { return };
    let mut sites = 0;
    for branch in tables.branches().iter().filter(|branch| branch.key == key) {
        sites += 1;
        let change = jump_label::set(&LiveText, &branch, on);
        let is_so = change.is_ok_and(|patch| patch.is_noop());
        assert!(is_so, "mitigations: {name} at {:#x} is not as it was chosen", branch.site);
    }
    assert!(sites > 0, "mitigations: {name} has no place in text");
}

/// Compares what text and tables are with what was chosen. On the first CPU.
pub(crate) fn verify_text() {
    assert!(memory::has_pti() == plan().pti, "mitigations: page tables are not as it was chosen");
    let Some(done) = cfi::plan() else { return };
    assert!(done.via == branches(), "mitigations: indirect branches are not as it was chosen");
    assert!(done.returns == returns(), "mitigations: returns are not as it was chosen");
    let counts = plan().returns == Returns::Counted;
    assert!(call_depth::is_on() == counts, "mitigations: calls are not as it was chosen");
    verify_keys();
    if plan().returns.untrains() {
        untrain::verify(plan().returns);
    }
    crate::mitigations::behind_guests::verify_text();
}

// ------------------------------------------------------------------------------------------------
// Registers

/// Registers of the model, in the order of their places.
const MODELLED: [u32; 6] = [
    msr::SPEC_CTRL,
    msr::PRED_CMD,
    msr::MCU_OPT_CTRL,
    msr::TSX_CTRL,
    msr::VIRT_SPEC_CTRL,
    msr::LS_CFG,
];
/// The place behind them is EFER's.
const EFER_PLACE: usize = MODELLED.len();

static MODEL: PerCpu<[AtomicU64; MODELLED.len() + 1]> =
    PerCpu::from_array([const { [const { AtomicU64::new(0) }; _] }; cpu::MAX_CPUS]);
/// Barriers of the predictor on each CPU, but those that entry code makes.
static BARRIERS: PerCpu<AtomicU64> =
    PerCpu::from_array([const { AtomicU64::new(0) }; cpu::MAX_CPUS]);

fn place(register: u32) -> usize {
    let known = MODELLED.iter().position(|&modelled| modelled == register);
    known.unwrap_or(EFER_PLACE)
}

fn read(register: u32) -> u64 {
    match chosen().registers {
        Registers::Real => cpu::rdmsr(register),
        Registers::Model | Registers::Deaf => MODEL.get()[place(register)].load(Ordering::Relaxed),
    }
}

/// Writes one of the registers above, which the facts say that the CPU has.
fn write(register: u32, value: u64) {
    match chosen().registers {
        // SAFETY: the facts are the CPU's own, so the register exists; none of them changes what
        // addresses or code mean, but EFER, of which one bit is changed that exists.
        Registers::Real => unsafe { cpu::wrmsr(register, value) },
        Registers::Model => MODEL.get()[place(register)].store(value, Ordering::Relaxed),
        Registers::Deaf => {}
    }
}

/// Bit of EFER: automatic IBRS (APM 2, 3.1.7).
const EFER_AIBRSE: u64 = 1 << 21;
/// Bits of `TSX_CTRL`: transactions abort, and CPUID does not name them (SDM 4, table 2-2).
const TSX_OFF: u64 = 0b11;

/// Sets this CPU's registers, then reads them back. Each CPU, before it runs programs.
pub(crate) fn init_cpu() {
    let plan = plan();
    let local = percpu::local();
    local.spec_ctrl.set(plan.spec_ctrl);
    local.spec_ctrl_user.set(plan.spec_ctrl & !spec_ctrl::IBRS);
    local.pred_cmd.set(plan.pred_cmd);
    if plan.has_spec_ctrl {
        write(msr::SPEC_CTRL, plan.spec_ctrl);
    }
    if plan.auto_ibrs {
        write(msr::EFER, read(msr::EFER) | EFER_AIBRSE);
    }
    if let Some((clear, set)) = plan.mcu_opt_ctrl {
        write(msr::MCU_OPT_CTRL, read(msr::MCU_OPT_CTRL) & !clear | set);
    }
    if plan.disables_tsx {
        write(msr::TSX_CTRL, read(msr::TSX_CTRL) | TSX_OFF);
    }
    if plan.ssbd_always_elsewhere {
        write_ssbd(true);
    }
    verify_cpu(plan);
}

/// Stops the boot where a register does not hold what was chosen.
fn verify_cpu(plan: &Plan) {
    let (clear, set) = plan.mcu_opt_ctrl.unwrap_or((0, 0));
    let checks = [
        ("SPEC_CTRL", plan.has_spec_ctrl, msr::SPEC_CTRL, u64::MAX, plan.spec_ctrl),
        ("EFER.AIBRSE", plan.auto_ibrs, msr::EFER, EFER_AIBRSE, EFER_AIBRSE),
        ("MCU_OPT_CTRL", clear | set != 0, msr::MCU_OPT_CTRL, clear | set, set),
        ("TSX_CTRL", plan.disables_tsx, msr::TSX_CTRL, TSX_OFF, TSX_OFF),
    ];
    for (name, is_used, register, mask, wanted) in checks {
        if !is_used {
            continue;
        }
        let found = read(register) & mask;
        assert!(
            found == wanted & mask,
            "mitigations: {name} was to be {wanted:#x}, and this CPU has {found:#x}"
        );
    }
    let local = percpu::local();
    let is_noted = local.spec_ctrl.get() == plan.spec_ctrl && local.pred_cmd.get() == plan.pred_cmd;
    assert!(is_noted, "mitigations: what entry code writes is not what was chosen");
}

/// IBPB, or what of it this CPU needs; nothing where the CPU has none.
pub(crate) fn barrier() {
    let plan = plan();
    if plan.pred_cmd == 0 {
        return;
    }
    write(msr::PRED_CMD, plan.pred_cmd);
    BARRIERS.get().fetch_add(1, Ordering::Relaxed);
    if plan.ibpb_keeps_returns {
        speculation::fill_return_stack();
    }
}

/// Barriers on CPU `cpu` so far, but those that entry code makes.
pub fn barriers(cpu: usize) -> u64 {
    BARRIERS.of(cpu).load(Ordering::Relaxed)
}

fn write_ssbd(on: bool) {
    match plan().ssbd {
        Some(Control::VirtSpecCtrl) => {
            write(msr::VIRT_SPEC_CTRL, if on { spec_ctrl::SSBD } else { 0 });
        }
        Some(Control::LsCfg(bit)) => {
            let rest = read(msr::LS_CFG) & !(1 << bit);
            write(msr::LS_CFG, rest | u64::from(on) << bit);
        }
        Some(Control::SpecCtrl) | None => {}
    }
}

// ------------------------------------------------------------------------------------------------
// Between programs

/// The CPU goes to a thread with these flags ([`by_program::flag`]), which runs in the address
/// space
/// `space`; 0 for a thread of the kernel, which leaves everything as it is. Interrupts are masked.
#[inline(always)]
pub(crate) fn switched(space: u64, flags: u32) {
    if static_branch_unlikely::<AtSwitch>() {
        switch(space, flags);
    }
}

/// `predictor_owner`: the space that ran last, and on top whether it asked for the barrier.
const ASKED: u64 = 1 << 63;

#[cold]
fn switch(space: u64, flags: u32) {
    if space == 0 {
        return;
    }
    let plan = plan();
    let local = percpu::local();
    let asks = flags & by_program::flag::BRANCHES_OFF != 0;
    let owner = space | if asks { ASKED } else { 0 };
    let last = local.predictor_owner.replace(owner);
    let is_other = last & !ASKED != space;
    let is_wanted = match plan.ibpb_on_switch {
        For::Nobody => false,
        For::Prctl | For::Seccomp => (last | owner) & ASKED != 0,
        For::Everybody | For::EverybodyPreferred => true,
    };
    if is_other && is_wanted {
        barrier();
    }
    apply_flags(flags);
}

/// Gives this CPU the bits that a thread with these flags runs with.
fn apply_flags(flags: u32) {
    let plan = plan();
    let local = percpu::local();
    let stibp = plan.stibp.is_by_program() && flags & by_program::flag::BRANCHES_OFF != 0;
    let ssbd = plan.ssbd_by_program && flags & by_program::flag::SSB_OFF != 0;
    let in_spec_ctrl = plan.ssbd == Some(Control::SpecCtrl);
    let value = plan.spec_ctrl
        | if stibp { spec_ctrl::STIBP } else { 0 }
        | if ssbd && in_spec_ctrl { spec_ctrl::SSBD } else { 0 };
    if plan.has_spec_ctrl && local.spec_ctrl.replace(value) != value {
        local.spec_ctrl_user.set(value & !spec_ctrl::IBRS);
        write(msr::SPEC_CTRL, value);
    }
    if plan.ssbd_by_program && !in_spec_ctrl && local.ssbd.replace(ssbd) != ssbd {
        write_ssbd(ssbd);
    }
}

/// The running thread's flags have changed (prctl(2), seccomp(2), execve(2)).
pub(crate) fn flags_changed(before: u32, after: u32) {
    let _irq = crate::cpu::sync::IrqGuard::new();
    if before == after || !at_switch(plan()) {
        return;
    }
    apply_flags(after);
    let local = percpu::local();
    if (after & !before) & by_program::flag::BRANCHES_OFF != 0 {
        local.predictor_owner.set(local.predictor_owner.get() | ASKED);
        barrier();
    }
}

/// Waits for an interrupt with interrupts enabled, and returns after it was handled, interrupts
/// disabled. Must be called with interrupts disabled: STI takes effect after HLT has begun, so a
/// wake-up that came before is not lost.
pub fn idle_wait() {
    // Buffers are shared out anew between the threads of a core that sleeps.
    if static_branch_unlikely::<VerwWhenIdle>() {
        speculation::clear_buffers();
    }
    // SAFETY: handlers are installed, and touch only data behind locks that mask interrupts
    // (`cpu::irq_enable`); the CPU continues after the next interrupt.
    unsafe { core::arch::asm!("sti", "hlt", "cli", options(nostack)) };
    call_depth::forget_calls();
}
