//! The four rules. A rule passes when its bound respects the limit; equality passes.

use crate::schema::{NllRule, Protocol, RuleName, RuleResult};
use crate::stats::{
    BootstrapBound, BootstrapPlan, Side, StatsError, bootstrap_ratio_bound, clopper_pearson_upper,
    tango_bound,
};

use super::influence::influence;
use super::pairs::{AnswerPairs, NllPairs, mean};

/// Method of the `nll` rule.
pub(super) const NLL_METHOD: &str = "percentile-bootstrap";

/// What a rule is evaluated on, for its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    /// Rule.
    pub rule: RuleName,
    /// Panel.
    pub panel: &'a str,
    /// Control.
    pub control: &'a str,
}

/// What a bound is held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    /// One-sided alpha.
    pub alpha: f64,
    /// Limit.
    pub limit: f64,
}

impl Threshold {
    /// Alpha and limit of `rule`.
    pub fn of(protocol: &Protocol, rule: RuleName) -> Self {
        Threshold {
            alpha: protocol.alpha(rule),
            limit: protocol.limit(rule),
        }
    }
}

/// Evaluates a rule on answers: Clopper-Pearson upper bound of the loss rate, or for `net_change`
/// the Tango lower bound.
///
/// # Errors
/// As the bound; no pairs, above all.
pub(super) fn on_answers(
    subject: Subject<'_>,
    counts: &AnswerPairs,
    Threshold { alpha, limit }: Threshold,
) -> Result<RuleResult, StatsError> {
    let AnswerPairs {
        pairs,
        lost,
        gained,
        ..
    } = *counts;
    let (method, estimate, bound, pass) = if subject.rule == RuleName::NetChange {
        let bound = tango_bound(lost, gained, pairs, alpha, Side::Lower)?;
        ("tango", counts.net_change(), bound, bound >= limit)
    } else {
        let bound = clopper_pearson_upper(lost, pairs, alpha)?;
        ("clopper-pearson", counts.loss_rate(), bound, bound <= limit)
    };
    let of_correct =
        (counts.control_correct > 0).then(|| lost as f64 / counts.control_correct as f64);
    Ok(RuleResult {
        method: method.to_owned(),
        pairs,
        control_correct: Some(counts.control_correct),
        candidate_correct: Some(counts.candidate_correct),
        lost: Some(lost),
        gained: Some(gained),
        lost_of_control_correct: of_correct,
        estimate,
        bound,
        limit,
        alpha,
        pass,
        ..blank(subject)
    })
}

/// Evaluates the `nll` rule: bootstrap upper bound of the relative increase of the mean.
///
/// # Errors
/// As the bound; fewer than two documents, above all.
pub(super) fn on_nll(
    subject: Subject<'_>,
    pairs: &NllPairs,
    protocol: &Protocol,
) -> Result<RuleResult, StatsError> {
    let Threshold { alpha, limit } = Threshold::of(protocol, subject.rule);
    let found = nll_bound(pairs, alpha, Side::Upper, &protocol.rules.nll)?;
    Ok(RuleResult {
        method: NLL_METHOD.to_owned(),
        pairs: pairs.control.len() as u64,
        control_mean: Some(mean(&pairs.control)),
        candidate_mean: Some(mean(&pairs.candidate)),
        estimate: found.point,
        bound: found.value,
        monte_carlo_se: Some(found.monte_carlo_se),
        document_sd: Some(pairs.relative_sd(found.point)),
        influence: influence(pairs, found.point, alpha, &protocol.rules.nll),
        limit,
        alpha,
        pass: found.value <= limit,
        ..blank(subject)
    })
}

/// Bootstrap bound of the relative increase of the mean, resampled as the protocol says.
pub(super) fn nll_bound(
    pairs: &NllPairs,
    alpha: f64,
    side: Side,
    rule: &NllRule,
) -> Result<BootstrapBound, StatsError> {
    let plan = BootstrapPlan {
        resamples: rule.resamples,
        seed: rule.seed,
    };
    bootstrap_ratio_bound(&pairs.control, &pairs.candidate, alpha, side, plan)
}

fn blank(subject: Subject<'_>) -> RuleResult {
    RuleResult {
        rule: subject.rule.name().to_owned(),
        panel: subject.panel.to_owned(),
        control: subject.control.to_owned(),
        method: String::new(),
        pairs: 0,
        control_correct: None,
        candidate_correct: None,
        lost: None,
        gained: None,
        lost_of_control_correct: None,
        control_mean: None,
        candidate_mean: None,
        estimate: 0.0,
        bound: 0.0,
        monte_carlo_se: None,
        document_sd: None,
        influence: None,
        limit: 0.0,
        alpha: 0.0,
        pass: false,
    }
}
