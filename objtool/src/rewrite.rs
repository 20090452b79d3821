//! Gives every kCFI check of an image in a file another form.
//!
//! Works on any x86-64 kernel image, with or without symbols and relocations. The order is: audit;
//! refuse what the audit cannot explain; derive all patches; then write a copy; then audit the copy
//! and demand that nothing but the form has changed. The caller's bytes are never touched, so a
//! refusal leaves nothing half done.
//!
//! Unchecked branches do not stop a rewrite: they are none of its business and are in the report.

use std::collections::BTreeSet;

use text_patching::kcfi::{self, CHECK_LEN, Expect, Form};
use text_patching::{poke, site_table};

use crate::Error;
use crate::audit::{Audit, Options, examine};
use crate::file_text::FileText;
use crate::report::{FindingKind, Report};

/// A rewritten image.
#[derive(Debug)]
pub struct Rewritten {
    /// The new file.
    pub data: Vec<u8>,
    /// Sites, and how many of them had another form before.
    pub applied: poke::Applied,
    /// Audit of the new file.
    pub report: Report,
    /// What the user should know before booting it.
    pub warnings: Vec<String>,
}

/// Whether a finding means that the set of checks itself is in doubt.
const fn casts_doubt(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::BadTrap
            | FindingKind::CheckWithoutTrap
            | FindingKind::CheckNotInCode
            | FindingKind::CheckWithoutBranch
            | FindingKind::RelocationMismatch
            | FindingKind::RelocationInCheck
            | FindingKind::Displacement
            | FindingKind::SiteTable
    )
}

/// Rewrites all checks of `data` to `form`.
///
/// # Errors
/// [`Error::Refused`] with the first anomaly; then nothing has been written anywhere.
pub fn rewrite(data: &[u8], form: Form, options: &Options) -> Result<Rewritten, Error> {
    let before = examine(data, options)?;
    if let Some(doubt) = before.report.violations().find(|finding| casts_doubt(finding.kind)) {
        return Err(Error::Refused(doubt.to_string()));
    }
    let mut text = FileText::new(data, &before.image);
    let applied = reform(&mut text, &before, form)?;
    let mut new = text.into_data();
    note_form(&mut new, &before, form);
    let after = examine(&new, options)?;
    let report = same_but_form(&before, after, form)?;
    Ok(Rewritten { warnings: warnings(&before, form), data: new, applied, report })
}

fn reform(text: &mut FileText, audit: &Audit<'_>, form: Form) -> Result<poke::Applied, Error> {
    let disp = audit.report.hash_displacement;
    let sites = audit.scan.checks.iter().map(|(&site, check)| Expect {
        site,
        hash: Some(check.hash),
        disp,
        register: Some(check.register),
    });
    let derive = |text: &FileText, expect| kcfi::reform(text, expect, form);
    let pass = poke::check(text, sites, derive).map_err(|a| Error::Refused(a.to_string()))?;
    pass.apply(text).map_err(|broken| Error::Refused(broken.found.to_string()))
}

/// Limen's own images say in their site tables which form they have.
fn note_form(data: &mut [u8], audit: &Audit<'_>, form: Form) {
    let section = audit.image.section(site_table::SECTION);
    let filled = section.filter(|piece| piece.bytes.starts_with(&site_table::MAGIC));
    let offset = filled.and_then(|piece| usize::try_from(piece.file_offset).ok());
    if let Some(bytes) = offset.and_then(|offset| data.get_mut(offset..)) {
        site_table::set_form(bytes, form);
    }
}

/// The copy must have the same checks for the same hashes, all in the new form.
fn same_but_form(before: &Audit<'_>, after: Audit<'_>, form: Form) -> Result<Report, Error> {
    let changed = |site: u64| Error::Refused(format!("verification failed at {site:#x}"));
    if before.scan.checks.len() != after.scan.checks.len() {
        return Err(Error::Refused("verification failed: the number of checks changed".into()));
    }
    for ((site, old), (new_site, new)) in before.scan.checks.iter().zip(&after.scan.checks) {
        let same = (old.hash, old.disp, old.register) == (new.hash, new.disp, new.register);
        if site != new_site || !same || new.form != form {
            return Err(changed(*site));
        }
    }
    Ok(after.report)
}

fn warnings(audit: &Audit<'_>, form: Form) -> Vec<String> {
    let mut warnings = audit.report.not_proved.clone();
    if form == Form::Opt && !audit.scan.knows_udb() {
        warnings.push(
            "nothing compares with 0xd6 (UDB) beside a comparison with ud2: this kernel does not \
             seem to know UDB, and a failed check would be reported as a plain invalid opcode"
                .into(),
        );
    }
    if audit.scan.checks.is_empty() {
        warnings.push("there is no kCFI check in this image".into());
    }
    warnings
}

/// Sites whose 14 bytes a relocation patches at load time: their bytes are not final.
#[must_use]
pub fn relocated_sites(audit: &Audit<'_>) -> BTreeSet<u64> {
    let relocs = &audit.image.relocs;
    let hit = |site: u64| {
        // A field of up to eight bytes that begins before the end of the check and ends after its
        // start. Fields are sorted by address.
        let from = relocs.partition_point(|reloc| reloc.at.saturating_add(8) <= site);
        let end = site.saturating_add(CHECK_LEN as u64);
        relocs
            .iter()
            .skip(from)
            .take_while(|reloc| reloc.at < end)
            .any(|reloc| reloc.at.saturating_add(field_len(reloc.kind)) > site)
    };
    audit.scan.checks.keys().copied().filter(|&site| hit(site)).collect()
}

const fn field_len(kind: u32) -> u64 {
    use object::elf;
    match kind {
        elf::R_X86_64_NONE => 0,
        elf::R_X86_64_64 | elf::R_X86_64_PC64 | elf::R_X86_64_RELATIVE => 8,
        elf::R_X86_64_16 | elf::R_X86_64_PC16 => 2,
        elf::R_X86_64_8 | elf::R_X86_64_PC8 => 1,
        _ => 4,
    }
}
