use proptest::prelude::*;

use super::*;

const PLAN: BootstrapPlan = BootstrapPlan {
    resamples: 10_000,
    seed: 42,
};

fn documents(n: usize, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let mut rng = CounterRng::new(seed, 0);
    let mut unit = || rng.below(1 << 20) as f64 / f64::from(1 << 20);
    (0..n)
        .map(|_| {
            let native = 1.5 + unit();
            (native, native * (1.0 + 0.02 * (unit() - 0.4)))
        })
        .unzip()
}

#[test]
fn quantiles_are_order_statistics() {
    let mut values: Vec<f64> = (1..=100).map(f64::from).rev().collect();
    assert_eq!(quantile(&mut values, 0.05, Side::Upper).0, 95.0);
    assert_eq!(quantile(&mut values, 0.05, Side::Lower).0, 5.0);
    // 1.5 of 100 in the tail: F(t) >= 0.985 first at the 99th value, F(t) >= 0.015 at the second.
    assert_eq!(quantile(&mut values, 0.015, Side::Upper).0, 99.0);
    assert_eq!(quantile(&mut values, 0.015, Side::Lower).0, 2.0);
    // 100 x 0.29 rounds to just below 29.
    assert_eq!(quantile(&mut values, 0.29, Side::Upper).0, 71.0);
    let (_, error) = quantile(&mut values, 0.5, Side::Upper);
    assert!((error - 5.0).abs() < 1e-12, "{error}");
}

#[test]
fn inputs_outside_the_domain_are_refused() {
    let bound = |native: &[f64], candidate: &[f64], alpha| {
        bootstrap_ratio_bound(native, candidate, alpha, Side::Upper, PLAN)
    };
    assert_eq!(
        bound(&[1.0], &[1.0], 0.05),
        Err(StatsError::DocumentCount { n: 1 })
    );
    assert!(matches!(
        bound(&[1.0, 2.0], &[1.0], 0.05),
        Err(StatsError::LengthMismatch { .. })
    ));
    assert!(matches!(
        bound(&[1.0, f64::NAN], &[1.0, 1.0], 0.05),
        Err(StatsError::NonFinite {
            list: "native",
            index: 1,
            ..
        })
    ));
    assert!(matches!(
        bound(&[1.0, 1.0], &[f64::INFINITY, 1.0], 0.05),
        Err(StatsError::NonFinite {
            list: "candidate",
            index: 0,
            ..
        })
    ));
    assert!(matches!(
        bound(&[1.0, -1.0], &[1.0, 1.0], 0.05),
        Err(StatsError::NativeMean { .. })
    ));
    assert!(matches!(
        bound(&[1.0, 0.0], &[1.0, 1.0], 0.05),
        Err(StatsError::ResampledNativeSum { sum: 0.0, .. })
    ));
    assert!(matches!(
        bound(&[f64::MAX, 1.0], &[1.0, 1.0], 0.05),
        Err(StatsError::Overflow { list: "native", .. })
    ));
    for alpha in [0.0, 1.0, f64::NAN] {
        assert!(matches!(
            bound(&[1.0, 2.0], &[1.0, 2.5], alpha),
            Err(StatsError::Alpha { .. })
        ));
    }
}

#[test]
fn resamples_must_reach_the_tail() {
    let bound = |resamples, alpha| {
        let plan = BootstrapPlan { resamples, seed: 1 };
        bootstrap_ratio_bound(&[1.0, 2.0], &[1.0, 2.5], alpha, Side::Upper, plan)
    };
    assert!(matches!(
        bound(19, 0.05),
        Err(StatsError::Resamples { needed: 20, .. })
    ));
    assert!(bound(20, 0.05).is_ok());
    // The product of these falls short of 1 by rounding alone.
    for (family, divisor) in [(0.01, 73), (0.01, 91)] {
        let alpha = family / f64::from(divisor);
        assert_eq!(least_resamples(alpha), u64::from(100 * divisor as u32));
        assert!(bound(100 * divisor as u32, alpha).is_ok());
    }
    assert!(bound(0, 0.9).is_err());
    assert!(bound(MAX_RESAMPLES + 1, 0.05).is_err());
}

#[test]
fn proportional_documents_give_the_point() {
    let native: Vec<f64> = (1..=40).map(|i| f64::from(i).sqrt()).collect();
    let candidate: Vec<f64> = native.iter().map(|value| value * 1.004).collect();
    let bound = bootstrap_ratio_bound(&native, &candidate, 0.01, Side::Upper, PLAN).unwrap();
    assert_eq!(bound.value, bound.point);
    assert_eq!(bound.monte_carlo_se, 0.0);
    assert!((bound.point - 0.004).abs() < 1e-15);
}

