//! A run directory.

mod start;

pub use start::start_path;

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::schema::{
    CALIBRATION_SCHEMA, CERTIFICATE_SCHEMA, Calibration, Certificate, ENGAGEMENT_SCHEMA,
    Engagement, FileDigest, MANIFEST_SCHEMA, Manifest, Record, sha256_hex,
};

use super::StoreError;
use super::atomic::{temporary, write_json_atomic};
use super::document;
use super::file::sync_dir;
use super::lock::WriterLock;
use super::log::RecordLog;
use super::manifest::differences;
use super::record::{parse, whole_lines};
use super::resume::CaseKey;

/// The manifest's file name.
pub const MANIFEST_FILE: &str = "run.json";
/// The calibration's file name.
pub const CALIBRATION_FILE: &str = "calibration.json";
/// The writer's lock: always empty, and left in place.
pub const LOCK_FILE: &str = "run.lock";

/// Most names listed where files are in the way.
const NAMES_SHOWN: usize = 3;

/// A run directory: created, continued, or opened to be read.
///
/// Created and resumed runs hold the writer's lock. A run opened with [`RunDir::open`] takes the
/// lock at its first write and keeps it until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
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
        check_vacant(path)?;
        fs::create_dir_all(path).map_err(StoreError::io(path, "create"))?;
        let lock = WriterLock::acquire(&path.join(LOCK_FILE))?;
        // Another process may have been here between the first look and the lock.
        check_vacant(path)?;
        write_json_atomic(&path.join(MANIFEST_FILE), manifest)?;
        Ok(RunDir::new(path, manifest.clone(), Some(lock)))
    }

    /// Continues the run in `path`, which must have been started with an equal manifest.
    ///
    /// # Errors
    /// [`StoreError::OtherProtocol`], [`StoreError::OtherRun`] with every field that differs; else
    /// as [`RunDir::open`] and [`StoreError::Locked`].
    pub fn resume(path: &Path, manifest: &Manifest) -> Result<Self, StoreError> {
        let run = RunDir::open(path)?;
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
        Ok(run)
    }

    /// Opens the run in `path` to be read.
    ///
    /// # Errors
    /// [`StoreError::NoRun`], [`StoreError::Newer`], [`StoreError::Schema`],
    /// [`StoreError::Json`] or [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = path.join(MANIFEST_FILE);
        match document::read(&file, MANIFEST_SCHEMA)? {
            Some((manifest, _)) => Ok(RunDir::new(path, manifest, None)),
            None => Err(StoreError::NoRun {
                path: path.to_owned(),
            }),
        }
    }

    fn new(path: &Path, manifest: Manifest, lock: Option<WriterLock>) -> Self {
        RunDir {
            path: path.to_owned(),
            manifest,
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
        self.make_dirs(&["arms", arm])?;
        let log = RecordLog::open(&self.path.join(relative), plan)?;
        let dir = self.path.join("arms").join(arm);
        sync_dir(&dir).map_err(StoreError::io(&dir, "sync"))?;
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

    /// An arm's proof of engagement, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn engagement(&self, arm: &str) -> Result<Option<Engagement>, StoreError> {
        check_name(arm)?;
        self.read(&format!("arms/{arm}/engagement.json"), ENGAGEMENT_SCHEMA)
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

    /// Writes the certificate of the recipe `name`.
    ///
    /// # Errors
    /// As [`RunDir::write_engagement`].
    pub fn write_certificate(
        &self,
        name: &str,
        certificate: &Certificate,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        let file = format!("{name}.json");
        self.write(&["certificates"], &file, CERTIFICATE_SCHEMA, certificate)
    }

    /// The certificate of the recipe `name`, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn certificate(&self, name: &str) -> Result<Option<Certificate>, StoreError> {
        check_name(name)?;
        self.read(&format!("certificates/{name}.json"), CERTIFICATE_SCHEMA)
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
        write_json_atomic(&path, value)
    }

    /// Makes `dirs`, each inside the one before, and syncs the directory that holds a new one.
    pub(super) fn make_dirs(&self, dirs: &[&str]) -> Result<PathBuf, StoreError> {
        let mut path = self.path.clone();
        for name in dirs {
            let parent = path.clone();
            path.push(name);
            match fs::create_dir(&path) {
                Ok(()) => sync_dir(&parent).map_err(StoreError::io(&parent, "sync"))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(StoreError::io(&path, "create")(error)),
            }
        }
        Ok(path)
    }

    pub(super) fn lock_for_writing(&self) -> Result<(), StoreError> {
        // The lock is a file handle: nothing a panicking thread could have left half done.
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Some(WriterLock::acquire(&self.path.join(LOCK_FILE))?);
        }
        Ok(())
    }
}

/// Refuses a directory that holds anything but what an interrupted `create` leaves behind.
fn check_vacant(path: &Path) -> Result<(), StoreError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
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

pub(super) fn record_path(arm: &str, panel: &str) -> Result<String, StoreError> {
    check_name(arm)?;
    check_name(panel)?;
    Ok(format!("arms/{arm}/{panel}.jsonl"))
}

fn check_name(name: &str) -> Result<(), StoreError> {
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
