//! Clopper-Pearson: exact one-sided bounds of a proportion.

use super::StatsError;
use super::binomial::{Odds, check_counts, lower_tail};
use super::normal::upper_quantile;

/// One-sided upper confidence bound of a proportion, at confidence `1 - alpha`.
///
/// `k` of `n` trials succeeded. The bound `U` is the largest proportion that the exact binomial
/// test does not reject: `P(Bin(n, U) <= k) = alpha`, i.e. the `1 - alpha` quantile of
/// `Beta(k + 1, n - k)`. `k = n` gives 1; `k = 0` gives `1 - alpha^(1/n)`. The true error never
/// exceeds `alpha`.
///
/// Literature: Clopper & Pearson 1934, Biometrika 26:404-413.
///
/// # Errors
/// `n = 0`, `n` above [`MAX_COUNT`](super::MAX_COUNT), `k > n`, alpha outside (0, 1).
pub fn clopper_pearson_upper(k: u64, n: u64, alpha: f64) -> Result<f64, StatsError> {
    check(k, n, alpha)?;
    let trials = n as f64;
    Ok(if k == n {
        1.0
    } else if k == 0 {
        -(alpha.ln() / trials).exp_m1()
    } else {
        Odds::from_logit(upper_logit(k as f64, trials, alpha)).p
    })
}

/// One-sided lower confidence bound of a proportion, at confidence `1 - alpha`.
///
/// The bound `L` solves `P(Bin(n, L) >= k) = alpha`; it is one minus the upper bound of the
/// failures. `k = 0` gives 0; `k = n` gives `alpha^(1/n)`.
///
/// Literature: Clopper & Pearson 1934, Biometrika 26:404-413.
///
/// # Errors
/// As [`clopper_pearson_upper`].
pub fn clopper_pearson_lower(k: u64, n: u64, alpha: f64) -> Result<f64, StatsError> {
    check(k, n, alpha)?;
    let trials = n as f64;
    Ok(if k == 0 {
        0.0
    } else if k == n {
        (alpha.ln() / trials).exp()
    } else {
        Odds::from_logit(upper_logit((n - k) as f64, trials, alpha)).q
    })
}

fn check(k: u64, n: u64, alpha: f64) -> Result<(), StatsError> {
    if n == 0 {
        return Err(StatsError::NoTrials);
    }
    check_counts(k, n)?;
    if !(alpha > 0.0 && alpha < 1.0) {
        return Err(StatsError::Alpha { alpha });
    }
    Ok(())
}

/// Logit of the upper bound, `0 < k < n`. Solving for the logit keeps the relative precision of
/// bounds next to 0 and of complements of bounds next to 1.
fn upper_logit(k: f64, n: f64, alpha: f64) -> f64 {
    if alpha <= 0.5 {
        solve(k, n, alpha)
    } else {
        // P(X <= k) = alpha where P(n - X <= n - k - 1) = 1 - alpha, which f64 forms exactly here.
        let failures = n - k - 1.0;
        if failures == 0.0 {
            // q^n = 1 - alpha with q the chance of success.
            let ln_p = (-alpha).ln_1p() / n;
            return ln_p - (-ln_p.exp_m1()).ln();
        }
        -solve(failures, n, 1.0 - alpha)
    }
}

/// The logit at which `P(X <= k) = alpha`, by Newton's method on `ln P(X <= k)`, for `0 < k < n`
/// and `alpha <= 1/2`.
///
/// That function is concave and falling in the logit (its second derivative is the variance of the
/// truncated minus that of the whole distribution), so that from the second step on the iteration
/// approaches the root from the right without overshooting, and no bracket is needed.
///
/// Inverting the incomplete beta function at `1 - alpha` instead would lose the digits of a small
/// alpha before it starts.
fn solve(k: f64, n: f64, alpha: f64) -> f64 {
    let target = alpha.ln();
    let mut logit = wilson_logit(k, n, upper_quantile(alpha));
    let mut close = false;
    for _ in 0..200 {
        let odds = Odds::from_logit(logit);
        let tail = lower_tail(k, n, odds);
        let step = (tail.ln_cdf - target) * tail.over_pmf / ((n - k) * odds.p);
        logit = (logit + step).clamp(-700.0, 700.0);
        if close {
            break;
        }
        close = step.abs() < 1e-9;
    }
    logit
}

