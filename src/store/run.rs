//! A run directory.

mod attempts;
mod resources;
mod start;

pub use attempts::AttemptLog;
pub use resources::resources_path;
pub use start::start_path;

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::schema::{
    CALIBRATION_SCHEMA, Calibration, ENGAGEMENT_SCHEMA, Engagement, FileDigest, MANIFEST_SCHEMA,
    Manifest, Record, sha256_hex,
};

use super::StoreError;
use super::atomic;
use super::document;
use super::file::{Disk, SystemDisk};
use super::lock::WriterLock;
use super::log::RecordLog;
use super::manifest::differences;
use super::record::{parse, whole_lines};
use super::resume::CaseKey;

mod folders;
mod repair;

pub(super) use folders::check_vacant;
use folders::{make_dir, make_dir_all};

/// The manifest's file name.
pub const MANIFEST_FILE: &str = "run.json";
/// The calibration's file name.
pub const CALIBRATION_FILE: &str = "calibration.json";
/// The writer's lock: always empty, and left in place.
pub const LOCK_FILE: &str = "run.lock";

/// Folder of the materialised panels.
pub const PANELS_DIR: &str = "panels";

/// A run directory: created, continued, or opened to be read.
///
/// Created and resumed runs hold the writer's lock. A run opened with [`RunDir::open`] takes the
/// lock at its first write and keeps it until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
    disk: Arc<dyn Disk>,
    lock: Mutex<Option<WriterLock>>,
}

/// The records of one arm on one panel as they are stored, and the file that holds them.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecords {
    /// Records in file order; a torn last line is left out.
    pub records: Vec<Record>,
    /// The file as it was read.
    pub file: FileDigest,
}

impl RunDir {
    /// Starts a run in a new or empty directory: `run.json` is on the disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::HoldsRun`], [`StoreError::ForeignFiles`], [`StoreError::Locked`] or
    /// [`StoreError::Io`].
    pub fn create(path: &Path, manifest: &Manifest) -> Result<Self, StoreError> {
        RunDir::create_on(Arc::new(SystemDisk), path, manifest)
    }

