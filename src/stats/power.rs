//! Power: the probability that a rule passes at assumed rates, and how many pairs it needs.
//!
//! Each pair is lost with probability `loss`, gained with probability `gain`, and unchanged
//! otherwise, independently of the others: `lost` is binomial, `(lost, gained)` trinomial. Rules
//! on counts are enumerated exactly with the bounds that decide them; the NLL rule is simulated.

mod loss;
mod net;
mod nll;
mod search;

pub use loss::{largest_passing_lost, loss_pass_probability, pairs_for_loss};
pub use net::{
    PassProbability, largest_passing_net_loss, least_passing_gained, net_pass_probability,
    pairs_for_net_change,
};
pub use nll::{
    AssumedIncrease, SimulatedPower, Simulation, documents_for_increase, simulate_increase,
};

use super::normal::upper_quantile;
use super::{MAX_COUNT, StatsError};

/// Largest number of pairs that [`pairs_for_loss`] and its kin look for.
pub const MAX_PAIRS_SOUGHT: u64 = 100_000;

/// A one-sided rule: a bound at `alpha` against `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criterion {
    /// One-sided alpha of the bound.
    pub alpha: f64,
    /// Limit that the bound must respect; equality passes.
    pub limit: f64,
}

/// Probabilities with which one pair is lost and gained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Control right, candidate wrong.
    pub loss: f64,
    /// Control wrong, candidate right.
    pub gain: f64,
}

impl Rates {
    /// Checked rates.
    ///
    /// # Errors
    /// [`StatsError::Rates`] unless both lie in [0, 1] and add up to at most 1.
    pub fn new(loss: f64, gain: f64) -> Result<Self, StatsError> {
        let is_rate = |rate: f64| (0.0..=1.0).contains(&rate);
        // Two decimals that add up to 1 may round above it.
        if is_rate(loss) && is_rate(gain) && loss + gain <= 1.0 + f64::EPSILON {
            Ok(Rates { loss, gain })
        } else {
            Err(StatsError::Rates { loss, gain })
        }
    }
}

/// How many pairs a rule needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// So many.
    Pairs(u64),
    /// None would do: the assumed rate itself violates the limit.
    BeyondLimit,
    /// More than [`MAX_PAIRS_SOUGHT`].
    OutOfReach,
}

fn check_pairs(pairs: u64) -> Result<(), StatsError> {
    match pairs {
        0 => Err(StatsError::NoTrials),
        n if n > MAX_COUNT => Err(StatsError::TooManyTrials { n }),
        _ => Ok(()),
    }
}

/// The `z` with `P(Z <= z) = power`.
///
/// # Errors
/// [`StatsError::Power`] unless `0 < power < 1`.
fn power_quantile(power: f64) -> Result<f64, StatsError> {
    if !(power > 0.0 && power < 1.0) {
        return Err(StatsError::Power { power });
    }
    Ok(if power >= 0.5 {
        upper_quantile(1.0 - power)
    } else {
        -upper_quantile(power)
    })
}

#[cfg(test)]
mod tests;
