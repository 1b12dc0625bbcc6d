//! What a protocol's rules and objectives pass at assumed rates, before a run.

use serde::Serialize;

use crate::schema::{ObjectiveName, PanelPlan, Protocol, RuleName};
use crate::stats::{
    AssumedIncrease, Criterion, Rates, Simulation, StatsError, largest_passing_lost,
    largest_passing_net_loss, ln_binomial_sf, loss_pass_probability, net_pass_probability,
    simulate_increase,
};

use super::compare::rules_on;

/// Simulated runs per NLL panel.
const TRIALS: u32 = 1_000;
/// Fewest resamples of a simulated run, and how many must reach into the tail at least.
const LEAST_RESAMPLES: u32 = 1_000;
const TAIL_RESAMPLES: f64 = 10.0;

/// What is assumed of one candidate against one control. What is `None` is not modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Assumptions {
    /// Loss and gain rates on math.
    pub rates: Option<Rates>,
    /// Loss rate on each retrieval panel.
    pub retrieval_loss: Option<f64>,
    /// Relative increases of documents on each NLL panel.
    pub increase: Option<AssumedIncrease>,
    /// The control's accuracy on math.
    pub control_accuracy: Option<f64>,
    /// The control's accuracy on each retrieval panel.
    pub retrieval_accuracy: Option<f64>,
}

/// A probability and how it was computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Probability {
    /// The probability.
    pub value: f64,
    /// Mass of tables that were left out of an enumeration: the true value is at most so much
    /// larger.
    pub left_out: f64,
    /// Standard error of a simulation over seeds; 0 for an enumeration.
    pub monte_carlo_se: f64,
}

impl Probability {
    fn exact(value: f64) -> Self {
        Probability {
            value,
            left_out: 0.0,
            monte_carlo_se: 0.0,
        }
    }
}

/// One rule on one panel before a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RulePower {
    /// Rule.
    pub rule: &'static str,
    /// Panel.
    pub panel: String,
    /// Pairs of the panel.
    pub pairs: u32,
    /// One-sided alpha of the rule.
    pub alpha: f64,
    /// Limit of the rule.
    pub limit: f64,
    /// Rules on counts: the largest number of lost pairs that passes where none is gained; `null`
    /// where not even 0 does.
    pub largest_lost: Option<u64>,
    /// Probability that the rule passes; `null` where nothing was assumed for it.
    pub probability: Option<Probability>,
    /// Probability that the control answers enough of the panel; `null` where its accuracy was not
    /// assumed.
    pub control_suffices: Option<f64>,
}

/// One objective before a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectivePower {
    /// Objective.
    pub objective: &'static str,
    /// Probability that every modelled rule passes; `null` where none is modelled.
    pub probability: Option<Probability>,
    /// Rules and panels that the probability leaves out, as `nll on nll-1k`.
    pub not_modelled: Vec<String>,
    /// Rules without a panel: the objective cannot pass.
    pub without_panel: Vec<&'static str>,
}

/// Every rule that a declared objective rests on, on each of its panels, in the protocol's order of
/// panels.
///
/// # Errors
/// [`StatsError`] for rates outside their domain, and for alphas, limits or sizes that no valid
/// protocol has.
pub fn rule_powers(
    protocol: &Protocol,
    assumptions: &Assumptions,
) -> Result<Vec<RulePower>, StatsError> {
    let mut powers = Vec::new();
    for (at, panel) in protocol.panels.iter().enumerate() {
        for &rule in rules_on(panel) {
            let mut objectives = protocol.objectives.iter();
            if objectives.any(|&objective| rule.serves(objective)) {
                powers.push(rule_power(protocol, (at, panel), rule, assumptions)?);
            }
        }
    }
    Ok(powers)
}

fn rule_power(
    protocol: &Protocol,
    (at, panel): (usize, &PanelPlan),
    rule: RuleName,
    assumptions: &Assumptions,
) -> Result<RulePower, StatsError> {
    let criterion = Criterion {
        alpha: protocol.alpha(rule),
        limit: protocol.limit(rule),
    };
    let pairs = panel.case_count();
    let loss_rule = |loss: Option<f64>| {
        let found = loss.map(|loss| loss_pass_probability(pairs.into(), loss, criterion));
        found.transpose().map(|found| found.map(Probability::exact))
    };
    let (largest_lost, probability) = match rule {
        RuleName::GrossLoss => (
            largest_passing_lost(pairs.into(), criterion)?,
            loss_rule(assumptions.rates.map(|rates| rates.loss))?,
        ),
        RuleName::Retrieval => (
            largest_passing_lost(pairs.into(), criterion)?,
            loss_rule(assumptions.retrieval_loss)?,
        ),
        RuleName::NetChange => (
            largest_passing_net_loss(pairs.into(), criterion)?,
            net_rule(pairs, criterion, assumptions.rates)?,
        ),
        RuleName::Nll => {
            let simulation = simulation(protocol, at, criterion.alpha);
            let found = nll_rule(pairs, criterion, assumptions.increase, simulation)?;
            (None, found)
        }
    };
    Ok(RulePower {
        rule: rule.name(),
        panel: panel.panel_name(),
        pairs,
        alpha: criterion.alpha,
        limit: criterion.limit,
        largest_lost,
        probability,
        control_suffices: control_suffices(protocol, panel, assumptions)?,
    })
}

