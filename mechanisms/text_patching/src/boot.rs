//! The boot-time rewrite: form, hashes and thunks of the whole kernel in one verified pass.
//!
//! Runs once, on the boot CPU, before others are started and before text is sealed, with
//! interrupts off; NMIs may come. Why it is hard: the kernel goes on making indirect calls while
//! its hashes change, one caller and one callee at a time. So the order is
//!
//! 1. every check off (a jump over it: one store of two bytes),
//! 2. new hashes in all preambles,
//! 3. in each check the new hash, then the body, then the head: it is on in its final form.
//!
//! and at no moment does a good call meet a hash that does not match. When hashes stay, steps 1 and
//! 2 fall away, and between `kcfi` and `opt` a site changes by a single store. For
//! [`crate::fineibt`] step 2 makes preambles landing pads, and there is always a step 1.
//!
//! [`crate::poke`] would derive a [`crate::Patch`] for every site three times; with thousands of
//! sites on the boot path this pass compares each as a word or two before and after, decodes what
//! is not as expected, and stores from the table in between.

use crate::fineibt;
use crate::jump_label::SITE_LEN;
use crate::kcfi::{self, BODY_KCFI, BODY_OPT, Expect, Form, HEAD_OFF, HEAD_ON, Pattern, TAIL};
use crate::poke::{Anomaly, Broken, Change, Text, TextPoke, What, read_word, word_of};
use crate::preamble::{self, POISON, Seed};
use crate::return_site::{self, Return};
use crate::site_table::{CheckEntry, FunctionEntry, ReturnEntry, SiteTables};
use crate::tail::{self, Via};

/// What the text shall be after boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootPlan {
    /// Form of all checks.
    pub form: Form,
    /// Seed of all hashes; 0 keeps them.
    pub seed: Seed,
    /// How calls behind checks are made (from the spectre_v2 mitigation).
    pub via: Via,
    /// How returns are made; plain ones are what the image has.
    pub returns: Return,
}

/// The image is as its tables say, and every store of the plan is possible.
#[derive(Clone, Copy, Debug)]
pub struct BootChecked<'a> {
    tables: SiteTables<'a>,
    plan: BootPlan,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootDone {
    /// Checks, all verified.
    pub checks: usize,
    /// Functions with a preamble, all verified.
    pub functions: usize,
    /// Returns that have become jumps to a thunk, all verified.
    pub returns: usize,
    /// Stores.
    pub stores: usize,
}

/// Text, and the stores made to it.
struct Counting<'a, T> {
    text: &'a mut T,
    stores: usize,
}

impl<T: TextPoke> Counting<'_, T> {
    #[inline(always)]
    fn poke(&mut self, addr: u64, bytes: &[u8]) {
        self.text.poke(addr, bytes);
        self.stores += 1;
    }

    #[inline(always)]
    fn poke_word<const N: usize>(&mut self, addr: u64, word: u64) {
        self.text.poke_word::<N>(addr, word);
        self.stores += 1;
    }
}

impl BootPlan {
    /// Phase one: verifies the whole image against its tables. Nothing is written.
    ///
    /// # Errors
    /// The first anomaly.
    pub fn check<'a>(
        self,
        text: &impl Text,
        tables: SiteTables<'a>,
    ) -> Result<BootChecked<'a>, Anomaly> {
        let checked = BootChecked { tables, plan: self };
        checked.verify_checks(text, tables.form(), |hash| hash)?;
        for entry in tables.checks().iter() {
            checked.new_hash(entry.site, entry.hash)?;
            if self.form == Form::FineIbt {
                checked.fits_fineibt(&entry)?;
            }
            if self.via != Via::Thunk && entry.thunk {
                checked.reroute(text, entry.site.wrapping_add(TAIL), entry.shape)?;
            }
        }
        checked.verify_functions(text, tables.form(), |hash| hash)?;
        for entry in tables.functions().iter().filter(|_| self.form == Form::FineIbt) {
            fineibt::check_room(text, entry.function)?;
        }
        for entry in tables.thunks().iter().filter(|_| self.via != Via::Thunk) {
            checked.reroute(text, entry.at, entry.shape)?;
        }
        checked.verify_returns(text, false)?;
        Ok(checked)
    }
}

