//! After a run: what rules that did not pass would have needed.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::certify::{POWERS, outlook};
use crate::report::verdict_and_reason;
use crate::schema::{Certificate, ObjectiveName, RuleOutlook, RuleResult, Verdict};
use crate::stats::MAX_PAIRS_SOUGHT;
use crate::store::RunDir;

use super::super::baseline::read_consistent;
use super::super::{issue, qualify};
use super::{Failure, Format, SCHEMA, limit_text, write_json, write_table};

const OBSERVED: &str = "Pairs with which a rule passes with probability 0.8 and 0.95 if the \
    observed rates were the true ones. A rate seen on few pairs may be far from the true one.";
const APPROXIMATE: &str = "nll: documents by normal approximation from the observed increase and \
    its spread over documents.";
const BEYOND: &str =
    "none: the estimate itself is at the limit or beyond, more pairs alone would not do.";
const AS_IT_STANDS: &str = "The certificate's figures follow from each other; they were not \
    recomputed from its run.";

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    mode: &'static str,
    /// Run directory or certificate, as it was named.
    source: String,
    certificates: Vec<Entry>,
    notes: Vec<&'static str>,
}

#[derive(Serialize)]
struct Entry {
    recipe: String,
    objectives: Vec<Objective>,
    rules: Vec<Rule>,
    /// Whether any rule was evaluated, passed or not.
    #[serde(skip)]
    is_evaluated: bool,
}

#[derive(Serialize)]
struct Objective {
    objective: &'static str,
    verdict: Verdict,
    reason: Option<String>,
    #[serde(skip)]
    in_words: String,
}

/// A rule that did not pass, with its figures.
#[derive(Serialize)]
struct Rule {
    #[serde(flatten)]
    outlook: RuleOutlook,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gained: Option<u64>,
    estimate: f64,
    bound: f64,
    limit: f64,
    alpha: f64,
}

/// Recomputes the certificates of a run, without storing them, and prints what they lacked.
pub(super) fn of_run(run: &Path, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let dir = RunDir::open(run).map_err(|error| qualify::failure(error.into()))?;
    let certificates = issue::certificates(&dir)?;
    print(run, &certificates, &[], format, out)
}

/// Prints what one certificate lacked.
pub(super) fn of_certificate(
    path: &Path,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let certificate = read_consistent(path)?;
    print(path, &[certificate], &[AS_IT_STANDS], format, out)
}

fn print(
    source: &Path,
    certificates: &[Certificate],
    notes: &[&'static str],
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut document = Document {
        schema: SCHEMA,
        mode: "after",
        source: source.display().to_string(),
        certificates: certificates.iter().map(entry).collect(),
        notes: notes.to_vec(),
    };
    document.add_notes();
    match format {
        Format::Json => write_json(out, &document)?,
        Format::Text => write_text(out, &document)?,
    }
    Ok(())
}

fn entry(certificate: &Certificate) -> Entry {
    let names = [ObjectiveName::Preservation, ObjectiveName::Aggregate];
    let mut rules: Vec<Rule> = Vec::new();
    for result in names
        .iter()
        .flat_map(|&name| &certificate.objectives.get(name).rules)
    {
        // Rules that serve both objectives come twice.
        let rule = outlook(result).map(|outlook| rule(result, outlook));
        rules.extend(rule.filter(|new| rules.iter().all(|old| old.outlook != new.outlook)));
    }
    let objective = |&name: &ObjectiveName| {
        let result = certificate.objectives.get(name);
        Objective {
            objective: name.name(),
            verdict: result.verdict,
            reason: result.reason.clone(),
            in_words: verdict_and_reason(result),
        }
    };
    Entry {
        recipe: certificate.recipe.name.clone(),
        objectives: names.iter().map(objective).collect(),
        rules,
        is_evaluated: names
            .iter()
            .any(|&name| !certificate.objectives.get(name).rules.is_empty()),
    }
}

fn rule(result: &RuleResult, outlook: RuleOutlook) -> Rule {
    Rule {
        outlook,
        lost: result.lost,
        gained: result.gained,
        estimate: result.estimate,
        bound: result.bound,
        limit: result.limit,
        alpha: result.alpha,
    }
}

impl Document {
    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.certificates.iter().flat_map(|entry| &entry.rules)
    }

    fn add_notes(&mut self) {
        let has = |test: fn(&RuleOutlook) -> bool| self.rules().any(|rule| test(&rule.outlook));
        let notes = [
            (has(|_| true), OBSERVED),
            (has(|outlook| outlook.approximate), APPROXIMATE),
            (has(|outlook| outlook.beyond_limit), BEYOND),
        ];
        let apply = notes.into_iter().filter(|(applies, _)| *applies);
        let apply: Vec<&str> = apply.map(|(_, note)| note).collect();
        self.notes.extend(apply);
    }
}

fn write_text(out: &mut dyn Write, document: &Document) -> std::io::Result<()> {
    for entry in document.certificates.iter().filter(|it| !it.is_evaluated) {
        let of = |it: &Objective| format!("{} {}", it.objective, it.in_words);
        let objectives: Vec<String> = entry.objectives.iter().map(of).collect();
        let objectives = objectives.join(", ");
        writeln!(out, "{}: no rule was evaluated: {objectives}", entry.recipe)?;
    }
    if document.rules().next().is_none() {
        if document.certificates.iter().any(|entry| entry.is_evaluated) {
            writeln!(
                out,
                "every rule that could be evaluated passed: nothing is needed"
            )?;
        }
    } else {
        let [low, high] = POWERS.map(|power| format!("needed {power}"));
        let header = [
            "recipe", "rule", "panel", "control", "pairs", "estimate", "bound", "limit", &low,
            &high,
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for entry in &document.certificates {
            rows.extend(entry.rules.iter().map(|rule| cells(&entry.recipe, rule)));
        }
        write_table(out, &rows)?;
        writeln!(out)?;
    }
    for note in &document.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn cells(recipe: &str, rule: &Rule) -> Vec<String> {
    let outlook = &rule.outlook;
    let needed = |pairs: Option<u64>| match pairs {
        Some(pairs) if outlook.approximate => format!("about {pairs}"),
        Some(pairs) => pairs.to_string(),
        None if outlook.beyond_limit => "none".to_owned(),
        None => format!(">{MAX_PAIRS_SOUGHT}"),
    };
    vec![
        recipe.to_owned(),
        outlook.rule.clone(),
        outlook.panel.clone(),
        outlook.control.clone(),
        outlook.pairs.to_string(),
        format!("{:+.3}%", 100.0 * rule.estimate),
        format!("{:+.3}%", 100.0 * rule.bound),
        limit_text(&outlook.rule, rule.limit),
        needed(outlook.needed_80),
        needed(outlook.needed_95),
    ]
}
