//! The published figures of the reference study (`fixtures/stats/published_tables.json`) and of
//! the literature (`published_check.json`), reproduced through the public interface.

use std::path::Path;

use kvassay::stats::{self, Side};
use serde_json::Value;

fn document(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/stats")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn rows(table: &Value) -> &Vec<Value> {
    table["rows"].as_array().unwrap()
}

fn count(row: &Value, name: &str) -> u64 {
    row[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {row}"))
}

/// A proportion in percent or percentage points, to the three decimals of the tables.
fn percent(proportion: f64) -> String {
    format!("{:.3}", 100.0 * proportion)
}

/// Checks a printed figure where the row has one; returns whether it did.
#[track_caller]
fn assert_printed(row: &Value, name: &str, proportion: f64) -> bool {
    let Some(printed) = row[name].as_f64() else {
        return false;
    };
    assert_eq!(
        percent(proportion),
        format!("{printed:.3}"),
        "{name} of {row}"
    );
    true
}

/// Counts and point estimate of a row, from its marginal counts.
fn assert_counts(row: &Value, pairs: u64) {
    let (lost, gained) = (count(row, "lost"), count(row, "gained"));
    let native = count(row, "native_correct");
    assert_eq!(
        native - lost + gained,
        count(row, "candidate_correct"),
        "{row}"
    );
    let net = (gained as f64 - lost as f64) / pairs as f64;
    assert!(assert_printed(row, "net_pp", net));
}

/// Bounds and both verdicts of every row of a table at one alpha; returns how many bounds the
/// table prints.
fn assert_table(table: &Value, alpha: f64) -> usize {
    let pairs = count(table, "pairs");
    let mut printed = 0;
    for row in rows(table) {
        assert_counts(row, pairs);
        let (lost, gained) = (count(row, "lost"), count(row, "gained"));
        let gross = stats::clopper_pearson_upper(lost, pairs, alpha).unwrap();
        let net = stats::tango_bound(lost, gained, pairs, alpha, Side::Lower).unwrap();
        printed += usize::from(assert_printed(row, "gross_upper_pct", gross));
        printed += usize::from(assert_printed(row, "net_lower_pp", net));
        let verdict = |holds| if holds { "pass" } else { "not_established" };
        assert_eq!(row["preservation"], verdict(gross <= 0.02), "{row}");
        assert_eq!(row["aggregate"], verdict(net >= -0.01), "{row}");
    }
    printed
}

#[test]
fn math_reference_table() {
    let tables = document("published_tables.json");
    let table = &tables["math_reference"];
    assert_eq!(table["alpha"], "0.05/24");
    assert_eq!(table["gross_limit_pct"], 2.0);
    assert_eq!(table["net_margin_pp"], 1.0);
    assert_eq!(rows(table).len(), 12);
    assert_eq!(assert_table(table, 0.05 / 24.0), 6);
}

#[test]
fn math_workers_table() {
    let tables = document("published_tables.json");
    let table = &tables["math_workers"];
    assert_eq!(table["alpha"], "0.05/8");
    assert_eq!(rows(table).len(), 4);
    assert_eq!(assert_table(table, 0.05 / 8.0), 8);
    // Against every control at once.
    let holds = |candidate: &str, objective: &str| {
        let mut rows = rows(table).iter();
        rows.all(|row| row["candidate"] != candidate || row[objective] == "pass")
    };
    assert!(holds("fixed K16/V8", "preservation"));
    assert!(!holds("fixed K16/V8", "aggregate"));
    assert!(!holds("dynamic K8/V8", "preservation"));
    assert!(!holds("dynamic K8/V8", "aggregate"));
}

/// Two printed cells differ by one unit in the last place from exact computation; they are held to
/// their exact values.
#[test]
fn math_posthoc_table() {
    let tables = document("published_tables.json");
    let table = &tables["math_posthoc"];
    let pairs = count(table, "pairs");
    let alpha = table["gross_alpha"].as_f64().unwrap();
    let confidence = table["interval_confidence"].as_f64().unwrap();
    assert_eq!(rows(table).len(), 4);
    for row in rows(table) {
        assert_counts(row, pairs);
        let (lost, gained) = (count(row, "lost"), count(row, "gained"));
        let gross = stats::clopper_pearson_upper(lost, pairs, alpha).unwrap();
        if lost == 23 {
            assert!((100.0 * gross - 2.461_469_818_580_441_3).abs() < 1e-11);
        } else {
            assert!(assert_printed(row, "gross_upper_pct", gross));
        }
        let (lower, upper) = stats::tango_interval(lost, gained, pairs, confidence).unwrap();
        let interval = &row["interval_pp"];
        assert_eq!(
            percent(lower),
            format!("{:.3}", interval[0].as_f64().unwrap())
        );
        if (lost, gained) == (20, 17) {
            assert!((100.0 * upper - 0.709_464_129_949_670_7).abs() < 1e-11);
        } else {
            assert_eq!(
                percent(upper),
                format!("{:.3}", interval[1].as_f64().unwrap())
            );
        }
    }
}

#[test]
fn sign_test_and_holm_figures() {
    let tables = document("published_tables.json");
    let published = &tables["sign_test"];
    let blocks = count(published, "blocks");
    let p = stats::sign_test(blocks, 0).two_sided.p;
    assert_eq!(published["holm_adjusted_p"].as_f64().unwrap(), p);
    // The published value stands where the comparison is the only one of its family.
    assert_eq!(stats::holm(&[p]).unwrap(), [p]);

    let note = tables["holm"]["note"].as_str().unwrap();
    assert!(note.contains("274/100001 over 8 contrasts gives the published 0.02192"));
    let mut family = [1.0; 8];
    family[3] = 274.0 / 100_001.0;
    let adjusted = stats::holm(&family).unwrap();
    assert_eq!(format!("{:.5}", adjusted[3]), "0.02192");
}

/// Reads the two counts of `7/3 of 1319` and the alpha of a description.
struct Described {
    first: u64,
    second: u64,
    n: u64,
    alpha: f64,
}

fn described(what: &str) -> Described {
    let pattern = regex::Regex::new(r"(\d+)/(\d+)(?: of (\d+))?, alpha=([0-9.]+)").unwrap();
    let found = pattern.captures(what).unwrap_or_else(|| panic!("{what}"));
    let whole = |index: usize| found.get(index).map(|text| text.as_str().parse().unwrap());
    let second = whole(2).unwrap();
    Described {
        first: whole(1).unwrap(),
        second,
        n: whole(3).unwrap_or(second),
        alpha: found[4].trim_end_matches('.').parse().unwrap(),
    }
}

/// Recomputes one entry of `published_check.json`; `None` for methods outside this crate.
fn recompute(what: &str) -> Option<f64> {
    if let Some(rest) = what.strip_prefix("Exact McNemar two-sided ") {
        let (lost, rest) = rest.split_once('/').unwrap();
        let gained = rest.split(';').next().unwrap();
        return Some(stats::mcnemar_exact(lost.parse().unwrap(), gained.parse().unwrap()).p);
    }
    if what.starts_with("Newcombe method 10") {
        return None;
    }
    let scale = if what.contains("(%)") || what.contains("(pp)") {
        100.0
    } else {
        1.0
    };
    let Described {
        first,
        second,
        n,
        alpha,
    } = described(what);
    if what.starts_with("Clopper-Pearson upper") {
        return Some(scale * stats::clopper_pearson_upper(first, second, alpha).unwrap());
    }
    assert!(what.starts_with("Tango"), "{what}");
    let alpha = if what.contains("one-sided") {
        alpha
    } else {
        alpha / 2.0
    };
    let side = if what.contains("upper") {
        Side::Upper
    } else {
        Side::Lower
    };
    // The literature's tables print cell 21 first, which is the loss.
    Some(scale * stats::tango_bound(first, second, n, alpha, side).unwrap())
}

#[test]
fn literature_figures() {
    let document = document("published_check.json");
    let mut recomputed = 0;
    for case in document["cases"].as_array().unwrap() {
        let Some(found) = recompute(case["what"].as_str().unwrap()) else {
            continue;
        };
        recomputed += 1;
        let expected = case["computed"].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-10, "{case}: found {found}");
        if case["verdict"] == "match" {
            let published = case["published"].as_f64().unwrap();
            let digits = published.to_string().split_once('.').unwrap().1.len();
            // 0.39 is printed for 0.390: compare at three decimals at least.
            let digits = digits.max(3) as i32;
            let half_unit = 0.5 * 10_f64.powi(-digits);
            assert!(
                (found - published).abs() <= half_unit * 1.000_001,
                "{case}: {found}"
            );
        }
    }
    assert_eq!(recomputed, 42);
}
