//! A disk that fails at chosen calls, and counts them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::file::{Disk, RunFile, SystemDisk};

/// What a failing call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: the disk is full.
    Full,
    /// Nothing: the disk became read-only.
    ReadOnly,
    /// Nothing: an I/O error.
    Broken,
    /// A write stops half-way and any other call does its work, then an I/O error.
    Torn,
    /// A write stops half-way and says so; nothing else is amiss. No failure.
    Short,
}

impl Kind {
    /// Every kind that fails.
    pub const FAILURES: [Kind; 4] = [Kind::Full, Kind::ReadOnly, Kind::Broken, Kind::Torn];

    fn error(self) -> io::Error {
        // ENOSPC, EROFS and EIO as Linux numbers them.
        io::Error::from_raw_os_error(match self {
            Kind::Full => 28,
            Kind::ReadOnly => 30,
            Kind::Broken | Kind::Torn | Kind::Short => 5,
        })
    }
}

/// Which calls fail, counted from 0.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    first: usize,
    last: usize,
    kind: Kind,
}

impl Fault {
    /// One call.
    pub fn once(call: usize, kind: Kind) -> Self {
        Fault {
            first: call,
            last: call,
            kind,
        }
    }

    /// This call and every later one.
    pub fn from(call: usize, kind: Kind) -> Self {
        Fault {
            last: usize::MAX,
            ..Fault::once(call, kind)
        }
    }

    /// No call.
    pub fn never() -> Self {
        Fault::once(usize::MAX, Kind::Broken)
    }
}

/// The system's disk behind a fault. Nothing is synced: tests survive no power cut.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    fault: Fault,
    calls: Arc<AtomicUsize>,
}

impl FaultyDisk {
    /// A disk with this fault.
    pub fn new(fault: Fault) -> Self {
        FaultyDisk {
            fault,
            calls: Arc::default(),
        }
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Counts a call; what it does instead of its work, if anything.
    fn turn(&self) -> Option<Kind> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let fails = (self.fault.first..=self.fault.last).contains(&call);
        fails.then_some(self.fault.kind)
    }

    fn call<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.turn() {
            None | Some(Kind::Short) => work(),
            Some(Kind::Torn) => {
                let _ = work();
                Err(Kind::Torn.error())
            }
            Some(kind) => Err(kind.error()),
        }
    }

    fn file(&self, inner: Box<dyn RunFile>) -> Box<dyn RunFile> {
        Box::new(FaultyFile {
            disk: self.clone(),
            inner,
        })
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        self.call(|| SystemDisk.create(path))
            .map(|file| self.file(file))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        self.call(|| SystemDisk.append(path))
            .map(|file| self.file(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn RunFile>> {
        self.call(|| SystemDisk.open(path))
            .map(|file| self.file(file))
    }

    fn cut(&self, path: &Path, length: u64) -> io::Result<()> {
        self.call(|| SystemDisk.cut(path, length))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|| SystemDisk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|| SystemDisk.remove(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.call(|| SystemDisk.create_dir(path))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.call(|| Ok(()))
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    inner: Box<dyn RunFile>,
}

impl RunFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // At least one byte, which a write has to take.
        let half = &bytes[..bytes.len().div_ceil(2)];
        match self.disk.turn() {
            None => self.inner.write(bytes),
            Some(Kind::Short) => self.inner.write(half),
            Some(Kind::Torn) => self.inner.write(half).and(Err(Kind::Torn.error())),
            Some(kind) => Err(kind.error()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.call(|| Ok(()))
    }
}