#[test]
fn standard_error_matches_the_scatter_over_seeds() {
    let (native, candidate) = documents(64, 9);
    let bounds: Vec<BootstrapBound> = (0..60)
        .map(|seed| {
            let plan = BootstrapPlan {
                resamples: 4_000,
                seed,
            };
            bootstrap_ratio_bound(&native, &candidate, 0.0125, Side::Upper, plan).unwrap()
        })
        .collect();
    let mean = bounds.iter().map(|b| b.value).sum::<f64>() / 60.0;
    let scatter = (bounds.iter().map(|b| (b.value - mean).powi(2)).sum::<f64>() / 59.0).sqrt();
    let reported = bounds.iter().map(|b| b.monte_carlo_se).sum::<f64>() / 60.0;
    assert!(
        (0.6..1.6).contains(&(reported / scatter)),
        "{reported} {scatter}"
    );
}

#[test]
fn equal_means_give_large_p_and_a_clear_shift_a_small_one() {
    let (native, candidate) = documents(48, 3);
    let same = bootstrap_difference_test(&native, &native, PLAN).unwrap();
    assert_eq!((same.mean_difference, same.p), (0.0, PValue::ONE));
    let shifted: Vec<f64> = candidate.iter().map(|value| value + 0.5).collect();
    let shift = bootstrap_difference_test(&native, &shifted, PLAN).unwrap();
    assert_eq!(shift.exceeding, 0);
    assert_eq!(shift.p.p, 1.0 / 10_001.0);
    assert!((shift.p.log10_p + 10_001_f64.log10()).abs() < 1e-12);
}

/// Two documents with differences 2 and 0: centred means are -1, 0, 0, 1 and the observed mean is
/// 1, so half of the resamples tie with it.
#[test]
fn ties_count_against_the_null() {
    let test = bootstrap_difference_test(&[0.0, 0.0], &[2.0, 0.0], PLAN).unwrap();
    assert!((0.48..0.52).contains(&test.p.p), "{}", test.p.p);
    assert!(bootstrap_difference_test(&[0.0], &[1.0], PLAN).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn bounds_enclose_each_other(n in 2_usize..80, seed in 0_u64..1_000, alpha in 0.001..0.4_f64) {
        let (native, candidate) = documents(n, seed);
        let plan = BootstrapPlan { resamples: 1_000, seed };
        let bound = |alpha, side| {
            bootstrap_ratio_bound(&native, &candidate, alpha, side, plan).unwrap()
        };
        let (low, high) = (bound(alpha, Side::Lower), bound(alpha, Side::Upper));
        prop_assert!(low.value <= high.value);
        prop_assert!(bound(alpha * 1.5, Side::Upper).value <= high.value);
        prop_assert!(bound(alpha * 1.5, Side::Lower).value >= low.value);
        let ratios = native.iter().zip(&candidate).map(|(a, b)| b / a - 1.0);
        let largest = ratios.fold(f64::MIN, f64::max);
        prop_assert!(high.value <= largest + 1e-12);
    }
}

#[test]
fn intervals_of_the_difference_are_quantiles_of_resampled_means() {
    // Two documents have three equally spaced means: 1/4, 1/2 and 1/4 of the mass.
    let interval =
        |confidence| bootstrap_difference_interval(&[1.0, 1.0], &[1.0, 3.0], confidence, PLAN);
    let wide = interval(0.95).unwrap();
    assert_eq!(
        (wide.mean_difference, wide.lower, wide.upper),
        (1.0, 0.0, 2.0)
    );
    let narrow = interval(0.4).unwrap();
    assert_eq!((narrow.lower, narrow.upper), (1.0, 1.0));
    for confidence in [0.0, 1.0, f64::NAN] {
        assert!(matches!(
            interval(confidence),
            Err(StatsError::Confidence { .. })
        ));
    }
    let few = BootstrapPlan {
        resamples: 39,
        seed: 1,
    };
    let refused = bootstrap_difference_interval(&[1.0, 1.0], &[1.0, 3.0], 0.95, few);
    assert!(matches!(refused, Err(StatsError::Resamples { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Exchanging the lists mirrors the interval up to the one resample at each end by which the
    /// definitions of lower and upper quantile differ; a constant shift moves it.
    #[test]
    fn intervals_hold_the_estimate_and_move_with_it(
        n in 12usize..40, seed in any::<u64>(), shift in -2.0..2.0_f64,
    ) {
        let (first, second) = documents(n, seed);
        let of = |first: &[f64], second: &[f64]| {
            bootstrap_difference_interval(first, second, 0.95, PLAN).unwrap()
        };
        let found = of(&first, &second);
        prop_assert!(found.lower <= found.mean_difference && found.mean_difference <= found.upper);
        let test = bootstrap_difference_test(&first, &second, PLAN).unwrap();
        prop_assert_eq!(test.mean_difference, found.mean_difference);
        let mirrored = of(&second, &first);
        let width = found.upper - found.lower;
        prop_assert!((mirrored.upper + found.lower).abs() < 0.1 * width);
        prop_assert!((mirrored.lower + found.upper).abs() < 0.1 * width);
        let shifted: Vec<f64> = second.iter().map(|value| value + shift).collect();
        let moved = of(&first, &shifted);
        prop_assert!((moved.lower - found.lower - shift).abs() < 1e-12);
        prop_assert!((moved.upper - found.upper - shift).abs() < 1e-12);
    }
}
