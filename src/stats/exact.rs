//! Exact tests on discordant pairs: McNemar and the sign test.

use std::f64::consts::{LN_2, LN_10};

use super::StatsError;
use super::binomial::{Odds, lower_tail};

/// A p-value beside its logarithm, which stays finite where `p` underflows to 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PValue {
    /// The p-value; 0 where it is below the smallest `f64`.
    pub p: f64,
    /// log10 of the p-value, at most 0 and finite.
    pub log10_p: f64,
}

impl PValue {
    /// p = 1.
    pub const ONE: PValue = PValue {
        p: 1.0,
        log10_p: 0.0,
    };
}

/// Exact conditional McNemar test, two-sided.
///
/// With `m = lost + gained` and `k = min(lost, gained)`, `p = min(1, 2 P(Bin(m, 1/2) <= k))`; no
/// discordant pair gives 1. Defined for all counts; takes up to O(sqrt(m)) steps, which is noticed
/// above [`MAX_COUNT`](super::MAX_COUNT) only.
///
/// Literature: McNemar 1947, Psychometrika 12:153-157; Fay 2010, Biostatistics 11:373-374.
pub fn mcnemar_exact(lost: u64, gained: u64) -> PValue {
    doubled(lost.min(gained), u128::from(lost) + u128::from(gained))
}

/// Result of [`sign_test`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignTest {
    /// Positive differences.
    pub positive: u64,
    /// Negative differences.
    pub negative: u64,
    /// Two-sided: twice the smaller tail, at most 1.
    pub two_sided: PValue,
    /// Against a positive median: `P(X >= positive)`.
    pub greater: PValue,
    /// Against a negative median: `P(X <= positive)`.
    pub less: PValue,
}

/// Exact sign test from the numbers of positive and negative differences; zeros are dropped before.
///
/// `X ~ Bin(positive + negative, 1/2)` under the null. No nonzero difference gives 1 on every side.
///
/// Literature: Dixon & Mood 1946, JASA 41:557-566.
pub fn sign_test(positive: u64, negative: u64) -> SignTest {
    let m = u128::from(positive) + u128::from(negative);
    SignTest {
        positive,
        negative,
        two_sided: doubled(positive.min(negative), m),
        greater: half_tail(negative, m),
        less: half_tail(positive, m),
    }
}

/// [`sign_test`] of a list of differences. Zeros of either sign are dropped, subnormal numbers are
/// not; infinities have a sign and count.
///
/// # Errors
/// [`StatsError::NonFinite`] for a NaN.
pub fn sign_test_differences(differences: &[f64]) -> Result<SignTest, StatsError> {
    if let Some(index) = differences.iter().position(|d| d.is_nan()) {
        return Err(StatsError::NonFinite {
            list: "difference",
            index,
            value: f64::NAN,
        });
    }
    let positive = differences.iter().filter(|&&d| d > 0.0).count();
    let negative = differences.iter().filter(|&&d| d < 0.0).count();
    Ok(sign_test(positive as u64, negative as u64))
}

/// `min(1, 2 P(Bin(m, 1/2) <= k))` for `k <= m / 2`.
fn doubled(k: u64, m: u128) -> PValue {
    // At 2k + 1 >= m the tail holds at least half of the mass.
    if 2 * u128::from(k) + 1 >= m {
        return PValue::ONE;
    }
    let tail = half_tail(k, m);
    if m <= EXACT_TRIALS {
        return PValue {
            p: 2.0 * tail.p,
            log10_p: (2.0 * tail.p).log10(),
        };
    }
    // Doubling the logarithm keeps the last subnormal bits of p that doubling p would lose.
    let log10_p = tail.log10_p + LN_2 / LN_10;
    PValue {
        p: ((tail.log10_p * LN_10) + LN_2).exp(),
        log10_p,
    }
}

/// Most trials for which tails are counted in whole numbers: their sum, 2^120, fits in a `u128`.
const EXACT_TRIALS: u128 = 120;

