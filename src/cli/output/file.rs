//! Files that a command writes at its end. What another program or person has put there is kept.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::report;
use crate::schema::{CALIBRATION_SCHEMA, PREDICATE_TYPE, STATEMENT_TYPE};
use crate::store::{self, StoreError, Target};

use super::super::{Failure, qualify};

/// Bytes at a file's beginning that tell what it is.
const START: u64 = 4096;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A summary in one of its formats.
    Report,
    /// The verdict of a certificate as SVG.
    Badge,
    /// The certificates of runs as HTML.
    Page,
    /// A certificate as an in-toto Statement.
    Statement,
    /// Largest absolute keys and values of layers.
    Calibration,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Report => "report",
            Kind::Badge => "badge",
            Kind::Page => "page",
            Kind::Statement => "Statement",
            Kind::Calibration => "calibration",
        }
    }

    /// Whether nothing is lost with a file: it is empty, or an earlier one of this kind.
    fn may_replace(self, path: &Path) -> io::Result<bool> {
        let mut start = Vec::new();
        File::open(path)?.take(START).read_to_end(&mut start)?;
        let text = String::from_utf8_lossy(&start);
        Ok(start.is_empty()
            || match self {
                Kind::Report => is_report(&text),
                Kind::Badge => text.starts_with("<svg ") && text.contains("=\"kvassay: "),
                Kind::Page => {
                    let generator = "<meta name=\"generator\" content=\"kvassay ";
                    text.starts_with("<!doctype html>") && text.contains(generator)
                }
                Kind::Statement => store::read_tree(path).is_ok_and(|tree| is_statement(&tree)),
                Kind::Calibration => is_of_schema(&text, CALIBRATION_SCHEMA),
            })
    }
}

fn is_report(start: &str) -> bool {
    let is_json = is_of_schema(start, report::SUMMARY_SCHEMA);
    let is_xml = start.starts_with("<?xml") && start.contains("<testsuites name=\"kvassay ");
    let is_text = start.starts_with("protocol ") && start.contains(", worker ");
    let is_annotation = start.starts_with("::") && start.contains("title=kvassay");
    let is_markdown = start.starts_with("## kvassay: ");
    is_json || is_xml || is_text || is_annotation || is_markdown
}

fn is_of_schema(start: &str, schema: &str) -> bool {
    start.contains(&format!("\"schema\": \"{schema}\""))
}

fn is_statement(tree: &Value) -> bool {
    tree["_type"] == STATEMENT_TYPE && tree["predicateType"] == PREDICATE_TYPE
}

/// A file that an option of the command line names.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The option, for messages.
    pub option: &'static str,
    /// The file.
    pub path: &'a Path,
    /// What it will hold.
    pub kind: Kind,
}

impl Output<'_> {
    /// Refuses folders, files in folders that do not exist, files that the command reads and
    /// files that hold anything but what this command wrote earlier. Returns what tells the file
    /// from others.
    ///
    /// # Errors
    /// Exit 2; 4 where the disk fails.
    pub fn check(&self, read: &[PathBuf]) -> Result<Option<PathBuf>, Failure> {
        if self.path == Path::new("-") {
            let found = "found no path, expected one; standard output is /dev/stdout, a file of this name ./-";
            return Err(self.refused(found));
        }
        let target = match Target::of(self.path) {
            Err(StoreError::Folder { .. }) => return Err(self.no_file("a folder")),
            other => other.map_err(|error| qualify::failure(error.into()))?,
        };
        let identity = target.identity(self.path);
        let Target::File(file) = &target else {
            return Ok(identity);
        };
        if identity.is_none() {
            return Err(self.no_file("no folder to hold it"));
        }
        let is_same = |other: &PathBuf| other.canonicalize().ok() == identity;
        if read.iter().any(is_same) {
            return Err(self.refused("found a file that this command reads, expected another one"));
        }
        let may_replace = !file.exists()
            || self
                .kind
                .may_replace(file)
                .with_context(|| format!("{}: cannot be read", self.shown()))
                .map_err(Failure::input)?;
        if !may_replace {
            let kind = self.kind.name();
            return Err(self.refused(&format!(
                "found a file that is no {kind} of this tool, expected none, or an earlier {kind}"
            )));
        }
        Ok(identity)
    }

    /// Removes a file that [`Output::check`] has let pass: whoever finds it after a failure must
    /// not take it for what this command wrote. Links, pipes and devices stay.
    ///
    /// # Errors
    /// Exit 2 where it cannot be removed.
    pub fn remove_stale(&self) -> Result<(), Failure> {
        let target = Target::of(self.path).map_err(|error| qualify::failure(error.into()))?;
        match target {
            Target::File(file) if file.exists() => fs::remove_file(&file)
                .with_context(|| format!("{}: found a file that cannot be replaced", self.shown()))
                .map_err(Failure::input),
            _ => Ok(()),
        }
    }

    fn no_file(&self, found: &str) -> Failure {
        self.refused(&format!(
            "found {found}, expected a file in a folder that exists"
        ))
    }

    fn refused(&self, what: &str) -> Failure {
        Failure::input(anyhow!("{}: {what}", self.shown()))
    }

    fn shown(&self) -> String {
        format!("{} {}", self.option, self.path.display())
    }
}
