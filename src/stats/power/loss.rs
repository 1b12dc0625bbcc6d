//! Rules on the loss rate: Clopper-Pearson upper bound of lost/pairs.

use super::super::{StatsError, clopper_pearson_upper, ln_binomial_cdf};
use super::search::smallest;
use super::{Criterion, MAX_PAIRS_SOUGHT, Needed, Rates, check_pairs, power_quantile};

/// Teeth below the one found by bisection that are looked at one by one.
const TEETH_CHECKED: u64 = 8;

/// The largest number of lost pairs whose Clopper-Pearson upper bound is at most the limit; `None`
/// where not even 0 passes.
///
/// # Errors
/// As [`clopper_pearson_upper`].
pub fn largest_passing_lost(pairs: u64, criterion: Criterion) -> Result<Option<u64>, StatsError> {
    // The bound grows with the losses: search the first number that does not pass.
    let guess = (criterion.limit.clamp(0.0, 1.0) * pairs as f64) as u64;
    let first = smallest((0, pairs), guess, |lost| {
        passes(lost, pairs, criterion).map(|passes| !passes)
    })?;
    Ok(first.map_or(Some(pairs), |first| first.checked_sub(1)))
}

/// Probability that the Clopper-Pearson upper bound of lost/pairs is at most the limit, where each
/// pair is lost with probability `loss`: `P(Bin(pairs, loss) <= k)` with `k` from
/// [`largest_passing_lost`]. Exact.
///
/// # Errors
/// `loss` outside [0, 1]; else as [`clopper_pearson_upper`].
pub fn loss_pass_probability(
    pairs: u64,
    loss: f64,
    criterion: Criterion,
) -> Result<f64, StatsError> {
    Rates::new(loss, 0.0)?;
    match largest_passing_lost(pairs, criterion)? {
        Some(lost) => Ok(ln_binomial_cdf(lost, pairs, loss)?.exp()),
        None => Ok(0.0),
    }
}

/// The smallest number of pairs at which the rule passes with probability `power` where each pair
/// is lost with probability `loss`.
///
/// The probability is a saw: it falls with every pair until one more loss is allowed, and leaps
/// there. The teeth rise, so that some larger numbers of pairs fall short of `power` again, by less
/// than one tooth.
///
/// # Errors
/// `loss` outside [0, 1], `power` outside (0, 1), alpha outside (0, 1).
pub fn pairs_for_loss(loss: f64, criterion: Criterion, power: f64) -> Result<Needed, StatsError> {
    Rates::new(loss, 0.0)?;
    power_quantile(power)?;
    if loss >= criterion.limit {
        return Ok(Needed::BeyondLimit);
    }
    // Tooth `lost` starts at the smallest number of pairs that allows so many losses.
    let reached = |lost: u64| -> Result<bool, StatsError> {
        match first_pairs(lost, criterion)? {
            Some(pairs) => Ok(ln_binomial_cdf(lost, pairs, loss)? >= power.ln()),
            None => Ok(false),
        }
    };
    let Some(last) = largest_passing_lost(MAX_PAIRS_SOUGHT, criterion)? else {
        return Ok(Needed::OutOfReach);
    };
    let found = smallest((0, last), 0, reached)?;
    let Some(mut lost) = found else {
        return Ok(Needed::OutOfReach);
    };
    // Teeth start at whole numbers, so that a lower one may stand out by rounding.
    for lower in (lost.saturating_sub(TEETH_CHECKED)..lost).rev() {
        if reached(lower)? {
            lost = lower;
        }
    }
    Ok(first_pairs(lost, criterion)?.map_or(Needed::OutOfReach, Needed::Pairs))
}

/// The smallest number of pairs of which `lost` may be lost, up to [`MAX_PAIRS_SOUGHT`].
fn first_pairs(lost: u64, criterion: Criterion) -> Result<Option<u64>, StatsError> {
    let least = lost.max(1);
    let guess = (lost as f64 + 4.0 + 2.0 * (lost as f64).sqrt()) / criterion.limit;
    smallest((least, MAX_PAIRS_SOUGHT), guess as u64, |pairs| {
        passes(lost, pairs, criterion)
    })
}

fn passes(lost: u64, pairs: u64, criterion: Criterion) -> Result<bool, StatsError> {
    check_pairs(pairs)?;
    Ok(clopper_pearson_upper(lost, pairs, criterion.alpha)? <= criterion.limit)
}
