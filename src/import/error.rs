//! Why files cannot be imported.

use std::io;
use std::path::{Path, PathBuf};

use crate::panel::PanelError;
use crate::store::StoreError;

/// Why files cannot be imported at all. What is wrong with single cases is no error: it stands in
/// the import report.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system refused.
    #[error("{path}: cannot read")]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file is not what its format says.
    #[error("{place}: found {found}, expected {expected}")]
    Input {
        /// File, and line, row or sample where there is one.
        place: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// Something has to be chosen that the files leave open.
    #[error("{option}: found {found}, expected one of: {choices}")]
    Choice {
        /// Option of the command line.
        option: &'static str,
        /// What was found.
        found: String,
        /// What the files hold.
        choices: String,
    },
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The panel file.
    #[error(transparent)]
    Panel(#[from] PanelError),
}

impl ImportError {
    /// Whether the system failed, and not what a file or path is.
    pub fn is_system(&self) -> bool {
        match self {
            ImportError::Store(error) => error.is_system(),
            ImportError::Panel(error) => error.is_system(),
            _ => false,
        }
    }

    /// An adapter for `map_err`.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> ImportError + '_ {
        move |source| ImportError::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// A file that is not what it should be.
    pub(super) fn input(
        place: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ImportError {
        ImportError::Input {
            place: place.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}
