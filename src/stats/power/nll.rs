//! The NLL rule: percentile-bootstrap upper bound of the relative increase of the mean.

use super::super::normal::upper_quantile;
use super::super::{BootstrapPlan, CounterRng, Side, StatsError, bootstrap_ratio_bound};
use super::{Criterion, MAX_PAIRS_SOUGHT, Needed, power_quantile};

/// Assumed relative increases of single documents: normal, independent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AssumedIncrease {
    /// Mean over documents, as a proportion of the control's mean.
    pub mean: f64,
    /// Standard deviation over documents, in the same unit.
    pub sd: f64,
}

impl AssumedIncrease {
    fn check(self) -> Result<(), StatsError> {
        if self.mean.is_finite() && self.sd.is_finite() && self.sd >= 0.0 {
            Ok(())
        } else {
            Err(StatsError::Spread {
                mean: self.mean,
                sd: self.sd,
            })
        }
    }
}

/// Size and seed of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// Simulated runs, at least 1.
    pub trials: u32,
    /// Bootstrap resamples in each.
    pub resamples: u32,
    /// Seed of documents and resamples.
    pub seed: u64,
}

/// A probability by simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedPower {
    /// Share of simulated runs that pass.
    pub probability: f64,
    /// Its standard error over seeds, `sqrt(p (1 - p) / trials)` with `p = (passed + 1) / (trials
    /// + 2)`, which is never 0.
    pub monte_carlo_se: f64,
}

/// Probability that the NLL rule passes on `documents` documents, by simulation with the bootstrap
/// that decides it.
///
/// The control's value is 1 on every document and the candidate's `1 + d` with `d` normal: only the
/// part of a difference that does not follow the control's value varies the ratio.
///
/// # Errors
/// As [`bootstrap_ratio_bound`]; a mean or deviation that is not finite, no trials.
pub fn simulate_increase(
    documents: u32,
    assumed: AssumedIncrease,
    criterion: Criterion,
    simulation: Simulation,
) -> Result<SimulatedPower, StatsError> {
    assumed.check()?;
    if simulation.trials == 0 {
        return Err(StatsError::NoTrials);
    }
    let control = vec![1.0; documents as usize];
    let mut passed = 0_u32;
    for trial in 0..simulation.trials {
        let mut rng = CounterRng::new(simulation.seed, trial.into());
        let candidate: Vec<f64> = (0..documents)
            .map(|_| 1.0 + assumed.mean + assumed.sd * rng.normal())
            .collect();
        let plan = BootstrapPlan {
            resamples: simulation.resamples,
            // Streams of the resamples must not repeat those of the documents.
            seed: rng.next_u64(),
        };
        let bound =
            bootstrap_ratio_bound(&control, &candidate, criterion.alpha, Side::Upper, plan)?;
        passed += u32::from(bound.value <= criterion.limit);
    }
    let trials = f64::from(simulation.trials);
    let p = (f64::from(passed) + 1.0) / (trials + 2.0);
    Ok(SimulatedPower {
        probability: f64::from(passed) / trials,
        monte_carlo_se: (p * (1.0 - p) / trials).sqrt(),
    })
}

/// Documents at which the NLL rule passes with probability `power`, by normal approximation:
/// `((z_alpha + z_power) sd / (limit - mean))^2`, at least 2.
///
/// # Errors
/// A mean or deviation that is not finite, alpha outside (0, 1/2], `power` outside (0, 1).
pub fn documents_for_increase(
    assumed: AssumedIncrease,
    criterion: Criterion,
    power: f64,
) -> Result<Needed, StatsError> {
    assumed.check()?;
    if !(criterion.alpha > 0.0 && criterion.alpha <= 0.5) {
        let alpha = criterion.alpha;
        return Err(StatsError::AlphaAboveHalf { alpha });
    }
    let z = upper_quantile(criterion.alpha) + power_quantile(power)?;
    let distance = criterion.limit - assumed.mean;
    if distance <= 0.0 {
        return Ok(Needed::BeyondLimit);
    }
    let documents = (z.max(0.0) * assumed.sd / distance).powi(2).ceil().max(2.0);
    Ok(if documents <= MAX_PAIRS_SOUGHT as f64 {
        Needed::Pairs(documents as u64)
    } else {
        Needed::OutOfReach
    })
}
