//! Paired bootstrap over documents: a bound of the ratio of means and a test of the difference.

use super::exact::PValue;
use super::resample::{resample, resampled_sums};
use super::{CounterRng, MAX_RESAMPLES, Side, StatsError};

/// How a bootstrap draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapPlan {
    /// Number of resamples, at most [`MAX_RESAMPLES`].
    pub resamples: u32,
    /// Seed of the counter-based generator; resample `i` draws from stream `i`.
    pub seed: u64,
}

/// Result of [`bootstrap_ratio_bound`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BootstrapBound {
    /// The bound of `mean(candidate) / mean(native) - 1`.
    pub value: f64,
    /// Standard error of `value` over seeds. 0 where the data leave no sampling variation (then
    /// `value` is `point`: no precision is claimed by it), or where the resampling distribution has
    /// a lump at the quantile.
    pub monte_carlo_se: f64,
    /// The point estimate `mean(candidate) / mean(native) - 1`.
    pub point: f64,
}

/// One-sided percentile-bootstrap bound of `mean(candidate) / mean(native) - 1`.
///
/// Documents are drawn with replacement, native and candidate values together. With `F` the
/// distribution function of the resampled ratios, the upper bound is `inf {t: F(t) >= 1 - alpha}`
/// and the lower one `inf {t: F(t) >= alpha}`: an order statistic, never an interpolation. Where
/// every document has the same ratio up to rounding, the bound is the point estimate. The bits are
/// the same for any number of threads. The method is approximate, the more so the fewer documents
/// there are and the longer their tails: docs/statistics.md.
///
/// The Monte-Carlo standard error follows from the order statistics `h` ranks to either side, `h`
/// being the standard deviation of the rank, `sqrt(B alpha (1 - alpha))`, rounded up: half of their
/// distance, times the standard deviation over `h`.
///
/// Literature: Efron & Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3; Davison &
/// Hinkley 1997, "Bootstrap Methods and their Application".
///
/// # Errors
/// Lists of different lengths, fewer than 2 documents, values that are not finite or whose sum
/// overflows, a native mean (of the data or of a resample) that is not positive, alpha outside
/// (0, 1), fewer resamples than `1 / alpha` or more than [`MAX_RESAMPLES`].
pub fn bootstrap_ratio_bound(
    native: &[f64],
    candidate: &[f64],
    alpha: f64,
    side: Side,
    plan: BootstrapPlan,
) -> Result<BootstrapBound, StatsError> {
    check_lists(native, candidate)?;
    check_plan(plan, alpha)?;
    Ok(match ratios(native, candidate, plan)? {
        Ratios::Constant(point) => constant(point),
        Ratios::Resampled(mut ratios, point) => bound(&mut ratios, point, alpha, side),
    })
}

/// [`bootstrap_ratio_bound`] at several alphas from the same resamples: each bound has the bits
/// that it has alone.
///
/// # Errors
/// As [`bootstrap_ratio_bound`].
pub fn bootstrap_ratio_bounds(
    native: &[f64],
    candidate: &[f64],
    alphas: &[f64],
    side: Side,
    plan: BootstrapPlan,
) -> Result<Vec<BootstrapBound>, StatsError> {
    check_lists(native, candidate)?;
    for &alpha in alphas {
        check_plan(plan, alpha)?;
    }
    let alphas = alphas.iter();
    Ok(match ratios(native, candidate, plan)? {
        Ratios::Constant(point) => alphas.map(|_| constant(point)).collect(),
        Ratios::Resampled(mut ratios, point) => alphas
            .map(|&alpha| bound(&mut ratios, point, alpha, side))
            .collect(),
    })
}

/// Resampled ratios of the means, less one.
enum Ratios {
    /// Every document has the ratio of the point estimate.
    Constant(f64),
    /// One per resample, and the point estimate.
    Resampled(Vec<f64>, f64),
}

fn ratios(native: &[f64], candidate: &[f64], plan: BootstrapPlan) -> Result<Ratios, StatsError> {
    let rows = difference_rows(native, candidate);
    let point = point_estimate(&rows)?;
    if is_proportional(native, candidate, point) {
        return Ok(Ratios::Constant(point));
    }
    let ratios = resample(&rows, plan.resamples, plan.seed, |[native, difference]| {
        if native > 0.0 {
            difference / native
        } else {
            f64::NAN
        }
    });
    if let Some(index) = ratios.iter().position(|ratio| !ratio.is_finite()) {
        let rng = CounterRng::new(plan.seed, index as u64);
        return Err(StatsError::ResampledNativeSum {
            resample: index as u32,
            sum: resampled_sums(&rows, &rng)[0],
        });
    }
    Ok(Ratios::Resampled(ratios, point))
}

