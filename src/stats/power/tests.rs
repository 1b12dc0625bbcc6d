use proptest::prelude::*;

use super::super::{Side, clopper_pearson_upper, tango_bound};
use super::*;

const GROSS: Criterion = Criterion {
    alpha: 0.05 / 12.0,
    limit: 0.02,
};
const NET: Criterion = Criterion {
    alpha: 0.05 / 12.0,
    limit: -0.01,
};

fn factorial(n: u64) -> f64 {
    (1..=n).map(|i| i as f64).product()
}

/// Every table of `n` pairs with its trinomial probability, from factorials.
fn tables(n: u64, rates: Rates) -> impl Iterator<Item = (u64, u64, f64)> {
    let rest = 1.0 - rates.loss - rates.gain;
    (0..=n).flat_map(move |lost| {
        (0..=n - lost).map(move |gained| {
            let same = n - lost - gained;
            let ways = factorial(n) / factorial(lost) / factorial(gained) / factorial(same);
            let mass = ways
                * rates.loss.powi(lost as i32)
                * rates.gain.powi(gained as i32)
                * rest.max(0.0).powi(same as i32);
            (lost, gained, mass)
        })
    })
}

fn net_by_brute_force(n: u64, rates: Rates, criterion: Criterion) -> f64 {
    let passing = tables(n, rates).filter(|(lost, gained, _)| {
        let Criterion { alpha, limit } = criterion;
        tango_bound(*lost, *gained, n, alpha, Side::Lower).unwrap() >= limit
    });
    passing.map(|(_, _, mass)| mass).sum()
}

fn loss_by_brute_force(n: u64, loss: f64, criterion: Criterion) -> f64 {
    let rates = Rates { loss, gain: 0.0 };
    let passing = tables(n, rates).filter(|(lost, gained, _)| {
        *gained == 0 && clopper_pearson_upper(*lost, n, criterion.alpha).unwrap() <= criterion.limit
    });
    passing.map(|(_, _, mass)| mass).sum()
}

fn net(n: u64, loss: f64, gain: f64, criterion: Criterion) -> f64 {
    net_pass_probability(n, Rates { loss, gain }, criterion)
        .unwrap()
        .probability
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn net_agrees_with_every_table(
        n in 1_u64..60, loss in 0.0..0.5_f64, gain in 0.0..0.5_f64,
        alpha in 0.001..0.5_f64, limit in -0.4..0.2_f64,
    ) {
        let (rates, criterion) = (Rates { loss, gain }, Criterion { alpha, limit });
        let found = net_pass_probability(n, rates, criterion).unwrap();
        let expected = net_by_brute_force(n, rates, criterion);
        prop_assert!((found.probability - expected).abs() < 1e-11, "{found:?} {expected}");
        prop_assert!((0.0..1e-12).contains(&found.left_out));
    }

    #[test]
    fn loss_agrees_with_every_table(
        n in 1_u64..60, loss in 0.0..=1.0_f64, alpha in 0.001..0.9_f64, limit in 0.01..0.99_f64,
    ) {
        let criterion = Criterion { alpha, limit };
        let found = loss_pass_probability(n, loss, criterion).unwrap();
        let expected = loss_by_brute_force(n, loss, criterion);
        prop_assert!((found - expected).abs() < 1e-11, "{found} {expected}");
    }

    /// The score decides as the bound does, ties included, and both are monotone.
    #[test]
    fn least_gains_are_the_bound_s(n in 1_u64..80, alpha in 0.001..=0.5_f64, at in 0_u64..80) {
        // A limit on the bound of a table, so that this table ties.
        let tied = at % (n + 1);
        let limit = tango_bound(tied, (n - tied) / 2, n, alpha, Side::Lower).unwrap();
        prop_assume!(limit > -1.0);
        let criterion = Criterion { alpha, limit };
        let ungained = (0..=n)
            .take_while(|&lost| tango_bound(lost, 0, n, alpha, Side::Lower).unwrap() >= limit);
        let expected = ungained.last();
        prop_assert_eq!(largest_passing_net_loss(n, criterion).unwrap(), expected);
        let mut before = Some(0);
        for lost in 0..=n {
            let passes = |&gained: &u64| {
                tango_bound(lost, gained, n, alpha, Side::Lower).unwrap() >= limit
            };
            let expected = (0..=n - lost).find(passes);
            prop_assert_eq!(least_passing_gained(lost, n, criterion).unwrap(), expected);
            let least = expected.unwrap_or(n - lost + 1);
            let monotone = (least..=n - lost).all(|gained| passes(&gained));
            prop_assert!(monotone);
            prop_assert!(expected.is_none() || before <= expected);
            prop_assert!(expected.is_none() || before.is_some());
            before = expected;
        }
    }

    #[test]
    fn probabilities_fall_with_the_loss_rate(
        n in 1_u64..3_000, loss in 0.0..0.05_f64, more in 0.0..0.05_f64, gain in 0.0..0.05_f64,
    ) {
        let gross = |loss| loss_pass_probability(n, loss, GROSS).unwrap();
        prop_assert!(gross(loss + more) <= gross(loss) + 1e-12);
        prop_assert!(net(n, loss + more, gain, NET) <= net(n, loss, gain, NET) + 1e-11);
        prop_assert!(net(n, loss, gain, NET) <= net(n, loss, gain + more, NET) + 1e-11);
    }

    #[test]
    fn needed_pairs_for_a_loss_rate_are_the_first(
        loss in 0.0..0.03_f64, alpha in 0.003..0.2_f64, limit in 0.05..0.3_f64,
        power in prop::sample::select(vec![0.5, 0.8, 0.95]),
    ) {
        let criterion = Criterion { alpha, limit };
        let first = (1_u64..5_000)
            .find(|&n| loss_pass_probability(n, loss, criterion).unwrap() >= power);
        let found = pairs_for_loss(loss, criterion, power).unwrap();
        prop_assert_eq!(found, Needed::Pairs(first.unwrap()));
    }

    #[test]
    fn needed_pairs_for_net_change_are_a_crossing(
        loss in 0.0..0.03_f64, gain in 0.0..0.03_f64, alpha in 0.003..0.2_f64,
        limit in -0.2..-0.05_f64, power in prop::sample::select(vec![0.5, 0.8, 0.95]),
    ) {
        let (rates, criterion) = (Rates { loss, gain }, Criterion { alpha, limit });
        let Needed::Pairs(n) = pairs_for_net_change(rates, criterion, power).unwrap() else {
            panic!("{rates:?} {criterion:?}");
        };
        prop_assert!(net(n, loss, gain, criterion) >= power);
        prop_assert!(n == 1 || net(n - 1, loss, gain, criterion) < power);
    }
}

