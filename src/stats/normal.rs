//! The standard normal distribution's upper tail.

use std::f64::consts::{LN_10, PI, SQRT_2};

use statrs::function::erf::{erfc, erfc_inv};

use super::PValue;

/// The `z` with `P(Z > z) = alpha`, for alpha in (0, 1). Works from the tail itself, so that tiny
/// alphas lose nothing to `1 - alpha`.
pub(super) fn upper_quantile(alpha: f64) -> f64 {
    SQRT_2 * erfc_inv(2.0 * alpha)
}

/// `P(Z > z)` and its log10, which stays finite where the probability underflows.
pub(super) fn upper_tail(z: f64) -> PValue {
    let p = 0.5 * erfc(z / SQRT_2);
    let ln = if z > 20.0 {
        ln_far_tail(z)
    } else if z < 0.0 {
        (-0.5 * erfc(-z / SQRT_2)).ln_1p()
    } else {
        p.ln()
    };
    PValue {
        p,
        log10_p: ln / LN_10,
    }
}

/// `ln P(Z > z)` for large `z`, by the continued fraction of Mills' ratio
/// `1 / (z + 1 / (z + 2 / (z + 3 / ...)))`.
fn ln_far_tail(z: f64) -> f64 {
    let denominator = (1..=40).rev().fold(z, |tail, i| z + f64::from(i) / tail);
    -0.5 * z * z - 0.5 * (2.0 * PI).ln() - denominator.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles to 17 digits, from a 60-digit computation.
    #[test]
    fn quantiles_and_tails_invert_each_other() {
        assert!((upper_quantile(0.05) - 1.6448536269514726).abs() < 1e-14);
        assert!((upper_quantile(1e-4) - 3.7190164854556804).abs() < 1e-14);
        assert_eq!(upper_quantile(0.5), 0.0);
        for exponent in 1..300 {
            let alpha = 10_f64.powi(-exponent);
            let tail = upper_tail(upper_quantile(alpha));
            assert!((tail.p / alpha - 1.0).abs() < 1e-12, "{alpha}");
            assert!(
                (tail.log10_p + f64::from(exponent)).abs() < 1e-12,
                "{alpha}"
            );
        }
    }

    #[test]
    fn far_tail_joins_the_near_one() {
        let near = (0.5 * erfc(20.0 / SQRT_2)).ln();
        assert!((ln_far_tail(20.0) - near).abs() < 1e-12);
        assert!(upper_tail(1e6).log10_p < -2e11);
        assert!(upper_tail(1e6).log10_p.is_finite());
    }
}
