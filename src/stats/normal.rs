//! The standard normal distribution's upper tail.
//!
//! statrs 0.19 is not used here: its `erfc` carries relative errors up to 1e-10 (and its inverse
//! beta function similar ones), while bounds here are held to 1e-12.

use std::f64::consts::{LN_10, PI};

use super::PValue;

/// The `z` with `P(Z > z) = alpha`, for alpha in (0, 1/2]. Works from the tail itself, so that tiny
/// alphas lose nothing to `1 - alpha`.
///
/// Newton's method on the logarithm of the tail, which is concave and falling: the start, from the
/// bound `P(Z > z) <= exp(-z^2 / 2) / 2`, lies right of the root and every step stays there.
pub(super) fn upper_quantile(alpha: f64) -> f64 {
    let target = alpha.ln();
    let mut z = (-2.0 * (2.0 * alpha).ln()).sqrt();
    for _ in 0..50 {
        let mills = mills_ratio(z);
        let step = (ln_density(z) + mills.ln() - target) * mills;
        z += step;
        if step.abs() <= 1e-9 {
            // Convergence is quadratic: the error left is below the last bit.
            break;
        }
    }
    z.max(0.0)
}

/// `P(Z > z)` and its log10, which stays finite where the probability underflows.
pub(super) fn upper_tail(z: f64) -> PValue {
    if z < 0.0 {
        let other = upper_tail(-z).p;
        return PValue {
            p: 1.0 - other,
            log10_p: (-other).ln_1p() / LN_10 + 0.0,
        };
    }
    if z < SERIES_BELOW {
        let p = 0.5 - ln_density(z).exp() * central_series(z);
        return PValue {
            p,
            log10_p: p.log10(),
        };
    }
    let ln = ln_density(z) + mills_ratio(z).ln();
    PValue {
        p: ln.exp(),
        log10_p: ln / LN_10,
    }
}

/// Where the series gives way to the continued fraction.
const SERIES_BELOW: f64 = 2.0;

fn ln_density(z: f64) -> f64 {
    -0.5 * z * z - 0.5 * (2.0 * PI).ln()
}

/// `P(Z > z) / density(z)` for `z >= 0`: by [`central_series`] or by the continued fraction
/// `1 / (z + 1 / (z + 2 / (z + 3 / ...)))`, which takes fewer than `400 / z^2 + 20` terms to full precision.
fn mills_ratio(z: f64) -> f64 {
    if z < SERIES_BELOW {
        let half_over_density = (0.5 * z * z).exp() * (PI / 2.0).sqrt();
        return half_over_density - central_series(z);
    }
    let terms = (400.0 / (z * z)) as u32 + 20;
    let denominator = (1..=terms).rev().fold(z, |tail, i| z + f64::from(i) / tail);
    1.0 / denominator
}

/// `P(0 < Z < z) / density(z) = sum of z^(2k+1) / (1 * 3 * ... * (2k+1))`, for small `z`.
fn central_series(z: f64) -> f64 {
    let (mut term, mut sum) = (z, z);
    for odd in (3..120).step_by(2) {
        term *= z * z / f64::from(odd);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values to 17 digits, from 60-digit computations.
    #[test]
    fn quantiles_agree_with_known_values() {
        for (alpha, z) in [
            (0.1, 1.2815515655446004),
            (0.05, 1.6448536269514726),
            (0.00625, 2.497705474412373),
            (1e-4, 3.7190164854556804),
        ] {
            let found = upper_quantile(alpha);
            assert!((found - z).abs() < 4e-15 * z, "{alpha}: {found} {z}");
        }
        assert_eq!(upper_quantile(0.5), 0.0);
    }

    #[test]
    fn quantiles_and_tails_invert_each_other() {
        for exponent in 1..323 {
            let alpha: f64 = format!("1e-{exponent}").parse().unwrap();
            let tail = upper_tail(upper_quantile(alpha));
            assert!((tail.log10_p - alpha.log10()).abs() < 1e-12, "{alpha}");
        }
        assert!(upper_quantile(f64::from_bits(1)).is_finite());
    }

    #[test]
    fn series_and_continued_fraction_join() {
        let (below, above) = (mills_ratio(2.0 - 1e-15), mills_ratio(2.0));
        assert!((below / above - 1.0).abs() < 1e-13);
    }

    #[test]
    fn tails_agree_with_an_independent_erfc() {
        for step in 0..140 {
            let z = f64::from(step) * 0.25;
            let other = 0.5 * statrs::function::erf::erfc(z / 2_f64.sqrt());
            assert!((upper_tail(z).p / other - 1.0).abs() < 1e-9, "{z}");
            assert!((upper_tail(-z).p - (1.0 - other)).abs() < 1e-10, "{z}");
        }
    }

    #[test]
    fn far_tails_keep_their_logarithm() {
        let tail = upper_tail(1e6);
        assert_eq!(tail.p, 0.0);
        assert!((tail.log10_p + 0.5e12 / LN_10).abs() < 10.0);
        assert_eq!(upper_tail(f64::INFINITY).p, 0.0);
        assert_eq!(upper_tail(f64::NEG_INFINITY), PValue::ONE);
    }
}