#[test]
fn closed_forms() {
    // No loss: 0 lost of n passes where 1 - alpha^(1/n) <= limit, from n = ln alpha / ln(1 - limit).
    let n = ((0.05_f64 / 12.0).ln() / 0.98_f64.ln()).ceil() as u64;
    assert_eq!(n, 272);
    assert_eq!(largest_passing_lost(n, GROSS).unwrap(), Some(0));
    assert_eq!(largest_passing_lost(n - 1, GROSS).unwrap(), None);
    assert_eq!(loss_pass_probability(n - 1, 0.0, GROSS).unwrap(), 0.0);
    assert_eq!(pairs_for_loss(0.0, GROSS, 0.95).unwrap(), Needed::Pairs(n));
    let found = loss_pass_probability(n, 0.001, GROSS).unwrap();
    assert!((found / 0.999_f64.powi(n as i32) - 1.0).abs() < 1e-12);

    // No change at all: the bound is -z^2 / (n + z^2).
    let square = upper_quantile(NET.alpha).powi(2);
    let n = (square * (1.0 + NET.limit) / -NET.limit).ceil() as u64;
    let none = Rates {
        loss: 0.0,
        gain: 0.0,
    };
    assert_eq!(
        pairs_for_net_change(none, NET, 0.95).unwrap(),
        Needed::Pairs(n)
    );
    assert_eq!(net(n, 0.0, 0.0, NET), 1.0);
    assert_eq!(net(n - 1, 0.0, 0.0, NET), 0.0);
    assert_eq!(net(n, 1.0, 0.0, NET), 0.0);
    assert_eq!(net(n, 0.0, 1.0, NET), 1.0);
}

#[test]
fn normal_approximation_is_near_for_many_pairs() {
    let rates = Rates {
        loss: 0.02,
        gain: 0.018,
    };
    let Needed::Pairs(n) = pairs_for_net_change(rates, NET, 0.8).unwrap() else {
        panic!("within reach");
    };
    let z = upper_quantile(NET.alpha) + power_quantile(0.8).unwrap();
    let expected = z * z * (0.038 - 0.002_f64.powi(2)) / 0.008_f64.powi(2);
    assert!((n as f64 / expected - 1.0).abs() < 0.05, "{n} {expected}");
}

