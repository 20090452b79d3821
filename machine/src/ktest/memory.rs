//! Memory: no page both writable and executable, guards below stacks, frames, heap, page tables,
//! and the shootdown.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use context_tracking::pcid::SLOTS;

use super::{Test, probe_write};
use crate::context_tracking::{pcid, tlb};
use crate::cpu::sealed;
use crate::ensure;
use crate::memory::frame::{self, Frame, HUGE_FRAMES, HugeFrame, PAGE_SIZE};
use crate::memory::stack::{KERNEL_STACK_SIZE, KernelStack};
use crate::memory::{self, HUGE_PAGE, PageKind, PageTable, Prot, uaccess, vmap};

pub(super) const TESTS: &[Test] = &[
    Test { name: "memory::no_page_is_writable_and_executable", run: w_xor_x },
    Test { name: "memory::sealed_pages_fault", run: sealed_pages },
    Test { name: "memory::statics_that_can_be_written_lead_to_no_code", run: open_statics },
    Test { name: "memory::stack_guard_faults", run: stack_guard },
    Test { name: "memory::stacks_change_hands_empty", run: stacks_are_cleared },
    Test { name: "memory::frames_are_distinct_and_come_back", run: frames },
    Test { name: "memory::heap_keeps_what_it_holds", run: heap },
    Test { name: "memory::large_blocks_are_mapped_guarded_and_come_back", run: large_blocks },
    Test { name: "memory::scattered_memory_serves_large_blocks", run: scattered },
    Test { name: "memory::page_table_maps_and_unmaps", run: page_table },
    Test { name: "memory::page_tables_are_freed", run: tables_freed },
    Test { name: "memory::large_pages_split_share_and_come_back", run: large_pages },
    Test { name: "memory::large_pages_are_left_where_others_share", run: shared_unmap },
    Test { name: "memory::pooled_pages_stay_whole", run: pooled_pages },
    Test { name: "memory::spaces_take_turns", run: contexts },
    Test { name: "memory::a_space_that_has_changed_is_not_current", run: changed_space },
    Test { name: "memory::all_cpus_answer_a_shootdown", run: shootdown },
];

/// What is set at boot: a store to each page faults, at both of its addresses.
fn sealed_pages() -> Result<(), String> {
    let mut pages = 0;
    for page in sealed::ranges().into_iter().flatten().step_by(PAGE_SIZE) {
        let alias = page - crate::cpu::kernel_base() + crate::cpu::direct_map_base();
        for at in [page, page + PAGE_SIZE as u64 - 1, alias] {
            ensure!(!probe_write(at), "{at:#x} can be written");
        }
        pages += 1;
    }
    // Statics, the interrupt table, the others' descriptors.
    ensure!(pages >= 3, "{pages} pages");
    let [gdt, tss] = crate::entry::descriptors::tables_in_use();
    for (table, must) in [(gdt, true), (tss, memory::has_pti())] {
        for at in [table, table - crate::cpu::kernel_base() + crate::cpu::direct_map_base()] {
            let is_written = probe_write(at);
            ensure!(!(is_written && must), "the GDT, or the TSS, can be written at {at:#x}");
        }
    }
    ensure!(
        !crate::text::cfi::warn_can_be_set(),
        "the flag that survives failed checks can be written"
    );
    Ok(())
}

/// Looks through the image's writable pages for addresses of functions. On the stack that the first
/// CPU booted on return addresses lie, in the list of patches the sites, in a report of these tests
/// where a check failed: none of them is called.
fn open_statics() -> Result<(), String> {
    let text = crate::text::text_poke::text_range();
    let [statics, entry] = sealed::ranges();
    let boot_stack = crate::boot::selftest::boot_stack_range();
    let patches = crate::text::text_poke::patches_range();
    let skipped = [statics, entry, boot_stack, patches, super::caught_range()];
    let mut found = Vec::new();
    let mut words = 0;
    for at in crate::boot::selftest::data_range().step_by(8) {
        if skipped.iter().any(|range| range.contains(&at)) {
            continue;
        }
        words += 1;
        // SAFETY: the image's data is mapped; a word that another CPU changes is read as it is.
        let word =
            unsafe { core::ptr::with_exposed_provenance::<u64>(at as usize).read_volatile() };
        if text.contains(&word) {
            found.push((crate::cpu::linked(at), crate::cpu::linked(word)));
        }
    }
    ensure!(words > 10_000, "the walk has seen {words} words");
    ensure!(found.is_empty(), "functions' addresses (where, which): {found:x?}");
    Ok(())
}

