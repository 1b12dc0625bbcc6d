//! One writer at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::StoreError;

/// The writer's lock, held until it is dropped. The operating system lets go of it when the
/// process dies, so a lock file that a dead process left behind is no obstacle; the file stays
/// and is always empty.
#[derive(Debug)]
pub(super) struct WriterLock {
    file: File,
}

impl WriterLock {
    /// Takes the lock at `path`.
    pub fn acquire(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(StoreError::io(path, "open"))?;
        match file.try_lock() {
            Ok(()) => Ok(WriterLock { file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
                lock: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(StoreError::io(path, "lock")(error)),
        }
    }
}

impl Drop for WriterLock {
    /// Lets go of the lock itself: closing the file would not, as long as a process that is just
    /// being started has inherited it.
    fn drop(&mut self) {
        // Closing follows, which lets go in all other cases.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_a_stale_file_is_no_obstacle() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run.lock");
        std::fs::write(&path, "left behind").unwrap();
        let first = WriterLock::acquire(&path).unwrap();
        let error = WriterLock::acquire(&path).unwrap_err();
        assert!(error.to_string().contains("run.lock"), "{error}");
        assert!(!error.is_system());
        drop(first);
        WriterLock::acquire(&path).unwrap();
    }

    #[test]
    fn an_inherited_handle_does_not_hold_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run.lock");
        let first = WriterLock::acquire(&path).unwrap();
        let inherited = first.file.try_clone().unwrap();
        drop(first);
        WriterLock::acquire(&path).unwrap();
        drop(inherited);
    }
}
