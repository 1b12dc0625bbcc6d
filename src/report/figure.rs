//! Figures of certificates in words, for every sink that writes sentences.

use crate::certify::RuleChange;
use crate::schema::{ObjectiveName, RuleName, RuleResult, Verdict};

/// Most decimals of a percentage.
const MOST_DECIMALS: usize = 6;

/// A verdict in words.
pub(super) fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::NotEstablished => "not established",
        Verdict::Incomplete => "incomplete",
        Verdict::Unsupported => "unsupported",
        Verdict::Descriptive => "descriptive",
    }
}

/// Both objectives, in the order of certificates.
pub(super) const OBJECTIVES: [ObjectiveName; 2] =
    [ObjectiveName::Preservation, ObjectiveName::Aggregate];

/// What a rule is about: `gross_loss on math against native`.
pub(super) fn place(rule: &str, panel: &str, control: &str) -> String {
    format!("{rule} on {panel} against {control}")
}

/// A bound beside its limit, with as many decimals as it takes to tell them apart.
pub(super) fn bound_and_limit(rule: &str, bound: f64, limit: f64) -> [String; 2] {
    let decimals = (2..=MOST_DECIMALS)
        .find(|&decimals| {
            bound == limit || share(rule, bound, decimals) != share(rule, limit, decimals)
        })
        .unwrap_or(MOST_DECIMALS);
    [
        share(rule, bound, decimals),
        share(rule, limit, 2.min(decimals)),
    ]
    .map(|text| text + unit(rule))
}

/// One figure of a rule with its unit.
pub(super) fn figure(rule: &str, value: f64) -> String {
    share(rule, value, 2) + unit(rule)
}

/// Losses have no sign, changes have one.
fn share(rule: &str, value: f64, decimals: usize) -> String {
    let hundred = 100.0 * value;
    match rule_name(rule) {
        Some(RuleName::GrossLoss | RuleName::Retrieval) => format!("{hundred:.decimals$}"),
        Some(RuleName::NetChange | RuleName::Nll) | None => format!("{hundred:+.decimals$}"),
    }
}

/// Points for a difference of proportions, per cent for the others.
fn unit(rule: &str) -> &'static str {
    match rule_name(rule) {
        Some(RuleName::NetChange) => " pp",
        _ => "%",
    }
}

/// The rule of this name.
pub(super) fn rule_name(rule: &str) -> Option<RuleName> {
    RuleName::ALL.into_iter().find(|name| name.name() == rule)
}

/// Outcome of a rule in one sentence, without its place.
pub(super) fn rule_sentence(rule: &RuleResult) -> String {
    let [bound, limit] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
    let side = match rule_name(&rule.rule) {
        Some(RuleName::NetChange) => "lower",
        _ => "upper",
    };
    let holds = if rule.pass { "holds" } else { "does not hold" };
    let counts = match (rule.lost, rule.gained) {
        (Some(lost), Some(gained)) => format!("{lost} lost and {gained} gained of {}", rule.pairs),
        _ => format!(
            "mean increase {} over {} documents",
            figure(&rule.rule, rule.estimate),
            rule.pairs
        ),
    };
    format!("{counts}: {side} bound {bound}, limit {limit}, {holds}")
}

/// A bound then and now.
pub(super) fn change_sentence(change: &RuleChange) -> String {
    let shown = |bound: Option<f64>| {
        bound.map_or_else(
            || "not evaluated".to_owned(),
            |bound| {
                let [bound, _] = bound_and_limit(&change.rule, bound, change.limit);
                bound
            },
        )
    };
    format!(
        "{}: bound {} then, {} now, limit {}",
        place(&change.rule, &change.panel, &change.control),
        shown(change.then),
        shown(change.now),
        figure(&change.rule, change.limit)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_just_beyond_its_limit_is_told_apart() {
        assert_eq!(
            bound_and_limit("gross_loss", 0.0128, 0.02),
            ["1.28%", "2.00%"]
        );
        assert_eq!(
            bound_and_limit("gross_loss", 0.020_01, 0.02),
            ["2.001%", "2.00%"]
        );
        assert_eq!(
            bound_and_limit("net_change", -0.0058, -0.01),
            ["-0.58 pp", "-1.00 pp"]
        );
        assert_eq!(bound_and_limit("nll", 0.01, 0.01), ["+1.00%", "+1.00%"]);
        assert_eq!(
            bound_and_limit("nll", 0.01 + 1e-12, 0.01),
            ["+1.000000%", "+1.00%"]
        );
    }
}
