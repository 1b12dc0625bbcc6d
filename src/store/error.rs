//! What can go wrong with a run directory.

use std::io;
use std::path::{Path, PathBuf};

use super::manifest::Difference;
use super::resume::PlanFault;

/// Why a run directory cannot be created, opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// A folder where a file is to be written.
    #[error("{path}: found a folder, expected a file or none")]
    Folder {
        /// Folder.
        path: PathBuf,
    },
    /// Another process writes to the run.
    #[error("{lock}: held by another process that writes to this run; one writer at a time")]
    Locked {
        /// Lock file.
        lock: PathBuf,
    },
    /// The directory holds a run already.
    #[error("{path}: found a run ({protocol} on {model}), expected a directory without one")]
    HoldsRun {
        /// The run's manifest.
        path: PathBuf,
        /// Name of its protocol, or why it cannot be read.
        protocol: String,
        /// Name of its model.
        model: String,
    },
    /// The directory holds files that are no run.
    #[error("{path}: found {found}, expected an empty or new directory")]
    ForeignFiles {
        /// Directory.
        path: PathBuf,
        /// Names of some of the files.
        found: String,
    },
    /// Not a run directory.
    #[error("{path}: found no run.json, expected a run directory")]
    NoRun {
        /// Directory.
        path: PathBuf,
    },
    /// Nothing where a document is to be.
    #[error("{path}: found nothing there, expected {expected}")]
    Nothing {
        /// Path of the document.
        path: PathBuf,
        /// What the document is.
        expected: &'static str,
    },
    /// The run, or an arm of it, began under another protocol.
    #[error(
        "{path}: began under protocol {found}, expected {expected}: records stand under the \
         protocol of their run; start another run for another protocol"
    )]
    OtherProtocol {
        /// The stored manifest, or what stood before the arm's first record.
        path: PathBuf,
        /// Name and digest of the protocol that stood.
        found: String,
        /// Name and digest of the protocol at hand.
        expected: String,
    },
    /// The arm's answers came about in another way before.
    #[error(
        "{path}: answers: found {found}, expected {expected}: a run goes on as it began, with or \
         without --plain"
    )]
    OtherAnswers {
        /// What the arm wrote down before its first record.
        path: PathBuf,
        /// How its answers came about.
        found: &'static str,
        /// How they would come about now.
        expected: &'static str,
    },
    /// The run was made under other conditions.
    #[error("{path}: the stored run differs from this one: {}", list(.differences))]
    OtherRun {
        /// The stored manifest.
        path: PathBuf,
        /// Every field that differs.
        differences: Vec<Difference>,
    },
    /// A file of a newer version of this program.
    #[error("{path}: found schema {found}, newer than {expected}; not read and not overwritten")]
    Newer {
        /// File.
        path: PathBuf,
        /// Schema in the file.
        found: String,
        /// Newest schema that this version knows.
        expected: &'static str,
    },
    /// A file of another kind.
    #[error("{path}: found schema {found}, expected {expected}")]
    Schema {
        /// File.
        path: PathBuf,
        /// Schema in the file.
        found: String,
        /// Schema that belongs there.
        expected: &'static str,
    },
    /// A file larger than any document is.
    #[error("{path}: found more than {most} bytes, expected a document")]
    TooLarge {
        /// File.
        path: PathBuf,
        /// Most bytes of a document.
        most: u64,
    },
    /// Not the JSON that belongs there.
    #[error("{path}: {source}")]
    Json {
        /// File.
        path: PathBuf,
        /// Cause, with its line and column.
        source: serde_json::Error,
    },
    /// No JSON at all.
    #[error("{path}: found {found}, expected {expected}")]
    NoJson {
        /// File.
        path: PathBuf,
        /// What it holds instead.
        found: String,
        /// Schema of the document that belongs there.
        expected: &'static str,
    },
    /// A value that JSON cannot hold.
    #[error("{path}: {what} holds a number that is not finite, expected finite numbers")]
    NotFinite {
        /// File that would hold it.
        path: PathBuf,
        /// What holds it.
        what: String,
    },
    /// A line of a record file is no record.
    #[error("{path}:{line}: {what}")]
    Record {
        /// Record file.
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// What was found and expected.
        what: String,
    },
    /// A record is not the one that the plan has next.
    #[error("{path}:{}: {fault}", .fault.line())]
    Plan {
        /// Record file.
        path: PathBuf,
        /// What is wrong, and in which line.
        fault: PlanFault,
    },
    /// An append failed before; what the file holds is known only after it is opened again.
    #[error("{path}: an earlier append failed; resume the run before appending again")]
    FailedBefore {
        /// Record file.
        path: PathBuf,
    },
    /// An arm, panel or certificate name, or a relative path, that leads elsewhere.
    #[error("found name `{found}`, expected a file name without separators or leading dots")]
    Name {
        /// The name.
        found: String,
    },
}

impl StoreError {
    /// Whether the system failed (a full disk, no permission), and not what a file or path is.
    pub fn is_system(&self) -> bool {
        use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
        match self {
            StoreError::Io { source, .. } => {
                !matches!(source.kind(), NotFound | NotADirectory | IsADirectory)
            }
            StoreError::FailedBefore { .. } => true,
            _ => false,
        }
    }

    /// An adapter for `map_err`.
    pub(super) fn io<'a>(
        path: &'a Path,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> StoreError + 'a {
        move |source| StoreError::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }

    /// An adapter for `map_err`.
    pub(super) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> StoreError + '_ {
        move |source| StoreError::Json {
            path: path.to_owned(),
            source,
        }
    }
}

fn list(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(Difference::to_string).collect();
    lines.join("; ")
}
