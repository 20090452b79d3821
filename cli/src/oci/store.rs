//! Where an image's bytes are: a folder, or a tar archive that is read in place.
//!
//! Why it is hard: names come from the image itself. A name that leads out of the folder is
//! refused, and a document has a largest size before it is read. Neighbour: `manifest.rs`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use crate::failure::{Doing, Failure};

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
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let meta = std::fs::metadata(path).map_err(Failure::at(Doing::Read, path))?;
        if meta.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let index = index(path).map_err(|failure| failure.within("not a tar archive"))?;
        match index.is_empty() {
            false => Ok(Self::Archive { path: path.to_owned(), files: index }),
            true => Err(Failure::unfit("not a tar archive, or an empty one")),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => is_plain(name) && folder.join(name).is_file(),
            Self::Archive { files, .. } => files.contains_key(name),
        }
    }

    /// A file's bytes as a stream, and how many there are.
    pub(super) fn read(&self, name: &str) -> Result<(Box<dyn Read>, u64), Failure> {
        let missing = || Failure::damaged("not in the image").within(name);
        match self {
            Self::Folder(_) if !is_plain(name) => {
                Err(Failure::refused("this name leads out of the image").within(name))
            }
            Self::Folder(folder) => {
                let path = folder.join(name);
                let file = match File::open(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing()),
                    opened => opened.map_err(Failure::at(Doing::Read, &path))?,
                };
                let len = file.metadata().map_err(Failure::at(Doing::Read, &path))?.len();
                Ok((Box::new(file), len))
            }
            Self::Archive { path, files } => {
                let (start, len) = *files.get(name).ok_or_else(missing)?;
                let mut file = File::open(path).map_err(Failure::at(Doing::Read, path))?;
                let sought = file.seek(SeekFrom::Start(start));
                sought.map_err(Failure::at(Doing::Read, path))?;
                Ok((Box::new(file.take(len)), len))
            }
        }
    }

    /// A whole document.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let (from, len) = self.read(name)?;
        if len > DOCUMENT_MAX {
            let what = format!("{len} bytes, at most {DOCUMENT_MAX} are read");
            return Err(Failure::too_large(what).within(name));
        }
        let mut bytes = Vec::new();
        let read = from.take(DOCUMENT_MAX).read_to_end(&mut bytes);
        read.map_err(|error| Failure::of_archive(error).within(name))?;
        Ok(bytes)
    }
}

/// True if the name stays where it is looked up.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The archive's regular files. `docker save` once wrote equal layers as links to the first.
fn index(path: &Path) -> Result<BTreeMap<String, (u64, u64)>, Failure> {
    let mut files = BTreeMap::new();
    let mut links = Vec::new();
    let mut archive = tar::Archive::new(File::open(path).map_err(Failure::at(Doing::Read, path))?);
    for entry in archive.entries_with_seek().map_err(Failure::of_archive)? {
        let entry = entry.map_err(Failure::of_archive)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let name = name.trim_start_matches("./").to_owned();
        if files.len() + links.len() >= FILES_MAX {
            return Err(Failure::too_large(format!("more than {FILES_MAX} files")));
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
