//! Pairing: every kind of fault, by content and by ids.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

mod bytes;
mod readers;

use super::*;
use crate::schema::{FaultKind, Pairing};

/// A line of an lm-eval log.
fn line(id: usize, question: &str, correct: Value) -> Value {
    json!({
        "doc_id": id, "doc": {"question": question, "answer": "#### 7"}, "target": "#### 7",
        "resps": [[format!("It is {id}.")]], "filter": "none", "exact_match": correct,
    })
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// Files in a folder of their own.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> Vec<PathBuf> {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        vec![path]
    }

    fn lm_eval(&self, native: &[u8], candidate: &[u8]) -> Result<Logs, ImportError> {
        let native = self.file("native.jsonl", native);
        let candidate = self.file("candidate.jsonl", candidate);
        lm_eval::read(&native, &candidate, &lm_eval::Options::default())
    }

    fn csv(&self, native: &str, candidate: &str) -> Result<Logs, ImportError> {
        let native = self.file("native.csv", native);
        let candidate = self.file("candidate.csv", candidate);
        csv::read(&native, &candidate, &csv::Options::default())
    }
}

/// Lost and gained among the pairs.
fn counts(paired: &Paired) -> (usize, usize) {
    let count = |native, candidate| {
        let flips = |case: &&Case| {
            let score = |arm: usize| &case.samples[arm][0].score;
            case.is_pair()
                && *score(0) == Score::Correct(native)
                && *score(1) == Score::Correct(candidate)
        };
        paired.cases.iter().filter(flips).count()
    };
    (count(true, false), count(false, true))
}

fn kinds(paired: &Paired) -> Vec<(&str, FaultKind)> {
    let faults = paired.faults.iter();
    faults
        .map(|fault| (fault.case.as_str(), fault.kind))
        .collect()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/import")
        .join(name)
}

#[test]
fn every_fault_is_named_and_nothing_dropped() {
    let native = lines(&[
        line(0, "a", json!(1.0)),
        line(1, "b", json!(1.0)),
        line(2, "c", json!(1)),
        line(3, "d", json!(0)),
        line(4, "e", json!(0)),
        line(5, "f", json!(1)),
        line(6, "g", json!(1)),
        line(7, "h", json!(1)),
    ]);
    let mut other_gold = line(8, "g", json!(1));
    other_gold["target"] = json!("#### 8");
    let candidate = lines(&[
        line(0, "a", json!(0.5)),
        line(1, "b", Value::Null),
        line(2, "c", json!(1)),
        line(2, "c", json!(1)),
        line(3, "d", json!(0)),
        line(3, "d", json!(1)),
        line(5, "another f", json!(1)),
        other_gold,
        line(7, "h ", json!(0)),
    ])
    .replace("null", "NaN");
    let folder = Folder::new();
    let logs = folder
        .lm_eval(native.as_bytes(), candidate.as_bytes())
        .unwrap();
    let paired = pair(&logs).unwrap();
    use FaultKind::*;
    let mut found = kinds(&paired);
    // Id 5 stands for two contents: both cases carry a part of their digests.
    let fives: Vec<_> = found
        .iter()
        .filter(|(case, _)| case.starts_with("5-"))
        .collect();
    assert_eq!(fives.len(), 4, "{fives:?}");
    found.retain(|(case, _)| !case.starts_with("5-"));
    assert_eq!(
        found,
        [
            ("0", Unscored),
            ("1", Unscored),
            ("2", Duplicate),
            ("3", Conflict),
            ("3", Duplicate),
            ("4", Missing),
            ("6", Conflict),
            ("6", Missing),
            ("8", Conflict),
            ("8", Missing),
        ]
    );
    let detail = |at: usize| paired.faults[at].detail.as_str();
    assert!(detail(0).ends_with("candidate.jsonl:1: 0.5 is neither right nor wrong"));
    assert!(detail(1).ends_with("candidate.jsonl:2: NaN is neither right nor wrong"));
    // Only `h` is a pair: the blank at its end makes no difference.
    assert_eq!(counts(&paired), (1, 0));
    assert_eq!(paired.cases.iter().filter(|case| case.is_pair()).count(), 1);
}

#[test]
fn prompts_that_differ_are_a_conflict() {
    let with_prompt = |hash: &str| {
        let mut line = line(0, "a", json!(1));
        line["prompt_hash"] = json!(hash);
        lines(&[line])
    };
    let folder = Folder::new();
    let logs = folder.lm_eval(with_prompt("x").as_bytes(), with_prompt("y").as_bytes());
    let paired = pair(&logs.unwrap()).unwrap();
    assert_eq!(kinds(&paired), [("0", FaultKind::Conflict)]);
    assert!(paired.faults[0].detail.starts_with("the prompts differ"));
}

#[test]
fn tables_pair_by_content_or_by_ids() {
    let folder = Folder::new();
    let pair_of = |native: &str, candidate: &str| pair(&folder.csv(native, candidate).unwrap());
    let ids = pair_of("case,correct\na,1\nb,true\n", "case,correct\nb,0\na,1.0\n").unwrap();
    assert_eq!((ids.pairing, counts(&ids)), (Pairing::Ids, (1, 0)));
    assert_eq!(ids.case_set_sha256[0], ids.case_set_sha256[1]);

    let digest = crate::schema::sha256_hex(b"How many?");
    let text = "case,correct,content,gold\nx,1,\"How many?\r\n\",4\n";
    let content = pair_of(
        text,
        &format!("case,correct,content,gold\nx,0,{digest},4\n"),
    )
    .unwrap();
    assert_eq!(
        (content.pairing, counts(&content)),
        (Pairing::Content, (1, 0))
    );
    assert!(
        content.cases[0]
            .content
            .as_ref()
            .unwrap()
            .question
            .is_some()
    );

    let other = pair_of("case,correct\na,1\n", "case,correct\nb,1\n").unwrap();
    assert_eq!(
        kinds(&other),
        [("a", FaultKind::Missing), ("b", FaultKind::Missing)]
    );
    assert_ne!(other.case_set_sha256[0], other.case_set_sha256[1]);

    let errored = pair_of(
        "case,correct,error\na,,timeout\nb,,\n",
        "case,correct\na,1\nb,1\n",
    );
    let errored = errored.unwrap();
    assert_eq!(
        kinds(&errored),
        [("a", FaultKind::Errored), ("b", FaultKind::Unscored)]
    );

    let mixed = pair_of("case,correct,content\na,1,q\n", "case,correct\na,1\n").unwrap_err();
    assert!(
        mixed.to_string().contains("a case without content"),
        "{mixed}"
    );
}
