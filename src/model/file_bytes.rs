//! The bytes of model files, mapped into memory or part of the binary, and their digests.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

/// File names and SHA-256 of the contents of some files, which threads of their own hash: weights are
/// loaded meanwhile, which reads the same bytes. Dropped, it hashes no further.
pub(crate) struct Digests {
    hashing: Arc<Hashing>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    all: OnceLock<Vec<FileDigest>>,
}

/// What threads that hash share.
struct Hashing {
    files: Vec<(String, Arc<Bytes>)>,
    /// The first file that no thread has taken.
    next: AtomicUsize,
    /// By file.
    found: Vec<OnceLock<String>>,
    is_unwanted: AtomicBool,
}

impl Hashing {
    /// Hashes files that no thread has taken, one after another.
    fn run(&self) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(sha256) = self.files.get(at).and_then(|file| self.digest(&file.1)) else {
                return;
            };
            // Nobody else sets it.
            let _ = self.found[at].set(sha256);
        }
    }

    /// `None` where nobody wants it any more.
    fn digest(&self, bytes: &Bytes) -> Option<String> {
        let mut hasher = Sha256::new();
        for chunk in bytes.all().chunks(HASH_CHUNK) {
            if self.is_unwanted.load(Ordering::Relaxed) {
                return None;
            }
            hasher.update(chunk);
        }
        Some(to_hex(&hasher.finalize()))
    }
}

impl Digests {
    /// Starts to hash.
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a FileBytes>) -> Self {
        let files = files.into_iter();
        let files: Vec<_> = files
            .map(|file| (file.name.clone(), Arc::clone(&file.bytes)))
            .collect();
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = files.len().min(cores);
        let hashing = Arc::new(Hashing {
            found: files.iter().map(|_| OnceLock::new()).collect(),
            files,
            next: AtomicUsize::new(0),
            is_unwanted: AtomicBool::new(false),
        });
        let start = |_| {
            let own = Arc::clone(&hashing);
            let thread = std::thread::Builder::new().name("hashing".to_owned());
            // Whoever asks for digests hashes what no thread does.
            thread.spawn(move || own.run()).ok()
        };
        let threads = (0..count).filter_map(start).collect();
        Digests {
            hashing,
            threads: Mutex::new(threads),
            all: OnceLock::new(),
        }
    }

    /// All of them in the order of the files, once they are there.
    pub(crate) fn all(&self) -> &[FileDigest] {
        self.all.get_or_init(|| {
            self.hashing.run();
            self.join();
            let files = self.hashing.files.iter().zip(&self.hashing.found);
            let digests = files.map(|((name, _), sha256)| FileDigest {
                path: name.clone(),
                sha256: sha256
                    .get()
                    .cloned()
                    .expect("every file was taken and hashed"),
            });
            digests.collect()
        })
    }

    fn join(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Digests {
    /// A file may be written as soon as nobody has it open.
    fn drop(&mut self) {
        self.hashing.is_unwanted.store(true, Ordering::Relaxed);
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It only hashed.
            let _ = thread.join();
        }
    }
}

/// Last part of a path, as digests name files of a model.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::schema::sha256_hex;

    #[test]
    fn every_file_is_hashed_in_order_whatever_their_number() {
        let folder = tempfile::tempdir().unwrap();
        let content = |number: usize| vec![number as u8; 1 + number * 977];
        let files: Vec<FileBytes> = (0..67)
            .map(|number| {
                let path = folder.path().join(format!("{number}.bin"));
                fs::write(&path, content(number)).unwrap();
                FileBytes::open(&path).unwrap()
            })
            .collect();
        let digests = Digests::of(&files);
        let expected: Vec<FileDigest> = (0..67)
            .map(|number| FileDigest {
                path: format!("{number}.bin"),
                sha256: sha256_hex(&content(number)),
            })
            .collect();
        assert_eq!(digests.all(), expected);
        assert_eq!(digests.all(), expected);
    }

    #[test]
    fn what_is_dropped_is_read_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        // A hole: it takes no room, and seconds to hash.
        fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
        let file = FileBytes::open(&path).unwrap();
        let hashing = {
            let digests = Digests::of([&file]);
            Arc::clone(&digests.hashing)
        };
        assert_eq!(Arc::strong_count(&hashing), 1, "threads have ended");
        assert_eq!(hashing.found[0].get(), None, "before they were done");
        drop(hashing);
        assert_eq!(
            Arc::strong_count(&file.bytes),
            1,
            "nobody else maps the file"
        );
    }
}
