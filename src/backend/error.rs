//! What goes wrong in backends.

/// What went wrong in a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The backend cannot apply what is asked.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The device or an allocation failed.
    #[error("{0}")]
    Device(String),
    /// A number of one row is NaN or infinite where that is not allowed: it concerns the row's
    /// sequence, not the others.
    #[error("row {row}: {what}")]
    NotFinite {
        /// Row of the tensor.
        row: usize,
        /// Which number, what was found and what was expected.
        what: String,
    },
}

impl BackendError {
    /// The same of a tensor that holds some rows of another: `rows` says which.
    #[must_use]
    pub fn of_rows(self, rows: &[usize]) -> Self {
        match self {
            BackendError::NotFinite { row, what } => BackendError::NotFinite {
                row: rows.get(row).copied().unwrap_or(row),
                what,
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_among_some_is_named_as_it_is_among_all() {
        let error = BackendError::NotFinite {
            row: 1,
            what: "NaN".to_owned(),
        };
        assert_eq!(error.of_rows(&[2, 7]).to_string(), "row 7: NaN");
        let other = BackendError::Device("gone".to_owned());
        assert_eq!(other.of_rows(&[2, 7]).to_string(), "gone");
    }
}
