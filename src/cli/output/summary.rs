//! `--format` and `--write` of commands that end in a summary of certificates.

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use clap::{Args as ClapArgs, ValueEnum};

use crate::report::{self, Summary};
use crate::store;

use super::super::exit::message;
use super::super::{Failure, qualify, shell};

/// Where GitHub Actions takes the Markdown of a step from.
const STEP_SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// Forms of a summary or a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SummaryFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// JUnit XML.
    Junit,
    /// Markdown for a pull request.
    Markdown,
    /// Annotations of GitHub Actions; Markdown of a summary is appended to $GITHUB_STEP_SUMMARY
    /// where it is set.
    Github,
}

/// How a summary is given.
#[derive(Debug, ClapArgs)]
pub struct SummaryArgs {
    /// Form of the summary on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub format: SummaryFormat,
    /// Write the summary to a file as well, e.g. junit=report.xml; may be repeated.
    #[arg(long, value_name = "FORMAT=FILE")]
    pub write: Vec<Target>,
}

/// A file, and the form in which it takes the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    format: SummaryFormat,
    path: PathBuf,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || {
            let all = SummaryFormat::value_variants().iter();
            let names = all.filter_map(|format| format.to_possible_value());
            let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
            format!("expected FORMAT=FILE with one of: {}", names.join(", "))
        };
        let (format, path) = text.split_once('=').ok_or_else(names)?;
        let format = SummaryFormat::from_str(format, false).map_err(|_| names())?;
        if path.is_empty() {
            return Err(names());
        }
        Ok(Target {
            format,
            path: path.into(),
        })
    }
}

impl SummaryArgs {
    /// Refuses files whose folder does not exist and files that hold anything but an earlier report,
    /// before anything runs, and removes earlier reports: whoever finds one after a failure must not
    /// take it for this run's.
    ///
    /// # Errors
    /// Exit 2.
    pub fn check(&self, read: &[PathBuf]) -> Result<(), Failure> {
        for Target { path, .. } in &self.write {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            if !folder.is_dir() || path.is_dir() {
                return Err(Failure::input(anyhow!(
                    "--write {}: expected a file in a folder that exists",
                    path.display()
                )));
            }
            if read.iter().any(|other| is_same(other, path)) {
                return Err(Failure::input(anyhow!(
                    "--write {}: found a file that this command reads, expected another one",
                    path.display()
                )));
            }
            if !is_replaceable(path).map_err(|error| {
                let context = format!("--write {}: cannot be read", path.display());
                Failure::input(anyhow::Error::new(error).context(context))
            })? {
                return Err(Failure::input(anyhow!(
                    "--write {}: found a file that is no report of this tool, expected none, or an \
                     earlier report",
                    path.display()
                )));
            }
        }
        self.write
            .iter()
            .try_for_each(|target| remove_stale(&target.path))
    }

    /// Prints the summary, writes the files, and appends to GitHub's step summary.
    ///
    /// # Errors
    /// Exit 4 where something cannot be written.
    pub fn present(&self, summary: &Summary<'_>, out: &mut dyn Write) -> Result<(), Failure> {
        for Target { format, path } in &self.write {
            let mut bytes = Vec::new();
            format.write(summary, false, &mut bytes)?;
            store::write_atomic(path, &bytes).map_err(|error| qualify::failure(error.into()))?;
        }
        self.format.write(summary, shell::stdout(), out)?;
        if self.format == SummaryFormat::Github
            && let Some(path) = step_summary(env::var_os(STEP_SUMMARY))
        {
            append(summary, &path)
                .with_context(|| format!("cannot append to {STEP_SUMMARY}, {}", path.display()))
                .map_err(Failure::worker)?;
        }
        Ok(())
    }

    /// Gives a failure to GitHub where its annotations were asked for, and returns it.
    pub fn annotated<T>(
        &self,
        outcome: Result<T, Failure>,
        out: &mut dyn Write,
    ) -> Result<T, Failure> {
        if let (SummaryFormat::Github, Err(failure)) = (self.format, &outcome) {
            report::write_failure_annotation(&message(&failure.error), out)?;
        }
        outcome
    }
}

impl SummaryFormat {
    /// No colour in files.
    fn write(self, summary: &Summary<'_>, color: bool, out: &mut dyn Write) -> io::Result<()> {
        match self {
            SummaryFormat::Text => report::write_text(summary, report::TEXT_WIDTH, color, out),
            SummaryFormat::Json => summary.write_json(out),
            SummaryFormat::Junit => report::write_junit(summary, out),
            SummaryFormat::Markdown => report::write_markdown(summary, usize::MAX, out),
            SummaryFormat::Github => report::write_annotations(summary, out),
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Whether nothing is lost with a file: there is none, it is empty, or an earlier report.
fn is_replaceable(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(true);
    }
    let mut start = Vec::new();
    fs::File::open(path)?.take(4096).read_to_end(&mut start)?;
    let start = String::from_utf8_lossy(&start);
    let is_json = start.contains(&format!("\"schema\": \"{}\"", report::SUMMARY_SCHEMA));
    let is_xml = start.starts_with("<?xml") && start.contains("<testsuites name=\"kvassay ");
    let is_text = start.starts_with("protocol ") && start.contains(", worker ");
    let is_annotation = start.starts_with("::") && start.contains("title=kvassay");
    let is_markdown = start.starts_with("## kvassay: ");
    Ok(start.is_empty() || is_json || is_xml || is_text || is_annotation || is_markdown)
}

/// Removes a regular file; devices and links stay. What may be removed may be replaced.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    fs::remove_file(path)
        .with_context(|| {
            format!(
                "--write {}: found a file that cannot be replaced",
                path.display()
            )
        })
        .map_err(Failure::input)
}

fn step_summary(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Appends Markdown to a file that all commands of a step share, in one write, as far as its limit
/// leaves room.
fn append(summary: &Summary<'_>, path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let taken = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let room = report::STEP_SUMMARY_BYTES.saturating_sub(taken);
    let mut bytes = Vec::new();
    report::write_markdown(summary, room, &mut bytes)?;
    file.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_name_format_and_file() {
        let found: Target = "junit=out/a=b.xml".parse().unwrap();
        let expected = Target {
            format: SummaryFormat::Junit,
            path: "out/a=b.xml".into(),
        };
        assert_eq!(found, expected);
        for bad in ["junit", "junit=", "xml=a", "=a", ""] {
            let error = bad.parse::<Target>().unwrap_err();
            assert!(
                error.contains("text, json, junit, markdown, github"),
                "{error}"
            );
        }
        assert_eq!(step_summary(Some("".into())), None);
    }
}
