//! What ends with which code where evidence is incomplete or contradicts its certificates, through
//! the binary, on a tiny model with random weights.

use std::fs;

use serde_json::Value;

use crate::command::{in_tiny_world, json};
use crate::tiny::{Tiny, files};

const UNDECLARED: &str = "k=native,v=e5m2:dynamic";

fn resume(tiny: &Tiny) -> (i32, String) {
    let mut command = tiny.command("qualify");
    let command = command.args(["SD", "--out", "run", "--resume"]);
    let output = command.output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// Changes the first record of a panel.
fn edit(tiny: &Tiny, file: &str, change: impl FnOnce(&str) -> String) {
    let path = tiny.path(&format!("run/arms/{file}"));
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    fs::write(&path, format!("{}\n{rest}", change(first))).unwrap();
}

fn with_sum(record: &str, sum: &str) -> String {
    let (before, after) = record.split_once("\"nll_sum\":").unwrap();
    let end = after.find([',', '}']).unwrap();
    format!("{before}\"nll_sum\":{sum}{}", &after[end..])
}

fn nll_file(tiny: &Tiny) -> String {
    let files = files(&tiny.path("run/arms/SD"));
    let mut names = files.keys().filter(|name| name.starts_with("nll-"));
    names.next().unwrap().clone()
}

fn preservation(tiny: &Tiny) -> (String, String, String) {
    let certificate = json(&tiny.path("run/certificates/SD.json"));
    let result = &certificate["objectives"]["preservation"];
    let text = |key: &str| result[key].as_str().unwrap().to_owned();
    (text("verdict"), text("reason"), text("detail"))
}

#[test]
fn on_a_finished_run() {
    crate::tiny::on_a_finished_run(&[
        certificates_do_not_survive_a_difference_between_native_and_native,
        only_files_of_this_tool_are_removed,
        doubled_and_boundless_records_are_incomplete_resumed_or_not,
        an_absent_proof_of_engagement_is_incomplete_and_named,
        every_answer_is_there_or_null,
    ]);
}

fn certificates_do_not_survive_a_difference_between_native_and_native(tiny: &Tiny) {
    let certificates = files(&tiny.path("run/certificates"));
    assert_eq!(certificates.len(), 2);
    let file = format!("native-aa/{}", nll_file(tiny));
    edit(tiny, &file, |record| with_sum(record, "1.5"));
    let (code, out, err) = in_tiny_world(tiny, &["certify", "run"]);
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    let removed = "; removed, as it no longer holds: run/certificates/SD.json, \
                   run/certificates/SD.svg\n";
    assert!(
        err.contains("A/A difference") && err.ends_with(removed),
        "{err}"
    );
    assert!(files(&tiny.path("run/certificates")).is_empty());
    let (code, _, err) = in_tiny_world(tiny, &["certify", "run"]);
    assert!(code == 4 && !err.contains("removed"), "{err}");

    for (name, bytes) in certificates {
        fs::write(tiny.path(&format!("run/certificates/{name}")), bytes).unwrap();
    }
    let (code, err) = resume(tiny);
    assert_eq!(code, 4, "{err}");
    assert!(err.ends_with(removed), "{err}");
    assert!(files(&tiny.path("run/certificates")).is_empty());
}

fn only_files_of_this_tool_are_removed(tiny: &Tiny) {
    for (name, text) in [
        ("SD.json", "{\"schema\":\"other/1\"}"),
        ("SD.svg", "<svg/>"),
    ] {
        fs::write(tiny.path(&format!("run/certificates/{name}")), text).unwrap();
    }
    let file = format!("native-aa/{}", nll_file(tiny));
    edit(tiny, &file, |record| with_sum(record, "1.5"));
    let (code, _, err) = in_tiny_world(tiny, &["certify", "run"]);
    assert!(code == 4 && !err.contains("removed"), "{err}");
    assert_eq!(files(&tiny.path("run/certificates")).len(), 2);
}

fn doubled_and_boundless_records_are_incomplete_resumed_or_not(tiny: &Tiny) {
    let nll = format!("SD/{}", nll_file(tiny));
    let original = fs::read_to_string(tiny.path(&format!("run/arms/{nll}"))).unwrap();
    for (reason, change) in [
        (
            "duplicate_records",
            (|record| format!("{record}\n{record}")) as fn(&str) -> String,
        ),
        ("non_finite_records", |record| with_sum(record, "1e999")),
        ("non_finite_records", |record| with_sum(record, "NaN")),
        ("non_finite_records", |record| with_sum(record, "null")),
    ] {
        edit(tiny, &nll, change);
        let (code, _, err) = in_tiny_world(tiny, &["certify", "run"]);
        assert_eq!(code, 3, "{reason}: {err}");
        let certified = preservation(tiny);
        assert_eq!((&*certified.0, &*certified.1), ("incomplete", reason));
        let is_null = fs::read_to_string(tiny.path(&format!("run/arms/{nll}"))).unwrap();
        if !is_null.contains(":null") {
            let (code, err) = resume(tiny);
            assert_eq!(code, 3, "{reason}: {err}");
            assert_eq!(preservation(tiny), certified);
        }
        fs::write(tiny.path(&format!("run/arms/{nll}")), &original).unwrap();
    }
    // In a control as well, where no A/A arm has another value.
    edit(tiny, "native/math.jsonl", |record| {
        format!("{record}\n{record}")
    });
    assert_eq!(in_tiny_world(tiny, &["certify", "run"]).0, 3);
    let (code, err) = resume(tiny);
    assert_eq!(code, 3, "{err}");
}

fn an_absent_proof_of_engagement_is_incomplete_and_named(tiny: &Tiny) {
    for arm in ["SD", "native"] {
        let file = format!("arms/{arm}/engagement.json");
        let path = tiny.path(&format!("run/{file}"));
        let kept = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (code, out, err) = in_tiny_world(tiny, &["certify", "run"]);
        assert_eq!(code, 3, "{err}");
        assert!(out.contains("missing_files"), "{out}");
        let (verdict, reason, detail) = preservation(tiny);
        assert_eq!((&*verdict, &*reason), ("incomplete", "missing_files"));
        assert!(detail.contains(&file), "{detail}");
        fs::write(&path, kept).unwrap();
    }
}

fn every_answer_is_there_or_null(tiny: &Tiny) {
    let text = fs::read_to_string(tiny.path("run/arms/SD/math.jsonl")).unwrap();
    assert!(text.contains("\"answer\":null"), "{text}");
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        for field in ["output", "output_tokens", "finish", "answer", "correct"] {
            assert!(record.get(field).is_some(), "{field}: {line}");
        }
    }
    // Records of earlier versions have no field there.
    let earlier = text.replace("\"answer\":null,", "");
    assert_ne!(earlier, text);
    let before = preservation(tiny);
    let same = |path: &str| {
        let again = tiny.path(&format!("run/arms/SD/{path}"));
        let text = fs::read_to_string(&again).unwrap();
        fs::write(&again, text.replace("\"answer\":null,", "")).unwrap();
    };
    same("math.jsonl");
    same("math.regenerated.jsonl");
    assert_eq!(in_tiny_world(tiny, &["certify", "run"]).0, 0);
    assert_eq!(preservation(tiny), before);
}

