//! Folders of a run: made, and looked at before a run starts in one.

use std::fs;
use std::io;
use std::path::Path;

use super::super::StoreError;
use super::super::atomic::{folder, temporary};
use super::super::file::Disk;
use super::{LOCK_FILE, MANIFEST_FILE, RunDir};

/// Most names listed where files are in the way.
const NAMES_SHOWN: usize = 3;

/// Makes a directory and syncs the one that holds it; nothing where it is there already.
pub(super) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    let parent = folder(path);
    match disk.create_dir(path) {
        Ok(()) => disk
            .sync_dir(parent)
            .map_err(StoreError::io(parent, "sync")),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::io(path, "create")(error)),
    }
}

/// Makes a directory and those above it that are missing.
pub(super) fn make_dir_all(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    missing
        .into_iter()
        .rev()
        .try_for_each(|dir| make_dir(disk, dir))
}

/// Refuses a directory that holds anything but what an interrupted `create` leaves behind.
pub(in crate::store) fn check_vacant(path: &Path) -> Result<(), StoreError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(StoreError::ForeignFiles {
                path: path.to_owned(),
                found: "a file".to_owned(),
            });
        }
        Err(error) => return Err(StoreError::io(path, "list")(error)),
    };
    let unfinished = temporary(Path::new(MANIFEST_FILE));
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(StoreError::io(path, "list"))?.file_name();
        if name != *LOCK_FILE && name != *unfinished.as_os_str() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    if names.iter().any(|name| name == MANIFEST_FILE) {
        return Err(holds_run(path));
    }
    if names.is_empty() {
        return Ok(());
    }
    let more = if names.len() > NAMES_SHOWN {
        ", …"
    } else {
        ""
    };
    names.truncate(NAMES_SHOWN);
    Err(StoreError::ForeignFiles {
        path: path.to_owned(),
        found: names.join(", ") + more,
    })
}

fn holds_run(path: &Path) -> StoreError {
    match RunDir::open(path) {
        Ok(run) => StoreError::HoldsRun {
            path: path.join(MANIFEST_FILE),
            protocol: run.manifest.protocol.name,
            model: run.manifest.model.name,
        },
        Err(error) => error,
    }
}
