//! Golden vectors of `fixtures/stats/`, computed by independent software: every case, every run.

use std::path::Path;

use kvassay::stats::{self, BootstrapPlan, PValue, Side};
use serde_json::Value;

fn cases(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/stats")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = document["cases"].take() else {
        panic!("{file} has no cases");
    };
    assert!(!cases.is_empty(), "{file}");
    cases
}

fn count(case: &Value, name: &str) -> u64 {
    case["inputs"][name].as_u64().unwrap()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// JSON numbers, with `null` for NaN.
fn list(value: &Value) -> Vec<f64> {
    let items = value.as_array().unwrap().iter();
    items
        .map(|item| item.as_f64().unwrap_or(f64::NAN))
        .collect()
}

#[track_caller]
fn assert_close(case: &Value, what: &str, found: f64, expected: f64, tolerance: f64) {
    let error = (found - expected).abs();
    assert!(
        error <= tolerance,
        "{} {what}: found {found}, expected {expected}",
        case["id"]
    );
}

#[track_caller]
fn assert_p(case: &Value, what: &str, found: PValue, p: &Value, log10_p: &Value) {
    let p = number(p);
    // Subnormal values have few digits; their logarithm is compared below.
    let slack = if p < 2.3e-308 { 1e-307 } else { 1e-10 * p };
    assert_close(case, what, found.p, p, slack);
    if let Some(log10_p) = log10_p.as_f64() {
        let slack = 1e-9_f64.max(1e-13 * log10_p.abs());
        assert_close(case, what, found.log10_p, log10_p, slack);
    }
}

#[test]
fn clopper_pearson() {
    for case in cases("clopper_pearson_upper.json") {
        let (k, n) = (count(&case, "k"), count(&case, "n"));
        let alpha = number(&case["inputs"]["alpha"]);
        let expected = number(&case["expected"]["upper"]);
        let found = stats::clopper_pearson_upper(k, n, alpha).unwrap();
        assert_close(&case, "upper", found, expected, 1e-12 * expected);
        let mirrored = stats::clopper_pearson_lower(n - k, n, alpha).unwrap();
        assert_close(&case, "lower", mirrored, 1.0 - expected, 1e-12);
    }
}

#[test]
fn tango_bounds_and_intervals() {
    for case in cases("tango_paired_difference.json") {
        let (lost, gained) = (count(&case, "losses"), count(&case, "gains"));
        let n = count(&case, "n");
        let alpha = number(&case["inputs"]["alpha"]);
        let expected = &case["expected"];
        let category = case["category"].as_str().unwrap();
        let precise = ["realistic", "published", "no_discordance"];
        let tolerance = if precise.iter().any(|name| category.starts_with(name)) {
            1e-12
        } else {
            1e-9
        };
        let bound = |alpha, side| stats::tango_bound(lost, gained, n, alpha, side).unwrap();
        for (name, side, level) in [
            ("lower_one_sided", Side::Lower, alpha),
            ("upper_one_sided", Side::Upper, alpha),
            ("lower_two_sided", Side::Lower, alpha / 2.0),
            ("upper_two_sided", Side::Upper, alpha / 2.0),
        ] {
            let expected = number(&expected[name]);
            assert_close(&case, name, bound(level, side), expected, tolerance);
        }
        let (lower, upper) = stats::tango_interval(lost, gained, n, 1.0 - alpha).unwrap();
        // 1 - alpha loses the digits of a small alpha before the interval sees it.
        let tolerance = if alpha < 1e-6 { 1e-5 } else { 1e-9 };
        let ends = (&expected["lower_two_sided"], &expected["upper_two_sided"]);
        assert_close(&case, "interval", lower, number(ends.0), tolerance);
        assert_close(&case, "interval", upper, number(ends.1), tolerance);
    }
}

#[test]
fn tango_noninferiority() {
    for case in cases("tango_noninferiority.json") {
        let (lost, gained) = (count(&case, "losses"), count(&case, "gains"));
        let margin = number(&case["inputs"]["margin"]);
        let n = count(&case, "n");
        let found = stats::tango_noninferiority(lost, gained, n, margin).unwrap();
        let expected = &case["expected"];
        let z = number(&expected["z_noninferiority"]);
        assert_close(&case, "z_lower", found.z_lower, z, 1e-10);
        assert_close(
            &case,
            "z_upper",
            found.z_upper,
            number(&expected["z_upper"]),
            1e-10,
        );
        let logarithm = &expected["log10_p_noninferiority"];
        for (what, p, name, log10_p) in [
            ("lower", found.p_lower, "p_noninferiority", logarithm),
            ("upper", found.p_upper, "p_upper", &Value::Null),
            ("equivalence", found.p_equivalence, "p_tost", &Value::Null),
        ] {
            let expected = number(&expected[name]);
            assert_close(&case, what, p.p, expected, 1e-9 * expected);
            if let Some(log10_p) = log10_p.as_f64() {
                assert_close(&case, what, p.log10_p, log10_p, 1e-9);
            }
        }
    }
}

#[test]
fn mcnemar() {
    for case in cases("mcnemar_exact.json") {
        let (lost, gained) = (count(&case, "losses"), count(&case, "gains"));
        let expected = &case["expected"];
        let two_sided = stats::mcnemar_exact(lost, gained);
        let one_sided = stats::sign_test(lost, gained);
        for (suffix, found) in [
            ("two_sided", two_sided),
            ("one_sided_loss", one_sided.greater),
            ("one_sided_gain", one_sided.less),
        ] {
            let p = &expected[format!("p_{suffix}").as_str()];
            let log10_p = &expected[format!("log10_p_{suffix}").as_str()];
            assert_p(&case, suffix, found, p, log10_p);
        }
    }
}

#[test]
fn sign_test() {
    for case in cases("sign_test.json") {
        let expected = &case["expected"];
        let found = if case["inputs"]["differences"].is_array() {
            let differences = list(&case["inputs"]["differences"]);
            let found = stats::sign_test_differences(&differences).unwrap();
            assert_eq!(found.positive, expected["n_pos"].as_u64().unwrap());
            assert_eq!(found.negative, expected["n_neg"].as_u64().unwrap());
            found
        } else {
            stats::sign_test(count(&case, "n_pos"), count(&case, "n_neg"))
        };
        for (suffix, found) in [
            ("two_sided", found.two_sided),
            ("greater", found.greater),
            ("less", found.less),
        ] {
            let p = &expected[format!("p_{suffix}").as_str()];
            let log10_p = &expected[format!("log10_p_{suffix}").as_str()];
            assert_p(&case, suffix, found, p, log10_p);
        }
    }
}

#[test]
fn holm() {
    for case in cases("holm.json") {
        let (found, expected, slack) = if case["inputs"]["p"].is_array() {
            let found = stats::holm(&list(&case["inputs"]["p"])).unwrap();
            (found, list(&case["expected"]["adjusted"]), 4e-16)
        } else {
            let found = stats::holm_log10(&list(&case["inputs"]["log10_p"])).unwrap();
            (found, list(&case["expected"]["log10_adjusted"]), 1e-13)
        };
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            assert_eq!(found.is_nan(), expected.is_nan(), "{}", case["id"]);
            if !expected.is_nan() {
                let tolerance = slack * expected.abs().max(f64::MIN_POSITIVE);
                assert_close(&case, "adjusted", found, expected, tolerance);
            }
        }
    }
}

