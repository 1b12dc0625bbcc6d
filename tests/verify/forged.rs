//! Forgeries in which run and certificate are rewritten together as far as digests go.

use std::fs;
use std::path::Path;

use kvassay::certify::{self, verify::alone};
use kvassay::schema::{Certificate, Manifest, sha256_hex};
use kvassay::store::{RunDir, read_certificate};
use serde_json::{Value, json};

use crate::synthetic::{Synthetic, usual};
use crate::verify;

/// Puts the digests that the run's files have now into the certificate.
fn redo_digests(certificate: &Path, run: &Path) {
    let mut found = read_certificate(certificate).unwrap();
    for file in &mut found.evidence {
        file.sha256 = sha256_hex(&fs::read(run.join(&file.path)).unwrap());
    }
    fs::write(certificate, serde_json::to_string_pretty(&found).unwrap()).unwrap();
}

/// Changes every record of a file.
fn change_records(path: &Path, change: impl Fn(&mut Value)) {
    let text = fs::read_to_string(path).unwrap();
    let mut changed = String::new();
    for line in text.lines() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        change(&mut record);
        changed += &format!("{record}\n");
    }
    fs::write(path, changed).unwrap();
}

fn change_manifest(run: &Path, change: impl FnOnce(&mut Manifest)) {
    let path = run.join("run.json");
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    manifest.protocol_sha256 = manifest.protocol.sha256().unwrap();
    fs::write(path, serde_json::to_string_pretty(&manifest).unwrap()).unwrap();
}

/// `SF` called right everywhere, a certificate that counts it so, every digest redone: consistent
/// in itself, and contradicted by the outputs that it rests on.
#[test]
fn flipped_outcomes_with_a_certificate_that_counts_them_are_scored_again() {
    let all_right = |arm: &str, panel: &str, case: u32| match arm {
        "SF" => usual("native", panel, case),
        _ => usual(arm, panel, case),
    };
    let wished = Synthetic::with(&["native"], &all_right);
    let real = Synthetic::new();
    let (run, kept) = (real.run(), real.kept("SF"));
    for panel in ["math", "retrieval-512"] {
        change_records(&run.join(format!("arms/SF/{panel}.jsonl")), |record| {
            let last = record["case"].as_str().unwrap().ends_with('5');
            record["correct"] = json!(!last);
            if record["secondary"].is_object() {
                record["secondary"]["gsm8k-last-number/1"] = json!(!last);
            }
        });
    }
    fs::copy(wished.kept("SF"), &kept).unwrap();
    redo_digests(&kept, &run);
    let forged = read_certificate(&kept).unwrap();
    assert_eq!(json!(forged.objectives.preservation.verdict), "pass");
    assert!(alone(&forged).is_empty());
    let text = verify(&kept, &run).text();
    assert!(
        text.contains("arms/SF/math.jsonl, case math-0001: correct: the run holds true (4 such"),
        "{text}"
    );
    assert!(!text.contains("sha256"), "{text}");
}

#[test]
fn what_a_record_repeats_must_agree_even_where_digests_were_redone() {
    type Change = fn(&mut Value);
    let changes: [(&str, &str, Change, &str); 10] = [
        (
            "AD",
            "math",
            |r| r["answer"] = json!("77"),
            "answer: the run holds 77",
        ),
        (
            "AD",
            "math",
            |r| r["correct"] = json!(false),
            "correct: the run holds false",
        ),
        (
            "native",
            "retrieval-512",
            |r| r["correct"] = json!(false),
            "correct: the run holds",
        ),
        // The A/A arm is counted by its stored verdicts.
        (
            "native-aa",
            "math",
            |r| r["correct"] = json!(false),
            "correct: the run holds false",
        ),
        (
            "AD",
            "math",
            |r| r["finish"] = json!("length"),
            "correct: the run holds true",
        ),
        (
            "AD",
            "math",
            |r| r["secondary"]["gsm8k-last-number/1"] = json!(false),
            "secondary",
        ),
        (
            "AD",
            "math",
            |r| r["output_tokens"] = json!(5),
            "output_tokens: the run holds 5",
        ),
        (
            "AD",
            "retrieval-512",
            |r| r["depth"] = json!(0.77),
            "depth: the run holds 0.77",
        ),
        (
            "AD",
            "nll-256",
            |r| r["targets"] = json!(4),
            "targets: the run holds 4",
        ),
        (
            "native-aa",
            "nll-256",
            |r| r["nll_sum"] = json!(3.5),
            "nll_sum: the run holds another",
        ),
    ];
    for (arm, panel, change, message) in changes {
        let synthetic = Synthetic::new();
        let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
        change_records(&run.join(format!("arms/{arm}/{panel}.jsonl")), |record| {
            if record["case"].as_str().unwrap().ends_with("0000") {
                change(record);
            }
        });
        redo_digests(&kept, &run);
        let text = verify(&kept, &run).text();
        let place = format!("arms/{arm}/{panel}.jsonl, case {panel}-0000: {message}");
        assert!(text.contains(&place), "{place}\n{text}");
        assert!(!text.contains("sha256"), "{text}");
    }
}

