//! Whole JSON documents, replaced in one step.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::file::{RunFile, sync_dir, write_synced};

/// Writes `value` as indented JSON to `path`, atomically: after a crash at any moment the file
/// holds the old document or the new one. The bytes depend on `value` alone.
///
/// # Errors
/// [`StoreError::Io`]; [`StoreError::NotFinite`] where `value` would not read back as it is; the
/// file is as before then.
pub fn write_json_atomic<T>(path: &Path, value: &T) -> Result<(), StoreError>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    write_bytes_atomic(path, &document(path, value)?)
}

/// Writes `bytes` to `path`, atomically as [`write_json_atomic`].
pub(super) fn write_bytes_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(path, bytes, |path| {
        Ok(Box::new(File::create(path)?) as Box<dyn RunFile>)
    })
}

/// JSON has no NaN: what does not read back as it was must not be written.
fn document<T>(path: &Path, value: &T) -> Result<Vec<u8>, StoreError>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let mut bytes = serde_json::to_vec_pretty(value).map_err(StoreError::json(path))?;
    let same = serde_json::from_slice::<T>(&bytes).is_ok_and(|back| back == *value);
    if !same {
        return Err(StoreError::NotFinite {
            path: path.to_owned(),
            what: "the document".to_owned(),
        });
    }
    bytes.push(b'\n');
    Ok(bytes)
}

/// Name of the file that holds a document until it is complete.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Writes a temporary file in the same directory, syncs, renames, syncs the directory.
fn replace(
    path: &Path,
    bytes: &[u8],
    open: impl FnOnce(&Path) -> io::Result<Box<dyn RunFile>>,
) -> Result<(), StoreError> {
    let temporary = temporary(path);
    let written = open(&temporary).and_then(|mut file| write_synced(file.as_mut(), bytes));
    if let Err(source) = written {
        // Best effort: a leftover is overwritten by the next write.
        let _ = fs::remove_file(&temporary);
        return Err(StoreError::Io {
            path: path.to_owned(),
            action: "write",
            source,
        });
    }
    fs::rename(&temporary, path).map_err(StoreError::io(path, "rename into place"))?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    sync_dir(dir).map_err(StoreError::io(dir, "sync"))
}

#[cfg(test)]
mod tests {
    use super::super::file::fake::SmallDisk;
    use super::*;
    use crate::schema::{CALIBRATION_SCHEMA, Calibration, LayerAbsmax};

    fn calibration(k: f32) -> Calibration {
        Calibration {
            schema: CALIBRATION_SCHEMA.to_owned(),
            model: "m".to_owned(),
            weights_sha256: "w".to_owned(),
            documents_sha256: "d".to_owned(),
            documents: 1,
            tokens: 2,
            layers: vec![LayerAbsmax { k, v: 0.1 }],
        }
    }

    #[test]
    fn replaces_the_document_and_leaves_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.json");
        for k in [1.5, 0.3] {
            write_json_atomic(&path, &calibration(k)).unwrap();
            let back: Calibration = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(back, calibration(k));
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_nan_is_refused_and_the_old_document_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.json");
        write_json_atomic(&path, &calibration(1.0)).unwrap();
        let before = fs::read(&path).unwrap();
        let error = write_json_atomic(&path, &calibration(f32::NAN)).unwrap_err();
        assert!(matches!(error, StoreError::NotFinite { .. }), "{error}");
        assert!(error.to_string().contains("c.json"));
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_disk_that_fills_at_any_byte_leaves_the_old_document() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.json");
        write_json_atomic(&path, &calibration(1.0)).unwrap();
        let before = fs::read(&path).unwrap();
        let bytes = document(&path, &calibration(2.0)).unwrap();
        for capacity in 0..=bytes.len() {
            let disk = SmallDisk {
                capacity,
                at_once: 7,
                sync_fails: capacity == bytes.len(),
                ..SmallDisk::default()
            };
            let error = replace(&path, &bytes, |_| Ok(Box::new(disk))).unwrap_err();
            assert!(error.is_system(), "{error}");
            assert_eq!(fs::read(&path).unwrap(), before, "capacity {capacity}");
        }
    }

    #[test]
    fn a_missing_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("absent/c.json");
        let error = write_json_atomic(&path, &calibration(1.0)).unwrap_err();
        assert!(error.to_string().contains("absent/c.json"), "{error}");
    }
}
