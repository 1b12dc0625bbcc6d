//! Verdicts on complete evidence, and their precedence.

use crate::schema::*;

use super::super::*;
use super::served::serve;
use super::world::*;
use crate::certify::assemble::{certificate_recipe, memory};
use crate::certify::verify::alone;
use crate::recipe::Recipe;

const PASS: (Verdict, Option<&str>) = (Verdict::Pass, None);

fn not_established(reason: &str) -> (Verdict, Option<&str>) {
    (Verdict::NotEstablished, Some(reason))
}

/// Detail of preservation, with both verdicts checked.
fn detail_of(evidence: &Evidence, expected: [(Verdict, Option<&str>); 2]) -> String {
    let found = certificate(evidence, "AD");
    assert_eq!(verdicts(&found), expected);
    found.objectives.preservation.detail.unwrap_or_default()
}

fn spoil(change: impl FnOnce(&mut Evidence)) -> Evidence {
    let mut evidence = world(protocol(), 1231);
    change(&mut evidence);
    evidence
}

#[test]
fn clean_evidence_passes_both() {
    let found = certificate(&world(protocol(), 1231), "AD");
    assert_eq!(verdicts(&found), [PASS; 2]);
    assert_eq!(
        found.aa.as_ref().map(|aa| (aa.lost, aa.gained, aa.records)),
        Some((0, 0, 1847))
    );
    assert_eq!(found.recipe.bytes_per_token, 2 * 2 * (32 + 20));
    assert_eq!(found.memory.saved, 1.0 - 52.0 / 64.0);
    let methods: Vec<&str> = found
        .objectives
        .aggregate
        .rules
        .iter()
        .map(|rule| rule.method.as_str())
        .collect();
    let (boot, exact) = ("percentile-bootstrap", "clopper-pearson");
    assert_eq!(methods, ["tango", boot, boot, exact, exact]);
}

/// Layer 1 keeps its last 100 tokens: a certificate tells what is stored from what is kept, and one that
/// says otherwise contradicts itself.
#[test]
fn windows_keep_less_than_is_stored() {
    let evidence = spoil(|e| {
        let geometry = &mut e.manifest.model.geometry;
        let kind = |layer, window| AttentionLayers {
            layers: vec![layer],
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            window,
        };
        geometry.attention_layers = vec![kind(0, None), kind(1, Some(100))];
    });
    let found = certificate(&evidence, "AD");
    assert_eq!(verdicts(&found), [PASS; 2]);
    let layer = 2 * (32 + 20);
    assert_eq!(found.memory.bytes_per_token, 2 * layer);
    let kept = KeptFigures {
        bytes_per_token: layer,
        native_bytes_per_token: 2 * 64,
        window_bytes: 100 * layer,
        native_window_bytes: 100 * 2 * 64,
    };
    assert_eq!(found.memory.kept.as_ref(), Some(&kept));
    // Hand-made evidence has no start files.
    let before = alone(&found);
    let mut other = found;
    other.memory.kept = Some(KeptFigures {
        window_bytes: 1,
        ..kept
    });
    let said = alone(&other).into_iter().filter(|d| !before.contains(d));
    let said: Vec<String> = said.map(|d| d.path).collect();
    assert_eq!(said, ["memory.kept.window_bytes"]);
    for lists in [
        vec![vec![0, 1, 7]],
        vec![vec![0, 1], vec![1]],
        vec![vec![1, 0]],
        vec![vec![0]],
    ] {
        let geometry = &mut other.model.geometry;
        let kind = geometry.attention_layers[0].clone();
        let of = |layers| AttentionLayers {
            layers,
            ..kind.clone()
        };
        geometry.attention_layers = lists.into_iter().map(of).collect();
        let said = alone(&other).into_iter().map(|d| d.path);
        let said: Vec<String> = said.filter(|path| path.contains("geometry")).collect();
        assert_eq!(said, ["model.geometry.attention_layers"]);
    }
}

/// A server's config says what its model sees, not what the server keeps.
#[test]
fn nothing_is_said_of_what_servers_keep() {
    let geometry = Geometry {
        attention_layers: vec![AttentionLayers {
            layers: vec![0, 1],
            kv_heads: 1,
            head_dim: 8,
            window: Some(100),
        }],
        layers: 2,
        kv_heads: 1,
        head_dim: 8,
        ..Geometry::unknown()
    };
    let recipe = Recipe::parse("SF").unwrap();
    let stated = certificate_recipe(("SF", &recipe.spec()), Some(&recipe), &geometry);
    let kept = |servers| memory(&stated, Some(&recipe), (&geometry, servers)).kept;
    assert!(kept(false).is_some() && kept(true).is_none());
}

