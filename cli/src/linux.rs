//! Another kernel: Debian's cloud kernel, to compare with and to be the judge, unpacked so that
//! QEMU boots it by PVH.
//!
//! Why unpacked: a bzImage decompresses itself in the guest, at a hundred times the price of the
//! rest of the boot; the ELF image in it boots by the same door as Limen's, which is the fair
//! comparison. Its place in the file is in the setup header (Linux's Documentation/arch/x86/
//! boot.rst: `setup_sects`, `payload_offset`, `payload_length`).
//!
//! Where it comes from: what the user names, else what is installed, else what an earlier run has
//! fetched, else `apt-get download`, which needs no privileges.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use formats::cpio;

use crate::args::MachineModel;
use crate::bench::hex_hash;
use crate::failure::{Doing, Failure};
use crate::run::qemu::{self, port_file};
use crate::{Error, paths, usage};

/// Debian's name for the newest of them.
const META_PACKAGE: &str = "linux-image-6.12-cloud-amd64";
const FLAVOUR: &str = "cloud-amd64";
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest image that is believed.
const VMLINUX_MAX: u64 = 256 << 20;

/// A Linux kernel ready to boot.
#[derive(Debug)]
pub(crate) struct Linux {
    /// The file name's version part.
    pub(crate) name: String,
    pub(crate) vmlinux: PathBuf,
    /// The folder of its modules, where there is one.
    pub(crate) modules: PathBuf,
    /// Of the bzImage.
    pub(crate) hash: String,
}

/// The first process of a Linux beside which a program is measured (`guest/linux_init`).
pub(crate) const INIT: &str = "limen-linux-init";
/// Linux needs the old timer to calibrate its clock, so the machine has it.
pub(crate) const MACHINE: &str = "microvm,x-option-roms=off,rtc=on,isa-serial=on,pcie=off";
/// For a root that the host serves: Debian's cloud kernel has its devices on PCI built in, those on
/// MMIO are a module.
const PCI_MACHINE: &str = "q35,usb=off,sata=off,smbus=off,vmport=off";
/// What every Linux is started with: once its program has ended, so has the machine.
pub(crate) const APPEND: &str = "console=ttyS0 quiet panic=-1";

/// How a Linux is started with one program, which is its first process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) program: &'a [u8],
    /// Another file that the program finds: its name without the first slash, and its bytes.
    pub(crate) file: Option<(&'a str, &'a [u8])>,
    /// What else is in the initramfs: a cpio archive, or nothing.
    pub(crate) files: &'a [u8],
    /// Kernel parameters, `--`, and the program's arguments.
    pub(crate) append: &'a str,
    /// Where the initramfs goes, and what the kernel and the program say: the file of port
    /// `serial`.
    pub(crate) dir: &'a Path,
    pub(crate) cpu: &'a str,
    pub(crate) smp: u8,
    pub(crate) memory_mib: u64,
    /// QEMU's end of whoever serves the host's files (`cli/share`), if anybody does.
    pub(crate) share: Option<RawFd>,
}

impl Linux {
    /// The QEMU command.
    pub(crate) fn command(&self, boot: &Boot<'_>) -> Result<Vec<OsString>, Error> {
        let mut archive = cpio::Writer::new();
        archive.file(b"init", 0o755, boot.program);
        if let Some((name, bytes)) = boot.file {
            archive.file(name.as_bytes(), 0o644, bytes);
        }
        let archive = archive.finish().map_err(|_| "the program does not fit an archive")?;
        let archive = [boot.files, &archive].concat();
        let initramfs = boot.dir.join("linux.cpio");
        paths::write(&initramfs, archive)?;
        let serial = port_file(boot.dir, "serial");
        let mut command: Vec<OsString> = vec![qemu::program()];
        let options = "-no-user-config -nodefaults -no-reboot -display none";
        command.extend(options.split(' ').map(OsString::from));
        for (name, value) in [
            ("-M", if boot.share.is_some() { PCI_MACHINE } else { MACHINE }.into()),
            ("-accel", qemu::emulation(boot.smp).into()),
            ("-cpu", OsString::from(boot.cpu)),
            ("-smp", boot.smp.to_string().into()),
            ("-m", format!("{}M", boot.memory_mib).into()),
            ("-kernel", self.vmlinux.clone().into()),
            ("-initrd", initramfs.into()),
            ("-append", boot.append.into()),
            ("-serial", format!("file:{}", serial.display()).into()),
        ] {
            command.extend([name.into(), value]);
        }
        if let Some(fd) = boot.share {
            let [memory, machine] = qemu::shared_memory(boot.memory_mib);
            let [socket, device] = qemu::shared_root(MachineModel::Q35, boot.smp, fd);
            for (name, value) in [
                ("-object", memory),
                ("-machine", machine),
                ("-chardev", socket),
                ("-device", device),
            ] {
                command.extend([name.into(), value.into()]);
            }
        }
        Ok(command)
    }

