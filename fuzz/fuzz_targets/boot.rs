//! Hostile tables over hostile text: the pass that boots a kernel, the switches, and the trap.
//!
//! Input: form, via, seed (4 bytes), length of the table (2), table, text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text_patching::boot::BootPlan;
use text_patching::kcfi::{CHECK_LEN, Form, TRAP_UDB};
use text_patching::poke::SliceText;
use text_patching::preamble::Seed;
use text_patching::return_site::Return;
use text_patching::site_table::SiteTables;
use text_patching::static_call::{self, Target};
use text_patching::tail::Via;
use text_patching::{Text as _, jump_label, trap};

const BASE: u64 = 0xffff_ffff_8100_0000;

fuzz_target!(|data: &[u8]| {
    let Some((header, rest)) = data.split_first_chunk::<8>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes([header[6], header[7]]));
    let Some((table, old)) = rest.split_at_checked(len) else {
        return;
    };
    let Ok(tables) = SiteTables::parse(table) else {
        return;
    };
    let plan = BootPlan {
        form: [Form::Kcfi, Form::Opt, Form::Off, Form::FineIbt][usize::from(header[0]) % 4],
        returns: [Return::Plain, Return::Thunk(BASE)][usize::from(header[1] >> 7)],
        via: [Via::Thunk, Via::Direct, Via::Lfence][usize::from(header[1]) % 3],
        seed: Seed::new(u32::from_le_bytes([header[2], header[3], header[4], header[5]])),
    };
    let mut new = old.to_vec();
    let mut text = SliceText::new(BASE, &mut new);
    for check in tables.checks().iter() {
        // A forged base may make addresses wrap.
        for offset in 0..=CHECK_LEN as u64 {
            let rip = check.site.wrapping_add(offset);
            let _ = trap::on_undefined(rip, &tables, &text);
            let _ = trap::on_bad_read(rip, &tables, &text);
        }
        let rip = check.site.checked_add(TRAP_UDB);
        assert!(rip.is_none_or(|rip| trap::on_undefined(rip, &tables, &text).is_some()));
    }
    for branch in tables.branches().iter() {
        let _ = jump_label::set(&text, &branch, header[0] % 2 == 0);
    }
    for call in tables.calls().iter() {
        let mut bytes = [0; 5];
        if text.read(call.site, &mut bytes).is_ok()
            && let Some(now) = static_call::decode(&call, bytes)
        {
            let patch = static_call::update(&text, &call, now, Target::Return(0));
            assert!(patch.is_ok_and(|patch| patch.writes().count() <= 1));
        }
    }
    match plan.check(&text, tables) {
        // Tables that lay sites over each other come to grief in the last phase, and only there.
        Ok(checked) => _ = checked.apply(&mut text),
        Err(_) => assert_eq!(new, old),
    }
});
