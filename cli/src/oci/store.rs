//! Where an image's bytes are: a folder, or a tar archive that is read in place.
//!
//! Why it is hard: names come from the image itself. A name that leads out of the folder is
//! refused, and a document has a largest size before it is read. Neighbour: `manifest.rs`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use crate::Error;

/// Largest JSON document of an image.
const DOCUMENT_MAX: u64 = 8 << 20;
/// Most files in an archive: a layer has three in the oldest form, and images have few layers.
const FILES_MAX: usize = 1 << 16;

/// An image's files by name.
#[derive(Debug)]
pub(super) enum Store {
    Folder(PathBuf),
    Archive {
        path: PathBuf,
        /// Where each file's bytes are, and how many.
        files: BTreeMap<String, (u64, u64)>,
    },
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let meta = std::fs::metadata(path)?;
        if meta.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let index = index(path).map_err(|error| format!("not a tar archive: {error}"))?;
        match index.is_empty() {
            false => Ok(Self::Archive { path: path.to_owned(), files: index }),
            true => Err("not a tar archive, or an empty one".into()),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => is_plain(name) && folder.join(name).is_file(),
            Self::Archive { files, .. } => files.contains_key(name),
        }
    }

    /// A file's bytes as a stream, and how many there are.
    pub(super) fn read(&self, name: &str) -> Result<(Box<dyn Read>, u64), Error> {
        let missing = || Error::from(format!("{name}: not in the image"));
        match self {
            Self::Folder(_) if !is_plain(name) => {
                Err(format!("{name}: this name leads out of the image").into())
            }
            Self::Folder(folder) => {
                let file = File::open(folder.join(name)).map_err(|_| missing())?;
                let len = file.metadata()?.len();
                Ok((Box::new(file), len))
            }
            Self::Archive { path, files } => {
                let (start, len) = *files.get(name).ok_or_else(missing)?;
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                Ok((Box::new(file.take(len)), len))
            }
        }
    }

    /// A whole document.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, Error> {
        let (from, len) = self.read(name)?;
        if len > DOCUMENT_MAX {
            return Err(format!("{name}: {len} bytes, at most {DOCUMENT_MAX} are read").into());
        }
        let mut bytes = Vec::new();
        from.take(DOCUMENT_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// True if the name stays where it is looked up.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The archive's regular files. `docker save` once wrote equal layers as links to the first.
fn index(path: &Path) -> Result<BTreeMap<String, (u64, u64)>, Error> {
    let mut files = BTreeMap::new();
    let mut links = Vec::new();
    let mut archive = tar::Archive::new(File::open(path)?);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let name = name.trim_start_matches("./").to_owned();
        if files.len() + links.len() >= FILES_MAX {
            return Err(format!("more than {FILES_MAX} files").into());
        }
        let kind = entry.header().entry_type();
        if kind.is_file() {
            files.insert(name, (entry.raw_file_position(), entry.size()));
        } else if kind.is_symlink() || kind.is_hard_link() {
            let target = entry.link_name_bytes().unwrap_or_default();
            let target = String::from_utf8_lossy(&target).into_owned();
            let folder = Path::new(&name).parent().filter(|_| kind.is_symlink());
            links.push((name.clone(), plain_join(folder.unwrap_or(Path::new("")), &target)));
        }
    }
    for (name, target) in links {
        if let Some(place) = files.get(&target) {
            files.insert(name, *place);
        }
    }
    Ok(files)
}

/// `folder/target` with `..` taken away; only ever looked up among the archive's own names.
fn plain_join(folder: &Path, target: &str) -> String {
    let mut path = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                path.pop();
            }
            _ => {}
        }
    }
    path.to_string_lossy().into_owned()
}