    /// An archive of modules by their places in `kernel/` of its own: `modules/NAME.ko.xz` each.
    pub(crate) fn archive_of(&self, modules: &[&str]) -> Result<Vec<u8>, Error> {
        let mut files = Vec::new();
        for path in modules {
            let file: PathBuf = self.modules.join("kernel").join(format!("{path}.ko.xz"));
            let bytes = std::fs::read(&file)
                .map_err(|error| usage(format!("{}: {error}", file.display())))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            files.push((format!("modules/{name}"), bytes));
        }
        let mut archive = cpio::Writer::new();
        archive.dir(b"modules", 0o755);
        for (name, bytes) in &files {
            archive.file(name.as_bytes(), 0o644, bytes);
        }
        Ok(archive.finish().map_err(|_| "the modules do not fit an archive")?)
    }
}

/// Finds, fetches and unpacks. An error says what is missing and how to get it.
pub(crate) fn find(given: Option<&Path>) -> Result<Linux, Error> {
    let cache = paths::cache_dir()?.join("linux");
    std::fs::create_dir_all(&cache).map_err(Failure::at(Doing::Make, &cache))?;
    let installed = || newest(Path::new("/boot")).or_else(|| newest(&cache.join("boot")));
    let image = match given {
        Some(path) => path.to_owned(),
        None => match installed() {
            Some(path) => path,
            None => fetch(&cache)?,
        },
    };
    let of_image = |error: Error| usage(format!("--linux {}: {error}", image.display()));
    let data = std::fs::read(&image).map_err(|error| of_image(error.into()))?;
    let hash = hex_hash(&[&data]);
    let vmlinux = cache.join(format!("vmlinux-{}", &hash[..16]));
    if !vmlinux.is_file() {
        let unpacked = unpack(&data).map_err(of_image)?;
        paths::write_atomically(&vmlinux, &unpacked)?;
    }
    let name = image.file_name().unwrap_or_default().to_string_lossy().replacen("vmlinuz-", "", 1);
    // Debian's packages have them beside /boot.
    let root = image.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let modules = root.join("lib/modules").join(&name);
    Ok(Linux { name, vmlinux, modules, hash })
}

/// The newest cloud kernel in a folder, by its time.
fn newest(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let is_one = |name: &str| name.starts_with("vmlinuz-") && name.ends_with(FLAVOUR);
    let images = entries.filter(|entry| is_one(&entry.file_name().to_string_lossy()));
    let by_time =
        |entry: &std::fs::DirEntry| entry.metadata().and_then(|meta| meta.modified()).ok();
    images.max_by_key(by_time).map(|entry| entry.path())
}

/// Debian's package, unpacked into the cache and not installed.
fn fetch(cache: &Path) -> Result<PathBuf, Error> {
    let how = format!(
        "no Linux to compare with: apt-get install {META_PACKAGE} (or name a bzImage: --linux FILE)"
    );
    let package = concrete_package().ok_or_else(|| how.clone())?;
    say!("limen: fetching {package} to compare with");
    let fetched = Command::new("apt-get")
        .current_dir(cache)
        .args(["download", &package])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success());
    let entries = std::fs::read_dir(cache).map_err(Failure::at(Doing::Read, cache))?;
    let archive = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let Some(archive) = archive.filter(|_| fetched) else { return Err(how.into()) };
    let unpacked = Command::new("dpkg-deb").arg("-x").arg(&archive).arg(cache).status();
    std::fs::remove_file(&archive).map_err(Failure::at(Doing::Remove, &archive))?;
    match unpacked {
        Ok(status) if status.success() => newest(&cache.join("boot")).ok_or_else(|| how.into()),
        _ => Err(how.into()),
    }
}

/// The package that the meta package depends on.
fn concrete_package() -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", META_PACKAGE]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let depends = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    depends.filter(|name| name.ends_with(FLAVOUR)).map(str::to_owned)
}

/// The ELF image in a bzImage.
fn unpack(image: &[u8]) -> Result<Vec<u8>, Error> {
    let payload = payload(image).ok_or("not a bzImage of boot protocol 2.08 or later")?;
    if !payload.starts_with(&ZSTD_MAGIC) {
        return Err("its payload is not zstd, the form that is read here".into());
    }
    let mut elf = Vec::new();
    let damaged = "its payload cannot be unpacked: it is damaged";
    let decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|_| damaged)?;
    decoder.take(VMLINUX_MAX).read_to_end(&mut elf).map_err(|_| damaged)?;
    match elf.starts_with(b"\x7fELF") {
        true => Ok(elf),
        false => Err("its payload is not an ELF image".into()),
    }
}

/// The compressed kernel in a bzImage, with the four bytes of its length behind it.
fn payload(image: &[u8]) -> Option<&[u8]> {
    const SETUP_SECTS: usize = 0x1f1;
    const MAGIC: usize = 0x202;
    const PAYLOAD_OFFSET: usize = 0x248;
    const PAYLOAD_LENGTH: usize = 0x24c;
    const SECTOR: usize = 512;
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let protected = (usize::from(*image.get(SETUP_SECTS)?) + 1) * SECTOR;
    let start = protected.checked_add(word(PAYLOAD_OFFSET)?)?;
    image.get(start..start.checked_add(word(PAYLOAD_LENGTH)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut image = vec![0u8; 4096];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&8u32.to_le_bytes());
        image[1040..1048].copy_from_slice(b"payload!");
        image
    }

    #[test]
    fn payload_is_where_the_header_says() {
        assert_eq!(payload(&sample()), Some(&b"payload!"[..]));
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let mut image = sample();
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(&sample()[..0x240]), None);
        assert!(unpack(&sample()).is_err());
    }
}
