//! Figures as a page writes them.

use crate::report::contrast::number::significant;
use crate::report::figure::{nonzero_change, share_and_limit, verdict_and_reason};
use crate::schema::{ObjectiveResult, RuleResult, Verdict};

/// Digits of a limit: it is written whole, but for what binary numbers add to it.
const LIMIT_DIGITS: usize = 12;

/// A real minus sign in place of a hyphen.
pub(in crate::report) fn minus(text: &str) -> String {
    text.replace('-', "\u{2212}")
}

/// A proportion in per cent, two decimals: `0.46%`.
pub(super) fn percent(proportion: f64) -> String {
    let text = format!("{:.2}%", 100.0 * proportion);
    minus(
        text.strip_prefix('-')
            .filter(|rest| *rest == "0.00%")
            .unwrap_or(&text),
    )
}

/// [`percent`] with its sign, which 0 does not have.
pub(super) fn signed_percent(proportion: f64) -> String {
    let text = percent(proportion);
    match proportion > 0.0 && text != "0.00%" {
        true => format!("+{text}"),
        false => text,
    }
}

/// A bound or estimate as its rule is read: a share of losses without a sign, a change with one.
pub(super) fn of_rule(rule: &RuleResult, proportion: f64) -> String {
    match rule.rule.as_str() {
        "gross_loss" | "retrieval" => percent(proportion),
        _ => signed_percent(proportion),
    }
}

/// The bound of a rule, on the side of its limit that its verdict says, and the limit.
pub(super) fn bound_and_limit(rule: &str, bound: f64, limit: f64) -> [String; 2] {
    share_and_limit(rule, bound, limit).map(|text| {
        let is_zero = !text.contains(|char| matches!(char, '1'..='9'));
        let unsigned = text.trim_start_matches(['+', '-']);
        let text = if is_zero { unsigned } else { &text };
        minus(&format!("{text}%"))
    })
}

/// The bound of a result, as [`bound_and_limit`] writes it.
pub(super) fn bound(rule: &RuleResult) -> String {
    let [bound, _] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
    bound
}

/// A signed change with as many decimals as it takes to differ from 0, which has no sign.
pub(super) fn change(proportion: f64) -> String {
    match proportion == 0.0 {
        true => percent(proportion),
        false => minus(&nonzero_change(proportion)),
    }
}

/// A limit, as short as it is: `2%`, `-1%`.
pub(super) fn limit(proportion: f64) -> String {
    minus(&format!(
        "{}%",
        significant(100.0 * proportion, LIMIT_DIGITS)
    ))
}

/// A small number such as an alpha.
pub(super) fn small(value: f64) -> String {
    minus(&significant(value, 4))
}

/// A signed number of nats.
pub(super) fn nats(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    minus(&format!("{sign}{}", significant(value, 3)))
}

/// A count with its thousands set apart by narrow spaces.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        // Four digits are read as they are.
        if at > 0 && digits.len() > 4 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the binary unit that suits them.
pub(super) fn bytes(value: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let suited = units.into_iter().find(|(_, bits)| value >> bits > 0);
    match suited {
        Some((unit, bits)) => {
            let amount = value as f64 / (1_u64 << bits) as f64;
            format!("{amount:.1}\u{a0}{unit}")
        }
        None => format!("{value}\u{a0}B"),
    }
}

/// How a verdict is shown: name, words, and a sign that does not need its colour.
pub(super) fn verdict(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Pass => ("pass", "pass", "\u{2713}"),
        Verdict::NotEstablished => ("not-established", "not established", "\u{25cb}"),
        Verdict::Incomplete => ("incomplete", "incomplete", "\u{25b3}"),
        Verdict::Unsupported => ("unsupported", "unsupported", "\u{2298}"),
        Verdict::Descriptive => ("descriptive", "descriptive", "\u{2261}"),
    }
}

/// A verdict with its reason and sentence; `None` for a pass.
pub(super) fn why(result: &ObjectiveResult) -> Option<String> {
    if result.verdict == Verdict::Pass {
        return None;
    }
    let mut text = verdict_and_reason(result);
    if let Some(detail) = &result.detail {
        text.push_str(&format!(": {detail}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_does_not_contradict_a_verdict() {
        for (rule, bound, limit, expected) in [
            ("gross_loss", 0.020_01, 0.02, ["2.001%", "2.00%"]),
            (
                "net_change",
                -0.010_02,
                -0.01,
                ["\u{2212}1.002%", "\u{2212}1.00%"],
            ),
            ("nll", 0.0, 0.01, ["0.00%", "+1.00%"]),
            ("nll", 0.000_001, 0.0, ["+0.0001%", "0.00%"]),
            ("retrieval", 0.05, 0.05, ["5.00%", "5.00%"]),
        ] {
            assert_eq!(bound_and_limit(rule, bound, limit), expected);
        }
        assert_eq!(change(-0.000_012), "\u{2212}0.001%");
        assert_eq!(change(0.0156), "+1.56%");
        assert_eq!(change(0.0), "0.00%");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(percent(0.004_6), "0.46%");
        assert_eq!(percent(-0.000_001), "0.00%");
        assert_eq!(signed_percent(0.000_001), "0.00%");
        assert_eq!(signed_percent(-0.0058), "\u{2212}0.58%");
        assert_eq!(signed_percent(10.9826), "+1098.26%");
        assert_eq!(limit(0.02), "2%");
        assert_eq!(limit(-0.01), "\u{2212}1%");
        assert_eq!(limit(0.07), "7%");
        assert_eq!(limit(0.000_123_45), "0.012345%");
        assert_eq!(small(0.05 / 24.0), "0.002083");
        assert_eq!(nats(-0.001_23), "\u{2212}0.00123");
        assert_eq!(count(1319), "1319");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(bytes(768), "768\u{a0}B");
        assert_eq!(bytes(76 << 30), "76.0\u{a0}GiB");
    }
}
