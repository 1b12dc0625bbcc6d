//! What every format comes down to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::schema::FileDigest;

use super::read::Input;
use super::{Content, ImportError, json};

/// One answer to one question, as a harness has logged it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// File and line, row or sample.
    pub place: String,
    /// Id that the harness gives; absent where it gives none.
    pub id: Option<String>,
    /// Question and gold answer; absent where the file holds ids alone.
    pub content: Option<Content>,
    /// The harness's verdict.
    pub score: Score,
    /// The model's text.
    pub output: Option<String>,
    /// Digest of the whole prompt, comparable within one harness.
    pub prompt_sha256: Option<String>,
    /// Digest of the protocol that the sample was made under.
    pub protocol_sha256: Option<String>,
}

/// A harness's verdict on an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Score {
    /// Right or wrong.
    Correct(bool),
    /// Neither; what was found.
    Unscored(String),
    /// The case failed; why.
    Errored(String),
}

/// The files of one arm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArmLog {
    /// Files as they were named, with their digests.
    pub files: Vec<FileDigest>,
    /// Samples in file order.
    pub samples: Vec<Sample>,
    /// Model as the harness names it, where all files agree.
    pub model: Option<String>,
    /// Logs that did not end well.
    pub unfinished: Vec<String>,
}

impl ArmLog {
    /// The error of an arm without samples.
    pub(super) fn empty(&self) -> ImportError {
        let names: Vec<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        ImportError::input(names.join(", "), "no samples", "at least one")
    }
}

/// The files of both arms, and what was chosen in them.
#[derive(Clone, Debug, PartialEq)]
pub struct Logs {
    /// Name of the harness.
    pub harness: &'static str,
    /// The native arm.
    pub native: ArmLog,
    /// The candidate arm.
    pub candidate: ArmLog,
    /// Metric, scorer or columns that decide.
    pub metric: String,
    /// Filter of the answers.
    pub filter: Option<String>,
}

/// A sample before the metric is chosen.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    /// The sample; its score is decided by [`RawArm::select`] unless it is an error.
    pub sample: Sample,
    /// What each metric says.
    pub scores: BTreeMap<String, Score>,
    /// What fields hold that may be no metric, e.g. text.
    pub others: BTreeMap<String, &'static str>,
}

impl Raw {
    /// What `metric` says.
    fn score(&self, metric: &str) -> Result<Score, ImportError> {
        if let Some(score) = self.scores.get(metric) {
            return Ok(score.clone());
        }
        let refused = |found: String, expected: &str| {
            Err(ImportError::input(&self.sample.place, found, expected))
        };
        if let Some(kind) = self.others.get(metric) {
            return refused(
                format!("metric `{metric}`: {kind}"),
                "a number, true or false",
            );
        }
        let names: Vec<&str> = self.scores.keys().map(String::as_str).collect();
        let names = match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        refused(
            format!("no metric `{metric}`; numeric fields: {names}"),
            "the metric that --metric names",
        )
    }
}

/// The files of one arm before the metric is chosen.
#[derive(Debug, Default)]
pub(super) struct RawArm {
    /// Files, model and faults; no samples yet.
    pub log: ArmLog,
    /// Samples in file order.
    pub raw: Vec<Raw>,
}

impl RawArm {
    /// Reads every file of an arm.
    ///
    /// # Errors
    /// Those of reading files and of `read`.
    pub fn read(
        paths: &[PathBuf],
        read: &dyn Fn(&Input, &mut RawArm) -> Result<(), ImportError>,
    ) -> Result<RawArm, ImportError> {
        let mut arm = RawArm::default();
        for path in paths {
            let input = Input::read(path)?;
            arm.log.files.push(input.digest());
            read(&input, &mut arm)?;
        }
        if arm.raw.is_empty() {
            return Err(arm.log.empty());
        }
        Ok(arm)
    }

    /// Names of every metric.
    pub fn metrics(&self) -> BTreeSet<String> {
        let names = self.raw.iter().flat_map(|raw| raw.scores.keys());
        names.cloned().collect()
    }

    /// The arm with `metric` as the verdict of each sample that is no error.
    ///
    /// # Errors
    /// [`ImportError::Input`] where a sample lacks the metric, with those that it has.
    pub fn select(self, metric: &str) -> Result<ArmLog, ImportError> {
        let RawArm { mut log, raw } = self;
        for mut raw in raw {
            if !matches!(raw.sample.score, Score::Errored(_)) {
                raw.sample.score = raw.score(metric)?;
            }
            log.samples.push(raw.sample);
        }
        Ok(log)
    }
}

/// Numbers among `fields` as scores, and what the others hold.
pub(super) fn scores<'a>(
    fields: impl IntoIterator<Item = (&'a String, &'a Value)>,
) -> (BTreeMap<String, Score>, BTreeMap<String, &'static str>) {
    let (mut scores, mut others) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in fields {
        match Score::of_value(value) {
            Some(score) => {
                scores.insert(name.clone(), score);
            }
            None => {
                others.insert(name.clone(), json::kind(value));
            }
        }
    }
    (scores, others)
}

impl Score {
    /// What a JSON value says; `None` for what is no number.
    pub(super) fn of_value(value: &Value) -> Option<Score> {
        match json::metric(value) {
            json::Reading::Binary(right) => Some(Score::Correct(right)),
            json::Reading::Other(found) => Some(Score::Unscored(found)),
            json::Reading::NoNumber => None,
        }
    }
}

/// The one choice that the arms agree on: what was asked for, else the only one there is.
///
/// # Errors
/// [`ImportError::Choice`] naming the choices.
pub(super) fn choose(
    option: &'static str,
    asked: Option<&str>,
    arms: [&BTreeSet<String>; 2],
) -> Result<String, ImportError> {
    let choices = || {
        let all: Vec<&str> = arms[0].union(arms[1]).map(String::as_str).collect();
        all.join(", ")
    };
    let found = match asked {
        Some(name) if arms.iter().all(|arm| arm.contains(name)) => return Ok(name.to_owned()),
        Some(name) => match arms.iter().position(|arm| !arm.contains(name)) {
            Some(0) => format!("`{name}`, which the native files do not hold"),
            _ => format!("`{name}`, which the candidate files do not hold"),
        },
        None if arms[0] == arms[1] && arms[0].len() == 1 => return Ok(choices()),
        None if arms[0] == arms[1] => match arms[0].len() {
            0 => "none in any sample".to_owned(),
            _ => "nothing chosen".to_owned(),
        },
        None => "arms that differ".to_owned(),
    };
    Err(ImportError::Choice {
        option,
        found,
        choices: choices(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_choice_is_asked_for_only_where_there_is_one() {
        let (one, two, other) = (set(&["a"]), set(&["a", "b"]), set(&["b"]));
        let ok = |asked, arms| choose("--filter", asked, arms).unwrap();
        assert_eq!(ok(None, [&one, &one]), "a");
        assert_eq!(ok(Some("a"), [&one, &two]), "a");
        let fail = |asked, arms| choose("--filter", asked, arms).unwrap_err().to_string();
        assert_eq!(
            fail(None, [&two, &two]),
            "--filter: found nothing chosen, expected one of: a, b"
        );
        assert_eq!(
            fail(None, [&one, &other]),
            "--filter: found arms that differ, expected one of: a, b"
        );
        assert!(fail(Some("b"), [&two, &one]).contains("candidate files do not hold"));
        assert!(fail(Some("b"), [&one, &two]).contains("native files do not hold"));
    }
}