#[test]
fn each_rule_can_fail_and_says_where() {
    let nll = spoil(|e| scale_nll(e, "AD", "nll-8k", 1.02));
    let detail = detail_of(&nll, [not_established("bound_exceeds_limit"); 2]);
    assert!(
        detail.starts_with("nll on nll-8k against native: bound 2."),
        "{detail}"
    );
    let retrieval = spoil(|e| {
        let answers = Answers {
            right: 200,
            lost: 6,
            gained: 0,
        };
        answer(e, "AD", "retrieval-1k", answers);
    });
    let detail = detail_of(&retrieval, [not_established("bound_exceeds_limit"); 2]);
    assert!(
        detail.contains("retrieval on retrieval-1k") && detail.contains("6 lost, 0 gained of 200"),
        "{detail}"
    );
    let swapped = spoil(|e| {
        let answers = Answers {
            right: 1231,
            lost: 20,
            gained: 40,
        };
        answer(e, "AD", "math", answers);
    });
    let detail = detail_of(&swapped, [not_established("bound_exceeds_limit"), PASS]);
    assert!(detail.contains("20 lost, 40 gained of 1319"), "{detail}");
}

#[test]
fn a_bound_at_its_limit_passes() {
    for on_limit in [true, false] {
        let mut evidence = world(protocol(), 1231);
        let rules = certificate(&evidence, "AD").objectives.preservation.rules;
        let step = |bound: f64| if on_limit { bound } else { bound.next_down() };
        change_protocol(&mut evidence, |protocol| {
            protocol.rules.gross_loss.limit = step(rules[0].bound);
        });
        let found = certificate(&evidence, "AD");
        let [(preservation, _), aggregate] = verdicts(&found);
        assert_eq!(preservation == Verdict::Pass, on_limit);
        assert_eq!(aggregate, PASS);
    }
}

#[test]
fn a_control_that_answers_little_has_little_to_lose() {
    for (right, verdict) in [(659, not_established("control_too_weak")), (660, PASS)] {
        let detail = detail_of(&world(protocol(), right), [verdict; 2]);
        assert_eq!(
            detail.contains("control native answers 659 of 1319 right on math"),
            right == 659
        );
    }
    for (right, verdict) in [(179, not_established("control_too_weak")), (180, PASS)] {
        let evidence = spoil(|e| {
            for arm in ["native", "native-aa", "AD"] {
                answer(e, arm, "retrieval-8k", Answers::right(right));
            }
        });
        detail_of(&evidence, [verdict; 2]);
    }
    let nothing = certificate(&world(protocol(), 0), "AD");
    assert_eq!(
        nothing.objectives.preservation.rules[0].lost_of_control_correct,
        None
    );
}

#[test]
fn a_second_native_run_that_differs_ends_a_built_in_worker() {
    type Change = fn(&mut Record);
    let changes: [(&str, &str, Change); 4] = [
        ("math", "output_ids", |r| r.output_ids = Some(vec![7])),
        ("math", "finish", |r| r.finish = Some(Finish::Error)),
        ("nll-1k", "nll_sum", |r| {
            r.nll_sum = r.nll_sum.map(f64::next_up)
        }),
        ("retrieval-1k", "error", |r| {
            r.error = Some("failed".to_owned())
        }),
    ];
    for (panel, what, change) in changes {
        let mut evidence = spoil(|e| change(&mut records_mut(e, "native-aa", panel)[3]));
        let error = certify_with("AD", &evidence, &ByText).unwrap_err();
        let expected = format!("panel {panel}, case {panel}-0003: {what} differs");
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(error.is_system() && !error.is_mismatch());
        serve(&mut evidence, "AD", ["f16", "fp8_e4m3"]);
        let found = certificate(&evidence, "AD");
        assert_eq!(found.aa.map(|aa| aa.identical_bits), Some(false));
    }
}

#[test]
fn a_server_that_loses_answers_by_itself_holds_back_preservation() {
    let noisy = |lost, gained| {
        let mut evidence = spoil(|e| {
            let answers = Answers {
                right: 1231,
                lost,
                gained,
            };
            answer(e, "native-aa", "math", answers);
        });
        serve(&mut evidence, "AD", ["f16", "fp8_e4m3"]);
        evidence
    };
    let detail = detail_of(&noisy(30, 31), [not_established("control_noise"), PASS]);
    assert!(
        detail.contains("native-aa loses 30 of 1319 against native on math"),
        "{detail}"
    );
    detail_of(&noisy(2, 1), [PASS; 2]);
    let caveats = certificate(&noisy(2, 1), "AD").caveats;
    assert!(
        caveats
            .iter()
            .any(|text| text.contains("lost 2 and gained 1 answers")),
        "{caveats:?}"
    );
}

