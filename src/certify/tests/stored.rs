//! Evidence through a run directory and back.

use std::fs;
use std::path::Path;

use crate::schema::*;
use crate::store::{CaseKey, RunDir};

use super::super::*;
use super::world::*;

fn small() -> Protocol {
    let mut protocol = protocol();
    protocol.rules.nll.resamples = 500;
    for plan in &mut protocol.panels {
        match plan {
            PanelPlan::Math { cases, .. } | PanelPlan::Retrieval { cases, .. } => *cases = 6,
            PanelPlan::Nll { documents, .. } => *documents = 3,
        }
    }
    protocol
}

/// Text of a panel file.
fn panel_text(gold: &PanelGold) -> String {
    let mut text = serde_json::to_string(&gold.header).unwrap() + "\n";
    for (at, case) in (0..).zip(&gold.cases) {
        let case = PanelCase {
            case: case.case.clone(),
            messages: Vec::new(),
            prompt_ids: vec![at; case.prompt_tokens as usize],
            task: case.task.clone(),
        };
        text += &(serde_json::to_string(&case).unwrap() + "\n");
    }
    text
}

/// Gives every case the digest of its line and every panel that of its file.
fn make_storable(evidence: &mut Evidence) {
    for panel in &mut evidence.manifest.panels {
        let gold = evidence.panels.get_mut(&panel.panel).unwrap();
        let text = panel_text(gold);
        panel.file.as_mut().unwrap().sha256 = sha256_hex(text.as_bytes());
        for (case, line) in gold.cases.iter_mut().zip(text.lines().skip(1)) {
            case.case_sha256 = sha256_hex(line.as_bytes());
        }
        for arm in evidence.arms.values_mut() {
            let records = arm.records.get_mut(&panel.panel).unwrap();
            for (record, case) in records.iter_mut().zip(&gold.cases) {
                record.case_sha256.clone_from(&case.case_sha256);
            }
        }
    }
}

fn keys(gold: &PanelGold) -> Vec<CaseKey> {
    let key = |case: &GoldCase| CaseKey {
        case: case.case.clone(),
        case_sha256: case.case_sha256.clone(),
    };
    gold.cases.iter().map(key).collect()
}

fn store(path: &Path, evidence: &Evidence) -> RunDir {
    let run = RunDir::create(path, &evidence.manifest).unwrap();
    fs::create_dir(path.join("panels")).unwrap();
    for (name, gold) in &evidence.panels {
        fs::write(path.join(format!("panels/{name}.jsonl")), panel_text(gold)).unwrap();
    }
    for (name, arm) in &evidence.arms {
        run.start_arm(name, AnswerMode::Plain).unwrap();
        for (panel, records) in &arm.records {
            let mut log = run
                .record_log(name, panel, &keys(&evidence.panels[panel]))
                .unwrap();
            log.append(records).unwrap();
        }
        run.write_engagement(name, arm.engagement.as_ref().unwrap())
            .unwrap();
    }
    run
}

fn stored() -> (tempfile::TempDir, Evidence, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let mut evidence = world(small(), 5);
    make_storable(&mut evidence);
    let run = store(root.path(), &evidence);
    (root, evidence, run)
}

#[test]
fn what_was_stored_has_the_same_certificate() {
    let (_root, evidence, run) = stored();
    let loaded = load(&run).unwrap();
    let found = certificate(&loaded, "AD");
    let mut expected = certificate(&evidence, "AD");
    for file in &found.evidence {
        assert_eq!(*file, run.file_digest(&file.path).unwrap());
    }
    assert_eq!(found.evidence.len(), 1 + 5 + 3 * 7);
    expected.evidence.clone_from(&found.evidence);
    assert_eq!(found, expected);
    run.write_certificate("AD", &found).unwrap();
    assert_eq!(run.certificate("AD").unwrap(), Some(found));
}

#[test]
fn a_run_that_was_killed_is_incomplete() {
    let (root, _, run) = stored();
    let path = root.path().join("arms/AD/nll-8k.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 9]).unwrap();
    fs::remove_file(root.path().join("arms/AD/retrieval-8k.jsonl")).unwrap();
    let found = certificate(&load(&run).unwrap(), "AD");
    assert_eq!(
        verdicts(&found),
        [(Verdict::Incomplete, Some("missing_records")); 2]
    );
    let detail = found.objectives.preservation.detail.unwrap();
    assert!(
        detail.contains("panel nll-8k: 1 cases have no record (nll-8k-0002)"),
        "{detail}"
    );
    assert!(detail.contains("panel retrieval-8k: 6 cases"), "{detail}");
}

#[test]
fn a_doubled_line_is_a_duplicate() {
    let (root, _, run) = stored();
    let path = root.path().join("arms/native/math.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let first = text.lines().next().unwrap();
    fs::write(&path, format!("{text}{first}\n")).unwrap();
    let found = certificate(&load(&run).unwrap(), "AD");
    assert_eq!(
        verdicts(&found),
        [(Verdict::Incomplete, Some("duplicate_records")); 2]
    );
}

#[test]
fn damaged_panel_files_are_named_with_their_line() {
    type Damage = fn(&str) -> String;
    let damages: [(Damage, &str); 6] = [
        (
            |text| text.replace("kvassay.panel/1", "kvassay.panel/2"),
            "math.jsonl:1: found kvassay.panel/2",
        ),
        (
            |text| text.replace("math-0003", "math-0002"),
            "math.jsonl:5: found case math-0002 again",
        ),
        (
            |text| text.replace("[3,3,3,3,3,3,3,3,3]", "[2,2,2,2,2,2,2,2,2]"),
            "math.jsonl:5: found case math-0003 with the content of case math-0002, expected each",
        ),
        (
            |text| text.replacen("\"gold\"", "\"silver\"", 1),
            "math.jsonl:2: found unknown field `silver`",
        ),
        (
            |text| text.replace("\"cases\":6", "\"cases\":7"),
            "found 6 cases, expected 7 from its header",
        ),
        (|_| String::new(), "math.jsonl:1: found EOF"),
    ];
    for (damage, message) in damages {
        let (root, mut evidence, run) = stored();
        drop(run);
        let path = root.path().join("panels/math.jsonl");
        let text = damage(&fs::read_to_string(&path).unwrap());
        fs::write(&path, &text).unwrap();
        let error = load(&RunDir::open(root.path()).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("panels/math.jsonl: found SHA-256"),
            "{error}"
        );

        let math = &mut evidence.manifest.panels[0];
        math.file.as_mut().unwrap().sha256 = sha256_hex(text.as_bytes());
        let manifest = serde_json::to_string(&evidence.manifest).unwrap();
        fs::write(root.path().join("run.json"), manifest).unwrap();
        let error = load(&RunDir::open(root.path()).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}
