//! A disk that is a file (virtio 1.2, 5.2).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

use super::virtio::{Device, Request};
use crate::machine::Result;

const SECTOR: u64 = 512;
const HEADER: usize = 16;
const FLUSH: u64 = 1 << 9;
const OK: u8 = 0;
const ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

pub(super) struct Block {
    file: File,
    sectors: u64,
}

impl Block {
    pub(super) fn open(path: &str) -> Result<Block> {
        let fail = |error: std::io::Error| format!("{path}: {error}");
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(fail)?;
        let sectors = file.metadata().map_err(fail)?.len() / SECTOR;
        Ok(Block { file, sectors })
    }

    /// What goes back to the guest, and how it went.
    fn serve(&self, request: &Request) -> (Vec<u8>, u8) {
        let bytes = &request.bytes;
        if bytes.len() < HEADER {
            return (Vec::new(), ERROR);
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let sector = u64::from(word(8)) | u64::from(word(12)) << 32;
        let data = &bytes[HEADER..];
        let room = request.room().saturating_sub(1);
        let is_there = |len: usize| {
            let count = (len as u64).div_ceil(SECTOR);
            sector.checked_add(count).is_some_and(|end| end <= self.sectors)
        };
        match word(0) {
            0 if is_there(room) => {
                let mut found = vec![0; room];
                match self.file.read_exact_at(&mut found, sector * SECTOR) {
                    Ok(()) => (found, OK),
                    Err(_) => (vec![0; room], ERROR),
                }
            }
            1 if is_there(data.len()) => {
                let done = self.file.write_all_at(data, sector * SECTOR);
                (Vec::new(), if done.is_ok() { OK } else { ERROR })
            }
            0 | 1 => (vec![0; room], ERROR),
            4 => (Vec::new(), if self.file.sync_data().is_ok() { OK } else { ERROR }),
            8 => {
                let mut name = b"limen-vmm".to_vec();
                name.resize(room.min(20), 0);
                (name, OK)
            }
            _ => (vec![0; room], UNSUPPORTED),
        }
    }
}

impl Device for Block {
    fn id(&self) -> u32 {
        2
    }

    fn features(&self) -> u64 {
        FLUSH
    }

    fn queues(&self) -> usize {
        1
    }

    fn config(&self) -> Vec<u8> {
        self.sectors.to_le_bytes().to_vec()
    }

    fn work(&mut self, queues: &mut [Queue], memory: &GuestMemoryMmap) -> bool {
        let mut any = false;
        while let Some(request) = Request::next(&mut queues[0], memory) {
            let (mut bytes, status) = self.serve(&request);
            // The status is the last byte that the device may write.
            bytes.resize(request.room().saturating_sub(1), 0);
            bytes.push(status);
            request.finish(&mut queues[0], memory, &bytes);
            any = true;
        }
        any
    }
}
