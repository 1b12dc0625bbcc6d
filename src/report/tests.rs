//! The summary of made-up certificates, as people and programs read it.

use std::collections::BTreeMap;

use crate::certify::unattainable;
use crate::schema::*;
use crate::store::samples;

use super::*;

mod foreign;
mod formats;
mod words;

fn proportion(limit: f64) -> ProportionRule {
    ProportionRule { limit, divisor: 12 }
}

fn protocol(cases: u32) -> Protocol {
    let mut protocol = samples::protocol();
    if let PanelPlan::Math { cases: named, .. } = &mut protocol.panels[0] {
        *named = cases;
    }
    Protocol {
        name: "reference".to_owned(),
        description: String::new(),
        models: Vec::new(),
        candidates: Vec::new(),
        calibration: CalibrationPlan {
            documents: 16,
            lengths: vec![1024],
            forced_tokens: 128,
            source: CalibrationSource::Measured,
        },
        rules: Rules {
            gross_loss: proportion(0.02),
            net_change: proportion(-0.01),
            nll: NllRule {
                divisor: 12,
                ..protocol.rules.nll
            },
            retrieval: proportion(0.05),
        },
        ..protocol
    }
}

/// A rule of one panel; counts only where the panel has answers.
fn rule(rule: &str, panel: &str, pairs: u64, counts: Option<(u64, u64)>, bound: f64) -> RuleResult {
    let control_correct = pairs - pairs / 15;
    RuleResult {
        rule: rule.to_owned(),
        panel: panel.to_owned(),
        control: "native".to_owned(),
        method: String::new(),
        pairs,
        control_correct: counts.map(|_| control_correct),
        candidate_correct: counts.map(|(lost, gained)| control_correct + gained - lost),
        lost: counts.map(|counts| counts.0),
        gained: counts.map(|counts| counts.1),
        lost_of_control_correct: None,
        control_mean: None,
        candidate_mean: None,
        estimate: counts.map_or(bound, |(lost, gained)| {
            (gained as f64 - lost as f64) / pairs as f64
        }),
        bound,
        monte_carlo_se: None,
        document_sd: None,
        influence: None,
        limit: 0.02,
        alpha: 0.05 / 12.0,
        pass: true,
    }
}

fn objective(first: RuleResult, verdict: Verdict, reason: Option<&str>) -> ObjectiveResult {
    ObjectiveResult {
        verdict,
        reason: reason.map(str::to_owned),
        detail: reason.map(|_| "panel math, control native: 61 of 1319 correct".to_owned()),
        rules: vec![
            first,
            rule("nll", "nll-1k", 64, None, 0.0012),
            rule("nll", "nll-8k", 64, None, 0.0156),
            rule("retrieval", "retrieval-1k", 200, Some((0, 0)), 0.0270),
            rule("retrieval", "retrieval-8k", 200, Some((1, 0)), 0.0360),
        ],
        incomplete: None,
        outlook: Vec::new(),
    }
}