#[test]
fn families_of_sign_tests() {
    for case in cases("holm_sign_families.json") {
        let blocks = case["inputs"]["blocks"].as_array().unwrap();
        let tests: Vec<stats::SignTest> = blocks
            .iter()
            .map(|block| {
                let count = |name: &str| block[name].as_u64().unwrap();
                stats::sign_test(count("n_pos"), count("n_neg"))
            })
            .collect();
        for (suffix, side) in [
            (
                "two_sided",
                (|t| t.two_sided.p) as fn(&stats::SignTest) -> f64,
            ),
            ("greater", |t| t.greater.p),
            ("less", |t| t.less.p),
        ] {
            let p: Vec<f64> = tests.iter().map(side).collect();
            let adjusted = stats::holm(&p).unwrap();
            let expected = &case["expected"];
            let raw = list(&expected[format!("p_{suffix}").as_str()]);
            let family = list(&expected[format!("holm_{suffix}").as_str()]);
            for i in 0..p.len() {
                assert_close(&case, suffix, p[i], raw[i], 1e-12 * raw[i]);
                assert_close(&case, suffix, adjusted[i], family[i], 1e-12 * family[i]);
            }
        }
    }
}

#[test]
fn bootstrap_bounds_lie_in_the_accepted_intervals() {
    for case in cases("bootstrap_ratio_percentile.json") {
        let native = list(&case["inputs"]["native"]);
        let candidate = list(&case["inputs"]["candidate"]);
        if native.len() < 2 {
            // One document cannot vary; a bound equal to its point would claim that it does not.
            let plan = BootstrapPlan {
                resamples: 10_000,
                seed: 1,
            };
            let refused =
                stats::bootstrap_ratio_bound(&native, &candidate, 0.05, Side::Upper, plan);
            assert_eq!(refused, Err(stats::StatsError::DocumentCount { n: 1 }));
            continue;
        }
        for level in case["expected"]["levels"].as_array().unwrap() {
            let alpha = 1.0 - number(&level["level"]);
            for (resamples, seed) in [(10_000, 1), (10_000, 2), (100_000, 20_260)] {
                let plan = BootstrapPlan { resamples, seed };
                for (name, side) in [("upper", Side::Upper), ("lower", Side::Lower)] {
                    let found =
                        stats::bootstrap_ratio_bound(&native, &candidate, alpha, side, plan);
                    let found = found.unwrap();
                    let point = number(&case["expected"]["point"]);
                    assert_close(&case, "point", found.point, point, 1e-12);
                    let accept = &level[format!("{name}_accept_B{resamples}").as_str()];
                    let (low, high) = if accept.is_array() {
                        (number(&accept[0]), number(&accept[1]))
                    } else {
                        assert_eq!(case["expected"]["kind"], "degenerate");
                        (number(&level[name]), number(&level[name]))
                    };
                    assert!(
                        low - 1e-12 <= found.value && found.value <= high + 1e-12,
                        "{} {name} B {resamples} alpha {alpha}: {} outside {low}..{high}",
                        case["id"],
                        found.value
                    );
                }
            }
        }
    }
}

