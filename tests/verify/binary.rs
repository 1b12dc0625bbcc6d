//! `kvassay verify` as a command: exit codes, text, JSON, statements.

use std::fs;
use std::path::Path;

use predicates::str::contains;
use serde_json::{Value, json};

use crate::synthetic::Synthetic;

fn command(synthetic: &Synthetic, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    kvassay
        .current_dir(synthetic.root())
        .arg("verify")
        .args(args)
        .assert()
}

fn stdout(assert: &assert_cmd::assert::Assert) -> Value {
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

fn change(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text);
    fs::write(path, changed).unwrap();
}

#[test]
fn an_honest_run_exits_0_and_says_what_cannot_be_seen() {
    let synthetic = Synthetic::new();
    command(&synthetic, &["kept/AD.json", "--run", "run"])
        .code(0)
        .stdout(contains(
            "verified: every field of kept/AD.json but tool follows from the 22 evidence files in run\n",
        ))
        .stdout(contains(
            "A consistent rewrite of run and certificate together cannot be seen",
        ))
        .stdout(contains("does not name were not looked at"));
    let found = stdout(
        &command(
            &synthetic,
            &["kept/SF.json", "--run", "run", "--format", "json"],
        )
        .code(0),
    );
    assert_eq!(found["schema"], "kvassay.verify/1");
    assert_eq!(found["certificate"], "kept/SF.json");
    assert_eq!(found["run"], "run");
    assert_eq!(found["verified"], true);
    assert_eq!(found["mismatches"], json!([]));
    assert_eq!(found["notes"].as_array().unwrap().len(), 2);
}

#[test]
fn mismatches_exit_5_and_are_all_listed() {
    let synthetic = Synthetic::new();
    let kept = synthetic.kept("AD");
    change(&kept, "\"lost\": 1", "\"lost\": 0");
    change(&kept, "\"page_tokens\": 16", "\"page_tokens\": 32");
    let args = ["kept/AD.json", "--run", "run"];
    command(&synthetic, &args)
        .code(5)
        .stdout(contains("MISMATCH: kept/AD.json against run: 2 found"))
        .stdout(contains(
            "  objectives.preservation.rules[0].lost: certificate says 0, evidence gives 1\n",
        ))
        .stdout(contains(
            "  memory.page_tokens: certificate says 32, evidence gives 16\n",
        ));
    let found = stdout(&command(&synthetic, &[&args[..], &["--format", "json"]].concat()).code(5));
    assert_eq!(found["verified"], false);
    assert_eq!(
        found["mismatches"][0],
        json!({"path": "objectives.preservation.rules[0].lost", "found": 0, "expected": 1})
    );
    // A run that lacks a file, and a record that contradicts its output.
    let synthetic = Synthetic::new();
    change(
        &synthetic.run().join("arms/AD/math.jsonl"),
        "\"correct\":true",
        "\"correct\":false",
    );
    command(&synthetic, &args)
        .code(5)
        .stdout(contains("evidence[arms/AD/math.jsonl].sha256"))
        .stdout(contains(
            "case math-0000: correct: the run holds false, expected true",
        ));
    fs::remove_file(synthetic.run().join("panels/nll-256.jsonl")).unwrap();
    command(&synthetic, &args)
        .code(5)
        .stdout(contains("evidence[panels/nll-256.jsonl].sha256"));
}

#[test]
fn what_cannot_be_read_exits_2_and_leaves_stdout_empty() {
    let synthetic = Synthetic::new();
    fs::write(synthetic.root().join("none.json"), "{}").unwrap();
    fs::create_dir(synthetic.root().join("empty")).unwrap();
    for (args, message) in [
        (
            vec!["absent.json"],
            "absent.json: found nothing there, expected a certificate",
        ),
        (vec!["none.json"], "none.json: found schema none"),
        (vec!["kept"], "kept: cannot read"),
        (vec!["run/run.json"], "found schema kvassay.run/1"),
        (vec!["kept/AD.json", "--run", "empty"], "found no run.json"),
        (vec!["kept/AD.json", "--run", "absent"], "found no run.json"),
        (
            vec!["kept/AD.json", "--run", "run", "--schema-only"],
            "cannot be used with",
        ),
    ] {
        command(&synthetic, &args)
            .code(2)
            .stderr(contains(message))
            .stdout("");
    }
    fs::write(synthetic.run().join("run.json"), "{").unwrap();
    command(&synthetic, &["kept/AD.json", "--run", "run"])
        .code(2)
        .stderr(contains("run/run.json: found the beginning of one (EOF"))
        .stderr(contains("expected kvassay.run/1"));
    let certificate = fs::read_to_string(synthetic.kept("AD")).unwrap();
    for (text, found) in [
        (String::new(), "an empty file"),
        (format!("\u{feff}{certificate}"), "a byte order mark"),
        (certificate[..99].to_owned(), "the beginning of one (EOF"),
        (
            certificate.replace("true", "NaN"),
            "text that is no JSON (expected value",
        ),
        ("<svg/>".to_owned(), "text that is no JSON (expected value"),
    ] {
        fs::write(synthetic.root().join("other.json"), text).unwrap();
        command(&synthetic, &["other.json"])
            .code(2)
            .stderr(contains(format!("other.json: found {found}")))
            .stderr(contains("expected kvassay.certificate/1"))
            .stdout("");
    }
}