fn w_xor_x() -> Result<(), String> {
    let mut leaves = 0;
    let mut bad = None;
    let mut exec = 0;
    memory::for_each_kernel_leaf(|va, rights| {
        leaves += 1;
        exec += usize::from(rights.exec);
        if rights.write && rights.exec || rights.user {
            bad = bad.or(Some(va));
        }
    });
    if let Some(va) = bad {
        return Err(alloc::format!("the page at {va:#x} is W and X, or a program's"));
    }
    let text = crate::text::text_poke::text_range();
    let pages = ((text.end - text.start) as usize) / PAGE_SIZE;
    ensure!(leaves > pages && exec >= pages, "the walk has seen {leaves} pages, {exec} executable");
    Ok(())
}

/// What one user of a stack leaves there, the next one does not find.
fn stacks_are_cleared() -> Result<(), String> {
    const WORDS: usize = KERNEL_STACK_SIZE / 8;
    let words = |stack: &KernelStack| {
        let bottom = stack.top() - KERNEL_STACK_SIZE as u64;
        // SAFETY: the stack is mapped, and stays while it is held; no CPU runs on it.
        unsafe { core::slice::from_raw_parts_mut(bottom as *mut u64, WORDS) }
    };
    let new = || KernelStack::new().map_err(|_| "no memory");
    let first = new()?;
    words(&first).fill(0x5ec2_e75e_c2e7_5ec2);
    let top = first.top();
    drop(first);
    let second = new()?;
    ensure!(second.top() == top, "the stack that was given back is not the next one");
    let left = words(&second).iter().filter(|&&word| word != 0).count();
    ensure!(left == 0, "{left} words of the last user are left");
    Ok(())
}

fn stack_guard() -> Result<(), String> {
    let stack = KernelStack::new().map_err(|_| "no memory")?;
    let bottom = stack.top() - KERNEL_STACK_SIZE as u64;
    ensure!(probe_write(bottom), "the stack's last byte cannot be written");
    ensure!(!probe_write(bottom - 1), "the byte below the stack can be written");
    let guard = bottom - KERNEL_STACK_SIZE as u64;
    ensure!(!probe_write(guard), "the guard's first byte can be written");
    let rsp: u64;
    // SAFETY: reading RSP has no effect.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack)) };
    let mine = rsp & !(KERNEL_STACK_SIZE as u64 - 1);
    ensure!(!probe_write(mine - 8), "the guard of the running stack can be written");
    Ok(())
}

fn frames() -> Result<(), String> {
    const COUNT: usize = 512;
    let alloc = || -> Result<Vec<Frame>, String> {
        (0..COUNT).map(|_| Frame::alloc_zeroed().map_err(|_| "no memory".into())).collect()
    };
    // Once to fill this CPU's caches, then the numbers must come back.
    drop(alloc()?);
    let (_, before) = frame::usage();
    let frames = alloc()?;
    let mut places: Vec<u64> = frames.iter().map(Frame::phys).collect();
    places.sort_unstable();
    places.dedup();
    ensure!(places.len() == COUNT, "a frame was given out twice");
    for frame in &frames {
        let mut page = [1; PAGE_SIZE];
        frame.read(0, &mut page);
        ensure!(page.iter().all(|&byte| byte == 0), "a frame is not zeroed");
        frame.write(0, &[0xa5; PAGE_SIZE]);
    }
    let (_, during) = frame::usage();
    ensure!(before - during >= COUNT - 64, "{before} free frames before, {during} during");
    drop(frames);
    let (_, after) = frame::usage();
    ensure!(after + 64 >= before, "{} frames are lost", before - after);
    Ok(())
}

