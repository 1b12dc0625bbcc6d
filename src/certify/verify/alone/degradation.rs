//! Degradation against the counts of the rules.

use std::collections::BTreeSet;

use crate::schema::{Certificate, Degradation, ObjectiveName, RuleName, RuleResult, Verdict};
use crate::stats::{Side, tango_bound};

use super::super::super::caveats::LEAST_DOCUMENTS_OF_HARM;
use super::super::Disagreement;
use super::rules::{alpha_fault, lies_beyond, name_of};
use crate::certify::Reason;

pub(super) fn check(certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = Vec::new();
    let mut seen = BTreeSet::new();
    let alpha = certificate.degradation.first().map(|first| first.alpha);
    for (at, found) in certificate.degradation.iter().enumerate() {
        let path = |field: &str| format!("degradation[{at}].{field}");
        if !seen.insert(found.endpoint.as_str()) {
            let again = format!("{} again", found.endpoint);
            list.push(Disagreement::claim(
                &path("endpoint"),
                again,
                "each endpoint once",
            ));
        }
        if Some(found.alpha) != alpha {
            let expected = "one alpha for all endpoints";
            list.push(Disagreement::claim(&path("alpha"), found.alpha, expected));
        }
        list.extend(alpha_fault(&path("alpha"), found.alpha));
        list.extend(check_endpoint(certificate, found, &path));
    }
    let objectives = &certificate.objectives;
    let of_both = [&objectives.preservation, &objectives.aggregate];
    for rule in of_both.into_iter().flat_map(|result| &result.rules) {
        if seen.insert(rule.panel.as_str()) {
            let found = "a list without it";
            list.push(Disagreement::claim(
                "degradation",
                found,
                format!("endpoint {}", rule.panel),
            ));
        }
    }
    list
}

fn check_endpoint(
    certificate: &Certificate,
    found: &Degradation,
    path: &dyn Fn(&str) -> String,
) -> Vec<Disagreement> {
    let rules: Vec<&RuleResult> = certificate
        .objectives
        .preservation
        .rules
        .iter()
        .filter(|rule| rule.panel == found.endpoint)
        .collect();
    let mut list = Vec::new();
    let is_nll = rules
        .iter()
        .any(|rule| name_of(rule) == Some(RuleName::Nll));
    if !is_nll
        && let Some(expected) = least_favourable(&rules, found.alpha)
        && found.bound != Some(expected)
    {
        let stated = serde_json::json!(found.bound);
        list.push(Disagreement::claim(&path("bound"), stated, expected));
    }
    let estimates = rules.iter().map(|rule| rule.estimate);
    if is_nll
        && let Some((bound, estimate)) = found.bound.zip(estimates.reduce(f64::min))
        && lies_beyond(bound, estimate, found.alpha)
    {
        let expected = format!("at most the estimate {estimate}: it is a lower bound");
        list.push(Disagreement::claim(&path("bound"), bound, expected));
    }
    let enough = !is_nll
        || rules
            .iter()
            .all(|rule| rule.pairs >= u64::from(LEAST_DOCUMENTS_OF_HARM));
    let harmful = found
        .bound
        .is_some_and(|bound| if is_nll { bound > 0.0 } else { bound < 0.0 });
    let against_each = rules.len() == certificate.counts.controls.len();
    if found.established && !against_each {
        let expected = "false: it has no rules against each control";
        list.push(Disagreement::claim(&path("established"), true, expected));
    } else if found.established && !is_declared(certificate) {
        let expected = "false: the verdicts say that the trial was not declared";
        list.push(Disagreement::claim(&path("established"), true, expected));
    } else if found.established && !enough {
        let expected = format!("false: it rests on fewer than {LEAST_DOCUMENTS_OF_HARM} documents");
        list.push(Disagreement::claim(&path("established"), true, expected));
    } else if found.established && !harmful {
        let expected = "false: its bound does not show harm";
        list.push(Disagreement::claim(&path("established"), true, expected));
    } else if !found.established && harmful && enough && against_each && is_sound(certificate) {
        let expected = "true: its bound shows harm";
        list.push(Disagreement::claim(&path("established"), false, expected));
    }
    list
}

/// The largest upper bound of net change over the controls; `None` without counts.
fn least_favourable(rules: &[&RuleResult], alpha: f64) -> Option<f64> {
    let upper = |rule: &&RuleResult| {
        tango_bound(rule.lost?, rule.gained?, rule.pairs, alpha, Side::Upper).ok()
    };
    rules.iter().filter_map(upper).reduce(f64::max)
}

/// Whether no verdict says that model, recipe or protocol were not declared before the records; an
/// objective alone may be undeclared.
fn is_declared(certificate: &Certificate) -> bool {
    let objectives = &certificate.objectives;
    let mut reasons = [&objectives.preservation, &objectives.aggregate]
        .into_iter()
        .filter_map(|objective| Reason::from_name(objective.reason.as_deref()?));
    reasons.all(|reason| {
        reason == Reason::ObjectiveUndeclared || reason.verdict() != Verdict::Descriptive
    })
}

/// Whether a verdict says that the evidence is complete and the trial declared.
fn is_sound(certificate: &Certificate) -> bool {
    [ObjectiveName::Preservation, ObjectiveName::Aggregate]
        .into_iter()
        .map(|name| certificate.objectives.get(name).verdict)
        .any(|verdict| matches!(verdict, Verdict::Pass | Verdict::NotEstablished))
}
