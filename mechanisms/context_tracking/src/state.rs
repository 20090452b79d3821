//! The per-CPU word and the protocol around it: what a sender, an entry, an exit and an NMI do.
//!
//! What is hard: a sender must not wait for a CPU in user mode, yet that CPU must not use anything
//! old once it is in the kernel; both look at one word, at the same time. The proof is a search
//! through all interleavings (`tests/interleavings/`) of these very functions, so they touch the
//! machine only through [`Sender`] and [`Entry`].
//!
//! Reading order: [`Sender`], [`Entry`], [`dispatch`] (senders), [`enter`], [`catch_up`], [`exit`],
//! then guests, NMIs, and the way without notes ([`enter_by_cr3`]). The fast path of
//! `machine/src/entry/entry.S` is [`enter`] and the test for pending bits in assembly.

/// The CPU executes kernel code that may rely on everything being up to date.
pub const IN_KERNEL: u32 = 1 << 0;
/// Kernel translations changed since the CPU went to user mode.
pub const PENDING_TLB: u32 = 1 << 1;
/// Kernel text changed since the CPU went to user mode.
pub const PENDING_SYNC: u32 = 1 << 2;
/// The CPU is in a guest, or on its way there or back. Beside [`IN_KERNEL`] only until the way back
/// has caught up.
pub const IN_GUEST: u32 = 1 << 3;
/// All work that can be pending.
pub const PENDING: u32 = PENDING_TLB | PENDING_SYNC;

/// Number of the bit [`IN_KERNEL`], for instructions that take one.
pub const IN_KERNEL_BIT: u32 = IN_KERNEL.trailing_zeros();

/// A word after boot: every CPU starts in the kernel.
pub const AT_BOOT: u32 = IN_KERNEL;

/// How often a sender tries to set its bits before it sends the interrupt instead. Each failure
/// means that the CPU has crossed the boundary, or another sender has set its bits.
pub const TRIES: u32 = 8;

/// What a sender needs of the hardware. Words are named by the CPU they belong to.
pub trait Sender {
    /// The word; no order with other accesses is asked for.
    fn load(&self, cpu: usize) -> u32;
    /// Replaces `old` by `new`, atomically. `Err`: what is there instead.
    fn compare_exchange(&self, cpu: usize, old: u32, new: u32) -> Result<(), u32>;
    /// Makes every earlier store of this CPU visible to all before any later access.
    fn full_barrier(&self);
    /// Interrupts `cpu`, which then does `work` and acknowledges.
    fn send(&self, cpu: usize, work: u32);
}

/// What a CPU needs of the hardware on its own ways in and out. The word is its own.
pub trait Entry {
    /// Sets bits, atomically, before any later access of this CPU. What was there before.
    fn fetch_or(&self, bits: u32) -> u32;
    /// Keeps only `bits`, atomically.
    fn fetch_and(&self, bits: u32);
    /// Stores the word, after every earlier access of this CPU.
    fn store_release(&self, value: u32);
    /// Drops all kernel translations of this CPU, of all PCIDs, global ones included.
    fn flush_kernel_tlb(&self);
    /// Writes CR3, as page-table isolation does on the way in: drops what this CPU has of kernel
    /// translations, and serialises.
    fn write_cr3(&self);
    /// Makes this CPU fetch anew whatever it executes next.
    fn serialize(&self);
}

/// What became of a request to several CPUs: one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// Interrupted: the sender waits for them.
    pub sent: u32,
    /// In user mode or a guest: they catch up when they enter the kernel. The sender is done with
    /// them.
    pub deferred: u32,
    /// Those of [`Dispatched::deferred`] that are in a guest.
    pub guests: u32,
}

/// The CPUs that are not interrupted while they are in user mode or in a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    /// One bit for each.
    pub cpus: u32,
    /// Their entries catch up whether or not something is pending ([`enter_by_cr3`]): no note is
    /// left.
    pub by_cr3: bool,
}

/// Asks `targets` to do `work` ([`PENDING`] bits) for a change that the caller has made. CPUs of
/// `spared` that are in user mode are not interrupted.
///
/// The caller then waits for all in [`Dispatched::sent`] to acknowledge. It is not among `targets`.
#[inline]
pub fn dispatch(sender: &impl Sender, targets: u32, spared: Spared, work: u32) -> Dispatched {
    // The change is visible before any word is looked at, and before any interrupt is sent.
    sender.full_barrier();
    let mut result = Dispatched::default();
    for cpu in bits(targets) {
        let left = match spared.cpus & 1 << cpu != 0 {
            false => None,
            true if spared.by_cr3 => Some(sender.load(cpu)).filter(|word| word & IN_KERNEL == 0),
            true => try_defer(sender, cpu, work),
        };
        match left {
            None => result.sent |= 1 << cpu,
            Some(word) => {
                result.deferred |= 1 << cpu;
                result.guests |= u32::from(word & IN_GUEST != 0) << cpu;
            }
        }
    }
    bits(result.sent).for_each(|cpu| sender.send(cpu, work));
    result
}