fn heap() -> Result<(), String> {
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut size = 1;
    while size < 1 << 20 {
        for copy in 0..4_u8 {
            held.push(alloc::vec![size as u8 ^ copy; size]);
        }
        size = size * 3 / 2 + 1;
    }
    for (i, bytes) in held.iter().enumerate() {
        let expected = bytes.len() as u8 ^ (i % 4) as u8;
        let whole = bytes.iter().all(|&byte| byte == expected);
        ensure!(whole, "{} bytes were overwritten", bytes.len());
    }
    Ok(())
}

fn large_blocks() -> Result<(), String> {
    const BYTES: usize = (3 << 20) - PAGE_SIZE;
    const ROUNDS: usize = 64;
    crate::trim_heap();
    let (_, before) = frame::usage();
    let (used_before, _) = vmap::usage();
    let mut last = 0;
    for round in 0..ROUNDS {
        let block = alloc::vec![round as u8; BYTES];
        let at = block.as_ptr();
        let end = at as u64 + BYTES as u64;
        ensure!(vmap::contains(at), "{at:?} is no mapped block");
        ensure!(probe_write(end - 1), "the block's last byte cannot be written");
        ensure!(!probe_write(end), "the byte behind the block can be written");
        ensure!(
            block[..BYTES - 1].iter().all(|&byte| byte == round as u8),
            "the block was overwritten"
        );
        drop(block);
        ensure!(
            !memory::kernel_rights(end - 1).present,
            "the block is mapped after it was given back"
        );
        last = end - 1;
    }
    let (used, waiting) = vmap::usage();
    ensure!(waiting <= 3 * BYTES, "{waiting} bytes wait for a flush");
    ensure!(used == used_before, "{} bytes are lost", used - used_before);
    crate::trim_heap();
    ensure!(vmap::usage().1 == 0, "blocks still wait for a flush");
    ensure!(!probe_write(last), "a block can be written after the flush");
    let (_, after) = frame::usage();
    ensure!(after + 256 >= before, "{} frames are lost", before - after);
    Ok(())
}

/// Memory of which every second frame is in use has no blocks left.
fn scattered() -> Result<(), String> {
    const LEFT: usize = 4096;
    let mut held = Vec::new();
    held.try_reserve_exact(frame::usage().1).map_err(|_| "no memory")?;
    while frame::usage().1 > LEFT {
        held.push(Frame::alloc_zeroed().map_err(|_| "no memory")?);
    }
    let is_odd = |frame: &Frame| frame.phys() / PAGE_SIZE as u64 % 2 == 1;
    let freed = held.iter().filter(|frame| !is_odd(frame)).count();
    held.retain(|frame| is_odd(frame));
    // What was left in blocks goes too.
    let mut rest = Vec::new();
    while let Some(block) = frame::try_block(1) {
        rest.push(block);
    }
    let block: Vec<u8> = alloc::vec![7; 256 * 1024];
    let is_mapped = vmap::contains(block.as_ptr());
    let good = block.iter().all(|&byte| byte == 7);
    for block in rest {
        // SAFETY: taken above, and nothing was put there.
        unsafe { frame::free_block(block, 1) };
    }
    ensure!(freed > 1024, "only {freed} frames between others");
    ensure!(is_mapped && good, "256 KiB came from one block of frames, or are wrong");
    Ok(())
}