fn certificate(name: &str, pass: bool) -> Certificate {
    let (verdict, reason) = if pass {
        (Verdict::Pass, None)
    } else {
        (Verdict::NotEstablished, Some("control_too_weak"))
    };
    let counts = Some((6, 10));
    Certificate {
        answers: None,
        schema: CERTIFICATE_SCHEMA.to_owned(),
        tool: ToolIdentity {
            version: "0.1.0".to_owned(),
            source_sha256: "0".repeat(64),
        },
        protocol: CertificateProtocol {
            name: "reference".to_owned(),
            sha256: "a".repeat(64),
        },
        model: model(),
        worker: WorkerIdentity {
            kind: "cpu".to_owned(),
            device: "2 cores".to_owned(),
            arithmetic: "f32".to_owned(),
        },
        recipe: CertificateRecipe {
            name: name.to_owned(),
            spec: "k=native,v=e4m3:dynamic".to_owned(),
            bytes_per_token: 17_520,
            native_bytes_per_token: 23_040,
            sink_bytes: 0,
        },
        objectives: Objectives {
            preservation: objective(
                rule("gross_loss", "math", 1319, counts, 0.0128),
                verdict,
                reason,
            ),
            aggregate: objective(
                rule("net_change", "math", 1319, counts, -0.0058),
                verdict,
                reason,
            ),
        },
        resources: Default::default(),
        degradation: vec![Degradation {
            endpoint: "nll-8k".to_owned(),
            established: !pass,
            bound: Some(0.001),
            alpha: 0.001,
        }],
        aa: Some(AaResult {
            lost: 0,
            gained: 0,
            records: 1847,
            identical_bits: true,
        }),
        engagement: None,
        memory: MemoryFigures {
            page_tokens: 16,
            bytes_per_token: 17_520,
            native_bytes_per_token: 23_040,
            sink_bytes: 0,
            saved: 0.2396,
            kept: None,
        },
        server_engagement: None,
        servers: None,
        counts: Counts {
            controls: BTreeMap::from([(
                "native".to_owned(),
                ControlCounts {
                    truncated: 3,
                    unparsed: 1,
                    errors: 0,
                    empty: 0,
                },
            )]),
            ..Counts::default()
        },
        evidence: Vec::new(),
        caveats: Vec::new(),
    }
}

fn model() -> ModelIdentity {
    ModelIdentity {
        name: "tiny".to_owned(),
        family: "llama".to_owned(),
        files: Vec::new(),
        weights_sha256: "b".repeat(64),
        tokenizer_sha256: "c".repeat(64),
        quantised: None,
        penalties: Vec::new(),
        geometry: Geometry {
            layers: 2,
            hidden_size: 64,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            vocab_size: 256,
            context: 8192,
            native_dtype: "f16".to_owned(),
            recurrent_layers: Vec::new(),
            attention_layers: Vec::new(),
        },
    }
}