/// Leaves `work` to the next entry of `cpu`, if it is in user mode or a guest: what its word said.
fn try_defer(sender: &impl Sender, cpu: usize, work: u32) -> Option<u32> {
    let mut seen = sender.load(cpu);
    for _ in 0..TRIES {
        if seen & IN_KERNEL != 0 {
            return None;
        }
        // Pending already: the entry that clears it comes after this look, so after the change.
        if seen & work == work {
            return Some(seen);
        }
        match sender.compare_exchange(cpu, seen, seen | work) {
            Ok(()) => return Some(seen),
            Err(now) => seen = now,
        }
    }
    None
}

/// Entry of a CPU, as early as the kernel's tables are loaded. What was in the word: the caller
/// goes on with [`catch_up`] before it touches anything that may have changed.
#[inline(always)]
pub fn enter(entry: &impl Entry) -> u32 {
    entry.fetch_or(IN_KERNEL)
}

/// Does what was pending in `old`, the word before [`enter`]. No bit is set meanwhile, since
/// `IN_KERNEL` is; they are cleared only afterwards, so that an NMI in between does it too.
#[inline(always)]
pub fn catch_up(entry: &impl Entry, old: u32) {
    let pending = old & PENDING;
    if pending == 0 {
        return;
    }
    if pending & PENDING_TLB != 0 {
        entry.flush_kernel_tlb();
    }
    // Also after a flush alone: not every way to flush serialises.
    entry.serialize();
    entry.fetch_and(!pending);
}

/// Exit of a CPU to user mode, interrupts masked. A plain store suffices: others change the word
/// only while `IN_KERNEL` is clear, so it loses nothing.
#[inline(always)]
pub fn exit(entry: &impl Entry) {
    entry.store_release(0);
}

/// Exit of a CPU to a guest: as [`exit`]. Between it and the guest, and between the guest and
/// [`leave_guest`], nothing else can come but NMIs on Intel's CPUs, which find a danger zone.
#[inline(always)]
pub fn enter_guest(entry: &impl Entry) {
    entry.store_release(IN_GUEST);
}

/// A CPU is back from a guest: as [`enter`] and [`catch_up`]. What is pending, and `also`, is done.
#[inline(always)]
pub fn leave_guest(entry: &impl Entry, also: u32) {
    let old = enter(entry);
    catch_up(entry, old | also);
    // A plain store, as in `exit`: nobody else changes the word now, and nothing is pending.
    entry.store_release(IN_KERNEL);
}

/// Entry by NMI, #DB, #MC or #DF, which may hit a danger zone: the word alone says whether the
/// kernel's view is up to date, whatever CR3 says. Give the result to [`paranoid_exit`].
#[inline(always)]
pub fn paranoid_enter(entry: &impl Entry) -> u32 {
    let old = enter(entry);
    catch_up(entry, old);
    old
}

/// Return from such an entry: a danger zone goes on as one, around a guest as that.
#[inline(always)]
pub fn paranoid_exit(entry: &impl Entry, old: u32) {
    if old & IN_KERNEL == 0 {
        entry.store_release(old & IN_GUEST);
    }
}

/// Entry of a CPU where no notes are left: the word says so first, and the write of CR3 that comes
/// anyway makes good whatever was kept from this CPU. The other order has a hole: a sender that
/// looks between the write and the word spares a CPU that will drop nothing more.
///
/// The word is set by a locked operation. A plain store is seen by others when CR3 is written, but
/// nothing says that it is before translations are dropped.
#[inline(always)]
pub fn enter_by_cr3(entry: &impl Entry) {
    enter(entry);
    entry.write_cr3();
}

/// As [`paranoid_enter`] where no notes are left. Such an entry writes CR3 whatever it hits, and
/// that is the catch-up if it hit the place between the word and the write of [`enter_by_cr3`]. If
/// the word says "user" now, senders spared this CPU until now, behind the write: once more.
#[inline(always)]
pub fn paranoid_enter_by_cr3(entry: &impl Entry) -> u32 {
    entry.write_cr3();
    let old = enter(entry);
    if old & IN_KERNEL == 0 {
        entry.write_cr3();
    }
    old
}

/// The CPUs in a mask, ascending.
pub fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |&cpu| mask & 1 << cpu != 0)
}

/// What a CPU's word says about where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// In the kernel.
    Kernel,
    /// In user mode (or a danger zone).
    User,
    /// In a guest (or a danger zone around it).
    Guest,
}

/// All of them, by their numbers.
pub const CONTEXTS: [Context; 3] = [Context::Kernel, Context::User, Context::Guest];

impl Context {
    /// Reads a word.
    #[must_use]
    pub const fn of(word: u32) -> Context {
        match (word & IN_KERNEL != 0, word & IN_GUEST != 0) {
            (true, _) => Context::Kernel,
            (false, true) => Context::Guest,
            (false, false) => Context::User,
        }
    }

    /// Its word in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Context::Kernel => "kernel",
            Context::User => "user",
            Context::Guest => "guest",
        }
    }
}