fn page_table() -> Result<(), String> {
    const AT: u64 = 0x10_0000_0000;
    let mut table = PageTable::new().map_err(|_| "no memory")?;
    let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
    frame.write(0, b"limen");
    let prot = Prot::READ;
    table.map(AT, frame, prot, PageKind::Anonymous).map_err(|_| "no memory")?;
    ensure!(table.lookup(AT).is_some(), "the page is not mapped");
    ensure!(table.lookup(AT + PAGE_SIZE as u64).is_none(), "the next page is mapped");
    ensure!(table.mapped(PageKind::Anonymous) == 1, "not one page is mapped");
    crate::task::set_space(table.space().clone());
    let mut bytes = [0; 5];
    let read = uaccess::read_bytes(AT, &mut bytes);
    ensure!(read.is_ok() && &bytes == b"limen", "cannot read through the table: {bytes:?}");
    ensure!(uaccess::write_bytes(AT, b"x").is_err(), "a read-only page can be written");
    let other = Frame::alloc_zeroed().map_err(|_| "no memory")?;
    table.map(AT + PAGE_SIZE as u64, other, prot, PageKind::Anonymous).map_err(|_| "no memory")?;
    // Not unused: the table must stay for the other page.
    table.unmap(AT, AT + PAGE_SIZE as u64, AT..AT + HUGE_PAGE);
    let is_left = table.lookup(AT + PAGE_SIZE as u64).is_some();
    let read = uaccess::read_bytes(AT, &mut bytes);
    let other = uaccess::read_bytes(AT + PAGE_SIZE as u64, &mut [0; 5]);
    crate::task::leave_space();
    ensure!(read.is_err(), "the page can be read after it was unmapped");
    ensure!(is_left && other.is_ok(), "a table went with a page that was not unmapped");
    Ok(())
}

/// Maps and unmaps where each page needs tables of its own, or shares them with others, and counts
/// the frames that are gone meanwhile.
fn tables_freed() -> Result<(), String> {
    const PAGE: u64 = PAGE_SIZE as u64;
    const LARGE: u64 = 2 << 20;
    const BASE: u64 = 0x20_0000_0000;
    const ROUNDS: u64 = 4096;
    let prot = Prot::READ | Prot::WRITE;
    let map = |table: &mut PageTable, at| {
        let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
        table.map(at, frame, prot, PageKind::Anonymous).map_err(|_| String::from("no memory"))
    };
    let all_before = memory::user_tables();
    let mut table = PageTable::new().map_err(|_| "no memory")?;
    crate::task::set_space(table.space().clone());
    let (_, before) = frame::usage();
    let mut result = Ok(());
    for round in 0..ROUNDS {
        // Some in other GiB and other half TiB, up to the last page.
        let at = match round % 4 {
            0 => memory::USER_END - PAGE,
            1 => BASE + (round << 39) % (memory::USER_END - BASE),
            2 => BASE + (round << 30) % (1 << 39),
            _ => BASE + round * LARGE,
        } & !(PAGE - 1);
        result = result.and_then(|()| map(&mut table, at));
        // The CPU walks to it, and may keep what it has met.
        result = result.and_then(|()| {
            uaccess::write_bytes(at, b"x").map_err(|_| format!("{at:#x} is not mapped"))
        });
        table.unmap(at, at + PAGE, 0..u64::MAX);
        if uaccess::write_bytes(at, b"x").is_ok() {
            result = Err(format!("{at:#x} can be written after it was unmapped"));
        }
    }
    let (_, after) = frame::usage();
    // Three for the first page, one more for its neighbour behind 2 MiB.
    let counts = [0, LARGE].map(|offset| {
        result = result.clone().and_then(|()| map(&mut table, BASE + offset));
        table.tables()
    });
    // What others use below the same table keeps it, and what is left is cleared.
    table.unmap(BASE, BASE + PAGE, 0..BASE + PAGE);
    let kept = (table.tables(), table.lookup(BASE).is_some(), table.lookup(BASE + LARGE).is_some());
    table.unmap(BASE, BASE + PAGE, 0..BASE + LARGE);
    let one_less = table.tables();
    table.unmap(0, memory::USER_END, 0..u64::MAX);
    let none = table.tables();
    crate::task::leave_space();
    drop(table);
    result?;
    ensure!(after + 64 >= before, "{} frames are lost", before - after);
    ensure!(counts == [3, 4], "{counts:?} tables map two pages");
    ensure!(kept == (4, false, true), "tables, first page, second page: {kept:?}");
    ensure!(one_less == 3 && none == 0, "{one_less} tables, then {none}");
    let all_after = memory::user_tables();
    ensure!(all_after == all_before, "{all_before} tables of all before, {all_after} after");
    Ok(())
}

