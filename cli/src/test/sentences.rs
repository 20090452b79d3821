//! What is said when something cannot be done: each sentence is caused, and must be one that who
//! has never read a source can act upon. Part of the run level.
//!
//! A sentence names the option, says what is wrong in words, and tells the way out. What none has:
//! numbers and names of errors as programs know them, QEMU's or Rust's own messages, and silence.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::Context;
use super::run::ensure;
use rustix::fs::{FileType, Mode};

use crate::Error;

/// Words, the status, and what standard error must say. `@` stands for the folder of the test.
type Case = (&'static str, i32, &'static [&'static str]);

/// Nothing of these starts a program.
const REFUSED: &[Case] = &[
    ("run --smp 0 -- true", 2, &["--smp", "want a number of CPUs, 1 to 16"]),
    ("run --smp x -- true", 2, &["--smp", "want a number of CPUs, 1 to 16"]),
    ("run --memory x -- true", 2, &["--memory", "such as 256M"]),
    ("run --memory 900G -- true", 126, &["--memory", "does not have so much"]),
    ("run --env =x -- true", 2, &["--env =x", "want NAME=VALUE"]),
    ("run --env= -- true", 2, &["--env \"\"", "want NAME=VALUE"]),
    ("run --file= -- true", 2, &["--file \"\"", "want HOST"]),
    ("run --dir=:/x -- true", 2, &["--dir \":/x\"", "want HOST"]),
    ("run --rw= -- true", 2, &["--rw \"\"", "want HOST"]),
    ("run --user= -- true", 2, &["--user \"\"", "want NAME, UID"]),
    ("run --user :5 -- true", 2, &["--user \":5\"", "want NAME, UID"]),
    ("run --user 4294967295 -- true", 2, &["is no user's number"]),
    ("run --cpu= -- true", 2, &["--cpu \"\"", "such as max"]),
    ("run --file plain:/a --file own-tool:/a -- true", 2, &["--file own-tool:/a: another --file"]),
    ("run --file plain:/a --dir out:/a -- true", 2, &["--dir out:/a: /a of the guest is a file"]),
    ("run --hide /a --show /a -- true", 2, &["--hide /a --show /a: give one"]),
    ("run --pack --hide /a -- true", 2, &["--hide has no effect with --pack"]),
    ("run --share 9p --cache none -- true", 2, &["--cache has no effect with --share 9p"]),
    ("run --limit cpu=1s,cpu=2s -- true", 2, &["cpu is given twice"]),
    ("run --memory 64M --memory 128M -- true", 2, &["--memory", "multiple times"]),
    ("bench kernel --rows fork", 2, &["--rows: bench kernel does not use it; growth, scale"]),
    ("test host --seed 5", 2, &["--seed: test host does not use it"]),
    ("test no-level --filter x", 2, &["--filter: no-level is no level"]),
    ("compare --with a --with b --linux plain -- true", 2, &["--linux has no effect without"]),
    ("mitigations --list --cpu zen4", 2, &["--list", "--cpu"]),
    ("run --cwd /x -- true", 2, &["--cwd /x", "No such file or directory"]),
    ("run --cwd plain -- true", 2, &["--cwd @/plain", "not a folder"]),
    ("run --pack --cwd /x -- true", 126, &["working directory /x: No such file", "--cwd"]),
    ("run --file none -- true", 2, &["--file @/none: No such file"]),
    ("run --file /etc:/x -- true", 2, &["--file /etc: not a file"]),
    ("run --file plain:/proc/x -- true", 2, &["--file plain:/proc/x", "the kernel's"]),
    ("run --file plain:/dev/x -- true", 2, &["--file plain:/dev/x", "the kernel's"]),
    ("run --pack --file plain:/sys/x -- true", 2, &["--file plain:/sys/x", "the kernel's"]),
    ("run --file plain:/tmp/../y -- true", 2, &["--file plain:/tmp/../y", "without `..`"]),
    ("run --file plain:/etc/passwd/x -- true", 2, &["/etc/passwd of the guest is a file"]),
    ("run --dir none -- true", 2, &["--dir @/none: No such file"]),
    ("run --dir out:/etc/passwd -- true", 2, &["--dir out:/etc/passwd", "is a file"]),
    ("run --dir out:/dev/x -- true", 2, &["--dir out:/dev/x", "the kernel's"]),
    ("run --root none -- true", 2, &["--root none: No such file"]),
    ("run --root plain -- true", 2, &["--root plain: not a folder"]),
    ("run --root out --cwd /x -- true", 2, &["--cwd /x", "a folder of the guest"]),
    ("run --image none", 2, &["--image none: No such file"]),
    ("run --image plain", 126, &["--image plain: not a tar archive", "docker save"]),
    ("run --image out", 126, &["--image out: neither index.json", "docker save"]),
    ("run --user no-such -- true", 2, &["--user no-such: no user no-such"]),
    ("run --user root:no-such -- true", 2, &["--user root:no-such: no group no-such"]),
    ("run --rw none -- true", 2, &["--rw @/none: No such file"]),
    ("run --rw plain -- true", 2, &["--rw @/plain: not a folder"]),
    ("run --rw out:/proc/x -- true", 2, &["--rw out:/proc/x", "the kernel's"]),
    ("run --rw out:/tmp/../proc -- true", 2, &["--rw out:/tmp/../proc", "without `..`"]),
    ("run --rw out:/a --rw out:/a -- true", 2, &["--rw out:/a", "another --rw is there"]),
    ("run --rw out:/etc/passwd -- true", 126, &["/etc/passwd: Not a directory"]),
    ("run --profile none -- true", 2, &["--profile none: No such file"]),
    ("run --cpu no-such -- true", 126, &["--cpu: this QEMU has no such CPU model", "-cpu help"]),
    ("run --accel tcg --cpu host -- true", 126, &["--cpu", "needs KVM", "--cpu max"]),
    ("run --cpu max,+no-such -- true", 126, &["--cpu", "no such feature"]),
    ("run --machine pc -- true", 2, &["--machine", "microvm, q35"]),
    ("run --timeout x -- true", 2, &["--timeout", "such as 30s"]),
    ("run --timeout 1ms -- true", 126, &["no program ran", "--timeout"]),
    ("run --limit cpu -- true", 2, &["--limit", "such as cpu=30s"]),
    ("run --limit time=1 -- true", 2, &["--limit", "cpu, memory and output"]),
    ("run --detach a/b -- true", 2, &["a/b", "letters, digits"]),
    ("run --gdb=x -- true", 2, &["--gdb", "a port's number, 1 to 65535"]),
    ("run --gdb=0 -- true", 2, &["--gdb", "a port's number, 1 to 65535"]),
    ("run --json=out -- true", 2, &["--json out: Is a directory"]),
    ("run --trace out -- true", 2, &["--trace out: Is a directory"]),
    ("run --json=/dev/full -- true", 126, &["--json: /dev/full: ", "another place by --json"]),
    ("run --trace /dev/full -- true", 126, &["--trace: /dev/full: ", "another place by --trace"]),
    ("run --kernel /bin/ls -- true", 2, &["--kernel /bin/ls: not a kernel of Limen's"]),
    ("run --kernel plain -- true", 2, &["--kernel plain: not a kernel of Limen's"]),
    ("run -- no-such-program", 127, &["no-such-program: not found"]),
    ("run -- own-tool", 127, &["own-tool: not found", "./own-tool is its path"]),
    ("run -- ./plain", 126, &["@/plain: Permission denied (not an executable file)"]),
    ("run --pack -- ./plain", 126, &["@/plain: Permission denied (not an executable file)"]),
    ("logs no-such", 2, &["there is no such VM (limen ps lists them)"]),
    ("stop ../x", 2, &["a VM's name has letters, digits"]),
    ("exec no-such -- true", 2, &["there is no such VM (limen ps lists them)"]),
    ("pack -o /none/x -- ls", 2, &["--output /none/x: No such file"]),
    (
        "pack -o /dev/full -- /bin/true",
        126,
        &["--output: /dev/full: ", "another place by --output"],
    ),
    ("pack -o x -- no-such-program", 127, &["no-such-program: not found"]),
    ("pack -o x -- ./plain", 126, &["not an executable file"]),
    ("profile learn -o /none/x -- ls", 2, &["--output /none/x: No such file"]),
    ("profile learn --profile own-tool -- ls", 2, &["--profile", "nothing would be learned"]),
    ("profile learn --dry-run -- ls", 2, &["--dry-run", "nothing would be learned"]),
    ("profile check none", 2, &["none: No such file"]),
    ("profile check own-tool", 2, &["own-tool:2:"]),
    ("trace none", 2, &["none: No such file"]),
    ("trace plain", 2, &["plain: not a trace of limen run --trace"]),
    ("check none", 2, &["none: No such file"]),
    ("check plain", 2, &["plain: not an ELF program, nor a script"]),
    ("mitigations --cpu no-such", 2, &["--cpu no-such", "--list"]),
    ("mitigations --facts none", 2, &["--facts none: No such file"]),
    ("mitigations --facts own-tool", 2, &["--facts own-tool:"]),
    ("bench kernel --linux none", 2, &["--linux none: No such file"]),
    ("bench kernel --linux plain", 2, &["--linux plain: not a bzImage"]),
    ("bench growth --svg /none/x", 2, &["--svg /none/x: No such file"]),
    ("compare --with pti=off -- true", 2, &["--with: two to 16 sets"]),
    ("compare --with a --with b --html /none/x -- true", 2, &["--html /none/x: No such file"]),
    ("compare --with a --with linux --linux plain -- true", 2, &["--linux plain: not a bzImage"]),
    ("compare --with a --with b --cpu no-such -- true", 2, &["--cpu: this QEMU has no such CPU"]),
    ("compare --with a --with b --kernel plain -- true", 2, &["--kernel plain: not a kernel"]),
    ("compare --with a --with b -- no-such-program", 127, &["no-such-program: not found"]),
];

/// These work, and say what has had no effect.
const TOLD: &[Case] = &[
    ("run --dir pipes:/p -- true", 0, &["--dir @/pipes: left out", "@/pipes/p (1 in all)"]),
    ("run --hide /none -- true", 0, &["--hide /none: nothing is there"]),
    ("run --show /usr -- true", 0, &["--show /usr: nothing is hidden there"]),
    ("run --env NOT_SET_HERE -- true", 0, &["--env NOT_SET_HERE: this variable is not set"]),
    ("run --append no_such=1 -- true", 0, &["unknown kernel parameter: no_such=1"]),
    ("run --append pti=maybe -- true", 0, &["ignoring pti=maybe"]),
    ("run --append mitigations=no -- true", 0, &["ignoring mitigations=no"]),
    ("run --append sysret=maybe -- true", 0, &["ignoring sysret=maybe: the values are on|off"]),
    ("run --append cfi=maybe -- true", 0, &["ignoring unknown option maybe"]),
    ("run --append lsm=maybe -- true", 0, &["lsm=maybe: no policy has this name"]),
    ("run --append isolcpus=x -- true", 0, &["isolcpus= is not a list of CPUs"]),
    ("run --append defer=x -- true", 0, &["defer= is none of pending, always, cr3, off"]),
    ("compare --with a --with b -- true", 0, &["unknown kernel parameter: a"]),
    ("mitigations --append no_such=1", 0, &["no_such=1 is no parameter of mitigations"]),
];

pub(super) fn sentences(context: &Context, folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder.canonicalize()?;
    std::fs::create_dir(folder.join("out"))?;
    std::fs::write(folder.join("plain"), "")?;
    std::fs::create_dir(folder.join("pipes"))?;
    let pipe = folder.join("pipes/p");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, FileType::Fifo, Mode::RUSR, 0)?;
    std::fs::write(folder.join("own-tool"), "#!/bin/sh\necho hi\n")?;
    std::fs::set_permissions(folder.join("own-tool"), std::fs::Permissions::from_mode(0o755))?;
    for (cases, is_refused) in [(REFUSED, true), (TOLD, false)] {
        for (words, status, says) in cases {
            let mut command = Command::new(&context.limen);
            command.args(words.split(' ')).current_dir(&folder).env("XDG_RUNTIME_DIR", &folder);
            let output = command.env_remove("NOT_SET_HERE").stdin(Stdio::null()).output()?;
            judge(&output, *status, says, is_refused, &folder)
                .map_err(|why| format!("limen {words}: {why}"))?;
        }
    }
    Ok(())
}

/// Whether it ended so and said so, in words for people.
fn judge(
    output: &Output,
    status: i32,
    says: &[&str],
    is_refused: bool,
    folder: &Path,
) -> Result<(), Error> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let here = folder.display().to_string();
    let all = || format!("{}: {said}", output.status);
    ensure(output.status.code() == Some(status), all)?;
    for part in says {
        let part = part.replace('@', &here);
        ensure(said.contains(&part), || format!("no {part:?} in {}", all()))?;
    }
    ensure(!is_refused || output.stdout.is_empty(), || format!("something ran: {}", all()))?;
    let strange = strange(&said);
    ensure(strange.is_none(), || format!("{:?} is not for people: {}", strange, all()))
}

/// A part of a sentence that is for programs, or for who has read their sources.
fn strange(said: &str) -> Option<String> {
    let parts = ["(os error", "panicked", "qemu: ", "qemu-system-x86_64: ", "Err(", "Some("];
    let part = parts.iter().find(|part| said.contains(**part)).map(|part| (*part).to_owned());
    let is_errno = |word: &&str| {
        word.len() > 3 && word.starts_with('E') && word.bytes().all(|b| b.is_ascii_uppercase())
    };
    let names = || said.split(|c: char| !c.is_ascii_alphanumeric()).find(is_errno);
    // The name of a format, which file(1) says, too.
    part.or_else(|| names().filter(|name| *name != "ELF").map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_errors_are_strange() {
        for text in ["x: ENOENT", "x (os error 2)", "qemu: no", "Err(x)"] {
            assert!(strange(text).is_some(), "{text}");
        }
        assert_eq!(strange("limen: x: No such file or directory (an ELF file)"), None);
    }
}
