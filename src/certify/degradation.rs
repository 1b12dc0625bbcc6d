//! Degradation: a family of its own beside the verdicts.

use crate::schema::{Degradation, NllRule, Protocol};
use crate::stats::{Side, StatsError, tango_bound};

use super::arms::Trial;
use super::caveats::LEAST_DOCUMENTS_OF_HARM;
use super::compare::{PairValues, PanelResult};
use super::rules::nll_bound;

/// Degradation at every endpoint: established where the bound against each control lies on the
/// wrong side of zero, on complete evidence of a declared trial, and on NLL panels of
/// [`LEAST_DOCUMENTS_OF_HARM`] documents at least.
pub(super) fn degradation(
    trial: &Trial<'_>,
    panels: &[PanelResult<'_>],
    is_declared: bool,
) -> Vec<Degradation> {
    let protocol = &trial.evidence.manifest.protocol;
    let controls = trial.controls.len();
    panels
        .iter()
        .map(|panel| endpoint(panel, protocol, controls, is_declared))
        .collect()
}

fn endpoint(
    panel: &PanelResult<'_>,
    protocol: &Protocol,
    controls: usize,
    is_declared: bool,
) -> Degradation {
    let alpha = protocol.degradation_alpha();
    // As evidence of harm: positive where harm is established.
    let margins: Vec<f64> = panel
        .pairs
        .iter()
        .filter_map(|pairs| harm_margin(&pairs.values, alpha, &protocol.rules.nll).ok())
        .collect();
    let least = margins.iter().copied().reduce(f64::min);
    let against_each = margins.len() == controls && least.is_some_and(|margin| margin > 0.0);
    let is_nll = panel
        .pairs
        .iter()
        .any(|pairs| matches!(pairs.values, PairValues::Nll(_)));
    Degradation {
        endpoint: panel.name.clone(),
        established: against_each && is_declared && panel.is_complete() && has_enough(panel),
        // A subtraction, so that no margin becomes no bound and not -0.
        bound: least.map(|margin| if is_nll { margin } else { 0.0 - margin }),
        alpha,
    }
}

/// Whether the panel has enough documents for a claim of harm, if it has documents at all.
fn has_enough(panel: &PanelResult<'_>) -> bool {
    panel.pairs.iter().all(|pairs| match &pairs.values {
        PairValues::Answers(_) => true,
        PairValues::Nll(pairs) => pairs.control.len() >= LEAST_DOCUMENTS_OF_HARM as usize,
    })
}

/// How far the bound lies on the harmful side of zero: the lower bound of the NLL increase, or the
/// upper bound of net change with its sign changed.
fn harm_margin(values: &PairValues, alpha: f64, rule: &NllRule) -> Result<f64, StatsError> {
    match values {
        PairValues::Answers(counts) => {
            tango_bound(counts.lost, counts.gained, counts.pairs, alpha, Side::Upper)
                .map(|upper| -upper)
        }
        PairValues::Nll(pairs) => {
            nll_bound(pairs, alpha, Side::Lower, rule).map(|found| found.value)
        }
    }
}