#[test]
fn what_no_number_of_pairs_can_do() {
    let at = |loss| pairs_for_loss(loss, GROSS, 0.8).unwrap();
    assert_eq!(at(0.02), Needed::BeyondLimit);
    assert_eq!(at(0.5), Needed::BeyondLimit);
    assert_eq!(at(0.0199), Needed::OutOfReach);
    let net = |loss, gain| pairs_for_net_change(Rates { loss, gain }, NET, 0.8).unwrap();
    assert_eq!(net(0.02, 0.01), Needed::BeyondLimit);
    assert_eq!(net(0.3, 0.2905), Needed::OutOfReach);
    let tight = Criterion {
        alpha: 1e-9,
        limit: 1e-6,
    };
    assert_eq!(pairs_for_loss(0.0, tight, 0.8).unwrap(), Needed::OutOfReach);
}

#[test]
fn inputs_outside_the_domain_are_refused() {
    for (loss, gain) in [
        (-0.1, 0.0),
        (0.0, -0.1),
        (f64::NAN, 0.0),
        (0.6, 0.5),
        (0.0, f64::INFINITY),
    ] {
        assert!(Rates::new(loss, gain).is_err(), "{loss} {gain}");
        let rates = Rates { loss, gain };
        assert!(net_pass_probability(9, rates, NET).is_err());
        assert!(pairs_for_net_change(rates, NET, 0.8).is_err());
    }
    assert!(Rates::new(0.3, 0.7).is_ok() && Rates::new(0.1, 0.9).is_ok());
    assert!(loss_pass_probability(9, 1.1, GROSS).is_err());
    assert!(loss_pass_probability(0, 0.1, GROSS).is_err());
    assert!(least_passing_gained(4, 3, NET).is_err());
    let wide = Criterion { alpha: 0.6, ..NET };
    assert!(
        net_pass_probability(
            9,
            Rates {
                loss: 0.1,
                gain: 0.1
            },
            wide
        )
        .is_err()
    );
    let far = Criterion { limit: -1.0, ..NET };
    assert!(least_passing_gained(0, 3, far).is_err());
    for power in [0.0, 1.0, f64::NAN] {
        assert!(pairs_for_loss(0.1, GROSS, power).is_err());
        assert!(
            pairs_for_net_change(
                Rates {
                    loss: 0.0,
                    gain: 0.0
                },
                NET,
                power
            )
            .is_err()
        );
    }
}

const NLL: Criterion = Criterion {
    alpha: 0.05,
    limit: 0.01,
};

#[test]
fn simulated_increases_agree_with_the_normal_approximation() {
    let assumed = AssumedIncrease {
        mean: 0.004,
        sd: 0.02,
    };
    let Needed::Pairs(documents) = documents_for_increase(assumed, NLL, 0.8).unwrap() else {
        panic!("within reach");
    };
    // ((1.6449 + 0.8416) 0.02 / 0.006)^2 = 68.7.
    assert_eq!(documents, 69);
    let simulation = Simulation {
        trials: 300,
        resamples: 1_000,
        seed: 5,
    };
    let found = simulate_increase(documents as u32, assumed, NLL, simulation).unwrap();
    assert!((found.monte_carlo_se - (0.8_f64 * 0.2 / 300.0).sqrt()).abs() < 0.004);
    assert!(
        (found.probability - 0.8).abs() < 5.0 * found.monte_carlo_se,
        "{found:?}"
    );
    assert_eq!(
        simulate_increase(documents as u32, assumed, NLL, simulation),
        Ok(found)
    );
    let none = AssumedIncrease { sd: 0.0, ..assumed };
    let certain = simulate_increase(64, none, NLL, simulation).unwrap();
    assert_eq!(certain.probability, 1.0);
    assert!(certain.monte_carlo_se > 0.0);
}

#[test]
fn documents_needed_at_the_edges() {
    let needed = |mean, sd| documents_for_increase(AssumedIncrease { mean, sd }, NLL, 0.8);
    assert_eq!(needed(0.01, 0.0), Ok(Needed::BeyondLimit));
    assert_eq!(needed(-0.01, 0.0), Ok(Needed::Pairs(2)));
    assert_eq!(needed(0.0099, 1.0), Ok(Needed::OutOfReach));
    assert!(needed(0.0, -1.0).is_err() && needed(f64::NAN, 1.0).is_err());
}
