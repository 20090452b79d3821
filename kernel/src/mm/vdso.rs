//! The vDSO: clock and CPU calls without entering the kernel (vdso(7)). The code and its data page
//! are the machine's; here they are mapped.

use alloc::sync::Arc;

use abi::Result;
use machine::frame::Frame;
use machine::memory::Prot;
use machine::sync::{Once, SpinLock};

use crate::base::time;
use crate::mm::{Backing, Mm, PAGE, Vma, VmaFlags};

struct Vdso {
    code: Arc<[Frame]>,
    data: Arc<[Frame]>,
    /// Serialises changes of the wall clock.
    update: SpinLock<()>,
}

static VDSO: Once<Vdso> = Once::new();

fn make() -> Vdso {
    let (code, data) = machine::vdso::pages(time::realtime_offset_ns());
    Vdso { code: code.into(), data: [data].into(), update: SpinLock::new(()) }
}

/// Maps the data page and, above it, the code. Returns the address of the code's ELF header.
pub fn map(mm: &Arc<Mm>) -> Result<u64> {
    let vdso = VDSO.call_once(make);
    let pages = 1 + vdso.code.len() as u64;
    mm.with(|inner| {
        let start = inner.find_free(0, pages * PAGE)?;
        let area = |end, exec, name, frames: &Arc<[Frame]>| Vma {
            flags: VmaFlags::MAY_EXEC | VmaFlags::FIXED_SIZE | VmaFlags::DONT_DUMP,
            backing: Backing::Special { name, frames: frames.clone() },
            ..Vma::anonymous(end, if exec { Prot::READ | Prot::EXEC } else { Prot::READ })
        };
        inner.insert(start, area(start + PAGE, false, "[vvar]", &vdso.data))?;
        let code = start + PAGE;
        inner.insert(code, area(start + pages * PAGE, true, "[vdso]", &vdso.code))?;
        Ok(code)
    })
}

/// Tells programs that the wall clock was set.
pub fn realtime_changed() {
    if let Some(vdso) = VDSO.get() {
        let _one = vdso.update.lock();
        machine::vdso::set_realtime(time::realtime_offset_ns());
    }
}