#[test]
fn a_gold_answer_changed_in_panel_manifest_records_and_digests() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    let path = run.join("panels/math.jsonl");
    let before = fs::read_to_string(&path).unwrap();
    // The wrong answer that `AD` gives to case 1 becomes the right one.
    let text = before.replacen("\"gold\":\"41\"", "\"gold\":\"7\"", 1);
    assert_ne!(text, before);
    fs::write(&path, &text).unwrap();
    let (old, new) = (before.lines().nth(2).unwrap(), text.lines().nth(2).unwrap());
    for arm in ["native", "native-aa", "AD", "SF"] {
        change_records(&run.join(format!("arms/{arm}/math.jsonl")), |record| {
            if record["case_sha256"] == sha256_hex(old.as_bytes()) {
                record["case_sha256"] = json!(sha256_hex(new.as_bytes()));
            }
        });
    }
    change_manifest(&run, |manifest| {
        manifest.panels[0].file.as_mut().unwrap().sha256 = sha256_hex(text.as_bytes());
    });
    assert!(
        verify(&kept, &run)
            .text()
            .contains("evidence[panels/math.jsonl].sha256")
    );
    redo_digests(&kept, &run);
    let text = verify(&kept, &run).text();
    assert!(
        text.contains("case math-0001: correct: the run holds false, expected true"),
        "{text}"
    );
}

#[test]
fn a_protocol_changed_with_its_digest() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("SF"));
    change_manifest(&run, |manifest| {
        manifest.protocol.rules.gross_loss.limit = 0.95;
        manifest.protocol.rules.net_change.divisor = 5;
        manifest.protocol.name = "kinder".to_owned();
    });
    let text = verify(&kept, &run).text();
    assert!(text.contains("evidence[run.json].sha256"), "{text}");
    redo_digests(&kept, &run);
    let mut found = read_certificate(&kept).unwrap();
    let manifest: Manifest =
        serde_json::from_slice(&fs::read(run.join("run.json")).unwrap()).unwrap();
    found.protocol.sha256 = manifest.protocol_sha256;
    fs::write(&kept, serde_json::to_string(&found).unwrap()).unwrap();
    let text = verify(&kept, &run).text();
    for expected in [
        "protocol.name: certificate says synthetic, evidence gives kinder",
        "objectives.preservation.rules[0].limit: certificate says 0.8, evidence gives 0.95",
        "objectives.aggregate.rules[0].alpha: certificate says 0.0125, evidence gives 0.01",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // A digest that is not the protocol's, and a protocol that is none.
    let path = run.join("run.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("0.95", "0.96", 1)).unwrap();
    assert!(
        verify(&kept, &run)
            .text()
            .contains("run.json: protocol_sha256: the run holds")
    );
    fs::write(&path, text.replacen("0.95", "1.96", 1)).unwrap();
    assert!(
        verify(&kept, &run)
            .text()
            .contains("rules.gross_loss.limit: found 1.96")
    );
}

#[test]
fn engagement_and_calibration_that_do_not_belong() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("SF"));
    let change = |file: &str, from: &str, to: &str| {
        let path = run.join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = text.replace(from, to);
        assert_ne!(text, changed);
        fs::write(&path, changed).unwrap();
        redo_digests(&kept, &run);
        let found = verify(&kept, &run).text();
        fs::write(&path, text).unwrap();
        found
    };
    let engagement = "arms/SF/engagement.json";
    let text = change(engagement, "\"scale_max\": 0.5", "\"scale_max\": 0.75");
    assert!(
        text.contains(
            "engagement.layers[0].k.scale_max: certificate says 0.5, evidence gives 0.75"
        ),
        "{text}"
    );
    let text = change(engagement, "\"changed\": 320", "\"changed\": 321");
    assert!(text.contains("engagement.totals.k.changed"), "{text}");
    let one = |text: &str| text.replace("0.25", "1.0").replace("0.5", "1.0");
    let before = fs::read_to_string(run.join(engagement)).unwrap();
    let text = change(engagement, &before, &one(&before));
    assert!(
        text.contains("found scale 1 (unit scale), expected 0.5 from the calibration"),
        "{text}"
    );
    let weights = sha256_hex(format!("{}\n", sha256_hex(b"weights")).as_bytes());
    let text = change("calibration.json", &weights, &sha256_hex(b"others"));
    assert!(
        text.contains("calibration.json: weights_sha256: the run holds"),
        "{text}"
    );
}