fn constant(point: f64) -> BootstrapBound {
    BootstrapBound {
        value: point,
        monte_carlo_se: 0.0,
        point,
    }
}

fn bound(ratios: &mut [f64], point: f64, alpha: f64, side: Side) -> BootstrapBound {
    let (value, monte_carlo_se) = quantile(ratios, alpha, side);
    BootstrapBound {
        value,
        monte_carlo_se,
        point,
    }
}

/// Result of [`bootstrap_difference_test`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BootstrapTest {
    /// `mean(second - first)`.
    pub mean_difference: f64,
    /// Resamples `b` whose centred mean difference is at least as far from 0.
    pub exceeding: u32,
    /// Two-sided p, `(b + 1) / (B + 1)`.
    pub p: PValue,
}

/// Two-sided paired bootstrap test of equal means.
///
/// Differences `second - first` are centred, so that the null hypothesis holds among them, and
/// documents are drawn with replacement. `b` counts resamples whose mean is at least as far from 0
/// as the observed mean difference (within a relative 1e-12, so that rounding never breaks a tie);
/// `p = (b + 1) / (B + 1)` is never 0.
///
/// Literature: Davison & Hinkley 1997, section 4.4; Efron & Tibshirani 1993, section 16.4.
///
/// # Errors
/// Lists of different lengths, fewer than 2 documents, values that are not finite or whose sum
/// overflows, no resamples or more than [`MAX_RESAMPLES`].
pub fn bootstrap_difference_test(
    first: &[f64],
    second: &[f64],
    plan: BootstrapPlan,
) -> Result<BootstrapTest, StatsError> {
    check_lists(first, second)?;
    check_plan(plan, 1.0 - f64::EPSILON)?;
    let n = first.len() as f64;
    let (differences, mean) = differences(first, second);
    let centred: Vec<[f64; 1]> = differences.iter().map(|d| [d - mean]).collect();
    let sums = resample(&centred, plan.resamples, plan.seed, |[sum]| sum.abs());
    let observed = (mean * n).abs() * (1.0 - 1e-12);
    let exceeding = sums.iter().filter(|&&sum| sum >= observed).count() as u32;
    let p = (f64::from(exceeding) + 1.0) / (f64::from(plan.resamples) + 1.0);
    Ok(BootstrapTest {
        mean_difference: mean,
        exceeding,
        p: PValue {
            p,
            log10_p: p.log10(),
        },
    })
}

/// Result of [`bootstrap_difference_interval`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BootstrapInterval {
    /// `mean(second - first)`.
    pub mean_difference: f64,
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

/// Two-sided percentile-bootstrap interval of `mean(second - first)`.
///
/// Documents are drawn with replacement, both values together; each end leaves half of
/// `1 - confidence` outside and is an order statistic as in [`bootstrap_ratio_bound`]. Equal
/// differences give an interval without width: it claims no precision. The resamples are those of
/// [`bootstrap_difference_test`] with the same plan, before centring. The method is approximate.
///
/// Literature: Efron & Tibshirani 1993, section 13.3.
///
/// # Errors
/// Lists of different lengths, fewer than 2 documents, values that are not finite or whose sum
/// overflows, confidence outside (0, 1), fewer resamples than `2 / (1 - confidence)` or more than
/// [`MAX_RESAMPLES`].
pub fn bootstrap_difference_interval(
    first: &[f64],
    second: &[f64],
    confidence: f64,
    plan: BootstrapPlan,
) -> Result<BootstrapInterval, StatsError> {
    check_lists(first, second)?;
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(StatsError::Confidence { confidence });
    }
    let tail = 0.5 * (1.0 - confidence);
    check_plan(plan, tail)?;
    let n = first.len() as f64;
    let (differences, mean_difference) = differences(first, second);
    let rows: Vec<[f64; 1]> = differences.iter().map(|&d| [d]).collect();
    let mut means = resample(&rows, plan.resamples, plan.seed, |[sum]| sum / n);
    let lower = quantile(&mut means, tail, Side::Lower).0;
    let upper = quantile(&mut means, tail, Side::Upper).0;
    Ok(BootstrapInterval {
        mean_difference,
        lower,
        upper,
    })
}

/// `second - first` per document, and the mean.
fn differences(first: &[f64], second: &[f64]) -> (Vec<f64>, f64) {
    let differences: Vec<f64> = first.iter().zip(second).map(|(a, b)| b - a).collect();
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    (differences, mean)
}

