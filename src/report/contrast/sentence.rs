//! One plain sentence per contrast.

use crate::certify::{CONFIDENCE, Contrast, ContrastCounts, Direction};
use crate::panel::thousands;

use super::number::{p_text, points, significant};

/// What a contrast comes to on an endpoint.
pub(super) fn sentence(endpoint: &str, found: &Contrast) -> String {
    match found.counts {
        ContrastCounts::Answers {
            pairs,
            first_only,
            second_only,
            ..
        } => {
            let counts = Answers {
                pairs,
                first_only,
                second_only,
            };
            counts.sentence(endpoint, found)
        }
        ContrastCounts::Nll { documents, .. } => on_nll(endpoint, found, documents),
    }
}

/// Discordant counts of a contrast.
struct Answers {
    pairs: u64,
    first_only: u64,
    second_only: u64,
}

impl Answers {
    fn sentence(&self, endpoint: &str, found: &Contrast) -> String {
        let Contrast {
            model,
            first,
            second,
            ..
        } = found;
        let (pairs, p) = (grouped(self.pairs), p_clause(found));
        if !says_difference(found) {
            return format!(
                "{model}: no difference is established between {first} and {second} on {endpoint} \
                 (only one of them right: {} against {} of {pairs}; {p})",
                self.first_only, self.second_only
            );
        }
        let mark = mark(found);
        let items = if endpoint == "math" {
            "questions"
        } else {
            "cases"
        };
        let (better, worse) = match found.direction {
            Direction::Second => (second, first),
            _ => (first, second),
        };
        let more = grouped(self.first_only.abs_diff(self.second_only));
        let claim = match found.direction {
            Direction::None => {
                format!("{first} and {second} answer equally many of {pairs} {items}")
            }
            _ => format!("{better} answers {more} more of {pairs} {items} than {worse}"),
        };
        let [effect, lower, upper] = oriented(found, Direction::Second).map(points);
        format!(
            "{model}, {endpoint}{mark}: {claim} ({effect} pp, {} interval {lower} to {upper}; \
             exact McNemar, {p})",
            confidence()
        )
    }
}

fn on_nll(endpoint: &str, found: &Contrast, documents: u64) -> String {
    let Contrast {
        model,
        first,
        second,
        ..
    } = found;
    let few = if found.counts.are_enough() {
        ""
    } else {
        ", too few to establish one"
    };
    let (documents, p, mark) = (grouped(documents), p_clause(found), mark(found));
    // A lower NLL favours the first arm, and its effect is negative.
    let word = match found.direction {
        Direction::First => "lower",
        _ => "higher",
    };
    let oriented = oriented(found, Direction::First);
    let [effect, lower, upper] = oriented.map(|value| significant(value, 3));
    if !says_difference(found) {
        let amount = match found.direction {
            Direction::None => "equal in both".to_owned(),
            _ => format!("{first} {effect} nats per target {word}"),
        };
        return format!(
            "{model}: no difference is established between {first} and {second} on {endpoint} \
             ({amount}, {documents} documents{few}; {p})"
        );
    }
    let claim = match found.direction {
        Direction::None => format!("the NLL of {first} equals that of {second}"),
        _ => format!("the NLL of {first} is {effect} nats per target {word} than that of {second}"),
    };
    format!(
        "{model}, {endpoint}{mark}: {claim} ({} interval {lower} to {upper}; paired bootstrap over \
         {documents} documents, {p})",
        confidence()
    )
}

/// A descriptive contrast states what was counted; a declared one states a difference only where it
/// is established.
fn says_difference(found: &Contrast) -> bool {
    found.established || !found.declared
}

fn mark(found: &Contrast) -> &'static str {
    if found.declared { "" } else { " (descriptive)" }
}

/// Effect and interval with their signs changed where the contrast favours the arm on `side`, so
/// that the sentence speaks of a positive amount.
fn oriented(found: &Contrast, side: Direction) -> [f64; 3] {
    let [lower, upper] = found.interval;
    if found.direction == side {
        // Adding 0 turns -0 into 0.
        [-found.effect, -upper, -lower].map(|value| value + 0.0)
    } else {
        [found.effect, lower, upper]
    }
}

fn p_clause(found: &Contrast) -> String {
    match found.adjusted {
        Some(adjusted) => format!("Holm-adjusted p = {}", p_text(adjusted)),
        None => format!("unadjusted p = {}", p_text(found.p)),
    }
}

/// `95%`.
pub(super) fn confidence() -> String {
    format!("{}%", significant(100.0 * CONFIDENCE, 3))
}

fn grouped(count: u64) -> String {
    usize::try_from(count).map_or_else(|_| count.to_string(), thousands)
}
