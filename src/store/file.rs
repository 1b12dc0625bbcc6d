//! The narrow seam to whatever a run directory writes to, so that a disk that fails can stand in
//! for a good one. Every call that changes what is on the disk goes through it; reading does not.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Changes files and folders. Every method returns what the operating system says.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Opens a file to be written from its beginning; what it held is gone.
    fn create(&self, path: &Path) -> io::Result<Box<dyn RunFile>>;

    /// Opens or creates a file to be written at its end.
    fn append(&self, path: &Path) -> io::Result<Box<dyn RunFile>>;

    /// Opens what is there, a pipe or a device, to be written to.
    fn open(&self, path: &Path) -> io::Result<Box<dyn RunFile>>;

    /// Cuts a file to `length` bytes and returns when the cut is on the disk.
    fn cut(&self, path: &Path, length: u64) -> io::Result<()>;

    /// Gives a file another name and replaces what has that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder in an existing one.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder survive a power cut.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// The operating system's file systems.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemDisk;

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        // A descriptor under /proc may stand for a file with text in it: that stays.
        let appends = fs::metadata(path)?.is_file();
        let file = OpenOptions::new().write(true).append(appends).open(path)?;
        Ok(Box::new(file))
    }

    fn cut(&self, path: &Path, length: u64) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(path)?;
        file.set_len(length)?;
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

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
pub(super) fn write_synced(file: &mut dyn RunFile, bytes: &[u8]) -> io::Result<()> {
    write_whole(file, bytes)?;
    file.sync()
}

/// Writes all of `bytes`.
pub(super) fn write_whole(file: &mut dyn RunFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
