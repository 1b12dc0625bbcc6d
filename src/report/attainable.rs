//! Which rules cannot pass at a protocol's sizes, whatever the candidate does.

use crate::schema::{PanelPlan, ProportionRule, Protocol};
use crate::stats::{self, Side, StatsError};

/// A rule that fails even where nothing is lost and nothing gained.
#[derive(Clone, Debug, PartialEq)]
pub struct Unattainable {
    /// Rule.
    pub rule: &'static str,
    /// Panel.
    pub panel: String,
    /// Cases of the panel.
    pub cases: u32,
    /// The bound with no loss and no gain, a proportion.
    pub bound: f64,
    /// The rule's limit, a proportion.
    pub limit: f64,
}

/// Rules of `protocol` that cannot pass at its sizes: Clopper-Pearson upper bound of 0 losses
/// above the limit, or Tango lower bound of 0 changes below it. NLL rules can pass at any size.
///
/// # Errors
/// [`StatsError`] where the protocol's alphas are out of range.
pub fn unattainable(protocol: &Protocol) -> Result<Vec<Unattainable>, StatsError> {
    let mut found = Vec::new();
    for panel in &protocol.panels {
        let checks: &[(&'static str, &ProportionRule)] = match panel {
            PanelPlan::Math { .. } => &[
                ("gross_loss", &protocol.rules.gross_loss),
                ("net_change", &protocol.rules.net_change),
            ],
            PanelPlan::Retrieval { .. } => &[("retrieval", &protocol.rules.retrieval)],
            PanelPlan::Nll { .. } => &[],
        };
        for (name, rule) in checks {
            let (bound, pass) = best(name, rule, panel.case_count(), protocol.family_alpha)?;
            if !pass {
                found.push(Unattainable {
                    rule: name,
                    panel: panel.panel_name(),
                    cases: panel.case_count(),
                    bound,
                    limit: rule.limit,
                });
            }
        }
    }
    Ok(found)
}

/// The best possible bound, and whether it respects the limit.
fn best(
    name: &str,
    rule: &ProportionRule,
    cases: u32,
    family_alpha: f64,
) -> Result<(f64, bool), StatsError> {
    let alpha = family_alpha / f64::from(rule.divisor);
    let cases = u64::from(cases);
    if name == "net_change" {
        let lower = stats::tango_bound(0, 0, cases, alpha, Side::Lower)?;
        Ok((lower, lower >= rule.limit))
    } else {
        let upper = stats::clopper_pearson_upper(0, cases, alpha)?;
        Ok((upper, upper <= rule.limit))
    }
}
