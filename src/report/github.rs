//! Annotations of GitHub Actions: workflow commands, one per line.

use std::io::{self, Write};

use crate::schema::Certificate;

use super::check::{Status, against_sentences, checks, headline};
use super::notes::{aa, degraded_endpoints};
use super::outlook::outlooks;
use super::summary::Summary;

/// Annotations of one level that a step shows; GitHub drops the rest without a word.
const MOST_SHOWN: usize = 10;

/// Level of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Warning,
    Notice,
}

impl Level {
    const ALL: [Level; 3] = [Level::Error, Level::Warning, Level::Notice];

    fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
        }
    }
}

struct Annotation {
    level: Level,
    title: String,
    message: String,
}

impl Annotation {
    fn new(level: Level, title: String, message: String) -> Self {
        Annotation {
            level,
            title,
            message,
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "::{} title={}::{}",
            self.level.name(),
            property(&self.title),
            data(&self.message)
        )
    }
}

/// Writes annotations: errors for what the exit code comes from, warnings for degradation, notices
/// for the rest and for the outcome.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_annotations(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    let all = annotations(summary);
    for level in Level::ALL {
        let mut list: Vec<&Annotation> = all.iter().filter(|found| found.level == level).collect();
        let hidden = list.len().saturating_sub(MOST_SHOWN);
        let rest = (hidden > 0).then(|| {
            let kept = MOST_SHOWN - 1;
            let left_out = list.split_off(kept);
            let titles: Vec<&str> = left_out.iter().map(|found| found.title.as_str()).collect();
            let title = format!("kvassay: {} more", titles.len());
            Annotation::new(level, title, titles.join("\n"))
        });
        for annotation in list.into_iter().chain(&rest) {
            annotation.write(out)?;
        }
    }
    Ok(())
}

/// Writes the annotation of a command that failed with `message`.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_failure_annotation(message: &str, out: &mut dyn Write) -> io::Result<()> {
    write_error("kvassay", message, out)
}

/// Writes one annotation of an error.
pub(super) fn write_error(title: &str, message: &str, out: &mut dyn Write) -> io::Result<()> {
    Annotation::new(Level::Error, title.to_owned(), message.to_owned()).write(out)
}

fn annotations(summary: &Summary<'_>) -> Vec<Annotation> {
    let mut all = Vec::new();
    let title = |model: &str, recipe: &str, what: &str| format!("kvassay {model} {recipe}: {what}");
    for check in checks(summary) {
        let level = match check.status {
            Status::Passed => continue,
            Status::Failed | Status::Error => Level::Error,
            Status::Skipped => Level::Notice,
        };
        let certificate = check.certificate;
        let mut lines = vec![check.sentence()];
        if level == Level::Error {
            lines.extend(outlooks(&certificate.objectives));
        } else {
            lines.push("not required".to_owned());
        }
        let what = check.objective.name();
        let title = title(&certificate.model.name, &certificate.recipe.name, what);
        all.push(Annotation::new(level, title, lines.join("\n")));
    }
    for certificate in summary.certificates {
        if let Some(endpoints) = degraded_endpoints(certificate) {
            let title = title(
                &certificate.model.name,
                &certificate.recipe.name,
                "degradation",
            );
            let message = format!("degradation established on {endpoints}");
            all.push(Annotation::new(Level::Warning, title, message));
        }
    }
    for against in summary.baselines {
        let lost = against.comparison.lost().next().is_some();
        let level = if lost { Level::Error } else { Level::Notice };
        let title = format!("kvassay {}: baseline", against.comparison.recipe);
        let message = against_sentences(against).join("\n");
        all.push(Annotation::new(level, title, message));
    }
    let mut head = headline(summary);
    let certificates = summary.certificates;
    let is_noisy = |it: &Certificate| it.aa.as_ref().is_some_and(|aa| !aa.identical_bits);
    if certificates.iter().any(is_noisy) {
        head = format!("{head}\n{}", aa(certificates));
    }
    // First of its level, so that it is never among those that are left out.
    all.insert(
        0,
        Annotation::new(Level::Notice, "kvassay".to_owned(), head),
    );
    all
}

/// The text of a command: a line break would end it, other control characters would act on whoever reads
/// the log.
fn data(text: &str) -> String {
    let text = text
        .replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A");
    text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}")
}

/// The value of a property: a colon or comma would end it.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How the runner reads a command: the level, the title, the message.
    fn read(line: &str) -> (String, String, String) {
        let rest = line.strip_prefix("::").unwrap();
        let (command, message) = rest.split_once("::").unwrap();
        let (level, properties) = command.split_once(' ').unwrap();
        let mut titles = properties
            .split(',')
            .map(|pair| pair.split_once('=').unwrap());
        let (key, title) = titles.next().unwrap();
        assert_eq!((key, titles.next()), ("title", None));
        let undo = |text: &str, pairs: &[(&str, &str)]| {
            let mut text = text.to_owned();
            for (escaped, plain) in pairs {
                text = text.replace(escaped, plain);
            }
            text
        };
        let breaks = [("%0D", "\r"), ("%0A", "\n")];
        let marks = [("%3A", ":"), ("%2C", ",")];
        let percent = [("%25", "%")];
        (
            level.to_owned(),
            undo(title, &[&breaks[..], &marks, &percent].concat()),
            undo(message, &[&breaks[..], &percent].concat()),
        )
    }

    proptest! {
        #[test]
        fn any_text_is_one_command_and_reads_back(title in any::<String>(), message in any::<String>()) {
            let mut out = Vec::new();
            let annotation = Annotation::new(Level::Warning, title.clone(), message.clone());
            annotation.write(&mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let line = text.strip_suffix('\n').unwrap();
            prop_assert!(!line.contains(['\n', '\r']));
            prop_assert_eq!(read(line), ("warning".to_owned(), title, message));
        }
    }

    #[test]
    fn every_mark_of_the_syntax_is_escaped() {
        assert_eq!(data("50% a\r\n::error::x"), "50%25 a%0D%0A::error::x");
        assert_eq!(property("a: b, 5%\n"), "a%3A b%2C 5%25%0A");
    }
}
