//! Comparisons of made-up figures, as people and programs read them.

use serde_json::Value;

use crate::certify::{
    ComparedRun, Comparison, Contrast, ContrastCounts, ContrastMethod, Direction, EndpointFamily,
    Lack, MissingContrast,
};
use crate::stats::{PValue, mcnemar_exact, tango_interval};

use super::*;

fn answers(contrast: (&str, &str), pairs: u64, counts: [u64; 4], size: f64) -> Contrast {
    let [first_correct, second_correct, first_only, second_only] = counts;
    let p = mcnemar_exact(first_only, second_only);
    let adjusted = PValue {
        p: (size * p.p).min(1.0),
        log10_p: (p.log10_p + size.log10()).min(0.0),
    };
    Contrast {
        contrast: format!("{}-{}", contrast.0, contrast.1),
        model: "demo-sensitive".to_owned(),
        declared: true,
        first: contrast.0.to_owned(),
        second: contrast.1.to_owned(),
        counts: ContrastCounts::Answers {
            pairs,
            first_correct,
            second_correct,
            first_only,
            second_only,
        },
        effect: (first_only as f64 - second_only as f64) / pairs as f64,
        interval: tango_interval(second_only, first_only, pairs, 0.95)
            .unwrap()
            .into(),
        p,
        adjusted: Some(adjusted),
        direction: match first_only.cmp(&second_only) {
            std::cmp::Ordering::Greater => Direction::First,
            std::cmp::Ordering::Less => Direction::Second,
            std::cmp::Ordering::Equal => Direction::None,
        },
        established: adjusted.p <= 0.05,
    }
}

fn nll(effect: f64, p: f64) -> Contrast {
    let p = PValue {
        p,
        log10_p: p.log10(),
    };
    Contrast {
        counts: ContrastCounts::Nll {
            documents: 64,
            first_mean: 2.1,
            second_mean: 2.1 - effect,
            exceeding: 273,
        },
        effect,
        interval: [effect - 0.001, effect + 0.002],
        p,
        adjusted: Some(PValue {
            p: (8.0 * p.p).min(1.0),
            log10_p: (8.0 * p.p).min(1.0).log10(),
        }),
        direction: match effect {
            0.0 => Direction::None,
            effect if effect < 0.0 => Direction::First,
            _ => Direction::Second,
        },
        established: 8.0 * p.p <= 0.05,
        ..answers(("AF", "RF"), 1, [1, 1, 0, 0], 8.0)
    }
}

fn descriptive(mut contrast: Contrast) -> Contrast {
    contrast.declared = false;
    contrast.adjusted = None;
    contrast.established = false;
    contrast
}

fn family(endpoint: &str, method: ContrastMethod, contrasts: Vec<Contrast>) -> EndpointFamily {
    EndpointFamily {
        endpoint: endpoint.to_owned(),
        method,
        models: vec!["demo-sensitive".to_owned(), "other".to_owned()],
        size: 8,
        missing: 4,
        contrasts,
    }
}

fn missing(endpoint: &str, contrast: &str, model: &str, detail: &str) -> MissingContrast {
    MissingContrast {
        endpoint: endpoint.to_owned(),
        contrast: contrast.to_owned(),
        model: model.to_owned(),
        run: None,
        declared: true,
        lack: Lack::RunNotGiven,
        detail: detail.to_owned(),
    }
}

fn comparison() -> Comparison {
    let math = vec![
        answers(("AF", "RF"), 1319, [1207, 8, 1199, 0], 8.0),
        answers(("AF", "SF"), 1319, [1207, 1215, 10, 18], 8.0),
        descriptive(answers(("AF", "AD"), 1319, [1207, 1207, 5, 5], 8.0)),
    ];
    let on_nll = vec![nll(-0.0123, 274.0 / 100_001.0)];
    let retrieval = vec![answers(("AF", "RF"), 200, [199, 200, 0, 1], 8.0)];
    let mut absent = Vec::new();
    for endpoint in ["math", "nll-1k", "retrieval-1k"] {
        for contrast in ["AF-RF", "AF-SF"] {
            absent.push(missing(endpoint, contrast, "other", "no run was given"));
        }
    }
    absent.push(missing("nll-1k", "AF-SF", "demo-sensitive", "nothing left"));
    Comparison {
        protocol: "study".to_owned(),
        protocol_sha256: "ab".repeat(32),
        family_alpha: 0.05,
        resamples: 100_000,
        seed: 7,
        runs: vec![ComparedRun {
            run: "runs/sensitive".to_owned(),
            model: "demo-sensitive".to_owned(),
            weights_sha256: "cd".repeat(32),
            declared: true,
            post_hoc: None,
            doubts: vec!["arm AF has no proof that its recipe was engaged".to_owned()],
        }],
        endpoints: vec![
            family("math", ContrastMethod::McnemarExact, math),
            family("nll-1k", ContrastMethod::PairedBootstrap, on_nll),
            family("retrieval-1k", ContrastMethod::McnemarExact, retrieval),
        ],
        missing: absent,
        filtered: true,
        reversed: vec![("RF-AF".to_owned(), "AF-RF".to_owned())],
    }
}