#[test]
fn bootstrap_bits_do_not_depend_on_threads() {
    let case = &cases("bootstrap_ratio_percentile.json")[13];
    let native = list(&case["inputs"]["native"]);
    let candidate = list(&case["inputs"]["candidate"]);
    let plan = BootstrapPlan {
        resamples: 30_001,
        seed: 7,
    };
    let bits = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(|| {
            let bound =
                stats::bootstrap_ratio_bound(&native, &candidate, 0.01, Side::Upper, plan).unwrap();
            let test = stats::bootstrap_difference_test(&native, &candidate, plan).unwrap();
            (
                bound.value.to_bits(),
                bound.monte_carlo_se.to_bits(),
                test.exceeding,
            )
        })
    };
    assert_eq!(bits(1), bits(2));
    assert_eq!(bits(1), bits(5));
}

/// The published coverage table is itself checked: Clopper-Pearson's true error, summed over the
/// binomial distribution with this crate's bounds.
#[test]
fn clopper_pearson_error_never_exceeds_alpha() {
    for case in cases("coverage_n1319.json") {
        let n = count(&case, "n");
        let p = number(&case["inputs"]["p_loss"]);
        let alpha = number(&case["inputs"]["alpha"]);
        let missed: f64 = (0..=n)
            .take_while(|&k| stats::clopper_pearson_upper(k, n, alpha).unwrap() < p)
            .map(|k| stats::ln_binomial_pmf(k, n, p).unwrap().exp())
            .sum();
        let expected = number(&case["expected"]["cp_upper_noncoverage"]);
        assert_close(&case, "error", missed, expected, 1e-9);
        assert!(missed <= alpha, "{}", case["id"]);
    }
}

