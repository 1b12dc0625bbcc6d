//! `--format` and `--write` of commands that end in a summary of certificates.

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use clap::{Args as ClapArgs, ValueEnum};

use crate::report::{self, Summary};
use crate::store;

use super::super::exit::message;
use super::super::{Failure, qualify, shell};
use super::file::{Kind, Output};

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
    /// Refuses what cannot be written or would be lost, before anything runs, and removes earlier
    /// reports: whoever finds one after a failure must not take it for this run's.
    ///
    /// # Errors
    /// Exit 2.
    pub fn check(&self, read: &[PathBuf]) -> Result<(), Failure> {
        let targets = self.write.iter();
        let outputs: Vec<Output<'_>> = targets
            .map(|target| Output {
                option: "--write",
                path: &target.path,
                kind: Kind::Report,
            })
            .collect();
        let mut taken: Vec<(PathBuf, &Path)> = Vec::new();
        for output in &outputs {
            let Some(file) = output.check(read)? else {
                continue;
            };
            if let Some((_, other)) = taken.iter().find(|(other, _)| *other == file) {
                return Err(Failure::input(anyhow!(
                    "--write {}: found the file of --write {}, expected a file for each",
                    output.path.display(),
                    other.display()
                )));
            }
            taken.push((file, output.path));
        }
        outputs.iter().try_for_each(Output::remove_stale)
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
