//! Short constructors of [`ModelError`].

use std::fmt::Display;

use super::ModelError;

impl ModelError {
    /// A file that cannot be read.
    pub(crate) fn io(path: impl Display, source: std::io::Error) -> Self {
        ModelError::Io {
            path: path.to_string(),
            source,
        }
    }

    /// A file that says something wrong about `what`.
    pub(crate) fn invalid(
        path: impl Display,
        what: impl Display,
        found: impl Display,
        expected: impl Display,
    ) -> Self {
        ModelError::Invalid {
            path: path.to_string(),
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// A file that asks for `what`, which is not applied.
    pub(crate) fn unsupported(path: impl Display, what: impl Display) -> Self {
        ModelError::Unsupported {
            path: path.to_string(),
            what: what.to_string(),
        }
    }
}
