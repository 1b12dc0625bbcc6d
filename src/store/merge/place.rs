//! Where a run that is put together comes to stand.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::run::MANIFEST_FILE;

/// A run that was put together.
#[derive(Debug)]
pub struct Merged {
    path: PathBuf,
    /// Its directory was there before, and empty: it may be the working directory, a link or where
    /// another disk begins, none of which can be replaced.
    stood: bool,
}

impl Merged {
    /// In the new or empty directory `path`.
    pub(super) fn at(path: &Path) -> Self {
        Merged {
            path: path.to_owned(),
            stood: path.is_dir(),
        }
    }

    /// Where the run stands until it is whole, on the same disk.
    pub(super) fn unfinished(&self) -> PathBuf {
        let id = std::process::id();
        if self.stood {
            return self.path.join(format!(".merging-{id}"));
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.merging-{id}"))
    }

    /// Moves the whole run into its place; what makes it a run comes last.
    pub(super) fn take_in(&self, unfinished: &Path) -> io::Result<()> {
        if !self.stood {
            return fs::rename(unfinished, &self.path);
        }
        let names = fs::read_dir(unfinished)?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| name == MANIFEST_FILE);
        for name in names {
            fs::rename(unfinished.join(&name), self.path.join(&name))?;
        }
        fs::remove_dir(unfinished)
    }

    /// Leaves a directory that was there as empty as it was.
    pub(super) fn give_up(self) {
        if self.stood {
            self.discard();
        }
    }

    /// Removes the run, as far as that can be done: the parts hold everything, and a run without
    /// certificates would stand in their way.
    pub fn discard(self) {
        if !self.stood {
            let _ = fs::remove_dir_all(&self.path);
            return;
        }
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
        }
    }
}