/// Logit of the Wilson upper limit: the starting point.
fn wilson_logit(k: f64, n: f64, z: f64) -> f64 {
    let half = z * z / 2.0;
    let spread = z * (k * (n - k) / n + half / 2.0).sqrt();
    let against = (n - k + half - spread).max(f64::MIN_POSITIVE);
    ((k + half + spread) / against).ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ln_binomial_cdf;
    use super::*;

    #[test]
    fn edges_are_closed_forms() {
        assert_eq!(clopper_pearson_upper(9, 9, 0.3).unwrap(), 1.0);
        assert_eq!(clopper_pearson_lower(0, 9, 0.3).unwrap(), 0.0);
        assert_eq!(clopper_pearson_upper(0, 1, 0.05).unwrap(), 0.95);
        assert!((clopper_pearson_lower(2, 2, 0.25).unwrap() - 0.5).abs() < 1e-15);
        // One failure of n at alpha > 1/2: p^n = 1 - alpha.
        let bound = clopper_pearson_upper(1, 2, 0.75).unwrap();
        assert!((bound - 0.5).abs() < 1e-15, "{bound}");
    }

    #[test]
    fn inputs_outside_the_domain_are_refused() {
        assert_eq!(clopper_pearson_upper(0, 0, 0.05), Err(StatsError::NoTrials));
        assert!(clopper_pearson_upper(3, 2, 0.05).is_err());
        assert!(clopper_pearson_upper(1, u64::MAX, 0.05).is_err());
        for alpha in [0.0, 1.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
            assert!(clopper_pearson_upper(1, 2, alpha).is_err(), "alpha {alpha}");
            assert!(clopper_pearson_lower(1, 2, alpha).is_err(), "alpha {alpha}");
        }
    }

    proptest! {
        #[test]
        fn bounds_solve_their_equation(n in 2_u64..3_000_000, share in 0.0..1.0_f64, exponent in -12.0..-0.31_f64) {
            let k = 1 + (share * (n - 2) as f64) as u64;
            let alpha = 10_f64.powf(exponent);
            let upper = clopper_pearson_upper(k.min(n - 1), n, alpha).unwrap();
            prop_assume!(upper < 0.999);
            let error = ln_binomial_cdf(k.min(n - 1), n, upper).unwrap() - alpha.ln();
            // One unit in the last place of the bound moves the tail by up to n units.
            prop_assert!(error.abs() < 1e-11 + n as f64 * 1e-15, "{error}");
        }

        #[test]
        fn bounds_are_monotone(n in 1_u64..5_000, share in 0.0..1.0_f64, alpha in 1e-9..0.9_f64) {
            let k = (share * n as f64) as u64;
            let upper = clopper_pearson_upper(k, n, alpha).unwrap();
            let lower = clopper_pearson_lower(k, n, alpha).unwrap();
            prop_assert!((0.0..=1.0).contains(&upper) && (0.0..=1.0).contains(&lower));
            prop_assert!(clopper_pearson_upper(k, n, alpha * 0.9).unwrap() >= upper);
            prop_assert!(clopper_pearson_upper(k, n + 1, alpha).unwrap() <= upper);
            if k < n {
                prop_assert!(clopper_pearson_upper(k + 1, n, alpha).unwrap() > upper);
                prop_assert!(clopper_pearson_lower(k + 1, n, alpha).unwrap() > lower);
            }
            let mirrored = 1.0 - clopper_pearson_upper(n - k, n, alpha).unwrap();
            prop_assert!((lower - mirrored).abs() < 1e-14);
        }
    }
}