/// Large pages: each way to cut, share, move and free one; then all frames are back.
fn large_pages() -> Result<(), String> {
    const BASE: u64 = 0x30_0000_0000;
    const PAGE: u64 = PAGE_SIZE as u64;
    const END: u64 = BASE + 4 * HUGE_PAGE;
    let (_, before) = frame::usage();
    let all_before = memory::user_tables();
    let prot = Prot::READ | Prot::WRITE;
    let no_memory = |_| String::from("no memory");
    let mut table = PageTable::new().map_err(no_memory)?;
    for n in 0..4 {
        let memory = HugeFrame::alloc_zeroed().ok_or("no memory in one piece")?;
        let at = BASE + n * HUGE_PAGE;
        table.map_huge(at, memory, prot, PageKind::Anonymous).map_err(no_memory)?;
    }
    crate::task::set_space(table.space().clone());
    let written = uaccess::write_bytes(BASE + HUGE_PAGE - 1, b"xy");
    let mut child = PageTable::new().map_err(no_memory)?;
    table.share_with(&mut child, BASE, END, true).map_err(no_memory)?;
    table.flush();
    let read_only = uaccess::write_bytes(BASE, b"x").is_err();
    let shared = table.own_huge(BASE + HUGE_PAGE, prot);
    // That one is small now; its frames are the child's, too, as a large page.
    let counts = [table.huge_pages(), child.huge_pages()];
    let refs = |table: &PageTable, at: u64| {
        let mut refs = 0;
        table.for_each(at, at + PAGE, |page| refs = page.refs);
        refs
    };
    let of_both =
        [refs(&table, BASE + HUGE_PAGE), refs(&child, BASE + HUGE_PAGE), refs(&child, BASE)];
    child.unmap(BASE + PAGE, BASE + 2 * HUGE_PAGE, BASE + PAGE..BASE + 2 * HUGE_PAGE);
    let left = [child.mapped(PageKind::Anonymous), child.huge_pages()];
    drop(child);
    let alone = table.own_huge(BASE + 2 * HUGE_PAGE, prot) && refs(&table, BASE) == 1;
    let moved = table.move_range(BASE + 2 * HUGE_PAGE, BASE + 8 * HUGE_PAGE, HUGE_PAGE);
    let moved = moved.is_ok() && table.lookup(BASE + 8 * HUGE_PAGE + PAGE).is_some();
    let collapsed = table.set_prot(BASE + HUGE_PAGE, prot);
    table.protect(BASE + HUGE_PAGE, BASE + 2 * HUGE_PAGE, |_| prot);
    let collapsed = table.collapse(BASE + HUGE_PAGE, PageKind::Anonymous) == Ok(collapsed);
    let mut byte = [0];
    let kept = uaccess::read_bytes(BASE + HUGE_PAGE, &mut byte).is_ok() && byte == *b"y";
    let mapped = [table.mapped(PageKind::Anonymous), table.huge_pages()];
    crate::task::leave_space();
    drop(table);
    let (_, after) = frame::usage();
    ensure!(written.is_ok() && read_only && !shared, "rights of large pages");
    ensure!(counts == [3, 4] && of_both == [2, 2, 2], "{counts:?} large, {of_both:?} references");
    ensure!(left == [2 * HUGE_FRAMES as u64 + 1, 2], "{left:?} are left");
    ensure!(alone && moved && collapsed && kept, "{alone} {moved} {collapsed} {kept} {byte:?}");
    ensure!(mapped == [4 * HUGE_FRAMES as u64, 4], "{mapped:?} in the end");
    ensure!(after + 64 >= before, "{} frames are lost", before - after);
    let all_after = memory::user_tables();
    ensure!(all_after == all_before, "{all_before} tables before, {all_after} after");
    Ok(())
}

