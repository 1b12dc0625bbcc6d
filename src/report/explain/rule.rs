//! Rules, limits and alphas in plain words.

use crate::certify::least_pairs;
use crate::schema::{Certificate, RuleName, RuleResult};

use super::super::figure::{bound_and_limit, place, rule_name};
use super::super::notes::rules;

/// What a rule found and whether it holds, with its place.
pub(super) fn outcome(rule: &RuleResult) -> String {
    let RuleResult {
        panel,
        control,
        pairs,
        ..
    } = rule;
    let [bound, limit] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
    let holds = match rule.pass {
        true => "holds",
        false => "does not hold",
    };
    let counted = || {
        let count = |count: Option<u64>| count.unwrap_or(0);
        format!(
            "of {pairs} cases {control} answered {}, of which the recipe lost {}; it gained {} \
             others",
            count(rule.control_correct),
            count(rule.lost),
            count(rule.gained)
        )
    };
    let of = |side: &str, what: &str| {
        let alpha = significant(rule.alpha);
        format!(
            "The {side} bound (one-sided, alpha {alpha}) of {what} is {bound}; the limit is {limit}"
        )
    };
    let what = match rule_name(&rule.rule) {
        Some(RuleName::GrossLoss | RuleName::Retrieval) => {
            format!("{}. {}", counted(), of("upper", "the share lost"))
        }
        Some(RuleName::NetChange) => {
            let bound = of("lower", "the change in the share of right answers");
            format!("{}. {bound}", counted())
        }
        Some(RuleName::Nll) => format!(
            "over {pairs} documents the mean NLL went from {:.4} to {:.4} nats. {}",
            rule.control_mean.unwrap_or(f64::NAN),
            rule.candidate_mean.unwrap_or(f64::NAN),
            of("upper", "its relative increase")
        ),
        None => format!("bound {bound}, limit {limit}"),
    };
    let place = place(&rule.rule, panel, control);
    format!("{place}: {what}: {holds}.")
}

/// What limits and alphas of the rules mean, one sentence per rule and alpha.
pub(super) fn thresholds(certificate: &Certificate) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for rule in rules(&certificate.objectives) {
        let sentence = threshold(rule);
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    sentences
}

fn threshold(rule: &RuleResult) -> String {
    let [_, limit] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
    let (about, accuracy) = match rule_name(&rule.rule) {
        Some(RuleName::GrossLoss) => (
            format!(
                "questions that native answers and the recipe does not, of all questions: at most {limit}. Gains do not make up for them"
            ),
            "at most",
        ),
        Some(RuleName::Retrieval) => (
            format!(
                "needles that native finds and the recipe does not, of all needles: at most {limit}"
            ),
            "at most",
        ),
        Some(RuleName::NetChange) => (
            format!(
                "gains less losses, of all questions: no less than {limit}. Losses may be made up for by gains"
            ),
            "about",
        ),
        Some(RuleName::Nll) => (
            format!("the relative increase of the mean negative log-likelihood: at most {limit}"),
            "about",
        ),
        None => (format!("limit {limit}"), "about"),
    };
    format!(
        "{}: {about}. Its alpha is {}: if the truth lay on the limit, {accuracy} one run in {} \
         would still pass.",
        rule.rule,
        significant(rule.alpha),
        grouped((1.0 / rule.alpha).round())
    )
}

/// Three significant digits.
fn significant(value: f64) -> String {
    let magnitude = value.abs().log10().floor();
    let decimals = if magnitude.is_finite() {
        (2.0 - magnitude).clamp(0.0, 12.0)
    } else {
        0.0
    };
    let text = format!("{value:.*}", decimals as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// With how many pairs a rule that failed passes if nothing changes at all.
pub(super) fn least(rule: &RuleResult) -> Option<String> {
    let least = least_pairs(rule).filter(|_| !rule.pass)?;
    let place = place(&rule.rule, &rule.panel, &rule.control);
    let [pairs, fewest] = [rule.pairs, least].map(|count| grouped(count as f64));
    let is_net = rule_name(&rule.rule) == Some(RuleName::NetChange);
    Some(match (least > rule.pairs, is_net) {
        (true, false) => format!(
            "{place}: {pairs} pairs cannot pass, even with nothing lost; with nothing lost {fewest} \
             would."
        ),
        // With gains it may pass at fewer pairs.
        (true, true) => format!(
            "{place}: with nothing lost and nothing gained {pairs} pairs do not pass; {fewest} would."
        ),
        (false, false) => format!(
            "{place}: with nothing lost, {fewest} of its {pairs} pairs would have been enough."
        ),
        (false, true) => format!(
            "{place}: with nothing lost and nothing gained, {fewest} of its {pairs} pairs would \
             have been enough."
        ),
    })
}

/// A whole number with separated thousands.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [
            (0.0, "0"),
            (480.0, "480"),
            (1319.0, "1,319"),
            (1e6, "1,000,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn alphas_have_three_digits() {
        for (alpha, text) in [(0.05, "0.05"), (0.05 / 24.0, "0.00208"), (1e-5, "0.00001")] {
            assert_eq!(significant(alpha), text);
        }
    }
}
