//! Whole JSON documents, replaced in one step.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::file::{Disk, SystemDisk, write_synced};

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
    replace(&SystemDisk, path, &document(path, value)?)
}

/// Writes `bytes` to `path`, atomically, as [`write_json_atomic`] does.
///
/// # Errors
/// [`StoreError::Io`]; the file is as before then.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(&SystemDisk, path, bytes)
}

/// The bytes of a document. JSON has no NaN: what does not read back as it was must not be written.
pub(super) fn document<T>(path: &Path, value: &T) -> Result<Vec<u8>, StoreError>
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

/// The folder that holds `path`.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Writes a temporary file in the same directory, syncs, renames, syncs the directory.
pub(super) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = temporary(path);
    let written = disk
        .create(&temporary)
        .and_then(|mut file| write_synced(file.as_mut(), bytes));
    if let Err(source) = written {
        // Best effort: a leftover is overwritten by the next write.
        let _ = disk.remove(&temporary);
        return Err(StoreError::io(path, "write")(source));
    }
    if let Err(error) = disk.rename(&temporary, path) {
        let _ = disk.remove(&temporary);
        return Err(StoreError::io(path, "rename into place")(error));
    }
    let dir = folder(path);
    disk.sync_dir(dir).map_err(StoreError::io(dir, "sync"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::faulty::{Fault, FaultyDisk, Kind};
    use super::*;
    use crate::schema::{CALIBRATION_SCHEMA, Calibration, CalibrationSource, LayerAbsmax};

    fn calibration(k: f32) -> Calibration {
        Calibration {
            schema: CALIBRATION_SCHEMA.to_owned(),
            model: "m".to_owned(),
            weights_sha256: "w".to_owned(),
            documents_sha256: "d".to_owned(),
            documents: 1,
            tokens: 2,
            source: CalibrationSource::Measured,
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
    fn a_disk_that_fails_at_any_call_leaves_the_old_document_or_the_new_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.json");
        let documents = [1.0, 2.0].map(|k| document(&path, &calibration(k)).unwrap());
        for kind in Kind::FAILURES {
            // Create, write, sync, rename, sync the folder.
            for call in 0..5 {
                fs::write(&path, &documents[0]).unwrap();
                let disk = FaultyDisk::new(Fault::once(call, kind));
                let error = replace(&disk, &path, &documents[1]).unwrap_err();
                assert!(error.is_system(), "{error}");
                let found = fs::read(&path).unwrap();
                assert!(documents.contains(&found), "{kind:?} at call {call}");
                assert!(
                    call >= 3 || found == documents[0],
                    "{kind:?} at call {call}"
                );
            }
        }
    }

    #[test]
    fn a_folder_in_the_way_is_named_and_nothing_is_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.json");
        fs::create_dir(&path).unwrap();
        let error = write_atomic(&path, b"text").unwrap_err();
        assert!(
            error.to_string().contains("c.json: cannot rename"),
            "{error}"
        );
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("absent/c.json");
        let error = write_json_atomic(&path, &calibration(1.0)).unwrap_err();
        assert!(error.to_string().contains("absent/c.json"), "{error}");
    }
}