#[test]
fn another_tool_is_noted_and_the_figures_are_compared_all_the_same() {
    let synthetic = Synthetic::new();
    let kept = synthetic.kept("AD");
    change(&kept, "\"version\": \"0", "\"version\": \"9");
    command(&synthetic, &["kept/AD.json", "--run", "run"])
        .code(0)
        .stdout(contains("Issued by kvassay 9"))
        .stdout(contains("compared all the same"));
    change(&kept, "\"bound\": 0.", "\"bound\": 0.1");
    command(&synthetic, &["kept/AD.json", "--run", "run"]).code(5);
}

#[test]
fn without_a_run_the_figures_are_held_against_one_another() {
    let synthetic = Synthetic::new();
    command(&synthetic, &["kept/AD.json"])
        .code(0)
        .stdout(contains(
            "consistent: the figures of kept/AD.json follow from one another",
        ))
        .stdout(contains(
            "Not checked without --run: the digests of 22 evidence files, the records and counts \
             themselves, the nll bounds, the model and its weights, texts.",
        ))
        .stdout(contains(
            "Protocol synthetic is not a built-in one: nobody checked its limits, alphas and \
             panels, nor what it declares.",
        ));
    change(&synthetic.kept("AD"), "\"bound\": 0.", "\"bound\": 0.1");
    let assert = command(&synthetic, &["kept/AD.json", "--format", "json"]).code(5);
    let found = stdout(&assert);
    assert_eq!(found["run"], Value::Null);
    assert_eq!(
        found["mismatches"][0]["path"],
        "objectives.preservation.rules[0].bound"
    );
}

#[test]
fn a_statement_is_written_once_the_certificate_is_verified() {
    let synthetic = Synthetic::new();
    let path = synthetic.root().join("statement.json");
    let args = [
        "kept/AD.json",
        "--run",
        "run",
        "--statement",
        "statement.json",
    ];
    command(&synthetic, &args)
        .code(0)
        .stdout(contains("Wrote an in-toto Statement to statement.json"));
    let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let certificate: Value =
        serde_json::from_slice(&fs::read(synthetic.kept("AD")).unwrap()).unwrap();
    assert_eq!(found["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(found["predicateType"], "https://kvassay.dev/certificate/v1");
    assert_eq!(found["predicate"], certificate);
    let subjects = found["subject"].as_array().unwrap();
    let files = certificate["evidence"].as_array().unwrap();
    assert_eq!(subjects.len(), files.len());
    for (subject, file) in subjects.iter().zip(files) {
        assert_eq!(subject["name"], file["path"]);
        assert_eq!(subject["digest"], json!({"sha256": file["sha256"]}));
    }
    fs::remove_file(&path).unwrap();
    change(
        &synthetic.run().join("arms/AD/math.jsonl"),
        "Let me see",
        "Let me sea",
    );
    command(&synthetic, &args)
        .code(5)
        .stdout(contains("No statement was written to statement.json"));
    assert!(!path.exists());
    let absent = ["--run", "run", "--statement", "absent/statement.json"];
    command(&synthetic, &[&["kept/AD.json"][..], &absent].concat())
        .code(2)
        .stderr(contains("absent/statement.json"));
    // Figures that agree with one another are no verification.
    let alone = ["kept/SF.json", "--statement", "statement.json"];
    command(&synthetic, &alone)
        .code(2)
        .stderr(contains("--run"));
    assert!(!path.exists());
}
