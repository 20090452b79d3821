//! What others say, in words for who has never read a source: errors of this system, of QEMU, and
//! of the kernel's boot, with the option that they are about and the way out.
//!
//! Why it is hard: QEMU speaks of its own options, which nobody gave it, and the kernel names
//! errors as programs know them. What is not known here is passed on as it came.
//!
//! Neighbours: `run/vm.rs` has both logs, `bench/rig.rs` QEMU's alone, `main.rs` prints errors.

use rustix::io::Errno;

use crate::run::qemu;

/// An error without the number that the standard library puts behind its words.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        let number = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        out += before;
        match behind[number..].strip_prefix(')') {
            Some(after) => rest = after,
            None => {
                out += " (os error ";
                rest = behind;
            }
        }
    }
    out + rest
}

/// Errors that a boot can end with, by the names that the kernel gives them.
const ERRNOS: [(&str, Errno); 12] = [
    ("EACCES", Errno::ACCESS),
    ("EEXIST", Errno::EXIST),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EISDIR", Errno::ISDIR),
    ("ELOOP", Errno::LOOP),
    ("ENAMETOOLONG", Errno::NAMETOOLONG),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOSPC", Errno::NOSPC),
    ("ENOTDIR", Errno::NOTDIR),
    ("EPERM", Errno::PERM),
];

/// Steps of a boot, as the kernel begins to name them, and what helps where one fails.
const STEPS: [(&str, &str); 3] = [
    ("working directory ", "--cwd names another folder"),
    ("unpacking the initramfs", "--file, --dir or the image has a path that cannot be made"),
    ("the profile", "--profile"),
];

/// A reason of the kernel's for which no program ran: `STEP: ERROR`.
pub(crate) fn of_boot(reason: &str) -> String {
    let (step, name) = reason.rsplit_once(": ").unwrap_or((reason, ""));
    let known = ERRNOS.iter().find(|(known, _)| *known == name);
    let error = known.map(|(_, errno)| plain(&std::io::Error::from(*errno).to_string()));
    let text = error.map_or_else(|| reason.to_owned(), |error| format!("{step}: {error}"));
    match STEPS.iter().find(|(start, _)| reason.starts_with(start)) {
        Some((_, help)) => format!("{text} ({help})"),
        None => text,
    }
}

/// What QEMU's messages mean, by a part of them.
const QEMU: [(&str, &str); 11] = [
    (
        "unable to find CPU model",
        "--cpu: this QEMU has no such CPU model; `QEMU -cpu help` lists those it has",
    ),
    (
        "requires KVM",
        "--cpu: this model needs KVM, which is not used here; --cpu max works without",
    ),
    ("Property '", "--cpu: this QEMU's model has no such feature; `QEMU -cpu help` lists features"),
    (
        "cannot set up guest memory",
        "--memory: this host does not have so much; a smaller size works",
    ),
    ("Cannot allocate memory", "--memory: this host does not have so much; a smaller size works"),
    ("Failed to find an available port", "--gdb: this port is taken; --gdb=PORT names another"),
    ("Address already in use", "--gdb: this port is taken; --gdb=PORT names another"),
    ("vhost-user-fs", "--share: this QEMU has no virtio-fs; --share 9p works without"),
    ("memory-backend-memfd", "--share: this QEMU shares no memory; --share 9p works without"),
    ("Permission denied", "a port or file that QEMU needs is not this user's: -vv shows which"),
    ("without PVH ELF Note", "--kernel: not a kernel of Limen's"),
];

/// What QEMU's messages mean, if that is known.
pub(crate) fn of_qemu(messages: &str) -> Option<String> {
    let (_, words) = QEMU.iter().find(|(part, _)| messages.contains(part))?;
    Some(words.replace("QEMU -cpu", &format!("{} -cpu", qemu::program().display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_go() {
        assert_eq!(
            plain("x: No such file or directory (os error 2)"),
            "x: No such file or directory"
        );
        assert_eq!(plain("a (os error 13) b (os error 2)"), "a b");
        for same in ["a (os error x)", "a (os error 2", "plain", ""] {
            assert_eq!(plain(same), same);
        }
    }

    #[test]
    fn boots_fail_in_words() {
        let said = of_boot("working directory /x: ENOENT");
        assert_eq!(
            said,
            "working directory /x: No such file or directory (--cwd names another folder)"
        );
        assert_eq!(of_boot("/proc/x: ENOTDIR"), "/proc/x: Not a directory");
        assert_eq!(of_boot("nothing known"), "nothing known");
    }

    #[test]
    fn qemu_is_translated_or_left_alone() {
        let said = of_qemu("qemu-system-x86_64: unable to find CPU model 'x'\n").expect("known");
        assert!(said.starts_with("--cpu: ") && said.contains("-cpu help"), "{said}");
        assert_eq!(of_qemu("something else"), None);
    }
}