/// `P(Bin(m, 1/2) <= k)` for `k <= m`.
fn half_tail(k: u64, m: u128) -> PValue {
    let k_wide = u128::from(k);
    if k_wide >= m {
        return PValue::ONE;
    }
    if 2 * k_wide >= m {
        // Above the middle the other tail is the small one; k >= m/2 makes m - k - 1 fit in u64.
        let other = half_tail((m - k_wide - 1) as u64, m).p;
        return PValue {
            p: 1.0 - other,
            // Adding 0 turns the -0 of a vanished tail into 0.
            log10_p: (-other).ln_1p() / LN_10 + 0.0,
        };
    }
    if m <= EXACT_TRIALS {
        let p = count_below(k_wide, m) as f64 / 2_f64.powi(m as i32);
        return PValue {
            p,
            log10_p: p.log10(),
        };
    }
    let ln = lower_tail(k as f64, m as f64, Odds::HALF).ln_cdf;
    PValue {
        p: ln.exp(),
        log10_p: ln / LN_10,
    }
}

/// `sum over j <= k of C(m, j)`.
fn count_below(k: u128, m: u128) -> u128 {
    let (mut sum, mut term) = (1, 1);
    for j in 1..=k {
        // C(m, j) = C(m, j - 1) (m - j + 1) / j; dividing by the common divisor first keeps the
        // product in range.
        let divisor = gcd(term, j);
        term = term / divisor * ((m - j + 1) / (j / divisor));
        sum += term;
    }
    sum
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_tables_are_exact_fractions() {
        assert_eq!(mcnemar_exact(7, 1).p, 18.0 / 256.0);
        assert_eq!(mcnemar_exact(0, 0), PValue::ONE);
        assert_eq!(mcnemar_exact(5, 5), PValue::ONE);
        assert_eq!(mcnemar_exact(5, 6), PValue::ONE);
        assert_eq!(sign_test(10, 0).two_sided.p, 0.001953125);
        assert_eq!(sign_test(10, 0).greater.p, 0.0009765625);
        assert_eq!(sign_test(10, 0).less, PValue::ONE);
    }

    #[test]
    fn logarithms_survive_underflow() {
        let p = mcnemar_exact(1_000_000, 0);
        assert_eq!(p.p, 0.0);
        let exact = -999_999.0 * 2_f64.log10();
        assert!((p.log10_p - exact).abs() < 1e-8, "{}", p.log10_p);
        assert!(mcnemar_exact(u64::MAX, 1).log10_p.is_finite());
    }

    #[test]
    fn zeros_drop_out_and_nan_is_refused() {
        let test = sign_test_differences(&[0.0, -0.0, 5e-324, -1.0, f64::INFINITY]).unwrap();
        assert_eq!((test.positive, test.negative), (2, 1));
        assert!(sign_test_differences(&[1.0, f64::NAN]).is_err());
        assert_eq!(sign_test_differences(&[]).unwrap().greater, PValue::ONE);
    }

    #[test]
    fn whole_numbers_join_the_logarithmic_sum() {
        for k in 0..60 {
            let counted = half_tail(k, 120).p;
            let summed = lower_tail(k as f64, 120.0, Odds::HALF).ln_cdf.exp();
            assert!((summed / counted - 1.0).abs() < 1e-13, "k {k}");
        }
    }

    proptest! {
        #[test]
        fn tails_are_consistent(positive in 0_u64..3_000, negative in 0_u64..3_000) {
            let test = sign_test(positive, negative);
            prop_assert_eq!(test.two_sided, mcnemar_exact(negative, positive));
            let smaller = test.greater.p.min(test.less.p);
            prop_assert!((test.two_sided.p - (2.0 * smaller).min(1.0)).abs() <= 1e-11 * smaller + 1e-322);
            prop_assert!(test.greater.log10_p <= 0.0 && test.two_sided.log10_p <= 0.0);
            // Both tails count the table itself.
            prop_assert!(test.greater.p + test.less.p >= 1.0 - 1e-12);
        }
    }
}
