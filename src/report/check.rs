//! What continuous integration is told of a run: one outcome per certificate and objective, and
//! one per rule below it.
//!
//! Errors and failures stand exactly where the exit code of the command comes from: an error where
//! what was asked for is incomplete or unsupported (3), a failure where what was required does not
//! hold (1).

use crate::certify::{ObjectiveChange, Reason};
use crate::schema::{Certificate, ObjectiveName, ObjectiveResult, RuleResult, Verdict};

use super::figure::{
    OBJECTIVES, change_sentence, rule_sentence, verdict_and_reason, verdict_words,
};
use super::summary::{Against, Summary};

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It holds.
    Passed,
    /// Nothing depends on it here, whatever its verdict.
    Skipped,
    /// It was required and does not hold.
    Failed,
    /// It was asked for and cannot be judged.
    Error,
}

/// The status of a verdict as it is judged: `required` must hold, `asked` must at least be judged.
pub fn status(verdict: Verdict, required: bool, asked: bool) -> Status {
    match verdict {
        Verdict::Pass => Status::Passed,
        Verdict::Incomplete | Verdict::Unsupported if required || asked => Status::Error,
        Verdict::NotEstablished | Verdict::Descriptive if required => Status::Failed,
        Verdict::Incomplete
        | Verdict::Unsupported
        | Verdict::NotEstablished
        | Verdict::Descriptive => Status::Skipped,
    }
}

/// One objective of one certificate.
pub(super) struct Check<'a> {
    pub certificate: &'a Certificate,
    pub objective: ObjectiveName,
    pub status: Status,
}

impl<'a> Check<'a> {
    pub fn result(&self) -> &'a ObjectiveResult {
        self.certificate.objectives.get(self.objective)
    }

    /// Verdict, reason and detail in one sentence.
    pub fn sentence(&self) -> String {
        verdict_sentence(self.objective, self.result())
    }

    /// Status and sentence of one rule. A rule counts for something only where bounds decided:
    /// figures on partial evidence, or of a recipe that may not have been engaged, hold nothing.
    pub fn rule(&self, rule: &RuleResult) -> (Status, String) {
        let result = self.result();
        let decided = result.verdict == Verdict::Pass
            || result.reason.as_deref() == Some(Reason::BoundExceedsLimit.name());
        let sentence = rule_sentence(rule);
        if !decided {
            let verdict = verdict_words(result.verdict);
            let reason = result.reason.as_deref().unwrap_or("no reason");
            let why = format!("no verdict rests on it: the objective is {verdict} ({reason})");
            return (Status::Skipped, format!("{sentence}; {why}"));
        }
        let status = match (rule.pass, self.status) {
            (true, _) => Status::Passed,
            (false, Status::Failed) => Status::Failed,
            (false, _) => Status::Skipped,
        };
        (status, sentence)
    }
}

/// Verdict, reason and detail of an objective in one sentence.
pub(super) fn verdict_sentence(objective: ObjectiveName, result: &ObjectiveResult) -> String {
    let mut text = format!("{} {}", objective.name(), verdict_and_reason(result));
    if let Some(detail) = &result.detail {
        text.push_str(&format!(": {detail}"));
    }
    text
}

/// Every objective of every certificate, certificate by certificate.
pub(super) fn checks<'a>(summary: &Summary<'a>) -> Vec<Check<'a>> {
    let surveyed = summary.required.is_empty();
    let check = |certificate: &'a Certificate, objective: ObjectiveName| {
        let required = summary.required.contains(&objective);
        let asked = surveyed && objective == summary.protocol.required;
        let verdict = certificate.objectives.get(objective).judged();
        Check {
            certificate,
            objective,
            status: status(verdict, required, asked),
        }
    };
    summary
        .certificates
        .iter()
        .flat_map(|certificate| OBJECTIVES.map(|objective| check(certificate, objective)))
        .collect()
}

/// One objective of a baseline: what it held must still hold.
pub fn change_status(change: &ObjectiveChange) -> Status {
    match change.then {
        Verdict::Pass if change.is_incomplete => Status::Error,
        Verdict::Pass => status(change.now, true, true),
        _ => Status::Skipped,
    }
}

/// What became of one objective of a baseline.
pub(super) fn change_words(change: &ObjectiveChange) -> String {
    let objective = change.objective.name();
    let now = verdict_words(change.now);
    let reason = match &change.reason {
        Some(reason) => format!("{now} ({reason})"),
        None => now.to_owned(),
    };
    match (change.then, change.now) {
        (Verdict::Pass, Verdict::Pass) => format!("{objective} still holds"),
        (Verdict::Pass, _) => format!("{objective} was held and no longer is: {reason}"),
        (then, Verdict::Pass) => {
            format!("{objective} holds now; it was {} then", verdict_words(then))
        }
        (then, _) => format!(
            "{objective} was not held then ({}) and is not now: {reason}",
            verdict_words(then)
        ),
    }
}

/// What a reader is told of a baseline: differences first, then each objective, with bounds where
/// something was lost.
pub(super) fn against_sentences(against: &Against) -> Vec<String> {
    let comparison = &against.comparison;
    let head = format!("{} against baseline {}", comparison.recipe, against.path);
    let mut sentences = Vec::new();
    if !against.differences.is_empty() {
        let differences = against.differences.join("; ");
        sentences.push(format!("{head}: not the same as then: {differences}"));
    }
    for change in &comparison.objectives {
        let mut words = vec![change_words(change)];
        if change.is_lost() {
            words.extend(change.rules.iter().map(change_sentence));
        }
        sentences.push(format!("{head}: {}", words.join("; ")));
    }
    if comparison
        .objectives
        .iter()
        .all(|change| change.then != Verdict::Pass)
    {
        sentences.push(format!("{head}: it held nothing, so nothing can be lost"));
    }
    sentences
}

/// The outcome in one sentence, as the exit code has it.
pub(super) fn headline(summary: &Summary<'_>) -> String {
    let recipes = |count: usize| match count {
        1 => "1 recipe".to_owned(),
        more => format!("{more} recipes"),
    };
    let all = summary.certificates.len();
    let holding = |objectives: &[ObjectiveName]| {
        let holds = |certificate: &&Certificate| {
            objectives
                .iter()
                .all(|&name| certificate.objectives.get(name).verdict == Verdict::Pass)
        };
        summary.certificates.iter().filter(holds).count()
    };
    let mut text = if summary.required.is_empty() {
        let objective = summary.protocol.required;
        let pass = holding(&[objective]);
        format!(
            "survey of {}: {pass} of {all} hold {}",
            recipes(all),
            objective.name()
        )
    } else {
        let names: Vec<&str> = summary.required.iter().map(|&name| name.name()).collect();
        let pass = holding(summary.required);
        format!(
            "{pass} of {} hold {}, as required",
            recipes(all),
            names.join(" and ")
        )
    };
    let lost: usize = summary
        .baselines
        .iter()
        .map(|one| one.comparison.lost().count())
        .sum();
    match (summary.baselines.len(), lost) {
        (0, _) => {}
        (_, 0) => text.push_str("; nothing that a baseline held is lost"),
        (_, 1) => text.push_str("; 1 objective that a baseline held is lost"),
        (_, more) => text.push_str(&format!("; {more} objectives that baselines held are lost")),
    }
    text
}