/// Run and certificate agree with each other, and the run with nothing else.
#[test]
fn a_run_that_contradicts_itself_is_a_mismatch_whatever_its_digests() {
    type Change = fn(&Path);
    fn in_panel(run: &Path, from: &str, to: &str) {
        let path = run.join("panels/math.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        let changed = text.replacen(from, to, 1);
        fs::write(path, &changed).unwrap();
        change_manifest(run, |manifest| {
            let file = manifest.panels[0].file.as_mut().unwrap();
            file.sha256 = sha256_hex(changed.as_bytes());
        });
    }
    let changes: [(Change, &str); 8] = [
        (
            |run| in_panel(run, "gsm8k/1", "demo-math/1"),
            "panels/math.jsonl:1: task: the run holds demo-math/1, expected gsm8k/1",
        ),
        (
            |run| in_panel(run, &sha256_hex(b"tokenizer"), &"0".repeat(64)),
            "panels/math.jsonl:1: tokenizer_sha256: the run holds 000",
        ),
        (
            |run| change_manifest(run, |it| it.protocol.name = "demo".to_owned()),
            "run.json: protocol: the run holds protocol demo with SHA-256 ",
        ),
        (
            |run| change_manifest(run, |it| it.model.files[0].sha256 = "0".repeat(64)),
            "run.json: model.weights_sha256: the run holds cac6",
        ),
        (
            |run| change_manifest(run, |it| it.worker.kind = "gpu".to_owned()),
            "run.json: worker.kind: the run holds `gpu`, expected cpu, cuda, http or import",
        ),
        (
            |run| change_manifest(run, |it| it.arms.push(it.arms[2].clone())),
            "run.json: arms: the run holds AD twice, expected each once",
        ),
        (
            |run| {
                let path = run.join("calibration.json");
                let text = fs::read_to_string(&path).unwrap();
                fs::write(path, text.replace("\"documents\": 2", "\"documents\": 9")).unwrap();
            },
            "calibration.json: documents: the run holds 9, expected 2, which protocol synthetic",
        ),
        (
            |run| {
                let path = run.join("arms/SF/math.jsonl");
                let text = fs::read_to_string(&path).unwrap();
                let mut lines: Vec<&str> = text.lines().collect();
                lines.swap(0, 1);
                fs::write(path, lines.join("\n") + "\n").unwrap();
            },
            "arms/SF/math.jsonl, case math-0001: place: the run holds line 1, expected a line",
        ),
    ];
    for (change, message) in changes {
        let synthetic = Synthetic::new();
        let (run, kept) = (synthetic.run(), synthetic.kept("SF"));
        change(&run);
        redo_digests(&kept, &run);
        let outcome = verify(&kept, &run);
        assert!(outcome.is_caught(), "{message}");
        assert!(outcome.text().contains(message), "{}", outcome.text());
    }
}

/// What verification cannot see, and the docs say so.
#[test]
fn a_consistent_rewrite_is_seen_only_by_a_certificate_kept_elsewhere() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    change_records(&run.join("arms/SF/nll-256.jsonl"), |record| {
        record["nll_sum"] = json!(19.0)
    });
    let dir = RunDir::open(&run).unwrap();
    let rewritten: Certificate = certify::certify("SF", &certify::load(&dir).unwrap()).unwrap();
    dir.write_certificate("SF", &rewritten).unwrap();
    assert!(!verify(&run.join("certificates/SF.json"), &run).is_caught());
    assert!(verify(&synthetic.kept("SF"), &run).is_caught());
}
