//! The rule on net change: Tango lower bound of (gained - lost)/pairs.

use super::super::normal::upper_quantile;
use super::super::tango::LowerBoundTest;
use super::super::{StatsError, ln_binomial_cdf, ln_binomial_pmf, ln_binomial_sf};
use super::search::smallest;
use super::{Criterion, MAX_PAIRS_SOUGHT, Needed, Rates, check_pairs, power_quantile};

/// Natural logarithm of the mass that may be left out at either end of the losses, 1e-13.
const LN_NEGLIGIBLE: f64 = -29.933_606_208_922_594;

/// A probability by enumeration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassProbability {
    /// Probability over the tables that were enumerated; the true one is at most
    /// [`PassProbability::left_out`] larger.
    pub probability: f64,
    /// Total probability of the tables that were not, below 1e-12.
    pub left_out: f64,
}

/// The smallest number of gained pairs with which a table of `lost` lost ones passes: its Tango
/// lower bound is at least the limit. `None` where none is large enough.
///
/// # Errors
/// No pairs or too many, `lost > pairs`, alpha outside (0, 1/2], a limit outside (-1, 1).
pub fn least_passing_gained(
    lost: u64,
    pairs: u64,
    criterion: Criterion,
) -> Result<Option<u64>, StatsError> {
    check_pairs(pairs)?;
    if lost > pairs {
        return Err(StatsError::SuccessesExceedTrials { k: lost, n: pairs });
    }
    let test = LowerBoundTest::new(pairs, criterion.alpha, criterion.limit)?;
    let most = pairs - lost;
    // The bound grows with the gains.
    smallest((0, most), lost.min(most), |gained| {
        Ok(test.passes(lost, gained))
    })
}

/// The largest number of lost pairs with which a table without gained ones passes; `None` where not
/// even a table without any change does.
///
/// # Errors
/// As [`least_passing_gained`].
pub fn largest_passing_net_loss(
    pairs: u64,
    criterion: Criterion,
) -> Result<Option<u64>, StatsError> {
    check_pairs(pairs)?;
    let test = LowerBoundTest::new(pairs, criterion.alpha, criterion.limit)?;
    // The bound falls with the losses: search the first number that does not pass.
    let first = smallest((0, pairs), 0, |lost| Ok(!test.passes(lost, 0)))?;
    Ok(first.map_or(Some(pairs), |first| first.checked_sub(1)))
}

/// Probability that the Tango lower bound of (gained - lost)/pairs is at least the limit.
///
/// Sums over `lost` the binomial probability of so many losses times that of at least
/// [`least_passing_gained`] gains among the remaining pairs; numbers of losses in the two tails
/// are left out where their total probability stays below 1e-13 each. Exact but for that. Takes
/// steps in proportion to the pairs at worst and to their square root at moderate rates.
///
/// With the true difference as limit this is the probability that the bound misses it.
///
/// # Errors
/// Rates that are none, no pairs or too many, alpha outside (0, 1/2], a limit outside (-1, 1).
pub fn net_pass_probability(
    pairs: u64,
    rates: Rates,
    criterion: Criterion,
) -> Result<PassProbability, StatsError> {
    check_pairs(pairs)?;
    let Rates { loss, gain } = Rates::new(rates.loss, rates.gain)?;
    let test = LowerBoundTest::new(pairs, criterion.alpha, criterion.limit)?;
    let (first, last) = likely_losses(pairs, loss)?;
    let left_out = outside(first, last, pairs, loss)?;
    // Probability that a pair which is not lost is gained.
    let gain_of_rest = if loss < 1.0 {
        (gain / (1.0 - loss)).min(1.0)
    } else {
        0.0
    };
    let mut probability = 0.0;
    let mut gained = least_passing_gained(first, pairs, criterion)?;
    for lost in first..=last {
        let rest = pairs - lost;
        // The number of gains that it takes grows with the losses.
        while gained.is_some_and(|gained| gained <= rest && !test.passes(lost, gained)) {
            gained = gained.map(|gained| gained + 1);
        }
        let Some(least) = gained.filter(|&gained| gained <= rest) else {
            break;
        };
        let ln_mass = ln_binomial_pmf(lost, pairs, loss)?;
        probability += (ln_mass + ln_binomial_sf(least, rest, gain_of_rest)?).exp();
    }
    Ok(PassProbability {
        probability: probability.min(1.0),
        left_out,
    })
}

/// The numbers of losses outside of which no more than 1e-13 lies on either side.
fn likely_losses(pairs: u64, loss: f64) -> Result<(u64, u64), StatsError> {
    let mean = (pairs as f64 * loss) as u64;
    let enough = |ln: f64| ln > LN_NEGLIGIBLE;
    let first = smallest((0, pairs), mean, |lost| {
        Ok(enough(ln_binomial_cdf(lost, pairs, loss)?))
    })?;
    let beyond = smallest((0, pairs), mean, |lost| {
        Ok(lost == pairs || !enough(ln_binomial_sf(lost + 1, pairs, loss)?))
    })?;
    Ok((first.unwrap_or(pairs), beyond.unwrap_or(pairs)))
}

fn outside(first: u64, last: u64, pairs: u64, loss: f64) -> Result<f64, StatsError> {
    let mut mass = 0.0;
    if first > 0 {
        mass += ln_binomial_cdf(first - 1, pairs, loss)?.exp();
    }
    if last < pairs {
        mass += ln_binomial_sf(last + 1, pairs, loss)?.exp();
    }
    Ok(mass)
}

/// A number of pairs at which the rule passes with probability `power`, and with one pair fewer
/// does not: found by bisection from the normal approximation. The probability rises with the
/// pairs but for small teeth of whole numbers, so that other such crossings may lie next to it.
///
/// # Errors
/// As [`net_pass_probability`]; `power` outside (0, 1).
pub fn pairs_for_net_change(
    rates: Rates,
    criterion: Criterion,
    power: f64,
) -> Result<Needed, StatsError> {
    let Rates { loss, gain } = Rates::new(rates.loss, rates.gain)?;
    // Checks alpha and limit before the quantile is taken.
    LowerBoundTest::new(1, criterion.alpha, criterion.limit)?;
    let z = upper_quantile(criterion.alpha) + power_quantile(power)?;
    let distance = gain - loss - criterion.limit;
    if distance <= 0.0 {
        return Ok(Needed::BeyondLimit);
    }
    let variance = loss + gain - (gain - loss).powi(2);
    let guess = z.max(0.0).powi(2) * variance / distance.powi(2);
    let found = smallest((1, MAX_PAIRS_SOUGHT), guess as u64, |pairs| {
        Ok(net_pass_probability(pairs, rates, criterion)?.probability >= power)
    })?;
    Ok(found.map_or(Needed::OutOfReach, Needed::Pairs))
}
