//! The dist level: what `limen dist` makes, used where nothing of the sources is.
//!
//! `dist::archive` unpacks the archive into a folder of its own and runs from there. Where the
//! level is named, `dist::clean_tree` makes a Debian system in a folder (debootstrap, as root, in a
//! mount namespace of its own), installs the package there with apt, which gets QEMU, and runs as
//! root and as an ordinary user.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::run::{Test, each, ensure};
use super::{Context, Summary, packages};
use crate::Error;

const TESTS: [(&str, Test); 2] = [("dist::archive", archive), (CLEAN_TREE, clean_tree)];
/// It fetches a few hundred megabytes: only where the level is named.
const CLEAN_TREE: &str = "dist::clean_tree";

/// The test of this name.
pub(super) fn find(name: &str) -> Option<Test> {
    TESTS.iter().find(|(other, _)| *other == name).map(|(_, test)| *test)
}

pub(super) fn names() -> Vec<String> {
    TESTS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let wanted = |name: &str| context.wants(name) && (context.is_named || name != CLEAN_TREE);
    each(context, TESTS.iter().filter(|(name, _)| wanted(name)))
}

/// Makes both files; the one that ends so.
fn made(context: &Context, folder: &Path, end: &str) -> Result<PathBuf, Error> {
    let output = Command::new(&context.limen).args(["dist", "-o"]).arg(folder).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), || stderr)?;
    let entries = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let found = entries.into_iter().find(|path| path.to_string_lossy().ends_with(end));
    found.ok_or_else(|| format!("no file {end} was made").into())
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Wherever it is unpacked: programs run, crashes have names, and the sources are not asked for.
fn archive(context: &Context, folder: &Path) -> Result<(), Error> {
    let archive = made(context, folder, ".tar.gz")?;
    let bytes = flate2::read::GzDecoder::new(std::fs::File::open(&archive)?);
    let place = folder.join("some where");
    tar::Archive::new(bytes).unpack(&place)?;
    let top = std::fs::read_dir(&place)?.flatten().next().ok_or("an empty archive")?.path();
    let program = top.join("bin/limen");
    let run = |words: &[&str]| {
        Command::new(&program)
            .args(words)
            .env_remove("LIMEN_KERNEL")
            .current_dir(folder)
            .stdin(Stdio::null())
            .output()
    };
    let output = run(&["run", "--", "echo", "unpacked"])?;
    ensure(output.stdout == b"unpacked\n", || said(&output))?;
    let words = ["compare", "--with", "pti=off", "--with", "pti=on", "--", "/bin/true"];
    let output = run(&words)?;
    ensure(output.status.success(), || said(&output))?;
    // A panic is told with the names of functions, which the stripped kernel does not have.
    let script = "echo ud2 > /proc/sys/kernel/provoke";
    let output = run(&["run", "--", "sh", "-c", script])?;
    let stripped = std::fs::metadata(top.join("lib/limen/limen-kernel"))?.len();
    let whole = std::fs::metadata(&context.kernel)?.len();
    ensure(stripped * 3 < whole, || format!("the kernel has {stripped} of {whole} bytes"))?;
    let has_provoke = !said(&output).contains("nonexistent") && output.status.code() == Some(125);
    ensure(!has_provoke || said(&output).contains("kernel::"), || said(&output))?;
    let output = run(&["check"])?;
    ensure(said(&output).contains("needs Limen's source tree"), || said(&output))?;
    for file in [
        "share/bash-completion/completions/limen",
        "share/zsh/vendor-completions/_limen",
        "share/fish/vendor_completions.d/limen.fish",
        "share/man/man1/limen.1.gz",
        "share/doc/limen/copyright",
    ] {
        let len = std::fs::metadata(top.join(file)).map_or(0, |meta| meta.len());
        ensure(len > 100, || format!("{file}: {len} bytes"))?;
    }
    Ok(())
}

/// What is done in the clean system.
const SCRIPT: &str = r#"
set -e
apt-get update -q >/dev/null
apt-get install -y -q --no-install-recommends /limen.deb >/dev/null
[ "$(command -v limen)" = /usr/bin/limen ]
[ "$(limen run -- echo of root)" = "of root" ]
limen run --pack -- /bin/ls / >/dev/null
limen compare --with pti=off --with pti=on -- /bin/true
limen run --trace /t.html -- true
grep -q '</html>' /t.html
limen run --detach vm -- sleep 1000 2>/dev/null
[ "$(limen exec vm -- echo inside)" = inside ]
limen stop --time 1s vm 2>/dev/null
useradd -m user
cd /home/user
run() {
    setpriv --reuid user --regid user --clear-groups \
        env -i HOME=/home/user PATH=/usr/bin:/bin "$@"
}
[ "$(run limen run -- sh -c 'id -un; cat' </dev/null)" = user ]
[ "$(echo through | run limen run -- tr a-z A-Z)" = THROUGH ]
run limen pack -o app.cpio -- /bin/echo kept 2>/dev/null
[ "$(run limen run app.cpio)" = kept ]
bash -n /usr/share/bash-completion/completions/limen
grep -q exec /usr/share/bash-completion/completions/limen
zcat /usr/share/man/man1/limen.1.gz | grep -q compare
apt-get remove -y -q limen >/dev/null
[ ! -e /usr/lib/limen ] && [ ! -e /usr/bin/limen ]
echo all done
"#;

fn clean_tree(context: &Context, folder: &Path) -> Result<(), Error> {
    ensure(rustix::process::geteuid().is_root(), || "debootstrap needs root".to_owned())?;
    if !Path::new("/usr/sbin/debootstrap").exists() {
        packages::install(&["debootstrap"])?;
    }
    let package = made(context, folder, ".deb")?;
    let tree = folder.join("tree");
    let release = std::fs::read_to_string("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", suite.unwrap_or("stable")]).arg(&tree);
    let output = command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output()?;
    ensure(output.status.success(), || said(&output))?;
    std::fs::copy(&package, tree.join("limen.deb"))?;
    std::fs::write(tree.join("script"), SCRIPT)?;
    // Mounts of a namespace of its own: nobody else sees them, and they end with it.
    let enter = "mount --bind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && \
                 exec chroot \"$0\" /bin/sh /script";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", enter]).arg(&tree);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    let output = command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).output()?;
    ensure(output.stdout.ends_with(b"all done\n"), || said(&output))
}