fn text(comparison: &Comparison, width: usize) -> String {
    let mut out = Vec::new();
    write_comparison_text(comparison, width, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn said(endpoint: &str, contrast: &Contrast) -> String {
    sentence::sentence(endpoint, contrast)
}

#[test]
fn text_for_people() {
    let whole = text(&comparison(), 120);
    assert!(whole.lines().all(|line| line.chars().count() <= 120));
    insta::assert_snapshot!(whole);
    assert!(
        text(&comparison(), 70)
            .lines()
            .all(|l| l.chars().count() <= 70)
    );
}

#[test]
fn markdown_for_a_pull_request() {
    let mut out = Vec::new();
    write_comparison_markdown(&comparison(), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn json_for_programs() {
    let mut out = Vec::new();
    write_comparison_json(&comparison(), 3, &mut out).unwrap();
    let document: Value = serde_json::from_slice(&out).unwrap();
    let ruin = &document["endpoints"][0]["contrasts"][0];
    assert_eq!(ruin["p"], 0.0);
    assert!(ruin["log10_p"].as_f64().unwrap() < -360.0);
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn differences_are_told_from_the_side_that_they_favour() {
    let there = answers(("AF", "RF"), 1200, [900, 30, 900, 30], 8.0);
    let back = answers(("RF", "AF"), 1200, [30, 900, 30, 900], 8.0);
    let expected =
        "demo-sensitive, math: AF answers 870 more of 1,200 questions than RF (72.50 pp,";
    assert!(said("math", &there).starts_with(expected));
    assert_eq!(said("math", &there), said("math", &back));
    let cases = said("retrieval-1k", &there);
    assert!(cases.contains("870 more of 1,200 cases"), "{cases}");
}

#[test]
fn likelihoods_are_told_as_lower_or_higher_than_the_second() {
    let lower = said("nll-1k", &nll(-0.0123, 1e-5));
    assert!(
        lower.ends_with(
            "the NLL of AF is 0.0123 nats per target lower than that of RF (95% interval 0.0103 to \
             0.0133; paired bootstrap over 64 documents, Holm-adjusted p = 10^-4.1)"
        ),
        "{lower}"
    );
    let higher = said("nll-1k", &nll(0.0123, 1e-5));
    assert!(
        higher.contains("0.0123 nats per target higher than that of RF (95% interval 0.0113 to"),
        "{higher}"
    );
    let none = said("nll-1k", &nll(0.0123, 0.2));
    assert!(
        none.contains("no difference is established between AF and RF on nll-1k"),
        "{none}"
    );
    assert!(none.contains("(AF 0.0123 nats per target higher, 64 documents; Holm-adjusted p = 1)"));
    assert!(said("nll-1k", &nll(0.0, 1.0)).contains("(equal in both, 64 documents"));
}

#[test]
fn a_tie_establishes_nothing() {
    let tie = answers(("AF", "RF"), 200, [200, 200, 0, 0], 8.0);
    assert_eq!(
        said("retrieval-1k", &tie),
        "demo-sensitive: no difference is established between AF and RF on retrieval-1k (only one \
         of them right: 0 against 0 of 200; Holm-adjusted p = 1)"
    );
    let shown = said("math", &descriptive(tie));
    assert!(
        shown.starts_with(
            "demo-sensitive, math (descriptive): AF and RF answer equally many of 200 questions \
             (0.00 pp, 95% interval -"
        ),
        "{shown}"
    );
    assert!(
        shown.ends_with("exact McNemar, unadjusted p = 1)"),
        "{shown}"
    );
}

#[test]
fn too_few_resamples_are_said() {
    let mut few = comparison();
    few.resamples = 100;
    let whole = text(&few, 120);
    assert!(
        whole.contains("With 100 resamples and 8 contrasts no NLL difference can be established"),
        "{whole}"
    );
    assert!(!text(&comparison(), 120).contains("can be established"));
}