fn text(protocol: &Protocol, required: &[ObjectiveName], width: usize) -> String {
    let certificates = [certificate("AD", true), certificate("AF", false)];
    let summary = Summary {
        run: "runs/a",
        stored: Some("runs/a/certificates/"),
        protocol,
        required,
        exit: 1,
        certificates: &certificates,
        baselines: &[],
    };
    let mut out = Vec::new();
    write_text(&summary, width, false, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text_at_full_width() {
    let text = text(&protocol(1319), &[ObjectiveName::Preservation], TEXT_WIDTH);
    insta::assert_snapshot!(text, @r"
    protocol reference aaaaaaaaaaaa, model tiny bbbbbbbbbbbb, worker cpu: 2 cores, f32

                math  lost/     net pp, gross nll-1k nll-8k     retr-1k     retr-8k   cache        preser-   aggre-
    recipe   correct gained lower bound bound  bound  bound lost, bound lost, bound B/token saved   vation     gate
    AD     1236/1319   6/10 +0.30 -0.58 1.28% +0.12% +1.56% 0/200 2.70% 1/200 3.60%   17520 24.0%     pass     pass
    AF     1236/1319   6/10 +0.30 -0.58 1.28% +0.12% +1.56% 0/200 2.70% 1/200 3.60%   17520 24.0% not est. not est.

    control native: correct math 1232/1319, retrieval-1k 187/200, retrieval-8k 187/200; 3 truncated, 1 unparsed, 0 errors
    A/A (native against native): 0 lost, 0 gained, identical bits in 1847 records
    AF: preservation and aggregate not established (control_too_weak): panel math, control native: 61 of 1319 correct
    AF: degradation established on nll-8k (+1.56%)
    required of each recipe: preservation
    certificates: runs/a/certificates/
    ");
}

#[test]
fn a_narrow_page_splits_the_table() {
    let text = text(&protocol(1319), &[], 72);
    assert!(
        text.lines().all(|line| line.chars().count() <= 72),
        "{text}"
    );
    assert_eq!(text.matches("recipe").count(), 2, "{text}");
    assert!(text.contains("survey, nothing required"));
}

#[test]
fn sizes_that_cannot_pass_are_named() {
    let small = protocol(32);
    let found = unattainable(&small).unwrap();
    let rules: Vec<&str> = found.iter().map(|found| found.rule.name()).collect();
    assert_eq!(rules, ["gross_loss", "net_change"]);
    assert!(unattainable(&protocol(1319)).unwrap().is_empty());
    assert!(text(&small, &[], TEXT_WIDTH).contains("cannot pass at its sizes"));
}

/// Text of one certificate that `change` alters.
fn text_of(change: impl FnOnce(&mut Certificate)) -> String {
    let mut certificate = certificate("AF", false);
    change(&mut certificate);
    let protocol = protocol(1319);
    let summary = Summary {
        run: "runs/a",
        stored: None,
        protocol: &protocol,
        required: &[],
        exit: 0,
        certificates: &[certificate],
        baselines: &[],
    };
    let mut out = Vec::new();
    write_text(&summary, 400, false, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn what_rules_needed_is_said_once() {
    let outlook = |rule: &str, needed, beyond_limit| RuleOutlook {
        rule: rule.to_owned(),
        panel: "math".to_owned(),
        control: "native".to_owned(),
        pairs: 1319,
        needed_80: needed,
        needed_95: None,
        beyond_limit,
        approximate: rule == "nll",
    };
    let text = text_of(|certificate| {
        let objectives = &mut certificate.objectives;
        objectives.preservation.outlook = vec![
            outlook("gross_loss", Some(2541), false),
            outlook("nll", Some(80), false),
        ];
        objectives.aggregate.outlook = vec![
            outlook("net_change", None, true),
            outlook("nll", Some(80), false),
        ];
    });
    for expected in [
        "AF: gross_loss on math against native: if what was observed on 1319 pairs held, 2541 \
         would pass with probability 0.8, more than 100000 with 0.95\n",
        "AF: net_change on math against native: the estimate itself is at the limit or beyond, more \
         pairs alone would not do\n",
        "about 80 would pass",
    ] {
        assert_eq!(text.matches(expected).count(), 1, "{text}");
    }
}

#[test]
fn a_document_is_named_where_the_rule_hangs_on_it() {
    let sentence = |share: f64, bound_without: f64, pass: bool| {
        let text = text_of(|certificate| {
            for result in [
                &mut certificate.objectives.preservation,
                &mut certificate.objectives.aggregate,
            ] {
                result.rules[1].pass = pass;
                result.rules[1].influence = Some(Influence {
                    case: "nll-1k-0005".to_owned(),
                    share,
                    bound_without,
                });
            }
        });
        let line = text.lines().find(|line| line.contains("nll-1k-0005"));
        line.map(str::to_owned)
    };
    // The limit of made-up rules is 2%.
    assert_eq!(sentence(0.5, 0.01, true), None);
    let found = sentence(0.2, 0.01, false).unwrap();
    assert_eq!(
        found,
        "AF: nll on nll-1k against native: document nll-1k-0005 carries +20% of the absolute \
         differences; without it the bound is +1.00% and the rule would hold (a diagnosis, no \
         verdict)"
    );
    let hides = sentence(-0.2, 0.03, true).unwrap();
    assert!(hides.contains("carries -20%") && hides.contains("would not hold"));
    assert!(
        sentence(-0.51, 0.01, true)
            .unwrap()
            .contains("judged alike")
    );
}

#[test]
fn json_is_one_document_with_the_certificates() {
    let certificates = [certificate("AD", true)];
    let protocol = protocol(1319);
    let summary = Summary {
        run: "runs/a",
        stored: Some("runs/a/certificates/"),
        protocol: &protocol,
        required: &[ObjectiveName::Aggregate],
        exit: 0,
        certificates: &certificates,
        baselines: &[],
    };
    let mut out = Vec::new();
    summary.write_json(&mut out).unwrap();
    let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(read["schema"], SUMMARY_SCHEMA);
    assert_eq!(read["run"], "runs/a");
    assert_eq!(read["required"], serde_json::json!(["aggregate"]));
    assert_eq!(read["exit"], 0);
    let stored: Certificate = serde_json::from_value(read["certificates"][0].clone()).unwrap();
    assert_eq!(stored, certificates[0]);
}
