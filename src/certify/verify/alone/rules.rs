//! Rules against their own counts, alphas and limits, and against each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::schema::{
    Certificate, LARGEST_ALPHA, ObjectiveName, RuleName, RuleResult, TreeDifference,
    tree_differences,
};

use super::super::super::pairs::AnswerPairs;
use super::super::super::rules::{NLL_METHOD, Subject, Threshold, on_answers};
use super::super::Disagreement;

/// Largest relative difference between an estimate and the quotient of the means beside it: both
/// are rounded, and in another order.
const ROUNDING: f64 = 1e-11;
/// Largest alpha at which a bootstrap bound cannot lie on the other side of its estimate: sums of
/// independent draws reach their mean more often than that.
const ONE_SIDED: f64 = 0.05;

pub(super) fn check(certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = Vec::new();
    for name in [ObjectiveName::Preservation, ObjectiveName::Aggregate] {
        let rules = &certificate.objectives.get(name).rules;
        for (at, rule) in rules.iter().enumerate() {
            list.extend(check_rule(name, &path(name, at), rule));
        }
        list.extend(doubled(name, rules));
        list.extend(strange_controls(name, certificate));
    }
    list.extend(thresholds(certificate));
    list.extend(shared(certificate));
    list
}

/// The rule of a result, if this version has it.
pub(super) fn name_of(rule: &RuleResult) -> Option<RuleName> {
    RuleName::ALL
        .into_iter()
        .find(|name| name.name() == rule.rule)
}

pub(super) fn path(objective: ObjectiveName, at: usize) -> String {
    format!("objectives.{}.rules[{at}]", objective.name())
}

fn check_rule(objective: ObjectiveName, path: &str, rule: &RuleResult) -> Vec<Disagreement> {
    let Some(name) = name_of(rule).filter(|name| name.serves(objective)) else {
        let expected = format!("a rule of {}", objective.name());
        return vec![Disagreement::claim(
            &format!("{path}.rule"),
            rule.rule.as_str(),
            expected,
        )];
    };
    let mut list = Vec::new();
    let kind = match name {
        RuleName::GrossLoss | RuleName::NetChange => "math",
        RuleName::Nll => "nll-",
        RuleName::Retrieval => "retrieval-",
    };
    if !rule.panel.starts_with(kind) {
        let expected = format!("a panel of {}", name.name());
        list.push(Disagreement::claim(
            &format!("{path}.panel"),
            rule.panel.as_str(),
            expected,
        ));
    }
    list.extend(out_of_range(name, path, rule));
    if name == RuleName::Nll && lies_beyond(rule.estimate, rule.bound, rule.alpha) {
        let expected = format!(
            "at least the estimate {}: it is an upper bound",
            rule.estimate
        );
        list.push(Disagreement::claim(
            &format!("{path}.bound"),
            rule.bound,
            expected,
        ));
    }
    let expected = match name {
        RuleName::Nll => expected_nll(rule),
        _ => expected_answers(name, rule),
    };
    match expected {
        Ok(expected) => list.extend(differences(path, &json!(rule), &json!(expected))),
        Err((field, found, expected)) => {
            list.push(Disagreement::claim(
                &format!("{path}.{field}"),
                found,
                expected,
            ));
        }
    }
    list
}

/// No valid protocol has such a limit or alpha.
fn out_of_range(name: RuleName, path: &str, rule: &RuleResult) -> Vec<Disagreement> {
    let mut list = Vec::new();
    if let Some(expected) = name.limit_fault(rule.limit) {
        let path = format!("{path}.limit");
        list.push(Disagreement::claim(&path, rule.limit, expected));
    }
    list.extend(alpha_fault(&format!("{path}.alpha"), rule.alpha));
    list
}

/// Whether `lower` lies above `upper`, where one is a bound at `alpha` and the other its estimate.
pub(super) fn lies_beyond(lower: f64, upper: f64, alpha: f64) -> bool {
    alpha <= ONE_SIDED && lower - upper > ROUNDING * lower.abs().max(1.0)
}

/// An alpha that follows from no family alpha.
pub(super) fn alpha_fault(path: &str, alpha: f64) -> Option<Disagreement> {
    let holds = alpha > 0.0 && alpha <= LARGEST_ALPHA;
    let expected = format!("0 < alpha <= {LARGEST_ALPHA}");
    (!holds).then(|| Disagreement::claim(path, alpha, expected))
}

fn differences(path: &str, found: &Value, expected: &Value) -> Vec<Disagreement> {
    let below = |difference: TreeDifference| {
        Disagreement::with_itself(TreeDifference {
            path: format!("{path}.{}", difference.path),
            ..difference
        })
    };
    tree_differences(found, expected)
        .into_iter()
        .map(below)
        .collect()
}

