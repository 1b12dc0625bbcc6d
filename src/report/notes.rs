//! The sentences below the table: controls, A/A, reasons, what was required.

use crate::certify::{Unattainable, unattainable};
use crate::schema::{
    AaResult, AnswerMode, AnswerResult, Certificate, ObjectiveResult, Objectives, RuleName,
    RuleResult, Verdict,
};

use super::check::against_sentences;
use super::figure::{bound_and_limit, nonzero_change, verdict_and_reason};
use super::outlook::{influences, outlooks};
use super::servers;
use super::summary::Summary;

/// Every sentence, in reading order.
pub(super) fn notes(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = background(summary);
    notes.extend(of_recipes(summary, sentences));
    notes.extend(of_recipes(summary, outlooks));
    notes.extend(of_recipes(summary, influences));
    notes.extend(degradation(summary));
    notes.extend(summary.baselines.iter().flat_map(against_sentences));
    notes.push(requirement(summary));
    notes.extend(sizes(summary));
    notes.push(format!(
        "certificates: {}",
        summary.stored.unwrap_or("printed only, stored nowhere")
    ));
    notes
}

/// What candidates were compared with, and how their answers came about.
pub(super) fn background(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = controls(summary);
    notes.push(aa(summary.certificates));
    notes.extend(servers::notes(summary));
    notes.extend(answers(summary));
    notes
}

/// Rules of both objectives; the rules that they share come twice.
pub(super) fn rules(objectives: &Objectives) -> impl Iterator<Item = &RuleResult> {
    objectives
        .preservation
        .rules
        .iter()
        .chain(&objectives.aggregate.rules)
}

/// Controls are the same for every certificate of a run.
fn controls(summary: &Summary<'_>) -> Vec<String> {
    let Some(certificate) = summary.certificates.first() else {
        return Vec::new();
    };
    let line = |(control, counts): (&String, &crate::schema::ControlCounts)| {
        format!(
            "control {control}: correct {}; {} truncated, {} unparsed, {}{} errors",
            control_correct(summary, control),
            counts.truncated,
            counts.unparsed,
            servers::empty(counts.empty),
            counts.errors
        )
    };
    certificate.counts.controls.iter().map(line).collect()
}

/// What the control answered on each panel with answers, from the first certificate that says so.
fn control_correct(summary: &Summary<'_>, control: &str) -> String {
    let mut counts = Vec::new();
    for panel in &summary.protocol.panels {
        let panel = panel.panel_name();
        let mut all = summary
            .certificates
            .iter()
            .flat_map(|found| rules(&found.objectives));
        let found = all.find_map(|rule| {
            let same = rule.panel == panel && rule.control == control;
            rule.control_correct
                .filter(|_| same)
                .map(|correct| (correct, rule.pairs))
        });
        if let Some((correct, pairs)) = found {
            counts.push(format!("{panel} {correct}/{pairs}"));
        }
    }
    if counts.is_empty() {
        counts.push("nothing compared".to_owned());
    }
    counts.join(", ")
}

/// What the second run of native gave, which certificates of one run have in common.
pub(super) fn aa(certificates: &[Certificate]) -> String {
    let aa = certificates
        .iter()
        .find_map(|certificate| certificate.aa.as_ref());
    let Some(aa) = aa else {
        return "A/A (native against native): not run".to_owned();
    };
    if aa.records == 0 {
        return "A/A (native against native): run, but nothing was compared".to_owned();
    }
    let outcome = aa_outcome(aa, &aa.records.to_string());
    format!("A/A (native against native): {outcome}")
}

/// What native lost and gained against itself, over `records` in words.
pub(super) fn aa_outcome(aa: &AaResult, records: &str) -> String {
    // How many of them differ is not recorded.
    let bits = match aa.identical_bits {
        true => format!("identical bits in {records} records"),
        false => format!("bits differ, {records} records compared"),
    };
    format!("{} lost, {} gained, {bits}", aa.lost, aa.gained)
}

/// Which answers were verified instead of generated; nothing where all were generated.
fn answers(summary: &Summary<'_>) -> Option<String> {
    let verified = summary.certificates.iter().filter_map(|certificate| {
        let answers = certificate.answers.as_ref()?;
        (answers.mode == AnswerMode::Verified).then_some((certificate, answers))
    });
    let (names, answers): (Vec<&str>, Vec<&AnswerResult>) = verified
        .map(|(certificate, answers)| (certificate.recipe.name.as_str(), answers))
        .unzip();
    let regenerated: u64 = answers.iter().map(|answers| answers.regenerated).sum();
    let mismatches: u64 = answers.iter().map(|answers| answers.mismatches).sum();
    (!names.is_empty()).then(|| {
        format!(
            "answers of {}: verified against the control's; {regenerated} generated plainly as \
             well, {mismatches} of them differ",
            names.join(", ")
        )
    })
}

