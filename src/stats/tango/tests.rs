use proptest::prelude::*;

use super::*;

fn lower(lost: u64, gained: u64, n: u64, alpha: f64) -> f64 {
    tango_bound(lost, gained, n, alpha, Side::Lower).unwrap()
}

fn upper(lost: u64, gained: u64, n: u64, alpha: f64) -> f64 {
    tango_bound(lost, gained, n, alpha, Side::Upper).unwrap()
}

fn wilson_lower(k: f64, n: f64, z: f64) -> f64 {
    let square = z * z;
    (k + square / 2.0 - z * (k * (n - k) / n + square / 4.0).sqrt()) / (n + square)
}

#[test]
fn inputs_outside_the_domain_are_refused() {
    assert_eq!(
        tango_bound(0, 0, 0, 0.05, Side::Lower),
        Err(StatsError::NoTrials)
    );
    assert!(tango_bound(2, 2, 3, 0.05, Side::Lower).is_err());
    assert!(tango_bound(u64::MAX, u64::MAX, 3, 0.05, Side::Lower).is_err());
    assert!(tango_bound(0, 0, u64::MAX, 0.05, Side::Lower).is_err());
    for alpha in [0.0, 0.500001, 1.0, f64::NAN, -0.1] {
        assert!(tango_bound(1, 1, 3, alpha, Side::Upper).is_err(), "{alpha}");
    }
    for confidence in [0.0, 1.0, f64::NAN, 95.0] {
        assert!(tango_interval(1, 1, 3, confidence).is_err(), "{confidence}");
    }
    assert!(tango_noninferiority(1, 1, 3, -0.01).is_err());
    assert!(tango_score(1, 1, 3, 1.01).is_err());
}

#[test]
fn edges_have_closed_forms() {
    assert_eq!(lower(9, 0, 9, 0.01), -1.0);
    assert_eq!(upper(0, 9, 9, 0.01), 1.0);
    assert_eq!(lower(3, 8, 20, 0.5), 0.25);
    assert_eq!(upper(3, 8, 20, 0.5), 0.25);
    assert_eq!(lower(4, 4, 20, 0.5), 0.0);
    let z = upper_quantile(0.05);
    let all_discordant = 2.0 * wilson_lower(13.0, 20.0, z) - 1.0;
    assert!((lower(7, 13, 20, 0.05) - all_discordant).abs() < 1e-14);
    let losses_only = -(1.0 - wilson_lower(93.0, 100.0, z));
    assert!((lower(7, 0, 100, 0.05) - losses_only).abs() < 1e-14);
    let none = -z * z / (50.0 + z * z);
    assert!((lower(0, 0, 50, 0.05) - none).abs() < 1e-16);
}

#[test]
fn zero_over_zero_is_zero() {
    assert_eq!(tango_score(0, 0, 10, 0.0).unwrap(), 0.0);
    assert_eq!(tango_score(0, 10, 10, 1.0).unwrap(), 0.0);
    let test = tango_noninferiority(0, 0, 10, 0.0).unwrap();
    assert_eq!((test.p_lower.p, test.p_equivalence.p), (0.5, 0.5));
}

/// A table, as (lost, gained, n).
fn tables() -> impl Strategy<Value = (u64, u64, u64)> {
    (1_u64..2_000_000, 0.0..=1.0_f64, 0.0..=1.0_f64).prop_map(|(n, discordant, share)| {
        let m = (discordant * discordant * n as f64) as u64;
        let lost = (share * m as f64) as u64;
        (lost, m - lost, n)
    })
}

proptest! {
    #[test]
    fn bounds_are_antisymmetric((lost, gained, n) in tables(), alpha in 1e-12..0.5_f64) {
        prop_assert_eq!(upper(lost, gained, n, alpha), -lower(gained, lost, n, alpha));
    }

    #[test]
    fn bounds_enclose_the_estimate_and_widen((lost, gained, n) in tables(), alpha in 1e-12..0.5_f64) {
        let estimate = (gained as f64 - lost as f64) / n as f64;
        let (low, high) = (lower(lost, gained, n, alpha), upper(lost, gained, n, alpha));
        prop_assert!(-1.0 <= low && low <= estimate && estimate <= high && high <= 1.0);
        prop_assert!(lower(lost, gained, n, alpha * 0.9) <= low);
        prop_assert!(upper(lost, gained, n, alpha * 0.9) >= high);
    }

    #[test]
    fn bounds_solve_the_score_equation((lost, gained, n) in tables(), exponent in -12.0..-0.5_f64) {
        let alpha = 10_f64.powf(exponent);
        let bound = lower(lost, gained, n, alpha);
        prop_assume!(bound > -0.999 && lost + gained > 0);
        let z = upper_quantile(alpha);
        // Rounding of the bound itself moves the score by about sqrt(n) units in its last place.
        let above = tango_score(lost, gained, n, bound + 1e-11).unwrap();
        let below = tango_score(lost, gained, n, bound - 1e-11).unwrap();
        prop_assert!(above <= z && z <= below, "{above} {z} {below}");
    }

    #[test]
    fn the_test_inverts_the_bound((lost, gained, n) in tables(), margin in 0.0..0.2_f64) {
        let test = tango_noninferiority(lost, gained, n, margin).unwrap();
        let alpha = 0.02;
        let bound = lower(lost, gained, n, alpha);
        prop_assume!((bound + margin).abs() > 1e-9);
        prop_assert_eq!(test.p_lower.p < alpha, bound > -margin);
    }
}