fn check_lists(native: &[f64], candidate: &[f64]) -> Result<(), StatsError> {
    let n = native.len();
    if n != candidate.len() {
        return Err(StatsError::LengthMismatch {
            native: n,
            candidate: candidate.len(),
        });
    }
    if n < 2 || u32::try_from(n).is_err() {
        return Err(StatsError::DocumentCount { n });
    }
    for (list, values) in [("native", native), ("candidate", candidate)] {
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let value = values[index];
            return Err(StatsError::NonFinite { list, index, value });
        }
        let largest = values
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()));
        // Twice: sums of differences must stay finite as well.
        if !(2.0 * largest * n as f64).is_finite() {
            return Err(StatsError::Overflow { list, n });
        }
    }
    Ok(())
}

fn check_plan(plan: BootstrapPlan, alpha: f64) -> Result<(), StatsError> {
    if !(alpha > 0.0 && alpha < 1.0) {
        return Err(StatsError::Alpha { alpha });
    }
    // Fewer than one resample in the tail would put the quantile at the extreme resample,
    // whatever alpha asks for.
    let resamples = plan.resamples;
    if u64::from(resamples) < least_resamples(alpha) && alpha < 0.5
        || !(1..=MAX_RESAMPLES).contains(&resamples)
    {
        return Err(StatsError::Resamples {
            resamples,
            needed: least_resamples(alpha),
            alpha,
        });
    }
    Ok(())
}

/// Fewest resamples of which one lies in a tail of `alpha`.
pub fn least_resamples(alpha: f64) -> u64 {
    whole(1.0 / alpha).1 as u64
}

/// Rows of native value and difference: the difference of close values is exact in `f64`, where
/// the ratio of their sums minus one would cancel.
fn difference_rows(native: &[f64], candidate: &[f64]) -> Vec<[f64; 2]> {
    let pairs = native.iter().zip(candidate);
    pairs
        .map(|(&native, &candidate)| [native, candidate - native])
        .collect()
}

fn point_estimate(rows: &[[f64; 2]]) -> Result<f64, StatsError> {
    let sum: f64 = rows.iter().map(|row| row[0]).sum();
    if sum > 0.0 {
        Ok(rows.iter().map(|row| row[1]).sum::<f64>() / sum)
    } else {
        Err(StatsError::NativeMean {
            mean: sum / rows.len() as f64,
        })
    }
}

/// Whether every document has the ratio `1 + point` up to rounding of its values.
pub fn is_proportional(native: &[f64], candidate: &[f64], point: f64) -> bool {
    native.iter().zip(candidate).all(|(&native, &candidate)| {
        let residual = candidate - native - point * native;
        residual.abs() <= 8.0 * f64::EPSILON * (native.abs() + candidate.abs())
    })
}

/// Floor and ceiling, where a value within rounding of a whole number counts as that number:
/// 100,000 x 0.05 means 5,000 however the product rounds.
fn whole(value: f64) -> (f64, f64) {
    let nearest = value.round();
    if (value - nearest).abs() <= 1e-9 * value.abs() {
        (nearest, nearest)
    } else {
        (value.floor(), value.ceil())
    }
}

/// The bound among the resampled values, and its Monte-Carlo standard error.
fn quantile(values: &mut [f64], alpha: f64, side: Side) -> (f64, f64) {
    let count = values.len();
    let (floor, ceiling) = whole(count as f64 * alpha);
    // Ranks from 1: F(t) >= 1 - alpha leaves at most floor(B alpha) values above t.
    let rank = match side {
        Side::Upper => count - (floor as usize).min(count - 1),
        Side::Lower => (ceiling as usize).clamp(1, count),
    };
    let spread = (count as f64 * alpha * (1.0 - alpha))
        .sqrt()
        .ceil()
        .max(1.0);
    let low = rank.saturating_sub(spread as usize).max(1);
    let high = (rank + spread as usize).min(count);
    let (below, &mut value, above) = values.select_nth_unstable_by(rank - 1, f64::total_cmp);
    let low_value = if low < rank {
        *below.select_nth_unstable_by(low - 1, f64::total_cmp).1
    } else {
        value
    };
    let high_value = if high > rank {
        *above
            .select_nth_unstable_by(high - rank - 1, f64::total_cmp)
            .1
    } else {
        value
    };
    if high == low {
        return (value, 0.0);
    }
    let exact_spread = (count as f64 * alpha * (1.0 - alpha)).sqrt();
    (
        value,
        (high_value - low_value) * exact_spread / (high - low) as f64,
    )
}

#[cfg(test)]
mod tests;