#[test]
fn an_unproved_recipe_is_not_established() {
    type Change = fn(&mut Engagement);
    let changes: [(&str, Change); 9] = [
        ("stored nothing that differs", |e| {
            e.differs_from_native = false
        }),
        ("engaged native, expected k=native,v=e4m3:dynamic", |e| {
            e.recipe = "native".to_owned()
        }),
        ("read back 1 layers, the model has 2", |e| {
            e.layers.truncate(1)
        }),
        (
            "layer 1, values: found 1024 bytes for 512 elements, expected 640",
            |e| e.layers[1].v.bytes = 1024,
        ),
        ("layer 0, keys: 3 native elements differ", |e| {
            e.layers[0].k.changed = 3
        }),
        ("layer 0, keys: 2 native elements are saturated", |e| {
            e.layers[0].k.saturated = 2
        }),
        ("layer 0, keys: nothing was read back", |e| {
            e.layers[0].k = ComponentTotals::default()
        }),
        ("stored no value that differs", |e| {
            e.layers.iter_mut().for_each(|l| l.v.changed = 0)
        }),
        ("totals that are not the sum", |e| {
            e.totals = Some(KvTotals::default())
        }),
    ];
    for (expected, change) in changes {
        let evidence = spoil(|e| change(arm_mut(e, "AD").engagement.as_mut().unwrap()));
        let detail = detail_of(&evidence, [not_established("engagement_unproved"); 2]);
        assert!(detail.contains(expected), "{detail}");
    }
    let unit = spoil(|e| arm_mut(e, "AD").engagement.as_mut().unwrap().unit_scales = true);
    let caveats = certificate(&unit, "AD").caveats;
    assert!(caveats.iter().any(|text| text.starts_with("Unit scales")));
}

#[test]
fn what_was_not_declared_is_descriptive() {
    type Change = fn(&mut Evidence);
    let changes: [(&str, Change); 4] = [
        ("model_undeclared", |e| {
            e.manifest.model.name = "other".to_owned()
        }),
        ("model_undeclared", |e| {
            change_protocol(e, |p| p.models[0].sha256 = Some("a".repeat(64)));
        }),
        ("recipe_undeclared", |e| {
            change_protocol(e, |p| {
                p.candidates.retain(|candidate| candidate.name != "AD")
            });
        }),
        ("model_undeclared", |e| {
            e.manifest.model.name = "other".to_owned();
            e.manifest.limit = Some(2);
            for arm in e.arms.values_mut() {
                arm.records
                    .values_mut()
                    .for_each(|records| records.truncate(2));
            }
        }),
    ];
    for (reason, change) in changes {
        let evidence = spoil(change);
        let detail = detail_of(&evidence, [(Verdict::Descriptive, Some(reason)); 2]);
        assert_eq!(
            detail.contains("--limit"),
            evidence.manifest.limit.is_some(),
            "{detail}"
        );
        let found = certificate(&evidence, "AD");
        assert_eq!(found.objectives.preservation.rules.len(), 5);
        assert!(
            found
                .degradation
                .iter()
                .all(|endpoint| !endpoint.established)
        );
    }
    let one = spoil(|e| {
        change_protocol(e, |p| p.objectives = vec![ObjectiveName::Preservation]);
    });
    detail_of(
        &one,
        [PASS, (Verdict::Descriptive, Some("objective_undeclared"))],
    );
    let any = spoil(|e| change_protocol(e, |p| p.models[0].name = "*".to_owned()));
    detail_of(&any, [PASS; 2]);
}

#[test]
fn unsupported_comes_before_everything_else() {
    let evidence = spoil(|e| {
        e.manifest.model.name = "other".to_owned();
        let arm = e
            .manifest
            .arms
            .iter_mut()
            .find(|arm| arm.arm == "AD")
            .unwrap();
        arm.unsupported = Some("no kernel for head_dim 16".to_owned());
        e.arms.remove("AD");
    });
    let expected = [(Verdict::Unsupported, Some("arm_unsupported")); 2];
    let detail = detail_of(&evidence, expected);
    let words = "arm AD: no kernel for head_dim 16; ";
    assert!(detail.starts_with(words), "{detail}");
    assert!(!detail.contains("have no record"), "{detail}");
    let found = certificate(&evidence, "AD");
    assert_eq!(
        (found.engagement, found.objectives.preservation.rules.len()),
        (None, 0)
    );

    let evidence = spoil(|e| {
        e.panels.remove("nll-8k");
        let panels = &mut e.manifest.panels;
        let panel = panels
            .iter_mut()
            .find(|panel| panel.panel == "nll-8k")
            .unwrap();
        panel.file = None;
        panel.unsupported = Some("8192 tokens do not fit the context of 2048".to_owned());
    });
    detail_of(
        &evidence,
        [(Verdict::Unsupported, Some("panel_unsupported")); 2],
    );
    assert_eq!(
        certificate(&evidence, "AD")
            .objectives
            .preservation
            .rules
            .len(),
        4
    );
}
