//! What a run comes to.

use std::io::{self, Write};

use serde::Serialize;

use crate::certify::{BaselineComparison, ObjectiveChange, RuleChange};
use crate::schema::{Certificate, ObjectiveName, Protocol, Verdict};

/// Schema name of the JSON summary.
pub const SUMMARY_SCHEMA: &str = "kvassay.summary/1";

/// Certificates of a run, and what was required of them.
pub struct Summary<'a> {
    /// Run directory as the user named it.
    pub run: &'a str,
    /// Folder of the certificates; `None` where they are printed only.
    pub stored: Option<&'a str>,
    /// Protocol that the run was judged under.
    pub protocol: &'a Protocol,
    /// Objectives that every recipe had to hold; empty for a survey.
    pub required: &'a [ObjectiveName],
    /// Exit code of the command.
    pub exit: u8,
    /// One certificate per candidate arm, in the order of the arms.
    pub certificates: &'a [Certificate],
    /// Earlier certificates that what they held was required of.
    pub baselines: &'a [Against],
}

/// An earlier certificate, and what became of what it held.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    /// File of the earlier certificate, as the user named it.
    pub path: String,
    /// What else differs between then and now, one clause each.
    pub differences: Vec<String>,
    /// Objectives then and now.
    pub comparison: BaselineComparison,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    run: &'a str,
    required: &'a [ObjectiveName],
    exit: u8,
    certificates: &'a [Certificate],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    baselines: Vec<Baseline<'a>>,
}

#[derive(Serialize)]
struct Baseline<'a> {
    path: &'a str,
    recipe: &'a str,
    differences: &'a [String],
    objectives: Vec<Objective<'a>>,
}

#[derive(Serialize)]
struct Objective<'a> {
    objective: &'static str,
    then: Verdict,
    now: Verdict,
    reason: Option<&'a str>,
    lost: bool,
    rules: Vec<Rule<'a>>,
}

#[derive(Serialize)]
struct Rule<'a> {
    rule: &'a str,
    panel: &'a str,
    control: &'a str,
    limit: f64,
    bound_then: Option<f64>,
    bound_now: Option<f64>,
}

impl<'a> Baseline<'a> {
    fn of(against: &'a Against) -> Self {
        let comparison = &against.comparison;
        Baseline {
            path: &against.path,
            recipe: &comparison.recipe,
            differences: &against.differences,
            objectives: comparison.objectives.iter().map(Objective::of).collect(),
        }
    }
}

impl<'a> Objective<'a> {
    fn of(change: &'a ObjectiveChange) -> Self {
        let rule = |rule: &'a RuleChange| Rule {
            rule: &rule.rule,
            panel: &rule.panel,
            control: &rule.control,
            limit: rule.limit,
            bound_then: rule.then,
            bound_now: rule.now,
        };
        Objective {
            objective: change.objective.name(),
            then: change.then,
            now: change.now,
            reason: change.reason.as_deref(),
            lost: change.is_lost(),
            rules: change.rules.iter().map(rule).collect(),
        }
    }
}

impl Summary<'_> {
    /// Writes one JSON document and a line feed.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let document = Document {
            schema: SUMMARY_SCHEMA,
            run: self.run,
            required: self.required,
            exit: self.exit,
            certificates: self.certificates,
            baselines: self.baselines.iter().map(Baseline::of).collect(),
        };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }
}
