//! The narrow seam to files that are written, so that a full disk can stand in for a good one.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A file being written at its end.
pub trait RunFile: Send {
    /// Writes a part of `bytes`, at least one, and returns how many.
    ///
    /// # Errors
    /// What the operating system says, e.g. that the disk is full.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns when everything written is on the disk.
    ///
    /// # Errors
    /// What the operating system says; the file's end is then unknown.
    fn sync(&mut self) -> io::Result<()>;
}

impl RunFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Writes all of `bytes`, however short the single writes are, and syncs.
pub(super) fn write_synced(file: &mut dyn RunFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    file.sync()
}

/// Makes new names in `dir` survive a power cut.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
pub(super) mod fake {
    //! A file on a disk that takes so many bytes, so many at a time.

    use std::io;
    use std::sync::{Arc, Mutex};

    use super::RunFile;

    /// See the module documentation.
    #[derive(Clone, Debug, Default)]
    pub struct SmallDisk {
        /// What reached the disk.
        pub bytes: Arc<Mutex<Vec<u8>>>,
        /// Bytes that the disk takes in all.
        pub capacity: usize,
        /// Most bytes per write.
        pub at_once: usize,
        /// Whether syncing fails.
        pub sync_fails: bool,
        /// Whether every second call is interrupted by a signal.
        pub signals: bool,
        /// Calls so far.
        pub calls: usize,
    }

    impl RunFile for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.signals && self.calls % 2 == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut disk = self.bytes.lock().unwrap();
            let room = (self.capacity - disk.len()).min(self.at_once);
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = room.min(bytes.len());
            disk.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn sync(&mut self) -> io::Result<()> {
            if self.sync_fails {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        }
    }
}