/// Why objectives are not passed, and what their rules would have needed.
pub(super) fn unheld(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = of_recipes(summary, sentences);
    notes.extend(of_recipes(summary, outlooks));
    notes.extend(of_recipes(summary, influences));
    notes.extend(sizes(summary));
    notes
}

/// Sentences about certificates: one for all recipes of which the same is to be said.
fn of_recipes(summary: &Summary<'_>, sentences: fn(&Objectives) -> Vec<String>) -> Vec<String> {
    let mut said: Vec<(String, Vec<&str>)> = Vec::new();
    for certificate in summary.certificates {
        for sentence in sentences(&certificate.objectives) {
            let name = certificate.recipe.name.as_str();
            match said.iter_mut().find(|(text, _)| *text == sentence) {
                Some((_, names)) => names.push(name),
                None => said.push((sentence, vec![name])),
            }
        }
    }
    said.into_iter()
        .map(|(text, names)| format!("{}: {text}", names.join(", ")))
        .collect()
}

/// Why an objective is not passed.
fn sentences(objectives: &Objectives) -> Vec<String> {
    let (preservation, aggregate) = (&objectives.preservation, &objectives.aggregate);
    match (reason(preservation), reason(aggregate)) {
        (Some(one), Some(other)) if one == other => {
            vec![format!("preservation and aggregate {one}")]
        }
        (one, other) => {
            let one = one.map(|text| format!("preservation {text}"));
            let other = other.map(|text| format!("aggregate {text}"));
            one.into_iter().chain(other).collect()
        }
    }
}

fn reason(result: &ObjectiveResult) -> Option<String> {
    if result.verdict == Verdict::Pass {
        return None;
    }
    let mut text = verdict_and_reason(result);
    if let Some(detail) = &result.detail {
        text.push_str(&format!(": {detail}"));
    }
    Some(text)
}

fn degradation(summary: &Summary<'_>) -> Vec<String> {
    let certificates = summary.certificates.iter();
    let line = |certificate: &Certificate| {
        let endpoints = degraded_endpoints(certificate)?;
        let name = &certificate.recipe.name;
        Some(format!("{name}: degradation established on {endpoints}"))
    };
    certificates.filter_map(line).collect()
}

/// Endpoints on which degradation is established, with what happened there; nothing where there
/// are none.
pub(super) fn degraded_endpoints(certificate: &Certificate) -> Option<String> {
    let established = certificate
        .degradation
        .iter()
        .filter(|found| found.established);
    let endpoints: Vec<String> = established
        .map(|found| degraded(certificate, &found.endpoint))
        .collect();
    (!endpoints.is_empty()).then(|| endpoints.join(", "))
}

/// An endpoint with what happened there, against the first control.
fn degraded(certificate: &Certificate, endpoint: &str) -> String {
    let found = rules(&certificate.objectives).find(|rule| rule.panel == endpoint);
    match found {
        Some(RuleResult {
            lost: Some(lost),
            control_correct: Some(correct),
            ..
        }) => format!("{endpoint} ({lost} of {correct} right answers lost)"),
        Some(rule) => format!("{endpoint} ({})", nonzero_change(rule.estimate)),
        None => endpoint.to_owned(),
    }
}

fn requirement(summary: &Summary<'_>) -> String {
    if summary.required.is_empty() && summary.baselines.is_empty() {
        return "survey, nothing required".to_owned();
    }
    if summary.required.is_empty() {
        return "survey, required is what baselines held".to_owned();
    }
    let names: Vec<&str> = summary.required.iter().map(|&name| name.name()).collect();
    format!("required of each recipe: {}", names.join(" and "))
}

/// Rules that the protocol's sizes cannot satisfy, if any. Gains can make up for too few cases where
/// a rule counts them.
fn sizes(summary: &Summary<'_>) -> Vec<String> {
    // Alphas out of range stop a run before there is anything to summarise.
    let found = unattainable(summary.protocol).unwrap_or_default();
    let (net, losses): (Vec<_>, Vec<_>) = found
        .iter()
        .partition(|found| found.rule == RuleName::NetChange);
    let name = &summary.protocol.name;
    let said = |what: &str, rules: Vec<&Unattainable>| {
        let rules: Vec<String> = rules.into_iter().map(describe).collect();
        (!rules.is_empty()).then(|| format!("protocol {name} {what}: {}", rules.join("; ")))
    };
    let losses = said("cannot pass at its sizes, even with no loss", losses);
    let net = said(
        "does not pass at its sizes with nothing lost and nothing gained",
        net,
    );
    losses.into_iter().chain(net).collect()
}

fn describe(rule: &Unattainable) -> String {
    let name = rule.rule.name();
    let [bound, limit] = bound_and_limit(name, rule.bound, rule.limit);
    format!(
        "{name} on {} cases of {} is bounded by {bound}, limit {limit}",
        rule.cases, rule.panel
    )
}
