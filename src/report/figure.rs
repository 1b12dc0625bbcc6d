//! Figures of certificates in words, for every sink that writes sentences.

use crate::certify::RuleChange;
use crate::schema::{ObjectiveName, ObjectiveResult, RuleName, RuleResult, Verdict};

/// Fewest decimals of a percentage.
const DECIMALS: usize = 2;
/// Most decimals of a percentage.
const MOST_DECIMALS: usize = 12;
/// Decimals of a limit that has no end, such as a third.
const ENDLESS_DECIMALS: usize = 6;
/// Relative error of a decimal number that is stored in binary and taken times 100.
const BINARY: f64 = 1e-15;

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

/// A verdict with its reason in words, and what makes the evidence incomplete beside it.
pub fn verdict_and_reason(result: &ObjectiveResult) -> String {
    let words = verdict_words(result.verdict);
    match (&result.reason, &result.incomplete) {
        (None, _) => words.to_owned(),
        (Some(reason), None) => format!("{words} ({reason})"),
        (Some(reason), Some(why)) => format!("{words} ({reason}; incomplete: {why})"),
    }
}

/// Both objectives, in the order of certificates.
pub(super) const OBJECTIVES: [ObjectiveName; 2] =
    [ObjectiveName::Preservation, ObjectiveName::Aggregate];

/// What a rule is about: `gross_loss on math against native`.
pub(super) fn place(rule: &str, panel: &str, control: &str) -> String {
    format!("{rule} on {panel} against {control}")
}

/// A bound beside its limit. The limit has its own digits, two decimals at least; the bound as many
/// as it takes to stand on its side of the limit.
pub(super) fn bound_and_limit(rule: &str, bound: f64, limit: f64) -> [String; 2] {
    share_and_limit(rule, bound, limit).map(|text| text + unit(rule))
}

/// [`bound_and_limit`] in per cent, without units.
pub(super) fn share_and_limit(rule: &str, bound: f64, limit: f64) -> [String; 2] {
    let shown_limit = share(rule, limit, limit_decimals(limit));
    let read = |text: &str| text.parse::<f64>().ok();
    let decimals = (DECIMALS..=MOST_DECIMALS).find(|&decimals| {
        let shown = read(&share(rule, bound, decimals));
        shown.partial_cmp(&read(&shown_limit)) == bound.partial_cmp(&limit)
    });
    let shown_bound = share(rule, bound, decimals.unwrap_or(MOST_DECIMALS));
    [shown_bound, shown_limit]
}

/// A limit with its own digits, and its unit.
fn limit_figure(rule: &str, limit: f64) -> String {
    share(rule, limit, limit_decimals(limit)) + unit(rule)
}

/// Decimals with which a limit in per cent is not rounded.
fn limit_decimals(limit: f64) -> usize {
    let hundred = 100.0 * limit;
    let is_exact = |&decimals: &usize| {
        let shown: f64 = format!("{hundred:.decimals$}").parse().unwrap_or(f64::NAN);
        (shown - hundred).abs() <= BINARY * hundred.abs()
    };
    (DECIMALS..=MOST_DECIMALS)
        .find(is_exact)
        .unwrap_or(ENDLESS_DECIMALS)
}

/// A change in per cent, with as many decimals as it takes to differ from 0.
pub(super) fn nonzero_change(value: f64) -> String {
    let hundred = 100.0 * value;
    let shown = |decimals: usize| format!("{hundred:+.decimals$}");
    let differs =
        |&decimals: &usize| value == 0.0 || shown(decimals).contains(|c| matches!(c, '1'..='9'));
    let decimals = (DECIMALS..=MOST_DECIMALS).find(differs);
    shown(decimals.unwrap_or(MOST_DECIMALS)) + "%"
}

/// One figure of a rule with its unit.
pub(super) fn figure(rule: &str, value: f64) -> String {
    share(rule, value, DECIMALS) + unit(rule)
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
        limit_figure(&change.rule, change.limit)
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
            ["+1.0000000001%", "+1.00%"]
        );
        assert_eq!(
            bound_and_limit("net_change", -0.000_01, 0.0),
            ["-0.001 pp", "+0.00 pp"]
        );
    }

    #[test]
    fn a_limit_has_its_own_digits() {
        for (bound, limit, expected) in [
            (0.0012, 0.001_25, ["0.12%", "0.125%"]),
            // Two decimals would show the bound below the limit that it crosses.
            (0.001_237, 0.001_23, ["0.124%", "0.123%"]),
            (0.001_234, 0.001_23, ["0.1234%", "0.123%"]),
            (0.07, 0.07, ["7.00%", "7.00%"]),
            (0.3, 1.0 / 3.0, ["30.00%", "33.333333%"]),
            (1e-7, 2e-7, ["0.00%", "0.00002%"]),
        ] {
            assert_eq!(bound_and_limit("gross_loss", bound, limit), expected);
        }
        let change = RuleChange {
            rule: "nll".to_owned(),
            panel: "nll-1k".to_owned(),
            control: "native".to_owned(),
            limit: 0.001_25,
            then: None,
            now: Some(0.0012),
        };
        assert_eq!(
            change_sentence(&change),
            "nll on nll-1k against native: bound not evaluated then, +0.12% now, limit +0.125%"
        );
    }

    #[test]
    fn a_change_is_not_shown_as_none() {
        assert_eq!(nonzero_change(0.0156), "+1.56%");
        assert_eq!(nonzero_change(-0.000_012), "-0.001%");
        assert_eq!(nonzero_change(0.0), "+0.00%");
    }
}
