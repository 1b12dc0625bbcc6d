//! Whole JSON documents, replaced in one step.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::file::{Disk, SystemDisk, write_synced, write_whole};
use super::target::Target;

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
    write_atomic(path, &document(path, value)?)
}

/// Writes `bytes` to `path`, atomically, as [`write_json_atomic`] does. A symbolic link stays, and
/// what it leads to is replaced; pipes and devices are written to.
///
/// # Errors
/// [`StoreError::Folder`]; [`StoreError::Io`]; the file is as before then.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace_by(&SystemDisk, path, own_temporary, bytes)
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

/// Name of the file that holds a document of a run until it is complete: as only one process at a time
/// writes to a run, the next one finds what a crash left behind and overwrites it.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// The same beside any file, to which several processes may write at a time: no other's, and no longer
/// where the file has the longest name that there is.
fn own_temporary(path: &Path) -> PathBuf {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".kvassay-{}-{number}.tmp", std::process::id()))
}

/// The folder that holds `path`.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Replaces a file of a run.
pub(super) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace_by(disk, path, temporary, bytes)
}

/// Replaces the file that `path` leads to; what is there and no file is written to.
fn replace_by(
    disk: &dyn Disk,
    path: &Path,
    temporary: fn(&Path) -> PathBuf,
    bytes: &[u8],
) -> Result<(), StoreError> {
    match Target::of(path)? {
        Target::File(file) => replace_file(disk, &file, &temporary(&file), bytes),
        // Nothing to sync: what a pipe or a terminal takes is gone.
        Target::Stream => disk
            .open(path)
            .and_then(|mut stream| write_whole(stream.as_mut(), bytes))
            .map_err(StoreError::io(path, "write")),
    }
}

/// Writes a temporary file in the same directory, syncs, renames, syncs the directory.
fn replace_file(
    disk: &dyn Disk,
    path: &Path,
    temporary: &Path,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let written = disk
        .create(temporary)
        .and_then(|mut file| write_synced(file.as_mut(), bytes));
    if let Err(source) = written {
        // Best effort.
        let _ = disk.remove(temporary);
        return Err(StoreError::io(path, "write")(source));
    }
    if let Err(error) = disk.rename(temporary, path) {
        let _ = disk.remove(temporary);
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

    /// Two that write to one file at a time each replace it by a whole one, whatever the length of its name.
    #[test]
    fn writers_of_one_file_do_not_meet() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("n".repeat(255));
        let texts = ["a", "b", "c", "d"].map(|text| text.repeat(100_000));
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| {
                    for _ in 0..20 {
                        write_atomic(&path, text.as_bytes()).unwrap();
                    }
                });
            }
        });
        assert!(texts.contains(&fs::read_to_string(&path).unwrap()));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
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
        assert!(!error.is_system());
        assert!(
            error
                .to_string()
                .ends_with("c.json: found a folder, expected a file or none"),
            "{error}"
        );
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_what_they_lead_to_is_replaced_in_its_own_folder() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("far")).unwrap();
        symlink("far/file", at("link")).unwrap();
        symlink(at("link"), at("far/again")).unwrap();
        // Where the links lead nowhere, where they lead to a file, and through two of them.
        for (name, text) in [("link", "one"), ("link", "two"), ("far/again", "three")] {
            let before = fs::metadata(at("far/file")).ok().map(|found| found.ino());
            let reader = fs::File::open(at("far/file")).ok();
            write_atomic(&at(name), text.as_bytes()).unwrap();
            assert_eq!(fs::read(at("far/file")).unwrap(), text.as_bytes());
            let after = fs::metadata(at("far/file")).unwrap().ino();
            assert_ne!(before, Some(after), "replaced, not written over");
            drop(reader);
            assert!(at("link").is_symlink() && at("far/again").is_symlink());
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
        assert_eq!(fs::read_dir(at("far")).unwrap().count(), 2);
        symlink("far", at("folder")).unwrap();
        let error = write_atomic(&at("folder"), b"text").unwrap_err();
        assert!(matches!(error, StoreError::Folder { .. }), "{error}");
        symlink("round", at("round")).unwrap();
        let error = write_atomic(&at("round"), b"text").unwrap_err();
        assert!(error.to_string().contains("round: cannot "), "{error}");
        assert!(at("round").is_symlink());
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_stays() {
        use std::io::Read;
        use std::os::unix::fs::FileTypeExt;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // Both ends: no call waits for the other one.
        let both = fs::OpenOptions::new().read(true).write(true).open(&path);
        let mut both = both.unwrap();
        write_atomic(&path, b"text").unwrap();
        let mut found = [0; 4];
        both.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"text");
        assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
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
