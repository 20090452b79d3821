//! Memory policies (get_mempolicy(2), set_mempolicy(2), mbind(2)) of a machine with one node: each
//! is checked as Linux does, and then they are all the same. What a process set is remembered, as
//! what is set for a range of addresses, and told by get_mempolicy(2).

use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::memory::{PageKind, USER_END};

use crate::base::user::UserPtr;
use crate::mm::{MmInner, PAGE};
use crate::process::current;
use crate::security::Capability;

/// Policies (set_mempolicy(2)): from MPOL_DEFAULT to MPOL_WEIGHTED_INTERLEAVE.
const DEFAULT: u64 = 0;
const PREFERRED: u64 = 1;
const LOCAL: u64 = 4;
const LAST: u64 = 6;
/// Flags in a mode: MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES, MPOL_F_NUMA_BALANCING.
const STATIC_NODES: u64 = 1 << 15;
const RELATIVE_NODES: u64 = 1 << 14;
const BALANCING: u64 = 1 << 13;
/// Flags of get_mempolicy(2).
const F_NODE: u64 = 1;
const F_ADDR: u64 = 1 << 1;
const F_MEMS_ALLOWED: u64 = 1 << 2;
/// Flags of mbind(2): MPOL_MF_STRICT, MPOL_MF_MOVE, MPOL_MF_MOVE_ALL.
const MBIND_FLAGS: u64 = 7;
const STRICT: u64 = 1;
const MOVE_ALL: u64 = 4;
/// Where a remembered policy has its node, above its mode.
const NODES_SHIFT: u32 = 32;
/// Most bits of a node mask.
const MASK_BITS_MAX: u64 = PAGE * 8;

/// The policy of a mode, without its flags. EINVAL.
fn policy_of(mode: u64) -> Result<u64> {
    let flags = mode & (STATIC_NODES | RELATIVE_NODES | BALANCING);
    let policy = mode & !flags;
    if policy > LAST || flags & STATIC_NODES != 0 && flags & RELATIVE_NODES != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(policy)
}

/// The nodes, if they are there and go with the policy. EINVAL.
fn check_nodes(policy: u64, nodes: u64) -> Result<u64> {
    if nodes & !1 != 0 {
        return Err(Errno::EINVAL);
    }
    let fits = match policy {
        DEFAULT | LOCAL => nodes == 0,
        PREFERRED => true,
        _ => nodes != 0,
    };
    if fits { Ok(nodes) } else { Err(Errno::EINVAL) }
}

