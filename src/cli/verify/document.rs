//! What `kvassay verify` prints.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::certify::verify::Disagreement;
use crate::report::{Verification, one_line, visible};

use super::super::Failure;
use super::super::output::{self, SummaryFormat};

/// Schema name of the JSON document.
const VERIFY_SCHEMA: &str = "kvassay.verify/1";

/// What was checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Check<'a> {
    /// The certificate against a run.
    Run {
        /// Run directory.
        run: &'a Path,
        /// Evidence files that the certificate names.
        files: usize,
    },
    /// The certificate by its own figures.
    Alone,
    /// A file against a JSON Schema.
    Schema {
        /// Name of the schema.
        name: &'static str,
    },
}

/// Outcome of a verification.
pub(super) struct Document<'a> {
    /// The file that was checked.
    pub certificate: &'a Path,
    /// What it was checked against.
    pub check: Check<'a>,
    /// Everything that does not agree.
    pub mismatches: &'a [Disagreement],
    /// What a reader must know.
    pub notes: &'a [String],
}

/// The JSON document.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    schema: &'static str,
    certificate: String,
    run: Option<String>,
    /// How much was checked: the `form` of a file, the `figures` of a certificate against one another, or
    /// its `evidence`.
    checked: &'static str,
    verified: bool,
    mismatches: Vec<JsonMismatch<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct JsonMismatch<'a> {
    path: &'a str,
    found: &'a Option<Value>,
    expected: &'a Option<Value>,
}

impl<'a> Document<'a> {
    /// Writes the outcome.
    ///
    /// # Errors
    /// Exit 4 where `out` cannot be written.
    pub fn write(&self, format: SummaryFormat, out: &mut dyn Write) -> Result<(), Failure> {
        let mismatches = self.mismatches.iter().map(ToString::to_string);
        let mismatches: Vec<String> = mismatches.collect();
        let verification = Verification {
            file: &self.certificate.display().to_string(),
            headline: &self.headline(),
            mismatches: &mismatches,
            notes: self.notes,
        };
        match format {
            SummaryFormat::Text => self.write_text(out)?,
            SummaryFormat::Json => output::write_json(out, &self.json())?,
            SummaryFormat::Junit => verification.write_junit(out)?,
            SummaryFormat::Markdown => verification.write_markdown(out)?,
            SummaryFormat::Github => verification.write_annotations(out)?,
        }
        Ok(())
    }

    fn json(&self) -> Json<'a> {
        let mismatch = |found: &'a Disagreement| JsonMismatch {
            path: &found.path,
            found: &found.found,
            expected: &found.expected,
        };
        Json {
            schema: VERIFY_SCHEMA,
            certificate: self.certificate.display().to_string(),
            run: match self.check {
                Check::Run { run, .. } => Some(run.display().to_string()),
                Check::Alone | Check::Schema { .. } => None,
            },
            checked: match self.check {
                Check::Run { .. } => "evidence",
                Check::Alone => "figures",
                Check::Schema { .. } => "form",
            },
            verified: self.mismatches.is_empty(),
            mismatches: self.mismatches.iter().map(mismatch).collect(),
            notes: self.notes,
        }
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", visible(&self.headline()))?;
        for mismatch in self.mismatches {
            writeln!(out, "  {}", one_line(&mismatch.to_string()))?;
        }
        for note in self.notes {
            writeln!(out, "{}", visible(note))?;
        }
        Ok(())
    }

    fn headline(&self) -> String {
        let file = self.certificate.display();
        let count = self.mismatches.len();
        match (self.check, count) {
            (Check::Run { run, files }, 0) => format!(
                "verified: every field of {file} but tool follows from the {files} evidence files in {}",
                run.display()
            ),
            (Check::Run { run, .. }, _) => {
                format!("MISMATCH: {file} against {}: {count} found", run.display())
            }
            (Check::Alone, 0) => format!(
                "consistent: the figures of {file} follow from one another; its evidence was not \
                 looked at"
            ),
            (Check::Alone, _) => format!("MISMATCH: {file} against itself: {count} found"),
            (Check::Schema { name }, 0) => {
                format!("valid: {file} has the form that docs/schemas/{name}.json describes")
            }
            (Check::Schema { name }, _) => {
                format!("INVALID: {file} against docs/schemas/{name}.json: {count} found")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certify::verify::Between;

    #[test]
    fn names_from_files_cannot_act_on_the_terminal() {
        let mismatch = Disagreement {
            path: "evidence.a\u{1b}[2K\n::error::x".to_owned(),
            found: None,
            expected: None,
            between: Between::FileAndSchema,
        };
        let document = Document {
            certificate: Path::new("c\u{7}.json"),
            check: Check::Alone,
            mismatches: &[mismatch],
            notes: &["n\u{202e}ote".to_owned()],
        };
        let mut out = Vec::new();
        document.write_text(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        for unseen in ['\u{1b}', '\u{7}', '\u{202e}'] {
            assert!(!text.contains(unseen), "{text}");
        }
        assert!(
            text.contains("evidence.a\u{27e8}U+001B\u{27e9}[2K"),
            "{text}"
        );
    }
}
