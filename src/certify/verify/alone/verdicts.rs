//! Verdicts against the rules below them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::recipe::Recipe;
use crate::schema::{
    Certificate, ExpectedStorage, ObjectiveName, ObjectiveResult, RuleName, RuleOutlook,
    RuleResult, Verdict,
};

use super::super::super::{Reason, outlook, server};
use super::super::Disagreement;
use super::generated_pairs;
use super::rules::name_of;

pub(super) fn check(certificate: &Certificate) -> Vec<Disagreement> {
    [ObjectiveName::Preservation, ObjectiveName::Aggregate]
        .into_iter()
        .flat_map(|name| {
            let result = certificate.objectives.get(name);
            let mut claims = match result.verdict {
                Verdict::Pass => against_pass(name, result, certificate),
                verdict => against_other(verdict, result, certificate),
            };
            claims.extend(outlooks(result));
            claims.extend(incomplete(result));
            claims.into_iter().map(move |(field, found, expected)| {
                let path = format!("objectives.{}.{field}", name.name());
                Disagreement::claim(&path, found, expected)
            })
        })
        .collect()
}

/// A field, what it holds, and what is expected in words.
type Claim = (&'static str, Value, String);

/// What rules would need follows from the rules.
fn outlooks(result: &ObjectiveResult) -> Option<Claim> {
    let short = result.reason.as_deref() == Some(Reason::BoundExceedsLimit.name());
    let expected: Vec<RuleOutlook> = result
        .rules
        .iter()
        .filter(|_| short)
        .filter_map(outlook)
        .collect();
    (result.outlook != expected).then(|| {
        (
            "outlook",
            json!(result.outlook),
            json!(expected).to_string(),
        )
    })
}

/// What makes evidence incomplete stands beside a verdict that does not say it, and nowhere else.
fn incomplete(result: &ObjectiveResult) -> Option<Claim> {
    let name = result.incomplete.as_deref()?;
    let verdict = Reason::from_name(name).map(Reason::verdict);
    let fits = result.verdict == Verdict::Descriptive && verdict == Some(Verdict::Incomplete);
    (!fits).then(|| {
        let expected = "nothing, or beside a descriptive verdict a reason of `incomplete`";
        ("incomplete", json!(name), expected.to_owned())
    })
}

/// A pass has every rule against every control, all of them hold, and nothing stands against it.
fn against_pass(
    name: ObjectiveName,
    result: &ObjectiveResult,
    certificate: &Certificate,
) -> Vec<Claim> {
    let no_pass = |why: String| ("verdict", json!("pass"), format!("no pass: {why}"));
    let mut claims = Vec::new();
    for (field, text) in [("reason", &result.reason), ("detail", &result.detail)] {
        if text.is_some() {
            claims.push((field, json!(text), "nothing beside a pass".to_owned()));
        }
    }
    for rule in RuleName::ALL.into_iter().filter(|rule| rule.serves(name)) {
        if !result
            .rules
            .iter()
            .any(|found| name_of(found) == Some(rule))
        {
            claims.push(no_pass(format!("there is no rule {}", rule.name())));
        }
    }
    if let Some(rule) = result.rules.iter().find(|rule| !rule.pass) {
        let why = format!(
            "{} on {} against {} fails",
            rule.rule, rule.panel, rule.control
        );
        claims.push(no_pass(why));
    }
    claims.extend(uncovered(&result.rules, certificate).map(no_pass));
    claims.extend(unengaged(certificate).map(no_pass));
    claims.extend(unrepeated(certificate).map(no_pass));
    claims.extend(errored(certificate).map(no_pass));
    claims
}

/// A rule and panel that was not evaluated against each control.
fn uncovered(rules: &[RuleResult], certificate: &Certificate) -> Option<String> {
    let controls: BTreeSet<&str> = certificate
        .counts
        .controls
        .keys()
        .map(String::as_str)
        .collect();
    if controls.is_empty() {
        return Some("counts name no control".to_owned());
    }
    rules.iter().find_map(|rule| {
        let same = |other: &&RuleResult| other.rule == rule.rule && other.panel == rule.panel;
        let found: BTreeSet<&str> = rules
            .iter()
            .filter(same)
            .map(|other| other.control.as_str())
            .collect();
        (found != controls).then(|| {
            format!(
                "{} on {} does not stand against exactly each control",
                rule.rule, rule.panel
            )
        })
    })
}

/// A built-in worker repeats native, and says how the candidate's answers came about.
fn unrepeated(certificate: &Certificate) -> Option<String> {
    let kind = certificate.worker.known_kind().ok()?;
    if !kind.is_built_in() {
        None
    } else if certificate.aa.is_none() {
        Some("native was not run a second time".to_owned())
    } else if certificate.answers.is_none() && generated_pairs(certificate) > 0 {
        Some("nothing says how its answers came about, verified or plain".to_owned())
    } else {
        None
    }
}

fn errored(certificate: &Certificate) -> Option<String> {
    let counts = &certificate.counts;
    let any = counts.errors > 0 || counts.controls.values().any(|control| control.errors > 0);
    any.then(|| "there are errored cases".to_owned())
}

fn unengaged(certificate: &Certificate) -> Option<String> {
    if let Some(found) = &certificate.server_engagement {
        // A spec that does not parse is listed as such.
        let recipe = Recipe::parse(&certificate.recipe.spec).ok()?;
        let (arm, servers) = (&certificate.recipe.name, certificate.servers.as_ref());
        return server::lack(&recipe, arm, found, servers).map(|lack| format!("the arm: {lack}"));
    }
    let Some(found) = &certificate.engagement else {
        return Some("nothing proves that the recipe was engaged".to_owned());
    };
    // A spec that does not parse is listed as such.
    let recipe = Recipe::parse(&certificate.recipe.spec).ok()?;
    let geometry = &certificate.model.geometry;
    let lack = ExpectedStorage::without_calibration(&recipe, geometry).probe_lack(found)?;
    Some(format!("the arm {lack}"))
}

/// Any other verdict has a reason that leads to it.
fn against_other(
    verdict: Verdict,
    result: &ObjectiveResult,
    certificate: &Certificate,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    if result
        .detail
        .as_deref()
        .is_none_or(|text| text.trim().is_empty())
    {
        claims.push(("detail", json!(result.detail), "a sentence".to_owned()));
    }
    let Some(reason) = result.reason.as_deref().and_then(Reason::from_name) else {
        claims.push((
            "reason",
            json!(result.reason),
            "a reason of this version".to_owned(),
        ));
        return claims;
    };
    if reason.verdict() != verdict {
        let expected = format!("{}, which follows from the reason", json!(reason.verdict()));
        claims.push(("verdict", json!(verdict), expected));
    }
    claims.extend(graver(reason, certificate));
    let fails = result.rules.iter().any(|rule| !rule.pass);
    if reason == Reason::BoundExceedsLimit && !fails {
        claims.push((
            "reason",
            json!(result.reason),
            "another one: every rule holds".to_owned(),
        ));
    }
    claims
}

/// The gravest finding is the reason: a lesser one implies that there was no graver one.
fn graver(reason: Reason, certificate: &Certificate) -> Option<Claim> {
    let (graver, why) = if reason > Reason::NoPanel
        && let Some(why) = errored(certificate)
    {
        (Reason::ErroredRecords, why)
    } else if reason > Reason::EngagementUnproved
        && let Some(why) = unengaged(certificate)
    {
        (Reason::EngagementUnproved, why)
    } else {
        return None;
    };
    let expected = format!("{}: {why}", graver.name());
    Some(("reason", json!(reason.name()), expected))
}
