//! KVM or emulation: decided once per host boot, and said once.
//!
//! Why it is hard: a `/dev/kvm` that opens is no proof. On nested software-only hosts KVM creates
//! VMs and then emulates ring 0 instruction by instruction, or aborts. So KVM must (1) be
//! announced by the CPU (vmx or svm in /proc/cpuinfo), (2) be open to this user, and (3) run a
//! probe VM of a few instructions within two seconds. The verdict is kept in the cache, named by
//! the host's boot id; where it is new, one line on stderr tells it.
//!
//! Neighbours: `plan.rs` asks, `qemu.rs` takes the answer.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::qemu::{self, Accel};
use crate::args::AccelChoice;
use crate::cache::{self, Folder};
use crate::{Error, paths};

/// How long a probe VM may take.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of the probe's firmware image.
const PROBE_IMAGE_LEN: usize = 64 << 10;
/// Where a CPU starts: 16 bytes below the image's end.
const PROBE_ENTRY: usize = PROBE_IMAGE_LEN - 16;
/// What the probe writes to isa-debug-exit; QEMU ends with `(value << 1) | 1`.
const PROBE_VALUE: u8 = 0x2a;

/// The accelerator for `choice`.
pub(crate) fn choose(choice: AccelChoice) -> Result<Accel, Error> {
    match choice {
        AccelChoice::Kvm => match why_not_kvm(&paths::cache_dir()?) {
            None => Ok(Accel::Kvm),
            Some(reason) => {
                let text = format!("--accel kvm: {reason}; --accel tcg works without");
                Err(crate::usage(text))
            }
        },
        AccelChoice::Tcg => Ok(Accel::Tcg),
        AccelChoice::Auto => automatic(),
    }
}

fn automatic() -> Result<Accel, Error> {
    let kept = Folder::of(cache::PROBES)?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = format!("accel-{}", boot_id.trim());
    if let Some(verdict) = kept.read_text(&name) {
        return Ok(if verdict == "kvm" { Accel::Kvm } else { Accel::Tcg });
    }
    let (accel, verdict) = match why_not_kvm(&paths::cache_dir()?) {
        None => (Accel::Kvm, "kvm".to_owned()),
        Some(reason) => {
            say!("limen: no KVM here ({reason}): using QEMU's emulation, which is slower");
            (Accel::Tcg, reason)
        }
    };
    kept.keep(&name, verdict.as_bytes());
    Ok(accel)
}

/// `None` if KVM works.
fn why_not_kvm(cache: &Path) -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !has_virtualisation(&cpuinfo) {
        return Some("the CPU offers no vmx or svm".to_owned());
    }
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Some(format!("/dev/kvm: {error}"));
    }
    probe(cache, "kvm").err()
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// Runs a VM whose firmware only writes [`PROBE_VALUE`] to isa-debug-exit.
fn probe(cache: &Path, accel: &str) -> Result<(), String> {
    let image = cache.join("probe.bin");
    paths::write_atomically(&image, &probe_image()).map_err(|error| error.to_string())?;
    let cpu = if accel == "kvm" { "host" } else { "max" };
    let mut child = Command::new(qemu::program())
        .args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none", "-M", "q35"])
        .args(["-accel", accel, "-cpu", cpu, "-m", "16M", "-device"])
        .arg(format!("isa-debug-exit,iobase={:#x},iosize=1", formats::ports::DEBUG_EXIT_PORT))
        .arg("-bios")
        .arg(&image)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + PROBE_LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(i32::from(PROBE_VALUE) << 1 | 1) => {
                return Ok(());
            }
            Ok(Some(status)) => return Err(format!("a probe VM ended with {status}")),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // Already ended is as good as killed.
                let _ = child.kill();
                let _ = child.wait();
                return Err("a probe VM did not end within 2 s".to_owned());
            }
        }
    }
}

/// Real-mode code at the reset vector (Intel SDM volume 3, 10.1.4 "First Instruction Executed").
fn probe_image() -> Vec<u8> {
    let mut image = vec![0xf4; PROBE_IMAGE_LEN];
    let code = [
        0xb0,
        PROBE_VALUE, // mov al, PROBE_VALUE
        0xe6,
        formats::ports::DEBUG_EXIT_PORT as u8, // out DEBUG_EXIT_PORT, al
        0xf4,                                  // hlt
        0xeb,
        0xfd, // jmp to the hlt
    ];
    image[PROBE_ENTRY..PROBE_ENTRY + code.len()].copy_from_slice(&code);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert!(has_virtualisation("processor: 0\nflags\t: fpu svm sse\n"));
        assert!(!has_virtualisation("flags : fpu svm_lock vmxx\nvmx flags : vnmi\n"));
        assert!(!has_virtualisation(""));
    }

    /// The probe itself, where it must succeed; needs QEMU, as all of Limen does.
    #[test]
    fn probe_runs_under_emulation() {
        let dir = tempfile::tempdir().expect("temporary directory");
        // A loaded host may need longer than a real probe may take.
        let result = (0..5).map(|_| probe(dir.path(), "tcg")).find(Result::is_ok);
        assert_eq!(result, Some(Ok(())));
    }
}
