//! Where source data lie, and whether they are the known files.

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::demo;
use super::error::PanelError;
use super::task::{Source, SourceFormat, Task};
use crate::schema::{FileDigest, sha256_hex, to_hex};

/// The folder that holds `gsm8k/` and `wikipedia/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

/// The source files of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Files in the order in which they are read.
    pub files: Vec<SourceFile>,
    /// How they are read.
    pub format: SourceFormat,
}

/// One source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// Path relative to the data folder with `/` separators, and SHA-256.
    pub digest: FileDigest,
    /// The task names this digest. Otherwise the file is unpinned.
    pub pinned: bool,
    /// Contents of a file that is generated rather than read.
    pub generated: Option<Vec<u8>>,
}

impl SourceFile {
    /// The whole contents.
    pub(super) fn bytes(&self) -> Result<Cow<'_, [u8]>, PanelError> {
        match &self.generated {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => fs::read(&self.path)
                .map(Cow::Owned)
                .map_err(PanelError::io(&self.path)),
        }
    }

    /// The file of a generator.
    fn generated(source: &Source, relative: String, name: &str) -> Result<Self, PanelError> {
        let bytes = demo::generate(name).ok_or_else(|| PanelError::File {
            path: PathBuf::from(&relative),
            found: format!("generator `{name}`"),
            expected: "one that this version has".to_owned(),
        })?;
        let path = PathBuf::from(&relative);
        let sha256 = sha256_hex(&bytes);
        if let Some(expected) = source.sha256.as_ref().filter(|known| **known != sha256) {
            return Err(PanelError::Digest {
                path,
                found: sha256,
                expected: expected.clone(),
            });
        }
        Ok(SourceFile {
            path,
            digest: FileDigest {
                path: relative,
                sha256,
            },
            pinned: source.sha256.is_some(),
            generated: Some(bytes),
        })
    }
}

impl Located {
    /// Digests for a panel's header.
    pub fn digests(&self) -> Vec<FileDigest> {
        self.files.iter().map(|file| file.digest.clone()).collect()
    }
}

impl DataDir {
    /// The folder given on the command line, else `$KVASSAY_DATA`, else
    /// `$XDG_CACHE_HOME/kvassay`, else `~/.cache/kvassay`.
    ///
    /// # Errors
    /// [`PanelError::NoDataDir`] where one of the first two names no folder. The cache folder need
    /// not exist: what is missing in it is said when a task needs it.
    pub fn resolve(given: Option<&Path>) -> Result<DataDir, PanelError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = given {
            return DataDir::existing("--data", path.to_owned());
        }
        if let Some(path) = variable("KVASSAY_DATA") {
            return DataDir::existing("$KVASSAY_DATA", path.into());
        }
        let cache = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
        let root = cache.map_or_else(|| PathBuf::from("kvassay"), |cache| cache.join("kvassay"));
        Ok(DataDir { root })
    }

    fn existing(given: &'static str, path: PathBuf) -> Result<DataDir, PanelError> {
        if path.is_dir() {
            Ok(DataDir { root: path })
        } else {
            Err(PanelError::NoDataDir { given, path })
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Finds and digests the source files of a task: the first accepted file that is there. A name
    /// with `*` must match one file, or parts of one.
    ///
    /// # Errors
    /// [`PanelError::NoData`], [`PanelError::SeveralFiles`], [`PanelError::Digest`] where a known
    /// file has other bytes, [`PanelError::Io`].
    pub fn locate(&self, task: &Task) -> Result<Located, PanelError> {
        let sources = task.accepted_sources();
        for source in &sources {
            if let Some(name) = &source.generator {
                let relative = format!("{}/{}", task.folder, source.file);
                return Ok(Located {
                    files: vec![SourceFile::generated(source, relative, name)?],
                    format: source.format,
                });
            }
            let names = self.matching(task, source)?;
            if names.is_empty() {
                continue;
            }
            let files = names.iter().map(|name| self.source_file(source, name));
            return Ok(Located {
                files: files.collect::<Result<_, _>>()?,
                format: source.format,
            });
        }
        let names: Vec<_> = sources.iter().map(|source| source.file.as_str()).collect();
        Err(PanelError::NoData {
            task: task.name.clone(),
            folder: self.root.join(&task.folder),
            expected: names.join(", "),
        })
    }

    /// Names relative to the data folder of the files that `source` means, sorted.
    fn matching(&self, task: &Task, source: &Source) -> Result<Vec<String>, PanelError> {
        let relative = format!("{}/{}", task.folder, source.file);
        let Some((before, after)) = relative.split_once('*') else {
            let there = self.root.join(&relative).is_file();
            return Ok(if there { vec![relative] } else { Vec::new() });
        };
        let (folder, prefix) = before.rsplit_once('/').unwrap_or(("", before));
        let found = file_names(&self.root.join(folder))?
            .into_iter()
            .filter(|name| {
                let middle = name
                    .strip_prefix(prefix)
                    .and_then(|rest| rest.strip_suffix(after));
                middle.is_some()
            })
            .collect::<Vec<_>>();
        if !parts_of_one(&found) {
            return Err(PanelError::SeveralFiles {
                task: task.name.clone(),
                folder: self.root.join(folder),
                found: found.join(", "),
            });
        }
        Ok(found
            .iter()
            .map(|name| format!("{folder}/{name}"))
            .collect())
    }

    fn source_file(&self, source: &Source, relative: &str) -> Result<SourceFile, PanelError> {
        let path = self.root.join(relative);
        let mut sha256 = file_sha256(&path)?;
        if let Some(expected) = source.sha256.as_ref().filter(|known| **known != sha256) {
            if !same_with_lf(&path, expected)? {
                return Err(PanelError::Digest {
                    path,
                    found: sha256,
                    expected: expected.clone(),
                });
            }
            sha256.clone_from(expected);
        }
        Ok(SourceFile {
            path,
            digest: FileDigest {
                path: relative.to_owned(),
                sha256,
            },
            pinned: source.sha256.is_some(),
            generated: None,
        })
    }
}

/// Whether a text file is the expected one but for CR LF at its line ends, as a version-control
/// setting leaves them. Readers take CR LF for LF, so such a file yields the same panels, and it
/// counts under the digest of what is read from it.
fn same_with_lf(path: &Path, expected: &str) -> Result<bool, PanelError> {
    let bytes = fs::read(path).map_err(PanelError::io(path))?;
    Ok(std::str::from_utf8(&bytes)
        .is_ok_and(|text| sha256_hex(text.replace("\r\n", "\n").as_bytes()) == expected))
}

/// Names of the files in a folder, sorted; none where there is no folder.
fn file_names(folder: &Path) -> Result<Vec<String>, PanelError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PanelError::io(folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(PanelError::io(folder))?;
        if entry.path().is_file()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// One name, or names that differ in the part number of `NAME-00000-of-00002.ext` only.
fn parts_of_one(names: &[String]) -> bool {
    let whole = |name: &String| -> Option<(String, String)> {
        let (left, right) = name.split_once("-of-")?;
        let (stem, part) = left.rsplit_once('-')?;
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| (stem.to_owned(), right.to_owned()))
    };
    let Some((first, rest)) = names.split_first() else {
        return true;
    };
    rest.is_empty()
        || rest
            .iter()
            .all(|name| whole(name).is_some() && whole(name) == whole(first))
}

/// SHA-256 of a file, read in pieces.
pub(super) fn file_sha256(path: &Path) -> Result<String, PanelError> {
    let mut file = fs::File::open(path).map_err(PanelError::io(path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(PanelError::io(path))?;
        if read == 0 {
            return Ok(to_hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
    }
}
