//! Outcome of a verification for CI: JUnit, Markdown and annotations.

use std::io::{self, Write};

use super::github::write_error;
use super::markdown::line;
use super::xml::Document;

/// What a verification came to.
#[derive(Clone, Copy, Debug)]
pub struct Verification<'a> {
    /// The file that was checked, as the user named it.
    pub file: &'a str,
    /// The outcome in one sentence.
    pub headline: &'a str,
    /// Everything that does not agree.
    pub mismatches: &'a [String],
    /// What a reader must know.
    pub notes: &'a [String],
}

impl Verification<'_> {
    /// Writes a JUnit XML document with one case, which fails where anything does not agree.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_junit(&self, out: &mut dyn Write) -> io::Result<()> {
        let failures = if self.mismatches.is_empty() { "0" } else { "1" };
        let mut document = Document::new(out)?;
        let counts = [
            ("name", "kvassay verify"),
            ("tests", "1"),
            ("failures", failures),
            ("errors", "0"),
            ("skipped", "0"),
            ("time", "0"),
        ];
        document.open("testsuites", &counts)?;
        document.open("testsuite", &counts)?;
        let case = [
            ("classname", "kvassay.verify"),
            ("name", self.file),
            ("time", "0"),
        ];
        document.open("testcase", &case)?;
        if !self.mismatches.is_empty() {
            let attributes = [("message", self.headline), ("type", "mismatch")];
            document.text("failure", &attributes, &self.mismatches.join("\n"))?;
        }
        document.text("system-out", &[], &self.notes.join("\n"))?;
        document.close("testcase")?;
        document.close("testsuite")?;
        document.close("testsuites")?;
        document.finish()
    }

    /// Writes Markdown for a pull request.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.mismatches.is_empty() {
            "✅"
        } else {
            "❌"
        };
        writeln!(out, "## kvassay verify: {mark} {}\n", line(self.headline))?;
        for mismatch in self.mismatches {
            writeln!(out, "- {}", line(mismatch))?;
        }
        writeln!(out, "\n<details><summary>What was not checked</summary>\n")?;
        for note in self.notes {
            writeln!(out, "- {}", line(note))?;
        }
        writeln!(out, "\n</details>")
    }

    /// Writes an annotation of GitHub Actions where anything does not agree.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_annotations(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.mismatches.is_empty() {
            return Ok(());
        }
        let lines = [&[self.headline.to_owned()][..], self.mismatches].concat();
        write_error("kvassay verify", &lines.join("\n"), out)
    }
}