/// With shared access small pages go, also beside a large one, which stays.
fn shared_unmap() -> Result<(), String> {
    const BASE: u64 = 0x38_0000_0000;
    const PAGE: u64 = PAGE_SIZE as u64;
    const SMALL: u64 = BASE + HUGE_PAGE;
    let (_, before) = frame::usage();
    let prot = Prot::READ | Prot::WRITE;
    let no_memory = |_| String::from("no memory");
    let mut table = PageTable::new().map_err(no_memory)?;
    let large = HugeFrame::alloc_zeroed().ok_or("no memory in one piece")?;
    table.map_huge(BASE, large, prot, PageKind::Anonymous).map_err(no_memory)?;
    for at in (SMALL..SMALL + 8 * PAGE).step_by(PAGE_SIZE) {
        let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
        table.map(at, frame, prot, PageKind::Anonymous).map_err(no_memory)?;
    }
    let left = |table: &PageTable| [table.mapped(PageKind::Anonymous), table.huge_pages()];
    let large = HUGE_FRAMES as u64;
    let beside = (table.try_unmap(SMALL, SMALL + 2 * PAGE), left(&table));
    let inside = (table.try_unmap(BASE + PAGE, BASE + 2 * PAGE), left(&table));
    let over_its_end = (table.try_unmap(SMALL - PAGE, SMALL + 4 * PAGE), left(&table));
    let whole = (table.try_unmap(BASE, SMALL), left(&table));
    let is_there = table.lookup(BASE + PAGE).is_some();
    table.unmap(BASE, SMALL + HUGE_PAGE, 0..u64::MAX);
    let none = left(&table);
    drop(table);
    let (_, after) = frame::usage();
    ensure!(beside == (true, [large + 6, 1]), "beside a large page: {beside:?}");
    ensure!(inside == (false, [large + 6, 1]), "inside a large page: {inside:?}");
    ensure!(over_its_end == (false, [large + 4, 1]), "over its end: {over_its_end:?}");
    ensure!(whole == (false, [large + 4, 1]) && is_there, "a whole large page: {whole:?}");
    ensure!(none == [0, 0], "{none:?} in the end");
    ensure!(after + 64 >= before, "{} frames are lost", before - after);
    Ok(())
}

/// Pages of the pool, where small ones were before and where none were: each of their owner's
/// shares ends as the only one, whatever the page table has done with it.
fn pooled_pages() -> Result<(), String> {
    const BASE: u64 = 0x30_0000_0000;
    let (_, before) = frame::usage();
    let prot = Prot::READ | Prot::WRITE;
    let no_memory = |_| String::from("no memory");
    let own = [HugeFrame::alloc_zeroed(), HugeFrame::alloc_zeroed(), HugeFrame::alloc_zeroed()];
    let [Some(first), Some(second), Some(third)] = own else {
        return Err("no memory in one piece".into());
    };
    let mut table = PageTable::new().map_err(no_memory)?;
    let small = Frame::alloc_zeroed().map_err(no_memory)?;
    table.map(BASE + HUGE_PAGE, small, prot, PageKind::Anonymous).map_err(no_memory)?;
    // The table stays: there may be something beside it.
    table.unmap(BASE + HUGE_PAGE, BASE + 2 * HUGE_PAGE, 0..0);
    table.map_pooled(BASE + HUGE_PAGE, first.share(), prot).map_err(no_memory)?;
    table.map_pooled(BASE, second.share(), Prot::READ).map_err(no_memory)?;
    table.map_pooled(BASE, second.share(), prot).map_err(no_memory)?;
    second.copy_from(&first);
    crate::task::set_space(table.space().clone());
    let written = uaccess::write_bytes(BASE + HUGE_PAGE - 1, b"xy");
    let mut child = PageTable::new().map_err(no_memory)?;
    table.share_with(&mut child, BASE, BASE + 2 * HUGE_PAGE, true).map_err(no_memory)?;
    table.flush();
    third.copy_from(&second);
    table.map_pooled(BASE, third.share(), prot).map_err(no_memory)?;
    let mut byte = [0];
    let read = uaccess::read_bytes(BASE + HUGE_PAGE - 1, &mut byte);
    let moved = table.move_range(BASE, BASE + 6 * HUGE_PAGE, HUGE_PAGE);
    let mapped = [table.mapped(PageKind::Hugetlb), child.mapped(PageKind::Hugetlb)];
    let pinned = table.lookup(BASE + HUGE_PAGE + 5 * PAGE_SIZE as u64);
    crate::task::leave_space();
    (drop(child), table.unmap(BASE, BASE + 8 * HUGE_PAGE, BASE..BASE + 8 * HUGE_PAGE));
    let sole = [first.is_sole(), second.is_sole(), third.is_sole()];
    drop(pinned);
    let sole_at_last = first.is_sole();
    (drop(table), drop([first, second, third]));
    let (_, after) = frame::usage();
    ensure!(written.is_ok() && read.is_ok() && byte == *b"x", "contents: {byte:?}");
    ensure!(moved.is_ok() && mapped == [2 * HUGE_FRAMES as u64; 2], "{mapped:?} are mapped");
    ensure!(sole == [false, true, true] && sole_at_last, "{sole:?}, {sole_at_last}");
    ensure!(after + 64 >= before, "{} frames are lost", before - after);
    Ok(())
}

