//! Forest plots: one rule on one panel, a row per recipe and control.

use serde::Serialize;

use crate::report::notes::rules;
use crate::schema::{Certificate, RuleResult};

use super::axis::{Axis, Spot, Tick};
use super::figures::{bound, bound_and_limit, limit, of_rule, small};

/// Times the limit beyond which an axis does not reach: what matters is which side of the limit a
/// bound is on, and a lost model would press all others into one dot.
const FURTHEST: f64 = 4.0;

/// One plot.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Forest {
    /// What is plotted: `Gross loss on math`.
    pub title: String,
    /// What the marks are.
    pub caption: String,
    /// Labelled places of the axis.
    pub ticks: Vec<Tick>,
    /// Place of the limit.
    pub limit: Spot,
    /// Its label.
    pub limit_text: String,
    /// Place of 0.
    pub zero: Spot,
    /// Where bounds hold: start and width in per cent of the width.
    pub allowed: (String, String),
    /// Whether rows name their control.
    pub controls: bool,
    /// Rows.
    pub rows: Vec<Row>,
}

/// One rule of one certificate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Recipe.
    pub recipe: String,
    /// Control.
    pub control: String,
    /// Place of the estimate.
    pub estimate: Spot,
    /// Place of the bound.
    pub bound: Spot,
    /// Estimate in words.
    pub estimate_text: String,
    /// Bound in words.
    pub bound_text: String,
    /// What was counted.
    pub counted: String,
    /// Whether the bound respects the limit.
    pub holds: bool,
}

/// Every rule that some certificate was judged by, in the order of certificates.
pub(super) fn forests(certificates: &[&Certificate], controls: usize) -> Vec<Forest> {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for rule in certificates.iter().flat_map(|it| rules(&it.objectives)) {
        let key = (rule.rule.as_str(), rule.panel.as_str());
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    let order = ["gross_loss", "net_change", "nll", "retrieval"];
    seen.sort_by_key(|(rule, _)| order.iter().position(|known| known == rule));
    seen.into_iter()
        .filter_map(|key| forest(key, certificates, controls))
        .collect()
}

fn forest(
    (rule, panel): (&str, &str),
    certificates: &[&Certificate],
    controls: usize,
) -> Option<Forest> {
    let mut found: Vec<(&Certificate, &RuleResult)> = Vec::new();
    for certificate in certificates {
        for result in rules(&certificate.objectives) {
            let is_new = found.iter().all(|(other, known)| {
                other.recipe.name != certificate.recipe.name || known.control != result.control
            });
            if result.rule == rule && result.panel == panel && is_new {
                found.push((certificate, result));
            }
        }
    }
    let (_, first) = *found.first()?;
    let results: Vec<&RuleResult> = found.iter().map(|(_, result)| *result).collect();
    let axis = axis(&results, first.limit);
    Some(Forest {
        title: title(rule, panel),
        caption: caption(first),
        ticks: axis.ticks(100.0, "%"),
        limit: axis.spot(first.limit),
        limit_text: limit(first.limit),
        zero: axis.spot(0.0),
        allowed: allowed(&axis, first),
        controls: controls > 1,
        rows: found
            .into_iter()
            .map(|(certificate, result)| row(certificate, result, &axis))
            .collect(),
    })
}

/// The side of the limit on which bounds hold.
fn allowed(axis: &Axis, rule: &RuleResult) -> (String, String) {
    let limit = axis.place(rule.limit);
    let (from, width) = match rule.rule.as_str() {
        "net_change" => (limit, 100.0 - limit),
        _ => (0.0, limit),
    };
    (format!("{from:.2}"), format!("{width:.2}"))
}

/// From 0, all estimates and bounds, and room beyond the limit, but not further than [`FURTHEST`].
fn axis(results: &[&RuleResult], limit: f64) -> Axis {
    let size = limit.abs();
    let values = results.iter().flat_map(|it| [it.estimate, it.bound]);
    let room = [0.0, 1.5 * limit, limit];
    let (mut low, mut high) = (0.0_f64, 0.0_f64);
    for value in values.chain(room) {
        let value = match size > 0.0 {
            true => value.clamp(-FURTHEST * size, FURTHEST * size),
            false => value,
        };
        low = low.min(value);
        high = high.max(value);
    }
    Axis::linear(low, high)
}

fn row(certificate: &Certificate, result: &RuleResult, axis: &Axis) -> Row {
    Row {
        recipe: certificate.recipe.name.clone(),
        control: result.control.clone(),
        estimate: axis.spot(result.estimate),
        bound: axis.spot(result.bound),
        estimate_text: of_rule(result, result.estimate),
        bound_text: bound(result),
        counted: counted(result),
        holds: result.pass,
    }
}

/// What a rule's figures rest on: `3 lost, 1 gained of 1319`, or the means of likelihoods.
pub(super) fn counted(result: &RuleResult) -> String {
    match (result.lost, result.gained) {
        (Some(lost), Some(gained)) => format!("{lost} lost, {gained} gained of {}", result.pairs),
        _ => format!("{} documents", result.pairs),
    }
}

/// A rule on a panel in words.
pub(super) fn title(rule: &str, panel: &str) -> String {
    match rule {
        "gross_loss" => format!("Gross loss on {panel}"),
        "net_change" => format!("Net change on {panel}"),
        "nll" => format!("Increase of NLL on {panel}"),
        "retrieval" => format!("Loss on {panel}"),
        other => format!("{other} on {panel}"),
    }
}

fn caption(rule: &RuleResult) -> String {
    let alpha = small(rule.alpha);
    let (what, side, below) = match rule.rule.as_str() {
        "gross_loss" | "retrieval" => ("share of questions lost", "upper", "at most"),
        "net_change" => ("gained minus lost, share of questions", "lower", "at least"),
        _ => ("relative increase of the mean NLL", "upper", "at most"),
    };
    let [_, limit] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
    format!(
        "Dot: {what}. Bar: its one-sided {side} bound ({}, alpha {alpha}), which must be {below} \
         {limit}. An arrow points to what lies beyond the axis.",
        rule.method
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(estimate: f64, bound: f64, limit: f64) -> RuleResult {
        RuleResult {
            rule: "gross_loss".to_owned(),
            panel: "math".to_owned(),
            control: "native".to_owned(),
            method: "clopper-pearson".to_owned(),
            pairs: 100,
            control_correct: Some(100),
            candidate_correct: Some(99),
            lost: Some(1),
            gained: Some(0),
            lost_of_control_correct: Some(0.01),
            control_mean: None,
            candidate_mean: None,
            estimate,
            bound,
            monte_carlo_se: None,
            document_sd: None,
            influence: None,
            limit,
            alpha: 0.05,
            pass: bound <= limit,
        }
    }

    #[test]
    fn axes_reach_beyond_the_limit_but_not_to_lost_models() {
        let (good, lost) = (result(0.0, 0.004, 0.02), result(0.99, 0.999, 0.02));
        let both = axis(&[&good, &lost], 0.02);
        assert_eq!(both.spot(0.08).beyond, None);
        assert_eq!(both.spot(0.99).beyond, Some("high"));
        let alone = axis(&[&good], 0.02);
        assert_eq!(alone.spot(0.03).beyond, None);
        assert_eq!(alone.spot(0.04).beyond, Some("high"));
        let net = axis(&[&result(0.0, -0.006, -0.01)], -0.01);
        assert_eq!(net.spot(-0.015).x, "3.00");
        let strict = axis(&[&result(0.0, 0.3, 0.0)], 0.0);
        assert_eq!(strict.spot(0.3).beyond, None);
    }
}