/// The first word of a node mask of `bits - 1` bits; bits behind it must be clear. EINVAL, EFAULT.
fn read_nodes(mask: u64, bits: u64) -> Result<u64> {
    let bits = bits.wrapping_sub(1);
    if mask == 0 || bits == 0 {
        return Ok(0);
    }
    if bits > MASK_BITS_MAX {
        return Err(Errno::EINVAL);
    }
    let words = UserPtr::<u64>::new(mask).read_many(bits.div_ceil(64) as usize)?;
    if words[1..].iter().any(|&word| word != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(if bits < 64 { words[0] & ((1 << bits) - 1) } else { words[0] })
}

/// set_mempolicy(2).
pub fn set_mempolicy(mode: u32, nodes: u64, node_max: u64) -> Result<u64> {
    let policy = policy_of(mode.into())?;
    let nodes = check_nodes(policy, read_nodes(nodes, node_max)?)?;
    // No node that is preferred is the one that is near.
    let is_local = u64::from(mode) == PREFERRED && nodes == 0;
    let mode = if is_local { LOCAL } else { mode.into() };
    current().settings.memory_policy.store(mode | nodes << NODES_SHIFT, Ordering::Relaxed);
    Ok(0)
}

/// mbind(2).
pub fn mbind(
    start: u64,
    len: u64,
    mode: u64,
    nodes: u64,
    node_max: u64,
    flags: u64,
) -> Result<u64> {
    let policy = policy_of(mode)?;
    let nodes = read_nodes(nodes, node_max)?;
    if flags & !MBIND_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    if flags & MOVE_ALL != 0 && !thread.subject().capable(Capability::SysNice) {
        return Err(Errno::EPERM);
    }
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    // A length past the end of all numbers begins again at 0.
    let len = len.wrapping_add(PAGE - 1) & !(PAGE - 1);
    let end = start.checked_add(len);
    let end = end.ok_or(Errno::EINVAL)?;
    if start == end {
        return Ok(0);
    }
    check_nodes(policy, nodes)?;
    let mapped = end <= USER_END
        && thread.process.mm()?.with(|inner| {
            // The default policy may be set across holes.
            if policy == DEFAULT {
                return !inner.is_free(start, end);
            }
            let mut at = start;
            while let Some((_, vma)) = inner.find(at).filter(|_| at < end) {
                at = vma.end;
            }
            at >= end
        });
    if !mapped {
        return Err(Errno::EFAULT);
    }
    // A policy that names no node has all pages at the wrong one, if none is to be moved.
    let is_strict = flags == STRICT && nodes == 0 && policy != DEFAULT;
    if is_strict && thread.process.mm()?.with(|inner| has_pages(inner, start, end)) {
        return Err(Errno::EIO);
    }
    let number = number_of(mode, policy, nodes);
    let set =
        |inner: &mut MmInner| inner.edit_flags(start, end, |vma| Ok(vma.flags.with_policy(number)));
    match thread.process.mm()?.with(set) {
        // There may be holes, as looked at above.
        Err(Errno::ENOMEM) if policy == DEFAULT => Ok(0),
        result => result.map(|()| 0),
    }
}

/// Where the flags of a policy stand in its number, behind the policy, and its node behind them.
const NUMBER_FLAGS_SHIFT: u32 = 3;
const NUMBER_NODE: u32 = 1 << 6;

/// A policy as an area keeps it: equal ones are one number, and none is 0.
fn number_of(mode: u64, policy: u64, nodes: u64) -> u32 {
    let policy = match policy {
        DEFAULT => return 0,
        // No node that is preferred is the one that is near.
        PREFERRED if nodes == 0 => LOCAL,
        other => other,
    };
    let flags = (mode & (STATIC_NODES | RELATIVE_NODES | BALANCING)) / BALANCING;
    let node = if nodes != 0 { NUMBER_NODE } else { 0 };
    policy as u32 | (flags as u32) << NUMBER_FLAGS_SHIFT | node
}

/// Mode and nodes of a number.
fn of_number(number: u32) -> u64 {
    let policy = u64::from(number & ((1 << NUMBER_FLAGS_SHIFT) - 1));
    let flags = u64::from((number & (NUMBER_NODE - 1)) >> NUMBER_FLAGS_SHIFT) * BALANCING;
    let nodes = u64::from(number & NUMBER_NODE != 0);
    policy | flags | nodes << NODES_SHIFT
}

/// Whether there is a page that has a node in `[start, end)`: the one of zeros has none.
fn has_pages(inner: &MmInner, start: u64, end: u64) -> bool {
    let kinds = [PageKind::Anonymous, PageKind::File, PageKind::Shmem, PageKind::Hugetlb];
    kinds.into_iter().any(|kind| inner.table.has_any(start, end, kind))
}

/// get_mempolicy(2).
pub fn get_mempolicy(
    mode: UserPtr<u32>,
    mask: u64,
    bits: u64,
    address: u64,
    flags: u64,
) -> Result<u64> {
    let known = F_NODE | F_ADDR | F_MEMS_ALLOWED;
    let allowed = flags & F_MEMS_ALLOWED != 0;
    if flags & !known != 0 || allowed && flags != F_MEMS_ALLOWED || mask != 0 && bits == 0 {
        return Err(Errno::EINVAL);
    }
    if flags & F_ADDR == 0 {
        // The node of the next page is told only under a policy that spreads pages.
        if !allowed && (address != 0 || flags & F_NODE != 0) {
            return Err(Errno::EINVAL);
        }
    }
    let own = match flags {
        _ if allowed => 0,
        _ if flags & F_ADDR == 0 => current().settings.memory_policy.load(Ordering::Relaxed),
        _ => {
            let area = |inner: &mut MmInner| inner.find(address).map(|(_, vma)| vma.flags.policy());
            let number = current().process.mm()?.with(area).ok_or(Errno::EFAULT)?;
            // Asked is the node of the page, of which there is one.
            if flags & F_NODE != 0 { 0 } else { of_number(number) }
        }
    };
    mode.write_if_some(&(own as u32))?;
    // Whole words of `bits - 1` bits; a number of them that wraps is none.
    let bytes = (bits.wrapping_add(62) / 64 * 8) as usize;
    if mask != 0 && bytes > PAGE as usize {
        return Err(Errno::EINVAL);
    }
    if mask != 0 && bytes > 0 {
        let mut nodes = alloc::vec::Vec::new();
        nodes.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
        nodes.resize(bytes, 0);
        nodes[0] = u8::from(allowed) | (own >> NODES_SHIFT) as u8;
        UserPtr::<u8>::new(mask).write_many(&nodes)?;
    }
    Ok(0)
}
