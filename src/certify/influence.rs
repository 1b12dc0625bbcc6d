//! The document with the most influence on an NLL rule: a diagnosis, no part of the verdict.

use crate::schema::{Influence, NllRule};
use crate::stats::{Side, is_proportional};

use super::pairs::NllPairs;
use super::rules::nll_bound;

/// Fewest documents of which one can be left out and a bound be left.
const LEAST_DOCUMENTS: usize = 3;

/// The document whose difference is the largest in absolute value, its share of the sum of absolute
/// differences, and the bound without it. Absolute values, so that the share is defined and at most
/// 1 also where differences of both signs add up to almost nothing, and so that a document that
/// hides harm is found as one that makes it.
///
/// `increase` is the relative increase of the mean. `None` for fewer than three documents, where all have the same ratio (none stands out), and where
/// the documents that are left have no bound.
pub(super) fn influence(
    pairs: &NllPairs,
    increase: f64,
    alpha: f64,
    rule: &NllRule,
) -> Option<Influence> {
    let differences = pairs.differences();
    if differences.len() < LEAST_DOCUMENTS
        || is_proportional(&pairs.control, &pairs.candidate, increase)
    {
        return None;
    }
    let total: f64 = differences.iter().map(|difference| difference.abs()).sum();
    // `fold` keeps the first of equals.
    let at = (1..differences.len()).fold(0, |most, at| {
        if differences[at].abs() > differences[most].abs() {
            at
        } else {
            most
        }
    });
    let bound = nll_bound(&pairs.without(at), alpha, Side::Upper, rule).ok()?;
    Some(Influence {
        case: pairs.cases[at].clone(),
        share: differences[at] / total,
        bound_without: bound.value,
    })
}
