//! Which rules cannot pass at a protocol's sizes, whatever the candidate does.

use crate::schema::{Protocol, RuleName};
use crate::stats::{self, Side, StatsError};

/// A rule that fails even where nothing is lost and nothing gained.
#[derive(Clone, Debug, PartialEq)]
pub struct Unattainable {
    /// Rule.
    pub rule: RuleName,
    /// Panel.
    pub panel: String,
    /// Cases of the panel.
    pub cases: u32,
    /// The bound with no loss and no gain, a proportion.
    pub bound: f64,
    /// The rule's limit, a proportion.
    pub limit: f64,
}

/// Rules of the declared objectives of `protocol` that cannot pass at its sizes: Clopper-Pearson upper bound of 0 losses
/// above the limit, or Tango lower bound of 0 changes below it. NLL rules can pass at any size.
///
/// # Errors
/// [`StatsError`] where the protocol's alphas or sizes are out of range.
pub fn unattainable(protocol: &Protocol) -> Result<Vec<Unattainable>, StatsError> {
    let mut found = Vec::new();
    for rule in counted_rules(protocol) {
        for panel in protocol.panels_of(rule) {
            let (bound, pass) = best(protocol, rule, panel.case_count())?;
            if !pass {
                found.push(Unattainable {
                    rule,
                    panel: panel.panel_name(),
                    cases: panel.case_count(),
                    bound,
                    limit: protocol.limit(rule),
                });
            }
        }
    }
    Ok(found)
}

/// Rules on counts that a declared objective needs.
fn counted_rules(protocol: &Protocol) -> impl Iterator<Item = RuleName> {
    [
        RuleName::GrossLoss,
        RuleName::NetChange,
        RuleName::Retrieval,
    ]
    .into_iter()
    .filter(|rule| {
        protocol
            .objectives
            .iter()
            .any(|&objective| rule.serves(objective))
    })
}

/// The best possible bound, and whether it respects the limit.
fn best(protocol: &Protocol, rule: RuleName, cases: u32) -> Result<(f64, bool), StatsError> {
    let (alpha, limit) = (protocol.alpha(rule), protocol.limit(rule));
    if rule == RuleName::NetChange {
        let lower = stats::tango_bound(0, 0, cases.into(), alpha, Side::Lower)?;
        Ok((lower, lower >= limit))
    } else {
        let upper = stats::clopper_pearson_upper(0, cases.into(), alpha)?;
        Ok((upper, upper <= limit))
    }
}