#[test]
fn a_descriptive_verdict_does_not_hide_what_is_incomplete() {
    let tiny = Tiny::new();
    let run = |format: &str, out: &str| {
        let mut command = tiny.command("qualify");
        let args = [UNDECLARED, "--limit", "2", "--format", format, "--out", out];
        let output = command.args(args).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, summary) = run("json", "run");
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((code, &summary["exit"]), (Some(3), &3.into()));
    for objective in ["preservation", "aggregate"] {
        let found = &summary["certificates"][0]["objectives"][objective];
        assert_eq!(found["verdict"], "descriptive");
        assert_eq!(found["reason"], "recipe_undeclared");
        assert_eq!(found["incomplete"], "limit");
    }
    let (code, junit, _) = in_tiny_world(&tiny, &["certify", "run", "--format", "junit"]);
    assert_eq!(code, 3);
    assert!(
        junit.contains("errors=\"1\"") && junit.contains("type=\"limit\""),
        "{junit}"
    );
    let (code, text, _) = in_tiny_world(&tiny, &["certify", "run"]);
    assert_eq!(code, 3);
    let words = "descriptive (recipe_undeclared; incomplete: limit)";
    assert!(text.contains(words), "{text}");
    let certificate = format!("run/certificates/{UNDECLARED}.json");
    let (code, explained, _) = in_tiny_world(&tiny, &["explain", &certificate]);
    assert_eq!(code, 0);
    assert!(explained.contains("incomplete as well"), "{explained}");
    assert_eq!(
        in_tiny_world(&tiny, &["verify", &certificate, "--run", "run"]).0,
        0
    );
}