/// True error of Tango's lower bound, summed over the trinomial distribution of (lost, gained) with
/// this crate's bounds: the figures of docs/statistics.md.
#[test]
fn tango_error_is_as_documented() {
    let mut worst = Vec::new();
    for case in cases("coverage_n1319.json") {
        let n = count(&case, "n");
        let (p_loss, p_gain) = (
            number(&case["inputs"]["p_loss"]),
            number(&case["inputs"]["p_gain"]),
        );
        let alpha = number(&case["inputs"]["alpha"]);
        let missed = tango_miss(n, p_loss, p_gain, alpha);
        let expected = number(&case["expected"]["tango_lower_noncoverage"]);
        assert_close(&case, "error", missed, expected, 1e-9);
        worst.push((missed / alpha, alpha));
    }
    for (alpha, documented) in [(0.05, 1.83), (0.00625, 2.21), (0.05 / 24.0, 3.29)] {
        let largest = worst
            .iter()
            .filter(|(_, of)| *of == alpha)
            .fold(0.0_f64, |most, (ratio, _)| most.max(*ratio));
        assert_eq!(format!("{largest:.2}"), documented.to_string(), "{alpha}");
    }
}

/// A bound that is held against the truth passes exactly where it misses: the enumeration behind
/// `kvassay power` gives the same true errors.
#[test]
fn power_at_the_truth_is_the_true_error() {
    for case in cases("coverage_n1319.json") {
        let n = count(&case, "n");
        let loss = number(&case["inputs"]["p_loss"]);
        let gain = number(&case["inputs"]["p_gain"]);
        let alpha = number(&case["inputs"]["alpha"]);
        let net = |loss: f64, gain: f64| {
            let rates = stats::Rates::new(loss, gain).unwrap();
            let limit = gain - loss;
            let found =
                stats::net_pass_probability(n, rates, stats::Criterion { alpha, limit }).unwrap();
            assert!(found.left_out < 1e-12, "{found:?}");
            found.probability
        };
        let expected = |field: &str| number(&case["expected"][field]);
        let lower = expected("tango_lower_noncoverage");
        assert_close(&case, "lower", net(loss, gain), lower, 1e-9);
        let upper = expected("tango_upper_noncoverage");
        assert_close(&case, "upper", net(gain, loss), upper, 1e-9);
        let criterion = stats::Criterion { alpha, limit: loss };
        let exact = stats::loss_pass_probability(n, loss, criterion).unwrap();
        let expected = expected("cp_upper_noncoverage");
        assert_close(&case, "clopper-pearson", exact, expected, 1e-9);
    }
}

/// Probability that the lower bound lies above the true difference.
fn tango_miss(n: u64, p_loss: f64, p_gain: f64, alpha: f64) -> f64 {
    let delta = p_gain - p_loss;
    let mut missed = 0.0;
    for lost in 0..=n {
        let ln_lost = stats::ln_binomial_pmf(lost, n, p_loss).unwrap();
        if ln_lost < -36.0 {
            continue;
        }
        // The bound grows with the gains: beyond the first miss every table misses.
        let rest = n - lost;
        let misses =
            |gained| stats::tango_bound(lost, gained, n, alpha, Side::Lower).unwrap() > delta;
        let first = (0..=rest).find(|&gained| misses(gained));
        let given_rest = p_gain / (1.0 - p_loss);
        if let Some(first) = first {
            missed += (ln_lost + stats::ln_binomial_sf(first, rest, given_rest).unwrap()).exp();
        }
    }
    missed
}