/// Leads the page to a new frame, which begins with another byte.
fn change(table: &mut PageTable, at: u64, byte: &mut u8) -> Result<(), String> {
    let frame = Frame::alloc_zeroed().map_err(|_| "no memory")?;
    *byte = byte.wrapping_add(1);
    frame.write(0, &[*byte]);
    let prot = Prot::READ;
    table.map(at, frame, prot, PageKind::Anonymous).map_err(|_| "no memory".into())
}

/// Spaces take turns, more of them than a CPU has contexts; their pages change while they are
/// loaded, while they are not, and not at all.
fn contexts() -> Result<(), String> {
    const AT: u64 = 0x10_0000_0000;
    const SPACES: u8 = 2 * SLOTS as u8;
    let mut spaces: Vec<(PageTable, u8)> = Vec::new();
    for n in 0..SPACES {
        spaces.push((PageTable::new().map_err(|_| "no memory")?, n * 16));
    }
    let mut names = [0; SPACES as usize];
    let read = || {
        let mut byte = [0];
        uaccess::read_bytes(AT, &mut byte).ok().map(|()| byte[0])
    };
    let mut result = Ok(());
    for round in 0..12 {
        // Half of them at first, so that their contexts are kept.
        let in_turn = if round < 6 { SLOTS } else { spaces.len() };
        for (n, (table, byte)) in spaces[..in_turn].iter_mut().enumerate() {
            if (n + round) % 3 == 0 || table.lookup(AT).is_none() {
                change(table, AT, byte)?;
            }
            crate::task::set_space(table.space().clone());
            names[n] = crate::context_tracking::local::context_here();
            let (before, expected) = (read(), *byte);
            if (n + round) % 3 == 1 {
                change(table, AT, byte)?;
            }
            let after = read();
            if (before, after) != (Some(expected), Some(*byte)) {
                result = Err(format!("round {round}, space {n}: {before:?}, then {after:?}"));
            }
        }
    }
    crate::task::leave_space();
    result?;
    names.sort_unstable();
    let distinct = names.chunk_by(|a, b| a == b).count();
    let expected = if pcid::in_use() { SLOTS } else { 1 };
    ensure!(distinct == expected, "{distinct} contexts in CR3, and not {expected}");
    Ok(())
}

/// What a load of CR3 may keep. Neither emulator shows a load that keeps too much: QEMU has no
/// PCIDs, and Bochs drops what bit 63 says to keep.
fn changed_space() -> Result<(), String> {
    let _irq = crate::cpu::sync::IrqGuard::new();
    let cpu = crate::cpu::percpu::cpu_id();
    let space = tlb::TlbState::new();
    let joins = || {
        // SAFETY: it is left at once.
        let is_current = unsafe { space.join(cpu) };
        space.leave(cpu);
        is_current
    };
    ensure!(!joins(), "current, and never loaded before");
    ensure!(joins(), "nothing has changed, and not current");
    space.flush(PAGE_SIZE as u64, 1);
    ensure!(!joins(), "current, though a page has changed meanwhile");
    ensure!(joins(), "not current after the load that caught up");
    space.flush(0, u64::MAX >> crate::cpu::PAGE_SHIFT);
    ensure!(!joins(), "current, though tables were freed meanwhile");
    Ok(())
}

fn shootdown() -> Result<(), String> {
    for _ in 0..100 {
        tlb::flush_kernel(context_tracking::work::Cause::Vunmap);
        tlb::sync_cores();
    }
    let behind = tlb::cpus_behind();
    ensure!(behind == 0, "{behind} CPUs have not answered");
    Ok(())
}