    /// As [`RunDir::create`], on `disk`.
    pub(crate) fn create_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        manifest: &Manifest,
    ) -> Result<Self, StoreError> {
        check_vacant(path)?;
        make_dir_all(disk.as_ref(), path)?;
        let lock = WriterLock::acquire(&path.join(LOCK_FILE))?;
        // Another process may have been here between the first look and the lock.
        check_vacant(path)?;
        let file = path.join(MANIFEST_FILE);
        atomic::replace(disk.as_ref(), &file, &atomic::document(&file, manifest)?)?;
        Ok(RunDir::new(disk, path, manifest.clone(), Some(lock)))
    }

    /// Continues the run in `path`, which must have been started with an equal manifest.
    ///
    /// # Errors
    /// [`StoreError::OtherProtocol`], [`StoreError::OtherRun`] with every field that differs; else
    /// as [`RunDir::open`] and [`StoreError::Locked`].
    pub fn resume(path: &Path, manifest: &Manifest) -> Result<Self, StoreError> {
        RunDir::resume_on(Arc::new(SystemDisk), path, manifest)
    }

    /// As [`RunDir::resume`], on `disk`.
    pub(crate) fn resume_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        manifest: &Manifest,
    ) -> Result<Self, StoreError> {
        let run = RunDir::open_on(disk, path)?;
        let of = |manifest: &Manifest| {
            format!("{} {}", manifest.protocol.name, manifest.protocol_sha256)
        };
        if run.manifest.protocol_sha256 != manifest.protocol_sha256 {
            return Err(StoreError::OtherProtocol {
                path: path.join(MANIFEST_FILE),
                found: of(&run.manifest),
                expected: of(manifest),
            });
        }
        let differences = differences(&run.manifest, manifest);
        if !differences.is_empty() {
            return Err(StoreError::OtherRun {
                path: path.join(MANIFEST_FILE),
                differences,
            });
        }
        run.lock_for_writing()?;
        run.repair()?;
        Ok(run)
    }

    /// Opens the run in `path` to be read.
    ///
    /// # Errors
    /// [`StoreError::NoRun`], [`StoreError::Newer`], [`StoreError::Schema`],
    /// [`StoreError::Json`] or [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        RunDir::open_on(Arc::new(SystemDisk), path)
    }

    fn open_on(disk: Arc<dyn Disk>, path: &Path) -> Result<Self, StoreError> {
        let file = path.join(MANIFEST_FILE);
        match document::read(&file, MANIFEST_SCHEMA)? {
            Some((manifest, _)) => Ok(RunDir::new(disk, path, manifest, None)),
            None => Err(StoreError::NoRun {
                path: path.to_owned(),
            }),
        }
    }

    fn new(disk: Arc<dyn Disk>, path: &Path, manifest: Manifest, lock: Option<WriterLock>) -> Self {
        RunDir {
            path: path.to_owned(),
            manifest,
            disk,
            lock: Mutex::new(lock),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Opens the records of one arm on one panel for appending; drops a torn last line.
    ///
    /// # Errors
    /// [`StoreError::Record`] and [`StoreError::Plan`] name the line that is no final record, or
    /// not the one that `plan` has there; [`StoreError::Locked`], [`StoreError::Io`].
    pub fn record_log(
        &self,
        arm: &str,
        panel: &str,
        plan: &[CaseKey],
    ) -> Result<RecordLog, StoreError> {
        self.lock_for_writing()?;
        let relative = record_path(arm, panel)?;
        let dir = self.make_dirs(&["arms", arm])?;
        let disk = self.disk.as_ref();
        let log = RecordLog::open(disk, &self.path.join(relative), plan)?;
        disk.sync_dir(&dir).map_err(StoreError::io(&dir, "sync"))?;
        Ok(log)
    }

    /// The records of one arm on one panel; none where there is no file.
    ///
    /// # Errors
    /// [`StoreError::Record`], naming the line; [`StoreError::Io`].
    pub fn records(&self, arm: &str, panel: &str) -> Result<Vec<Record>, StoreError> {
        let stored = self.stored_records(arm, panel)?;
        Ok(stored.map_or_else(Vec::new, |stored| stored.records))
    }

    /// The records of one arm on one panel with the digest of their file; `None` where there is
    /// no file. Doubled or unplanned records are returned as they are.
    ///
    /// # Errors
    /// As [`RunDir::records`].
    pub fn stored_records(
        &self,
        arm: &str,
        panel: &str,
    ) -> Result<Option<StoredRecords>, StoreError> {
        let relative = record_path(arm, panel)?;
        let path = self.path.join(&relative);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io(&path, "read")(error)),
        };
        Ok(Some(StoredRecords {
            records: parse(&path, &bytes[..whole_lines(&bytes)])?,
            file: FileDigest {
                path: relative,
                sha256: sha256_hex(&bytes),
            },
        }))
    }

    /// Writes an arm's proof of engagement.
    ///
    /// # Errors
    /// As [`write_json_atomic`]; [`StoreError::Newer`], [`StoreError::Locked`].
    pub fn write_engagement(&self, arm: &str, engagement: &Engagement) -> Result<(), StoreError> {
        check_name(arm)?;
        self.write(
            &["arms", arm],
            "engagement.json",
            ENGAGEMENT_SCHEMA,
            engagement,
        )
    }

    /// Writes the materialised panel `name`, atomically.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Name`], [`StoreError::Locked`].
    pub fn write_panel(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_name(name)?;
        self.write_bytes(&[PANELS_DIR], &format!("{name}.jsonl"), bytes)
    }

    /// Writes a file of the run, atomically: what a crash leaves behind, the next write replaces.
    pub(super) fn write_bytes(
        &self,
        dirs: &[&str],
        file: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.lock_for_writing()?;
        let path = self.make_dirs(dirs)?.join(file);
        atomic::replace(self.disk.as_ref(), &path, bytes)
    }

    /// An arm's proof of engagement, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn engagement(&self, arm: &str) -> Result<Option<Engagement>, StoreError> {
        check_name(arm)?;
        self.read(&engagement_path(arm), ENGAGEMENT_SCHEMA)
    }

    /// Writes the calibration.
    ///
    /// # Errors
    /// As [`RunDir::write_engagement`].
    pub fn write_calibration(&self, calibration: &Calibration) -> Result<(), StoreError> {
        self.write(&[], CALIBRATION_FILE, CALIBRATION_SCHEMA, calibration)
    }

    /// The calibration, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn calibration(&self) -> Result<Option<Calibration>, StoreError> {
        self.read(CALIBRATION_FILE, CALIBRATION_SCHEMA)
    }

    /// The digest of a file of the run, named by its path below the run directory.
    ///
    /// # Errors
    /// [`StoreError::Name`] for a path that leads elsewhere; [`StoreError::Io`].
    pub fn file_digest(&self, relative: &str) -> Result<FileDigest, StoreError> {
        Ok(self.file_bytes(relative)?.1)
    }

    /// The bytes of a file of the run and their digest.
    ///
    /// # Errors
    /// As [`RunDir::file_digest`].
    pub fn file_bytes(&self, relative: &str) -> Result<(Vec<u8>, FileDigest), StoreError> {
        let parts = Path::new(relative).components();
        if relative.is_empty()
            || !parts
                .into_iter()
                .all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(name_error(relative));
        }
        let path = self.path.join(relative);
        let bytes = fs::read(&path).map_err(StoreError::io(&path, "read"))?;
        let digest = FileDigest {
            path: relative.to_owned(),
            sha256: sha256_hex(&bytes),
        };
        Ok((bytes, digest))
    }

    pub(super) fn read<T: DeserializeOwned>(
        &self,
        relative: &str,
        schema: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let found = document::read(&self.path.join(relative), schema)?;
        Ok(found.map(|(value, _)| value))
    }

    pub(super) fn write<T>(
        &self,
        dirs: &[&str],
        file: &str,
        schema: &'static str,
        value: &T,
    ) -> Result<(), StoreError>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        self.lock_for_writing()?;
        let path = self.make_dirs(dirs)?.join(file);
        document::check_overwrite(&path, schema)?;
        let bytes = atomic::document(&path, value)?;
        atomic::replace(self.disk.as_ref(), &path, &bytes)
    }

    /// Makes `dirs`, each inside the one before.
    pub(super) fn make_dirs(&self, dirs: &[&str]) -> Result<PathBuf, StoreError> {
        let mut path = self.path.clone();
        for name in dirs {
            path.push(name);
            make_dir(self.disk.as_ref(), &path)?;
        }
        Ok(path)
    }

    /// Has the run to itself from now on, as whatever writes to it does first.
    ///
    /// # Errors
    /// [`StoreError::Locked`] where another process has it; [`StoreError::Io`].
    pub fn lock_for_writing(&self) -> Result<(), StoreError> {
        // The lock is a file handle: nothing a panicking thread could have left half done.
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Some(WriterLock::acquire(&self.path.join(LOCK_FILE))?);
        }
        Ok(())
    }
}

pub(super) fn record_path(arm: &str, panel: &str) -> Result<String, StoreError> {
    check_name(arm)?;
    check_name(panel)?;
    Ok(format!("arms/{arm}/{panel}.jsonl"))
}

/// An arm's proof of engagement, by its path in the run directory.
pub fn engagement_path(arm: &str) -> String {
    format!("arms/{arm}/engagement.json")
}

pub(super) fn check_name(name: &str) -> Result<(), StoreError> {
    let bad = name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']);
    if bad { Err(name_error(name)) } else { Ok(()) }
}

fn name_error(name: &str) -> StoreError {
    StoreError::Name {
        found: name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
