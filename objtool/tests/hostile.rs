//! Hostile images: never a panic, never a write outside the checks, never endless.
//!
//! Mutations come from a fixed generator, so a failure is reproducible from its number; the
//! coverage-guided targets are in `fuzz/`.

use objtool::{FinishOptions, Form, Options, audit, finish, rewrite};

const IMAGES: [&[u8]; 3] = [
    include_bytes!("fixtures/calls-11.elf"),
    include_bytes!("fixtures/calls-none.elf"),
    include_bytes!("fixtures/sites.elf"),
];

/// xorshift64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or_default()
    }
}

/// Everything that reads an image; what is written must be the same but for the checks' forms.
fn torture(data: &[u8]) {
    let options = Options::default();
    let _ = audit(data, &options).map(|report| (report.to_string(), report.to_json()));
    let _ = finish(data, &FinishOptions::default());
    if let Ok(rewritten) = rewrite(data, Form::Opt, &options) {
        assert_eq!(rewritten.data.len(), data.len());
        let differing = rewritten.data.iter().zip(data).filter(|(new, old)| new != old).count();
        // Four bytes of each written check, and the form byte of filled tables.
        assert!(differing <= rewritten.applied.written * 6 + 1);
    }
}

const INTERESTING: [u64; 8] =
    [0, 1, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX, u64::MAX - 7];

#[test]
fn mutated_images() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..1500 {
        let mut data = IMAGES[round % IMAGES.len()].to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(data.len());
            match random.below(3) {
                0 => data[at] = random.next().to_le_bytes()[0],
                1 => data[at] ^= 1 << random.below(8),
                _ => {
                    let value = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
                    let at = at & !7;
                    let end = data.len().min(at + 8);
                    data[at..end].copy_from_slice(&value[..end - at]);
                }
            }
        }
        torture(&data);
    }
}

/// The header and the tables that everything else hangs on, field by field.
#[test]
fn every_word_of_the_headers_gets_every_interesting_value() {
    for image in IMAGES {
        let shoff = u64::from_le_bytes(image[0x28..0x30].try_into().unwrap_or_default());
        let shoff = usize::try_from(shoff).unwrap_or_default();
        let words = (0..0x40).step_by(4).chain((shoff..image.len() - 8).step_by(8));
        for at in words {
            for value in INTERESTING {
                let mut data = image.to_vec();
                data[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let _ = audit(&data, &Options::default());
            }
        }
    }
}

#[test]
fn truncated_images() {
    for image in IMAGES {
        for len in (0..image.len()).step_by(61).chain(0..130) {
            torture(&image[..len]);
        }
    }
}

#[test]
fn no_image_at_all() {
    let files: [&[u8]; 5] = [b"", b"\x7fELF", b"#!/bin/sh", &[0; 4096], &[0xff; 4096]];
    for data in files {
        assert!(audit(data, &Options::default()).is_err());
    }
    // Another machine, and an object file.
    let mut arm = IMAGES[0].to_vec();
    arm[0x12] = 0xb7;
    assert!(audit(&arm, &Options::default()).is_err());
    let mut packed = vec![0; 4096];
    packed[0x202..0x206].copy_from_slice(b"HdrS");
    let error = audit(&packed, &Options::default()).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("bzImage")));
    let mut object = IMAGES[0].to_vec();
    object[0x10] = 1;
    assert!(audit(&object, &Options::default()).is_err());
}
