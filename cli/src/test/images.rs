//! Container images and packed images as a user runs them: part of the run level.
//!
//! The image is made here, of busybox alone, in the OCI layout with one compressed layer. What
//! hostile images are told is in `crate::oci`'s own tests.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Context;
use super::run::{ensure, expect, limen};
use crate::Error;
use crate::pack::files::hex;

/// Writes an image's layout to `dir`: `/bin/busybox`, a user, a folder of that user's.
pub(super) fn make(dir: &Path) -> Result<(), Error> {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let put = |bytes: &[u8], kind: &str| {
        let hash = hex(&Sha256::digest(bytes));
        std::fs::write(blobs.join(&hash), bytes)?;
        Ok::<_, Error>(json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{hash}"), "size": bytes.len() }))
    };
    let layer = layer()?;
    let tar_hash = format!("sha256:{}", hex(&Sha256::digest(&layer)));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &layer)?;
    let layer = put(&gzip.finish()?, "layer.v1.tar+gzip")?;
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Env": ["PATH=/bin", "FROM=image"], "User": "web", "WorkingDir": "/srv",
                    "Entrypoint": ["sh", "-c"], "Cmd": ["id -u; id -g; pwd; echo $FROM $HOME"] },
        "rootfs": { "type": "layers", "diff_ids": [tar_hash] } });
    let config = put(config.to_string().as_bytes(), "config.v1+json")?;
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    let manifest = put(manifest.to_string().as_bytes(), "manifest.v1+json")?;
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    std::fs::write(dir.join("index.json"), index.to_string())?;
    Ok(())
}

fn layer() -> Result<Vec<u8>, Error> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut put = |name: &str, kind: tar::EntryType, mode: u32, owner: u64, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1_000_000_000);
        match kind {
            tar::EntryType::Symlink => {
                header.set_size(0);
                layer.append_link(&mut header, name, String::from_utf8_lossy(bytes).as_ref())
            }
            _ => {
                header.set_size(bytes.len() as u64);
                layer.append_data(&mut header, name, bytes)
            }
        }
    };
    let busybox = std::fs::read("/bin/busybox")?;
    let (folder, file) = (tar::EntryType::Directory, tar::EntryType::Regular);
    put("etc/passwd", file, 0o644, 0, b"root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")?;
    put("usr/bin/busybox", file, 0o755, 0, &busybox)?;
    put("bin", tar::EntryType::Symlink, 0o777, 0, b"usr/bin")?;
    // Its owner's rights, a pipe, and a device of which the image has none.
    put("usr/bin/crontab", file, 0o4755, 0, &busybox)?;
    put("var/spool/cron/crontabs", folder, 0o700, 0, b"")?;
    put("var/spool/cron/crontabs/web", file, 0o600, 0, b"of cron\n")?;
    put("srv/pipe", tar::EntryType::Fifo, 0o600, 33, b"")?;
    put("dev/null", tar::EntryType::Char, 0o666, 0, b"")?;
    for name in ["sh", "id", "pwd", "ls", "cat", "stat", "touch"] {
        put(&format!("bin/{name}"), tar::EntryType::Symlink, 0o777, 0, b"busybox")?;
    }
    put("srv", folder, 0o755, 33, b"")?;
    put("srv/own", file, 0o600, 33, b"of web\n")?;
    put("etc/shadow", file, 0o600, 0, b"of root\n")?;
    Ok(layer.into_inner()?)
}

/// What the image says counts, what was asked for counts more; owners and rights are the image's,
/// whoever runs it; and nothing that is written stays.
pub(super) fn container(context: &Context, folder: &Path) -> Result<(), Error> {
    make(&folder.join("image"))?;
    expect(context, folder, &["--image", "image"], "33\n34\n/srv\nimage /srv\n")?;
    let script = "cat own; cat /etc/shadow 2>/dev/null || echo denied; echo new >own; cat own; \
                  touch /etc/x 2>/dev/null || echo denied; stat -c %U:%Y /srv/own /usr/bin/busybox";
    let wanted = "of web\ndenied\nnew\ndenied\nweb:TIME\nroot:1000000000\n";
    let output = limen(context, folder, &["--image", "image", "--", script]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted: Vec<&str> = wanted.lines().collect();
    let same = |(said, want): (&str, &&str)| said == *want || want.ends_with("TIME");
    let good = said.lines().count() == wanted.len() && said.lines().zip(&wanted).all(same);
    ensure(output.status.success() && good, || format!("{output:?}"))?;
    let options = ["--image", "image", "--user", "0", "--env", "FROM=me", "--cwd", "/", "--"];
    let words = [&options[..], &["id -u; pwd; echo $FROM $HOME; cat srv/own etc/shadow"]].concat();
    expect(context, folder, &words, "0\n/\nme /root\nof web\nof root\n")?;
    // A set-user-ID program has its owner's rights, pipes are pipes, /dev is the VM's own.
    let script = "stat -c %a /usr/bin/crontab; /usr/bin/crontab -l; (echo through >/srv/pipe) & \
                  cat /srv/pipe; echo x >/dev/null && stat -c %F /dev/null";
    let wanted = "4755\nof cron\nthrough\ncharacter special file\n";
    expect(context, folder, &["--image", "image", "--", script], wanted)?;
    let output = limen(context, folder, &["--image", "image:none"]).output()?;
    ensure(output.status.code() == Some(126), || format!("{output:?}"))
}

/// `limen pack` says what it made, warns of scripts, and `limen run` boots the result: of a program
/// and of a container image.
pub(super) fn kept(context: &Context, folder: &Path) -> Result<(), Error> {
    let pack = |words: &[&str]| {
        let mut command = Command::new(&context.limen);
        let command = command.arg("pack").args(words).current_dir(folder).stdin(Stdio::null());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.success(), || format!("{words:?}: {said}"))?;
        Ok::<_, Error>(said)
    };
    let said = pack(&["-o", "a.cpio", "--", "/bin/echo", "packed"])?;
    ensure(said.contains("MiB") && said.contains("limen run a.cpio"), || said.clone())?;
    ensure(said.contains("--missing-files"), || said.clone())?;
    ensure(!said.contains("is a script"), || said.clone())?;
    expect(context, folder, &["a.cpio"], "packed\n")?;
    expect(context, folder, &["a.cpio", "--", "other", "words"], "other words\n")?;
    std::fs::write(folder.join("script"), "#!/bin/sh\necho by \"$0\"\n")?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.join("script"), PermissionsExt::from_mode(0o755))?;
    let said = pack(&["-o", "s.cpio", "--", "./script"])?;
    ensure(said.contains("./script is a script") || said.contains("script is a script"), || said)?;
    make(&folder.join("image"))?;
    pack(&["-o", "i.cpio", "--image", "image"])?;
    expect(context, folder, &["i.cpio"], "33\n34\n/srv\nimage /srv\n")?;
    let words = ["--user", "root", "i.cpio", "stat -c %u:%a:%Y srv/own /srv/own; cat /etc/shadow"];
    let words = [&["--cwd", "/"], &words[..]].concat();
    let text = "33:600:1000000000\n33:600:1000000000\nof root\n";
    expect(context, folder, &words, text)?;
    // An archive that does not say what to run.
    let archive = formats::cpio::Writer::new().finish().map_err(|_| "empty")?;
    std::fs::write(folder.join("none.cpio"), archive)?;
    let output = limen(context, folder, &["none.cpio"]).output()?;
    ensure(output.status.code() == Some(2), || format!("{output:?}"))
}
