//! Files of foreign origin: whole, within limits, with their digests.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::schema::{FileDigest, sha256_hex};

use super::ImportError;

/// Largest file that is read, in bytes.
pub(super) const MAX_FILE: u64 = 2 << 30;
/// Longest line of JSON lines, in bytes.
pub(super) const MAX_LINE: usize = 64 << 20;

/// Refuses a file that is given for both arms: native would be compared with itself.
///
/// # Errors
/// [`ImportError::Input`] with the file.
pub fn refuse_shared(native: &[PathBuf], candidate: &[PathBuf]) -> Result<(), ImportError> {
    match native.iter().find(|path| is_among(path, candidate)) {
        None => Ok(()),
        Some(path) => Err(ImportError::input(
            path.display().to_string(),
            "a file of both --native and --candidate",
            "files of its own for each arm",
        )),
    }
}

/// Whether one of `others` is the same file as `path`.
pub(super) fn is_among(path: &Path, others: &[PathBuf]) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let own = real(path);
    own.is_some() && others.iter().any(|other| real(other) == own)
}

/// A file in memory.
pub(super) struct Input {
    /// The file.
    pub path: PathBuf,
    /// The file as it was named.
    pub name: String,
    /// Contents.
    pub bytes: Vec<u8>,
}

impl Input {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ImportError::Io`]; [`ImportError::Input`] for a file above [`MAX_FILE`].
    pub fn read(path: &Path) -> Result<Input, ImportError> {
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(ImportError::io(path))?;
        file.take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(ImportError::io(path))?;
        if bytes.len() as u64 > MAX_FILE {
            let found = format!("more than {MAX_FILE} bytes");
            return Err(ImportError::input(name, found, "a smaller file"));
        }
        Ok(Input {
            path: path.to_owned(),
            name,
            bytes,
        })
    }

    /// Contents without a byte order mark: it is no part of the text.
    pub fn text(&self) -> &[u8] {
        let text = self.bytes.strip_prefix(b"\xef\xbb\xbf");
        text.unwrap_or(&self.bytes)
    }

    /// Name and digest.
    pub fn digest(&self) -> FileDigest {
        FileDigest {
            path: self.name.clone(),
            sha256: sha256_hex(&self.bytes),
        }
    }

    /// Lines that are not blank, with their numbers from 1 as places `file:line`.
    ///
    /// # Errors
    /// [`ImportError::Input`] for a line above [`MAX_LINE`], as an item.
    pub fn lines(&self) -> impl Iterator<Item = Result<(String, &[u8]), ImportError>> {
        let lines = self.text().split(|&byte| byte == b'\n').enumerate();
        lines
            .filter(|(_, line)| !line.trim_ascii().is_empty())
            .map(|(at, line)| {
                let place = format!("{}:{}", self.name, at + 1);
                if line.len() > MAX_LINE {
                    let found = format!("a line of {} bytes", line.len());
                    let expected = format!("at most {MAX_LINE}");
                    return Err(ImportError::input(place, found, expected));
                }
                Ok((place, line))
            })
    }
}