/// A field, what it holds, and what is expected in words.
type Claim = (&'static str, Value, String);

/// Everything that follows from counts, alpha and limit.
fn expected_answers(name: RuleName, rule: &RuleResult) -> Result<RuleResult, Claim> {
    let counts = counts(rule)?;
    let subject = Subject {
        rule: name,
        panel: &rule.panel,
        control: &rule.control,
    };
    let threshold = Threshold {
        alpha: rule.alpha,
        limit: rule.limit,
    };
    on_answers(subject, &counts, threshold)
        .map_err(|error| ("bound", rule.bound.into(), format!("none: {error}")))
}

fn counts(rule: &RuleResult) -> Result<AnswerPairs, Claim> {
    let stated =
        |field, value: Option<u64>| value.ok_or_else(|| (field, Value::Null, "a count".to_owned()));
    let control_correct = stated("control_correct", rule.control_correct)?;
    let lost = stated("lost", rule.lost)?;
    let gained = stated("gained", rule.gained)?;
    let at_most = |field, found: u64, most: Option<u64>, what: &str| match most {
        Some(most) if found <= most => Ok(()),
        _ => Err((field, found.into(), format!("at most {what}"))),
    };
    at_most(
        "control_correct",
        control_correct,
        Some(rule.pairs),
        "pairs",
    )?;
    at_most("lost", lost, Some(control_correct), "control_correct")?;
    let wrong = rule.pairs.checked_sub(control_correct);
    at_most("gained", gained, wrong, "pairs less control_correct")?;
    Ok(AnswerPairs {
        pairs: rule.pairs,
        control_correct,
        candidate_correct: control_correct - lost + gained,
        lost,
        gained,
    })
}

/// Everything that follows from means, bound and limit; the bound itself needs the documents.
fn expected_nll(rule: &RuleResult) -> Result<RuleResult, Claim> {
    let mean = |field, value: Option<f64>| {
        value
            .filter(|mean| *mean > 0.0)
            .ok_or_else(|| (field, json!(value), "a positive mean".to_owned()))
    };
    let control = mean("control_mean", rule.control_mean)?;
    let candidate = mean("candidate_mean", rule.candidate_mean)?;
    if rule.monte_carlo_se.is_none_or(|error| error < 0.0) {
        let found = json!(rule.monte_carlo_se);
        return Err(("monte_carlo_se", found, "a standard error".to_owned()));
    }
    if rule.pairs < 2 {
        return Err((
            "pairs",
            rule.pairs.into(),
            "at least 2 documents".to_owned(),
        ));
    }
    let ratio = candidate / control;
    let rounded = (ratio - 1.0 - rule.estimate).abs() <= ROUNDING * ratio.max(1.0);
    Ok(RuleResult {
        method: NLL_METHOD.to_owned(),
        control_correct: None,
        candidate_correct: None,
        lost: None,
        gained: None,
        lost_of_control_correct: None,
        estimate: if rounded { rule.estimate } else { ratio - 1.0 },
        pass: rule.bound <= rule.limit,
        ..rule.clone()
    })
}

/// A rule stands against a control that the counts name.
fn strange_controls(objective: ObjectiveName, certificate: &Certificate) -> Vec<Disagreement> {
    let controls = &certificate.counts.controls;
    let rules = certificate.objectives.get(objective).rules.iter();
    let strange = rules
        .enumerate()
        .filter(|(_, rule)| !controls.contains_key(&rule.control));
    strange
        .map(|(at, rule)| {
            let field = format!("{}.control", path(objective, at));
            let names: Vec<&str> = controls.keys().map(String::as_str).collect();
            let expected = format!("one of counts.controls: {}", names.join(", "));
            Disagreement::claim(&field, rule.control.as_str(), expected)
        })
        .collect()
}

/// A rule stands once per panel and control.
fn doubled(objective: ObjectiveName, rules: &[RuleResult]) -> Vec<Disagreement> {
    let mut seen = BTreeSet::new();
    let again = rules.iter().enumerate().filter(|(_, rule)| {
        !seen.insert((
            rule.rule.as_str(),
            rule.panel.as_str(),
            rule.control.as_str(),
        ))
    });
    again
        .map(|(at, rule)| {
            let found = format!(
                "{} on {} against {} again",
                rule.rule, rule.panel, rule.control
            );
            Disagreement::claim(&path(objective, at), found, "each rule once")
        })
        .collect()
}

/// A rule has one alpha and one limit, whatever the panel, control and objective.
fn thresholds(certificate: &Certificate) -> Vec<Disagreement> {
    let mut first: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let mut list = Vec::new();
    for name in [ObjectiveName::Preservation, ObjectiveName::Aggregate] {
        for (at, rule) in certificate.objectives.get(name).rules.iter().enumerate() {
            let (alpha, limit) = *first.entry(&rule.rule).or_insert((rule.alpha, rule.limit));
            for (field, found, expected) in
                [("alpha", rule.alpha, alpha), ("limit", rule.limit, limit)]
            {
                if found != expected {
                    let field = format!("{}.{field}", path(name, at));
                    let expected = format!("{expected}, as elsewhere in rule {}", rule.rule);
                    list.push(Disagreement::claim(&field, found, expected));
                }
            }
        }
    }
    list
}

/// Both objectives speak of the same pairs.
fn shared(certificate: &Certificate) -> Vec<Disagreement> {
    let objectives = &certificate.objectives;
    let mut list = Vec::new();
    for (at, rule) in objectives.aggregate.rules.iter().enumerate() {
        let same_pairs =
            |other: &&RuleResult| other.panel == rule.panel && other.control == rule.control;
        let path = path(ObjectiveName::Aggregate, at);
        match objectives.preservation.rules.iter().find(same_pairs) {
            Some(other) if other.rule == rule.rule => {
                list.extend(differences(&path, &json!(rule), &json!(other)));
            }
            Some(other) => list.extend(differences(&path, &pairs(rule), &pairs(other))),
            None if rule.rule != RuleName::NetChange.name() => {
                let found = format!("{} on {}", rule.rule, rule.panel);
                let expected = "the same rule in objectives.preservation";
                list.push(Disagreement::claim(&path, found, expected));
            }
            None => {}
        }
    }
    list
}

fn pairs(rule: &RuleResult) -> Value {
    json!({
        "pairs": rule.pairs,
        "control_correct": rule.control_correct,
        "candidate_correct": rule.candidate_correct,
        "lost": rule.lost,
        "gained": rule.gained,
    })
}
