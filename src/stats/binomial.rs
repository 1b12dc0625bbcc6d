//! Binomial probabilities and tails in logarithms.
//!
//! Probability masses use the saddle-point form of Loader 2000 ("Fast and accurate computation of
//! binomial probabilities"), whose error does not grow with `n` as that of differences of
//! log-gamma values does; tails are that mass times a sum of ratios.

use std::f64::consts::PI;

use super::StatsError;

/// A success probability `p` and its complement `q`, each to full relative precision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odds {
    pub p: f64,
    pub q: f64,
}

impl Odds {
    pub(super) const HALF: Odds = Odds { p: 0.5, q: 0.5 };

    /// From `ln(p / q)`.
    pub(super) fn from_logit(logit: f64) -> Self {
        Odds {
            p: 1.0 / (1.0 + (-logit).exp()),
            q: 1.0 / (1.0 + logit.exp()),
        }
    }

    fn from_probability(p: f64) -> Result<Self, StatsError> {
        if (0.0..=1.0).contains(&p) {
            Ok(Odds { p, q: 1.0 - p })
        } else {
            Err(StatsError::Probability { p })
        }
    }

    fn mirrored(self) -> Self {
        Odds {
            p: self.q,
            q: self.p,
        }
    }

    /// `ln p`, precise also where `p` is close to 1.
    fn ln_p(self) -> f64 {
        if self.p < 0.5 {
            self.p.ln()
        } else {
            (-self.q).ln_1p()
        }
    }
}

/// Natural logarithm of `P(X = k)` for `X ~ Bin(n, p)`; negative infinity where it is 0.
///
/// # Errors
/// `p` outside [0, 1], `n` above [`MAX_COUNT`](super::MAX_COUNT), `k > n`.
pub fn ln_binomial_pmf(k: u64, n: u64, p: f64) -> Result<f64, StatsError> {
    check_counts(k, n)?;
    Ok(ln_pmf(k as f64, n as f64, Odds::from_probability(p)?))
}

/// Natural logarithm of `P(X <= k)` for `X ~ Bin(n, p)`; negative infinity where it is 0.
///
/// The smaller of the two tails is summed, so that both small probabilities and those close to 1
/// keep their precision. Takes O(sqrt(n)) steps at most.
///
/// # Errors
/// `p` outside [0, 1], `n` above [`MAX_COUNT`](super::MAX_COUNT), `k > n`.
pub fn ln_binomial_cdf(k: u64, n: u64, p: f64) -> Result<f64, StatsError> {
    check_counts(k, n)?;
    let odds = Odds::from_probability(p)?;
    let (k, n) = (k as f64, n as f64);
    Ok(if k == n || odds.p == 0.0 {
        0.0
    } else if odds.q == 0.0 {
        f64::NEG_INFINITY
    } else if k <= n * odds.p {
        lower_tail(k, n, odds).ln_cdf
    } else {
        ln_complement(lower_tail(n - k - 1.0, n, odds.mirrored()).ln_cdf)
    })
}

/// Natural logarithm of `P(X >= k)` for `X ~ Bin(n, p)`; negative infinity where it is 0.
///
/// # Errors
/// `p` outside [0, 1], `n` above [`MAX_COUNT`](super::MAX_COUNT), `k > n`.
pub fn ln_binomial_sf(k: u64, n: u64, p: f64) -> Result<f64, StatsError> {
    check_counts(k, n)?;
    let odds = Odds::from_probability(p)?;
    let (k, n) = (k as f64, n as f64);
    Ok(if k == 0.0 || odds.q == 0.0 {
        0.0
    } else if odds.p == 0.0 {
        f64::NEG_INFINITY
    } else if k >= n * odds.p {
        lower_tail(n - k, n, odds.mirrored()).ln_cdf
    } else {
        ln_complement(lower_tail(k - 1.0, n, odds).ln_cdf)
    })
}

/// `ln(1 - exp(value))` for `value <= 0`.
fn ln_complement(value: f64) -> f64 {
    (-value.exp()).ln_1p()
}

/// Refuses what no binomial count can be.
pub(super) fn check_counts(k: u64, n: u64) -> Result<(), StatsError> {
    if n > super::MAX_COUNT {
        return Err(StatsError::TooManyTrials { n });
    }
    if k > n {
        return Err(StatsError::SuccessesExceedTrials { k, n });
    }
    Ok(())
}

/// A lower tail and what Newton's method needs beside it.
pub(super) struct LowerTail {
    /// `ln P(X <= k)`.
    pub ln_cdf: f64,
    /// `P(X <= k) / P(X = k)`.
    pub over_pmf: f64,
}

/// Sums `P(X <= k)` downwards from `k`. Fast where `k` lies at or below the mean; precise
/// everywhere unless the tail is close to 1.
pub(super) fn lower_tail(k: f64, n: f64, odds: Odds) -> LowerTail {
    let over_pmf = ratio_sum(k, n, odds);
    LowerTail {
        ln_cdf: ln_pmf(k, n, odds) + over_pmf.ln(),
        over_pmf,
    }
}

