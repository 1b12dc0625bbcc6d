//! What can be wrong with data, tasks and panel files.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::store::StoreError;

/// Why panels cannot be built, read or written. Messages say where, what was found and what was
/// expected.
#[derive(Debug, thiserror::Error)]
pub enum PanelError {
    /// A file or folder could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A panel file could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `--data` or `$KVASSAY_DATA` names no folder.
    #[error("{given}: {path}: found no folder there, expected one with gsm8k/ and wikipedia/", path = .path.display())]
    NoDataDir {
        /// Which setting named it.
        given: &'static str,
        /// Folder.
        path: PathBuf,
    },
    /// A task's source data are not there.
    #[error("task {task}: {folder}: found none of its source files, expected one of {expected}; --data or $KVASSAY_DATA names the folder above it", folder = .folder.display())]
    NoData {
        /// Task.
        task: String,
        /// Folder that was looked into.
        folder: PathBuf,
        /// File names that the task accepts.
        expected: String,
    },
    /// Several files could be meant.
    #[error("task {task}: {folder}: found {found}, expected one file, or parts of one (NAME-00000-of-00002)", folder = .folder.display())]
    SeveralFiles {
        /// Task.
        task: String,
        /// Folder that was looked into.
        folder: PathBuf,
        /// File names.
        found: String,
    },
    /// A known file, or a panel file, has other bytes.
    #[error("{path}: SHA-256: found {found}, expected {expected}", path = .path.display())]
    Digest {
        /// File.
        path: PathBuf,
        /// Digest of the file.
        found: String,
        /// Digest that it should have.
        expected: String,
    },
    /// A line of a text file, or a row of a columnar file, is wrong.
    #[error("{path}:{line}: found {found}, expected {expected}", path = .path.display())]
    Line {
        /// File.
        path: PathBuf,
        /// Line or row, from 1.
        line: usize,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// A file as a whole is wrong.
    #[error("{path}: found {found}, expected {expected}", path = .path.display())]
    File {
        /// File.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// The protocol names a task that there is not, or of another kind.
    #[error("panel {panel}: task: found `{found}`, expected {expected}")]
    Task {
        /// Panel.
        panel: String,
        /// Task name in the protocol.
        found: String,
        /// Tasks that fit.
        expected: String,
    },
    /// The data yield too little.
    #[error("{panel}: found {found} {what}, expected {needed}")]
    TooLittle {
        /// Panel, or what else needs the data.
        panel: String,
        /// Number that the data yield.
        found: usize,
        /// Of what.
        what: String,
        /// Number that is needed.
        needed: usize,
    },
    /// A panel is not the one that the protocol froze for this tokenizer.
    #[error("panel {panel}: SHA-256: found {found}, expected {expected} from the protocol")]
    Frozen {
        /// Panel.
        panel: String,
        /// Digest of the panel as built.
        found: String,
        /// Digest that the protocol names.
        expected: String,
    },
    /// Two cases of a panel ask the same.
    #[error(
        "panel {panel}: found case {case} with the content of case {first}, expected each content once"
    )]
    Doubled {
        /// Panel.
        panel: String,
        /// The second case.
        case: String,
        /// The first one.
        first: String,
    },
    /// The tokenizer or the chat template failed.
    #[error("panel {panel}: tokenizer: {message}")]
    Tokenizer {
        /// Panel.
        panel: String,
        /// What it said.
        message: String,
    },
}

impl PanelError {
    /// Whether the system failed (a full disk), and not what a file or path is.
    pub fn is_system(&self) -> bool {
        use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            PanelError::Store(error) => error.is_system(),
            PanelError::Io { source, .. } => matches!(
                source.kind(),
                StorageFull | QuotaExceeded | ReadOnlyFilesystem
            ),
            _ => false,
        }
    }

    /// For `map_err` on file operations.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> PanelError {
        let path = path.into();
        |source| PanelError::Io { path, source }
    }

    /// For `map_err` on tokenizer calls.
    pub(super) fn tokenizer(panel: &str) -> impl Fn(String) -> PanelError {
        let panel = panel.to_owned();
        move |message| PanelError::Tokenizer {
            panel: panel.clone(),
            message,
        }
    }
}

/// `1,234,567`.
pub(crate) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
