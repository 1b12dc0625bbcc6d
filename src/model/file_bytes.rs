//! The bytes of model files, mapped into memory or part of the binary, and their digests.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::schema::{FileDigest, to_hex};

use super::ModelError;
use super::regular::{open_regular, refuse_pointer};

/// Bytes hashed at a time.
const HASH_CHUNK: usize = 1 << 22;

/// A file whose bytes are at hand without a copy.
pub(crate) struct FileBytes {
    path: String,
    name: String,
    bytes: Arc<Bytes>,
}

enum Bytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Embedded(bytes) => bytes,
        }
    }
}

impl FileBytes {
    /// A file that is part of the binary.
    pub(crate) fn embedded(folder: &str, name: &str, bytes: &'static [u8]) -> Self {
        FileBytes {
            path: format!("{folder}/{name}"),
            name: name.to_owned(),
            bytes: Arc::new(Bytes::Embedded(bytes)),
        }
    }

    /// Maps a file.
    ///
    /// # Errors
    /// When it cannot be opened, is no regular file, is empty or a git-lfs pointer.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let shown = path.display().to_string();
        let (file, length) = open_regular(path)?;
        if length == 0 {
            return Err(ModelError::invalid(
                shown,
                "length",
                "0 bytes",
                "a model file",
            ));
        }
        // SAFETY: the map is read-only and only ever seen as plain bytes, for which every value is
        // valid. A file that another process changes or truncates meanwhile is outside what any
        // reader of a mapped file can detect; model files are not written while a model runs.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| ModelError::io(&shown, e))?;
        refuse_pointer(&shown, &map)?;
        Ok(FileBytes {
            name: file_name(path),
            path: shown,
            bytes: Arc::new(Bytes::Mapped(map)),
        })
    }

    /// Path for messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The whole content.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.all()
    }
}

/// File names and SHA-256 of the contents of some files, each of which a thread of its own hashes: weights
/// are loaded meanwhile, which reads the same bytes.
pub(crate) struct Digests {
    threads: Mutex<Vec<JoinHandle<FileDigest>>>,
    all: OnceLock<Vec<FileDigest>>,
}

impl Digests {
    /// Starts to hash.
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a FileBytes>) -> Self {
        let start = |file: &FileBytes| {
            let (path, bytes) = (file.name.clone(), Arc::clone(&file.bytes));
            std::thread::spawn(move || {
                let sha256 = digest(bytes.all());
                FileDigest { path, sha256 }
            })
        };
        Digests {
            threads: Mutex::new(files.into_iter().map(start).collect()),
            all: OnceLock::new(),
        }
    }

    /// All of them in the order of the files, once they are there.
    pub(crate) fn all(&self) -> &[FileDigest] {
        self.all.get_or_init(|| {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = threads.drain(..).map(|thread| match thread.join() {
                Ok(digest) => digest,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect()
        })
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut hasher = Sha256::new();
    for chunk in bytes.chunks(HASH_CHUNK) {
        hasher.update(chunk);
    }
    to_hex(&hasher.finalize())
}

/// Last part of a path, as digests name files of a model.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