/// `sum over j <= k of P(X = j) / P(X = k)`.
fn ratio_sum(k: f64, n: f64, odds: Odds) -> f64 {
    let against = odds.q / odds.p;
    let (mut sum, mut term, mut j) = (1.0, 1.0, k);
    while j > 0.0 {
        let ratio = j / (n - j + 1.0) * against;
        term *= ratio;
        sum += term;
        // Ratios only fall with j: the rest is below term * ratio / (1 - ratio).
        if term * ratio <= f64::EPSILON / 8.0 * sum * (1.0 - ratio) {
            break;
        }
        j -= 1.0;
    }
    sum
}

fn ln_pmf(k: f64, n: f64, odds: Odds) -> f64 {
    if k == 0.0 {
        // 0 trials with q = 0 would give 0 * -inf.
        return if n == 0.0 {
            0.0
        } else {
            n * odds.mirrored().ln_p()
        };
    }
    if k == n {
        return n * odds.ln_p();
    }
    if odds.p == 0.0 || odds.q == 0.0 {
        return f64::NEG_INFINITY;
    }
    stirling_error(n)
        - stirling_error(k)
        - stirling_error(n - k)
        - deviance(k, n * odds.p)
        - deviance(n - k, n * odds.q)
        + 0.5 * (n / (2.0 * PI * k * (n - k))).ln()
}

/// `ln n! - ln(sqrt(2 pi n) (n / e)^n)` for whole `n >= 1`.
fn stirling_error(n: f64) -> f64 {
    if n <= 15.0 {
        // Factorials to 15 are exact in f64.
        let factorial: f64 = (2..=n as u32).map(f64::from).product();
        return factorial.ln() - (0.5 * (2.0 * PI * n).ln() + n * n.ln() - n);
    }
    let square = 1.0 / (n * n);
    let series = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
    ];
    series.iter().rev().fold(0.0, |sum, c| sum * square + c) / n
}

/// `x ln(x / mean) + mean - x` without cancellation where `x` is close to `mean`.
fn deviance(x: f64, mean: f64) -> f64 {
    let difference = x - mean;
    let v = difference / (x + mean);
    if v.abs() >= 0.1 {
        return x * (x / mean).ln() - difference;
    }
    // ln(x / mean) = 2 artanh(v); the first term of the series is taken together with -difference.
    let square = v * v;
    let mut power = 2.0 * x * v;
    let mut sum = difference * v;
    for odd in (3..).step_by(2) {
        power *= square;
        let next = sum + power / f64::from(odd);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choose(n: u64, k: u64) -> f64 {
        (0..k).fold(1_u128, |c, i| c * u128::from(n - i) / u128::from(i + 1)) as f64
    }

    fn pmf(k: u64, n: u64, p: f64) -> f64 {
        choose(n, k) * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
    }

    proptest! {
        #[test]
        fn tails_agree_with_plain_sums(n in 1_u64..60, share in 0.0..1.0_f64, p in 0.001..0.999_f64) {
            let k = (share * n as f64) as u64;
            let mass = ln_binomial_pmf(k, n, p).unwrap().exp();
            prop_assert!((mass / pmf(k, n, p) - 1.0).abs() < 1e-11);
            let lower: f64 = (0..=k).map(|j| pmf(j, n, p)).sum();
            let upper: f64 = (k..=n).map(|j| pmf(j, n, p)).sum();
            prop_assert!((ln_binomial_cdf(k, n, p).unwrap().exp() / lower - 1.0).abs() < 1e-11);
            prop_assert!((ln_binomial_sf(k, n, p).unwrap().exp() / upper - 1.0).abs() < 1e-11);
        }

        #[test]
        fn tails_are_complementary(n in 2_u64..2_000_000, share in 0.0..1.0_f64, p in 0.0..=1.0_f64) {
            let k = (share * (n - 1) as f64) as u64;
            let lower = ln_binomial_cdf(k, n, p).unwrap().exp();
            let upper = ln_binomial_sf(k + 1, n, p).unwrap().exp();
            prop_assert!((lower + upper - 1.0).abs() < 1e-11, "{lower} + {upper}");
        }
    }

    #[test]
    fn certain_outcomes() {
        assert_eq!(ln_binomial_pmf(0, 0, 1.0).unwrap(), 0.0);
        assert_eq!(ln_binomial_pmf(0, 5, 0.0).unwrap(), 0.0);
        assert_eq!(ln_binomial_pmf(5, 5, 1.0).unwrap(), 0.0);
        assert_eq!(ln_binomial_pmf(2, 5, 1.0).unwrap(), f64::NEG_INFINITY);
        assert_eq!(ln_binomial_cdf(2, 5, 1.0).unwrap(), f64::NEG_INFINITY);
        assert_eq!(ln_binomial_cdf(2, 5, 0.0).unwrap(), 0.0);
        assert_eq!(ln_binomial_sf(2, 5, 0.0).unwrap(), f64::NEG_INFINITY);
        assert_eq!(ln_binomial_sf(2, 5, 1.0).unwrap(), 0.0);
    }

    #[test]
    fn impossible_counts_are_refused() {
        assert!(ln_binomial_cdf(3, 2, 0.5).is_err());
        assert!(ln_binomial_sf(1, 2, f64::NAN).is_err());
        assert!(ln_binomial_pmf(1, u64::MAX, 0.5).is_err());
    }
}
