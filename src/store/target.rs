//! What a path that is to be written leads to.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::StoreError;
use super::atomic::folder;

/// Most symbolic links that are followed, as Linux does.
const MOST_LINKS: usize = 40;

/// What takes the bytes that are written to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file that is replaced, or made where there is none: no symbolic link.
    File(PathBuf),
    /// A pipe, a device or an open descriptor: it is written to and stays what it is.
    Stream,
}

impl Target {
    /// Follows symbolic links, also one that leads to no file yet.
    ///
    /// # Errors
    /// [`StoreError::Folder`]; [`StoreError::Io`] where the path cannot be looked at.
    pub fn of(path: &Path) -> Result<Target, StoreError> {
        let looked = StoreError::io(path, "look at what is there");
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(StoreError::Folder {
                path: path.to_owned(),
            }),
            Ok(found) if !found.is_file() => Ok(Target::Stream),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(looked(error)),
            // A file, or nothing yet.
            _ => follow(path).map_err(looked),
        }
    }

    /// The file's place by its real folder, to tell whether two paths lead to the same file; of a
    /// stream the real path, where it has one.
    pub fn identity(&self, path: &Path) -> Option<PathBuf> {
        match self {
            Target::File(file) => {
                let folder = folder(file).canonicalize().ok()?;
                Some(folder.join(file.file_name()?))
            }
            Target::Stream => path.canonicalize().ok(),
        }
    }
}

fn follow(path: &Path) -> io::Result<Target> {
    let mut file = path.to_owned();
    for _ in 0..MOST_LINKS {
        if !fs::symlink_metadata(&file).is_ok_and(|found| is_link(&found)) {
            return Ok(Target::File(file));
        }
        // Links of descriptors, as /dev/stdout is one: their text is no path.
        let place = folder(&file).canonicalize();
        if place.is_ok_and(|place| place.starts_with("/proc")) {
            return Ok(Target::Stream);
        }
        file = folder(&file).join(fs::read_link(&file)?);
    }
    Err(io::Error::other("more symbolic links than are followed"))
}

fn is_link(found: &Metadata) -> bool {
    found.file_type().is_symlink()
}