impl BootChecked<'_> {
    /// Phase two: stores, then verifies.
    ///
    /// # Errors
    /// [`Broken`] when text was changed by somebody else or a store did not arrive: stop.
    pub fn apply(self, text: &mut impl TextPoke) -> Result<BootDone, Broken> {
        let mut text = Counting { text, stores: 0 };
        let (from, to) = (self.tables.form(), self.plan.form);
        // POINT OF NO RETURN: every byte was verified; from here on there are only stores.
        if to == Form::FineIbt {
            self.apply_fineibt(&mut text);
            return self.finish(text);
        }
        let reseed = self.plan.seed != Seed::new(0);
        if (reseed || to == Form::Off) && from != Form::Off {
            for entry in self.tables.checks().iter() {
                text.poke(entry.site, &HEAD_OFF);
            }
        }
        if reseed {
            for entry in self.tables.functions().iter().filter(|entry| entry.hash != POISON) {
                let at = preamble::address(entry.function, self.tables.disp());
                text.poke(at.wrapping_add(1), &self.seeded(entry.hash).to_le_bytes());
            }
        }
        if reseed || from != to && to != Form::Off {
            let body = if to == Form::Opt { BODY_OPT } else { BODY_KCFI };
            for entry in self.tables.checks().iter() {
                if reseed {
                    let hash = self.seeded(entry.hash).wrapping_neg();
                    text.poke(entry.site.wrapping_add(2), &hash.to_le_bytes());
                }
                if to == Form::Off {
                    continue;
                }
                if from != to {
                    text.poke(entry.site.wrapping_add(10), &body);
                }
                if reseed || from == Form::Off {
                    text.poke(entry.site, &HEAD_ON);
                }
            }
        }
        self.finish(text)
    }

    /// What is the same for all forms.
    fn finish(&self, mut text: Counting<'_, impl TextPoke>) -> Result<BootDone, Broken> {
        self.apply_tails(&mut text)?;
        self.apply_returns(&mut text)?;
        self.verify(text.text, text.stores).map_err(broken)
    }

    fn apply_fineibt(&self, text: &mut Counting<'_, impl TextPoke>) {
        for entry in self.tables.checks().iter() {
            text.poke(entry.site, &HEAD_OFF);
        }
        // The others get none: that seals them.
        for entry in self.tables.functions().iter().filter(|entry| entry.hash != POISON) {
            let pad = fineibt::landing_pad(self.seeded(entry.hash));
            let at = entry.function.wrapping_sub(fineibt::LANDING);
            let (low, high) = pad.split_at(8);
            text.poke(at, low);
            text.poke(at.wrapping_add(8), high);
        }
        for entry in self.tables.checks().iter() {
            let [h0, h1, rest @ ..] = fineibt::caller(self.seeded(entry.hash));
            let (low, high) = rest.split_at(8);
            text.poke(entry.site.wrapping_add(2), low);
            text.poke(entry.site.wrapping_add(10), high);
            text.poke(entry.site, &[h0, h1]);
        }
    }

    /// A caller of that form has its target in r11, and the landing pad 16 bytes before the callee.
    fn fits_fineibt(&self, entry: &CheckEntry) -> Result<(), Anomaly> {
        let found = self.tables.disp();
        if found != fineibt::DISP {
            let what = What::Displacement { expected: fineibt::DISP, found };
            return Err(Anomaly::new(entry.site, 9, what));
        }
        // Of a call without a thunk the table does not keep the register.
        match entry.thunk {
            true => Ok(()),
            false => Err(Anomaly::new(entry.site, 8, What::UnknownTail)),
        }
    }

    fn apply_tails(&self, text: &mut Counting<'_, impl TextPoke>) -> Result<(), Broken> {
        if self.plan.via == Via::Thunk {
            return Ok(());
        }
        let checks = self.tables.checks().iter().filter(|entry| entry.thunk);
        let checks = checks.map(|entry| (entry.site.wrapping_add(TAIL), entry.shape));
        let thunks = self.tables.thunks().iter().map(|entry| (entry.at, entry.shape));
        for (at, shape) in checks.chain(thunks) {
            let change = self.reroute(text.text, at, shape).map_err(broken)?;
            if !change.is_noop() {
                text.poke(at, change.code().as_slice());
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn apply_returns(&self, text: &mut Counting<'_, impl TextPoke>) -> Result<(), Broken> {
        let Return::Thunk(thunk) = self.plan.returns else { return Ok(()) };
        for ReturnEntry { site } in self.tables.returns().iter() {
            let jump = return_site::word(site, Return::Thunk(thunk)).map_err(broken)?;
            text.poke_word::<SITE_LEN>(site, jump);
        }
        Ok(())
    }

    fn thunk_return(&self, text: &impl Text, site: u64) -> Result<Change, Anomaly> {
        return_site::change(text, site, Return::Plain, self.plan.returns)
    }

    fn verify(&self, text: &impl Text, stores: usize) -> Result<BootDone, Anomaly> {
        Ok(BootDone {
            checks: self.verify_checks(text, self.plan.form, |hash| self.seeded(hash))?,
            functions: self.verify_functions(text, self.plan.form, |hash| self.seeded(hash))?,
            returns: self.verify_returns(text, true)?,
            stores,
        })
    }

    // Loops over thousands of sites, each with all registers for itself: not inlined.

    /// All checks have this form and the hash that `hash` makes of the table's; how many.
    #[inline(never)]
    fn verify_checks(
        &self,
        text: &impl Text,
        form: Form,
        hash: impl Fn(u32) -> u32,
    ) -> Result<usize, Anomaly> {
        let usual = Pattern::new(form, self.tables.disp());
        let checks = self.tables.checks();
        for entry in checks.iter() {
            let hash = hash(entry.hash);
            if !usual.is_at(text, entry.site, hash) {
                self.verify_check(text, &entry, hash, form)?;
            }
        }
        Ok(checks.len())
    }

    /// As [`Self::verify_checks`], of functions.
    #[inline(never)]
    fn verify_functions(
        &self,
        text: &impl Text,
        form: Form,
        hash: impl Fn(u32) -> u32,
    ) -> Result<usize, Anomaly> {
        let (functions, disp) = (self.tables.functions(), self.tables.disp());
        for entry in functions.iter() {
            let hash = hash(entry.hash);
            let is_usual = match form {
                Form::FineIbt if hash != POISON => {
                    fineibt::is_landing_pad_at(text, entry.function, hash)
                }
                _ => preamble::is_at(text, entry.function, disp, hash),
            };
            if !is_usual {
                self.verify_function(text, &entry, hash, form)?;
            }
        }
        Ok(functions.len())
    }

    /// All returns that are to change can, or have (`done`); how many.
    #[inline(never)]
    fn verify_returns(&self, text: &impl Text, done: bool) -> Result<usize, Anomaly> {
        let Return::Thunk(thunk) = self.plan.returns else { return Ok(0) };
        let returns = self.tables.returns();
        for ReturnEntry { site } in returns.iter() {
            // Not in reach: an anomaly before anything is written.
            let jump = return_site::word(site, Return::Thunk(thunk))?;
            let usual = if done { jump } else { const { word_of(&return_site::PLAIN) } };
            if read_word::<SITE_LEN>(text, site)? != usual {
                self.verify_return(text, site, done)?;
            }
        }
        Ok(returns.len())
    }

    fn verify_return(&self, text: &impl Text, site: u64, done: bool) -> Result<(), Anomaly> {
        let is_jump = self.thunk_return(text, site)?.is_noop();
        if done && !is_jump { Err(Anomaly::new(site, 0, What::UnknownTail)) } else { Ok(()) }
    }

    fn verify_check(
        &self,
        text: &impl Text,
        entry: &CheckEntry,
        hash: u32,
        form: Form,
    ) -> Result<(), Anomaly> {
        let expect = Expect::table(&CheckEntry { hash, ..*entry }, self.tables.disp());
        let check = expect.decode(text)?;
        // The head for a target in r10 is another one, and this pass writes the usual head.
        if check.form == form && check.register != 10 {
            return Ok(());
        }
        let wanted = kcfi::encode(&kcfi::Check { form, ..check });
        let offset = if form == Form::Off || check.form == Form::Off { 0 } else { 10 };
        let expected = wanted.get(usize::from(offset)).copied().unwrap_or_default();
        let mut found = [0];
        let _ = text.read(entry.site.wrapping_add(u64::from(offset)), &mut found);
        Err(Anomaly::new(entry.site, offset, What::Byte { expected, found: found[0] }))
    }

    fn verify_function(
        &self,
        text: &impl Text,
        entry: &FunctionEntry,
        expected: u32,
        form: Form,
    ) -> Result<(), Anomaly> {
        let found = match form {
            Form::FineIbt if expected != POISON => {
                fineibt::decode_landing_pad(text, entry.function)?
            }
            _ => preamble::decode_at(text, entry.function, self.tables.disp())?.hash,
        };
        if found == expected {
            return Ok(());
        }
        let at = preamble::address(entry.function, self.tables.disp());
        Err(Anomaly::new(at, 1, What::Hash { expected, found }))
    }

    fn reroute(&self, text: &impl Text, at: u64, shape: tail::Shape) -> Result<Change, Anomaly> {
        let thunk = self.tables.thunk().ok_or(Anomaly::new(at, 0, What::UnknownTail))?;
        tail::change(text, tail::Expect { at, shape, thunk }, self.plan.via)
    }

    fn new_hash(&self, site: u64, hash: u32) -> Result<u32, Anomaly> {
        self.plan.seed.rehash(hash).ok_or(Anomaly::new(site, 2, What::NoHash))
    }

    /// The hash of this boot. The poison, which has none, stays.
    fn seeded(&self, hash: u32) -> u32 {
        self.plan.seed.rehash(hash).unwrap_or(POISON)
    }
}

fn broken(found: Anomaly) -> Broken {
    Broken { site: found.site, found }
}
