//! What each rule on counts can pass at a protocol's sizes.

use crate::schema::{Protocol, RuleName};
use crate::stats::{self, Side, StatsError};

/// What a rule on counts can pass on one panel, with nothing gained.
#[derive(Clone, Debug, PartialEq)]
pub struct Attainable {
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
    /// Most lost cases with which the rule still passes where nothing is gained; `None` where it
    /// fails even with nothing lost. For `net_change` this is the largest lost - gained.
    pub most_lost: Option<u32>,
}

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

/// What the rules on counts of the declared objectives can pass, per panel.
///
/// # Errors
/// [`StatsError`] where the protocol's alphas or sizes are out of range.
pub fn attainable(protocol: &Protocol) -> Result<Vec<Attainable>, StatsError> {
    let mut found = Vec::new();
    for rule in counted_rules(protocol) {
        for panel in protocol.panels_of(rule) {
            let cases = panel.case_count();
            found.push(Attainable {
                rule,
                panel: panel.panel_name(),
                cases,
                bound: evaluate(protocol, rule, 0, cases)?.0,
                limit: protocol.limit(rule),
                most_lost: most_lost(protocol, rule, cases)?,
            });
        }
    }
    Ok(found)
}

/// Rules of the declared objectives of `protocol` that cannot pass at its sizes: Clopper-Pearson
/// upper bound of 0 losses above the limit, or Tango lower bound of 0 changes below it. NLL rules
/// can pass at any size.
///
/// # Errors
/// [`StatsError`] where the protocol's alphas or sizes are out of range.
pub fn unattainable(protocol: &Protocol) -> Result<Vec<Unattainable>, StatsError> {
    let all = attainable(protocol)?.into_iter();
    let failing = all.filter(|found| found.most_lost.is_none());
    Ok(failing
        .map(|found| Unattainable {
            rule: found.rule,
            panel: found.panel,
            cases: found.cases,
            bound: found.bound,
            limit: found.limit,
        })
        .collect())
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

/// By bisection: each lost case makes the bound worse.
fn most_lost(protocol: &Protocol, rule: RuleName, cases: u32) -> Result<Option<u32>, StatsError> {
    let passes = |lost| evaluate(protocol, rule, lost, cases).map(|(_, pass)| pass);
    if !passes(0)? {
        return Ok(None);
    }
    let (mut most, mut fails) = (0, cases);
    if passes(cases)? {
        return Ok(Some(cases));
    }
    while fails - most > 1 {
        let middle = most + (fails - most) / 2;
        if passes(middle)? {
            most = middle;
        } else {
            fails = middle;
        }
    }
    Ok(Some(most))
}

/// The bound with `lost` cases lost and none gained, and whether it respects the limit.
fn evaluate(
    protocol: &Protocol,
    rule: RuleName,
    lost: u32,
    cases: u32,
) -> Result<(f64, bool), StatsError> {
    let (alpha, limit) = (protocol.alpha(rule), protocol.limit(rule));
    let (lost, cases) = (u64::from(lost), u64::from(cases));
    if rule == RuleName::NetChange {
        let lower = stats::tango_bound(lost, 0, cases, alpha, Side::Lower)?;
        Ok((lower, lower >= limit))
    } else {
        let upper = stats::clopper_pearson_upper(lost, cases, alpha)?;
        Ok((upper, upper <= limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{PanelPlan, builtin_protocol, builtin_protocols};

    fn counts(name: &str) -> Vec<(&'static str, String, Option<u32>)> {
        let found = attainable(&builtin_protocol(name).unwrap()).unwrap();
        found
            .into_iter()
            .map(|found| (found.rule.name(), found.panel, found.most_lost))
            .collect()
    }

    #[test]
    fn the_bisection_finds_what_counting_up_finds() {
        for protocol in builtin_protocols() {
            for found in attainable(&protocol).unwrap() {
                let mut counted = None;
                for lost in 0..=found.cases {
                    if !evaluate(&protocol, found.rule, lost, found.cases)
                        .unwrap()
                        .1
                    {
                        break;
                    }
                    counted = Some(lost);
                }
                assert_eq!(found.most_lost, counted, "{} {found:?}", protocol.name);
            }
        }
    }

    #[test]
    fn a_limit_that_everything_respects_passes_with_everything_lost() {
        let mut protocol = builtin_protocol("smoke").unwrap();
        protocol.panels.truncate(1);
        if let PanelPlan::Math { cases, .. } = &mut protocol.panels[0] {
            *cases = 1;
        }
        protocol.rules.gross_loss.limit = 1.0;
        assert_eq!(most_lost(&protocol, RuleName::GrossLoss, 1), Ok(Some(1)));
        protocol.rules.gross_loss.limit = 0.999;
        assert_eq!(most_lost(&protocol, RuleName::GrossLoss, 1), Ok(Some(0)));
    }

    #[test]
    fn smoke_can_pass_nothing_on_counts() {
        assert!(counts("smoke").iter().all(|(_, _, most)| most.is_none()));
        let found = unattainable(&builtin_protocol("smoke").unwrap()).unwrap();
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn published_sizes() {
        let panel = |text: &str| text.to_owned();
        assert_eq!(
            counts("reference"),
            [
                ("gross_loss", panel("math"), Some(13)),
                ("net_change", panel("math"), Some(3)),
                ("retrieval", panel("retrieval-1k"), Some(2)),
                ("retrieval", panel("retrieval-8k"), Some(2)),
            ]
        );
    }
}
