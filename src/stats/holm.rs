//! Holm's step-down adjustment.

use std::f64::consts::LN_10;

use super::StatsError;

/// Holm-adjusted p-values, in the order of the input.
///
/// Sorted ascending, `adjusted_(i) = max over j <= i of min(1, (m - j + 1) p_(j))` with `m` the
/// length of the list: rejecting where `adjusted <= alpha` keeps the probability of any false
/// rejection in the family at most `alpha`, whatever the dependence. A NaN stays NaN but counts in
/// `m`: a test that could not be computed was still declared. Ties get equal values; an empty list
/// gives an empty list.
///
/// Literature: Holm 1979, Scand. J. Statist. 6:65-70.
///
/// # Errors
/// [`StatsError::PValue`] for a value outside [0, 1] that is not NaN.
pub fn holm(p: &[f64]) -> Result<Vec<f64>, StatsError> {
    if let Some(index) = p
        .iter()
        .position(|&p| !(p.is_nan() || (0.0..=1.0).contains(&p)))
    {
        return Err(StatsError::PValue { index, p: p[index] });
    }
    Ok(step_down(p, |p, factor| (p * factor).min(1.0)))
}

/// [`holm`] on log10 p-values, for families whose p-values underflow.
///
/// Negative infinity stands for p = 0 and stays.
///
/// # Errors
/// [`StatsError::Log10PValue`] for a value above 0.
pub fn holm_log10(log10_p: &[f64]) -> Result<Vec<f64>, StatsError> {
    if let Some(index) = log10_p.iter().position(|&value| value > 0.0) {
        return Err(StatsError::Log10PValue {
            index,
            log10_p: log10_p[index],
        });
    }
    Ok(step_down(log10_p, |value, factor| {
        (value + factor.ln() / LN_10).min(0.0)
    }))
}

/// Walks up the sorted values, scaling each by the number of hypotheses left (`m`, `m - 1`, …) and
/// never letting an adjusted value fall below the one before.
fn step_down(values: &[f64], scale: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| !values[i].is_nan()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut adjusted = vec![f64::NAN; values.len()];
    let mut largest = f64::NEG_INFINITY;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(scale(values[index], (values.len() - rank) as f64));
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nan_keeps_its_place_in_the_family() {
        let adjusted = holm(&[0.01, f64::NAN, 0.03]).unwrap();
        assert_eq!((adjusted[0], adjusted[2]), (0.03, 0.06));
        assert!(adjusted[1].is_nan());
        assert!(holm(&[]).unwrap().is_empty());
    }

    #[test]
    fn values_outside_the_unit_interval_are_refused() {
        assert_eq!(
            holm(&[0.5, 1.5]),
            Err(StatsError::PValue { index: 1, p: 1.5 })
        );
        assert!(holm(&[-1e-300]).is_err());
        assert!(holm(&[f64::INFINITY]).is_err());
        assert!(holm_log10(&[-1.0, 0.1]).is_err());
    }

    #[test]
    fn log_scale_keeps_zero_p_values() {
        let adjusted = holm_log10(&[f64::NEG_INFINITY, 0.0, f64::NAN]).unwrap();
        assert_eq!(adjusted[..2], [f64::NEG_INFINITY, 0.0]);
        assert!(adjusted[2].is_nan());
    }

    proptest! {
        #[test]
        fn order_is_preserved_and_values_only_grow(p in prop::collection::vec(0.0..=1.0_f64, 0..40)) {
            let adjusted = holm(&p).unwrap();
            for i in 0..p.len() {
                prop_assert!(adjusted[i] >= p[i] && adjusted[i] <= 1.0);
                for j in 0..p.len() {
                    prop_assert!(p[i] > p[j] || adjusted[i] <= adjusted[j]);
                }
            }
        }

        #[test]
        fn log_scale_agrees_with_the_plain_scale(p in prop::collection::vec(1e-12..=1.0_f64, 1..20)) {
            let logs: Vec<f64> = p.iter().map(|p| p.log10()).collect();
            let adjusted = holm(&p).unwrap();
            for (log, plain) in holm_log10(&logs).unwrap().iter().zip(adjusted) {
                prop_assert!((log - plain.log10()).abs() < 1e-12);
            }
        }
    }
}
