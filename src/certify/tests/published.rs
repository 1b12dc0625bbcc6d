//! The published tables, row by row.

use serde::Deserialize;

use crate::schema::{Protocol, Verdict, builtin_protocol};

use super::world::*;

#[derive(Deserialize)]
struct Tables {
    math_reference: Table<Row>,
    math_workers: Table<WorkerRow>,
}

#[derive(Deserialize)]
struct Table<R> {
    rows: Vec<R>,
}

#[derive(Deserialize)]
struct Row {
    model: String,
    native_correct: usize,
    recipe: String,
    lost: usize,
    gained: usize,
    candidate_correct: u64,
    gross_upper_pct: Option<f64>,
    net_lower_pp: Option<f64>,
    preservation: Verdict,
    aggregate: Verdict,
}

#[derive(Deserialize)]
struct WorkerRow {
    candidate: String,
    control: String,
    native_correct: usize,
    candidate_correct: usize,
    lost: usize,
    net_lower_pp: f64,
    gross_upper_pct: f64,
    preservation: Verdict,
    aggregate: Verdict,
}

fn tables() -> Tables {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/stats/published_tables.json"
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn published_protocol(name: &str) -> Protocol {
    cheaper(builtin_protocol(name).unwrap())
}

/// Equal once rounded to the three printed decimals.
fn assert_printed(proportion: f64, printed: f64, what: &str) {
    let rounded = (100.0 * proportion * 1000.0).round() / 1000.0;
    assert!(
        (rounded - printed).abs() < 1e-9,
        "{what}: {rounded} is not {printed}"
    );
}

#[test]
fn two_models_and_six_recipes_have_the_published_verdicts() {
    let rows = tables().math_reference.rows;
    assert_eq!(rows.len(), 12);
    for row in rows {
        let mut evidence = world(published_protocol("study-two-models"), row.native_correct);
        evidence.manifest.model.name.clone_from(&row.model);
        let answers = Answers {
            right: row.native_correct,
            lost: row.lost,
            gained: row.gained,
        };
        answer(&mut evidence, &row.recipe, "math", answers);
        let found = certificate(&evidence, &row.recipe);
        let what = format!("{} {}", row.model, row.recipe);
        let [(preservation, _), (aggregate, _)] = verdicts(&found);
        assert_eq!(
            (preservation, aggregate),
            (row.preservation, row.aggregate),
            "{what}"
        );
        let gross = &found.objectives.preservation.rules[0];
        assert_eq!(
            gross.candidate_correct,
            Some(row.candidate_correct),
            "{what}"
        );
        assert_eq!((gross.pairs, gross.alpha), (1319, 0.05 / 24.0));
        if let Some(printed) = row.gross_upper_pct {
            assert_printed(gross.bound, printed, &what);
        }
        if let Some(printed) = row.net_lower_pp {
            assert_printed(found.objectives.aggregate.rules[0].bound, printed, &what);
        }
        let is_ruin = row.lost > 1000;
        assert_eq!(found.degradation[0].established, is_ruin, "{what}");
    }
}

/// Two controls that differ from each other, and a candidate with the published counts against
/// each: `shared` questions both controls answer, and so on.
#[test]
fn two_controls_have_the_published_joint_verdicts() {
    let rows = tables().math_workers.rows;
    let expected = [
        ("AF", [Verdict::Pass, Verdict::NotEstablished]),
        ("SD", [Verdict::NotEstablished, Verdict::NotEstablished]),
    ];
    for ((recipe, joint), pair) in expected.into_iter().zip(rows.chunks(2)) {
        let mut evidence = world(published_protocol("study-workers"), 0);
        evidence.manifest.model.name = "qwen3-8b-fp16".to_owned();
        assert_eq!(pair[0].candidate, pair[1].candidate);
        let right = pair[0].candidate_correct;
        answer(&mut evidence, recipe, "math", Answers::right(right));
        for row in pair {
            // A control right on all but the last few of the candidate's and on `lost` others.
            let (arm, gained) = (
                format!("control-{}", row.control),
                right + row.lost - row.native_correct,
            );
            let seen = Answers {
                right: row.native_correct + gained,
                lost: gained,
                gained: 0,
            };
            answer(&mut evidence, &arm, "math", seen);
        }
        let records = evidence.arms["control-native-flashinfer"].records.clone();
        arm_mut(&mut evidence, "native-aa").records = records;
        let found = certificate(&evidence, recipe);
        let [(preservation, _), (aggregate, _)] = verdicts(&found);
        assert_eq!([preservation, aggregate], joint, "{recipe}");
        for row in pair {
            check_worker_row(row, &found);
        }
    }
}

fn check_worker_row(row: &WorkerRow, found: &crate::schema::Certificate) {
    let of = |objective: &crate::schema::ObjectiveResult, rule: &str| {
        let rules = &objective.rules;
        rules
            .iter()
            .find(|r| r.rule == rule && r.control == row.control)
            .unwrap()
            .clone()
    };
    let what = format!("{} against {}", row.candidate, row.control);
    let gross = of(&found.objectives.preservation, "gross_loss");
    let net = of(&found.objectives.aggregate, "net_change");
    assert_eq!(gross.lost, Some(row.lost as u64), "{what}");
    assert_eq!(gross.pass, row.preservation == Verdict::Pass, "{what}");
    assert_eq!(net.pass, row.aggregate == Verdict::Pass, "{what}");
    assert_printed(gross.bound, row.gross_upper_pct, &what);
    assert_printed(net.bound, row.net_lower_pp, &what);
}

#[test]
fn a_whole_certificate() {
    let mut evidence = world(published_protocol("study-two-models"), 1231);
    evidence.manifest.model.name = "qwen3-8b-fp16".to_owned();
    let answers = Answers {
        right: 1231,
        lost: 6,
        gained: 10,
    };
    answer(&mut evidence, "AD", "math", answers);
    let mut found = certificate(&evidence, "AD");
    found.tool = evidence.manifest.tool.clone();
    insta::assert_snapshot!(serde_json::to_string_pretty(&found).unwrap());
}