fn net_rule(
    pairs: u32,
    criterion: Criterion,
    rates: Option<Rates>,
) -> Result<Option<Probability>, StatsError> {
    let Some(rates) = rates else { return Ok(None) };
    let found = net_pass_probability(pairs.into(), rates, criterion)?;
    Ok(Some(Probability {
        value: found.probability,
        left_out: found.left_out,
        monte_carlo_se: 0.0,
    }))
}

fn nll_rule(
    documents: u32,
    criterion: Criterion,
    increase: Option<AssumedIncrease>,
    simulation: Simulation,
) -> Result<Option<Probability>, StatsError> {
    let Some(increase) = increase else {
        return Ok(None);
    };
    let found = simulate_increase(documents, increase, criterion, simulation)?;
    Ok(Some(Probability {
        value: found.probability,
        left_out: 0.0,
        monte_carlo_se: found.monte_carlo_se,
    }))
}

/// Fewer resamples than the protocol's: what they add to the spread of a bound is small beside what
/// the documents do. Each panel has a seed of its own, so that the panels are independent.
fn simulation(protocol: &Protocol, panel: usize, alpha: f64) -> Simulation {
    let rule = &protocol.rules.nll;
    let enough = ((TAIL_RESAMPLES / alpha).ceil() as u32).max(LEAST_RESAMPLES);
    Simulation {
        trials: TRIALS,
        resamples: enough.min(rule.resamples),
        seed: rule.seed.wrapping_add(panel as u64),
    }
}

/// Probability that the control's accuracy on the panel is at least what the protocol demands.
fn control_suffices(
    protocol: &Protocol,
    panel: &PanelPlan,
    assumptions: &Assumptions,
) -> Result<Option<f64>, StatsError> {
    let assay = &protocol.assay_sensitivity;
    let (least, accuracy) = match panel {
        PanelPlan::Math { .. } => (assay.math, assumptions.control_accuracy),
        PanelPlan::Retrieval { .. } => (assay.retrieval, assumptions.retrieval_accuracy),
        PanelPlan::Nll { .. } => return Ok(None),
    };
    let Some(accuracy) = accuracy else {
        return Ok(None);
    };
    let pairs = panel.case_count();
    // The comparison of the certificate, in the same arithmetic.
    let enough = (0..=pairs).find(|&right| f64::from(right) / f64::from(pairs) >= least);
    enough.map_or(Ok(Some(0.0)), |enough| {
        let ln = ln_binomial_sf(enough.into(), pairs.into(), accuracy)?;
        Ok(Some(ln.exp()))
    })
}

/// Each declared objective: the product over its panels, which are taken to be independent. Where
/// the control's accuracy is assumed, a panel counts with `P(rule) + P(control suffices) - 1`, the
/// least probability that both hold. One control is modelled; against several, which share the
/// candidate's answers, the probability is at most this.
pub fn objective_powers(protocol: &Protocol, rules: &[RulePower]) -> Vec<ObjectivePower> {
    let objectives = protocol.objectives.iter();
    objectives
        .map(|&name| objective_power(name, protocol, rules))
        .collect()
}

fn objective_power(
    name: ObjectiveName,
    protocol: &Protocol,
    rules: &[RulePower],
) -> ObjectivePower {
    let names: Vec<RuleName> = RuleName::ALL
        .into_iter()
        .filter(|rule| rule.serves(name))
        .collect();
    let own = |power: &&RulePower| names.iter().any(|rule| rule.name() == power.rule);
    let (modelled, others): (Vec<&RulePower>, Vec<&RulePower>) = rules
        .iter()
        .filter(own)
        .partition(|power| power.probability.is_some());
    let without_panel: Vec<&str> = names
        .iter()
        .filter(|&&rule| protocol.panels_of(rule).next().is_none())
        .map(|rule| rule.name())
        .collect();
    let probability = (!modelled.is_empty()).then(|| product(&modelled));
    ObjectivePower {
        objective: name.name(),
        probability: probability.map(|found| {
            if without_panel.is_empty() {
                found
            } else {
                Probability::exact(0.0)
            }
        }),
        not_modelled: others
            .iter()
            .map(|power| format!("{} on {}", power.rule, power.panel))
            .collect(),
        without_panel,
    }
}

/// Product of independent estimates; its variance is `prod(p^2 + s^2) - prod(p^2)`.
fn product(modelled: &[&RulePower]) -> Probability {
    let (mut value, mut second, mut left_out) = (1.0, 1.0, 0.0);
    let mut simulated = false;
    for power in modelled {
        let Some(found) = power.probability else {
            continue;
        };
        let suffices = power.control_suffices.unwrap_or(1.0);
        let p = (found.value + suffices - 1.0).max(0.0);
        value *= p;
        second *= p * p + found.monte_carlo_se.powi(2);
        left_out += found.left_out;
        simulated |= found.monte_carlo_se > 0.0;
    }
    // Without a simulation the difference would be rounding alone.
    let variance = if simulated {
        second - value * value
    } else {
        0.0
    };
    Probability {
        value,
        left_out,
        monte_carlo_se: variance.max(0.0).sqrt(),
    }
}

#[cfg(test)]
mod tests;
