//! `kvassay panel` through the binary.

use std::fs;

use crate::tiny::Tiny;
use assert_cmd::Command;
use predicates::str::contains;
use serde_json::Value;

fn panel(tiny: &Tiny, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("kvassay").unwrap();
    command
        .current_dir(tiny.path("."))
        .env_remove("KVASSAY_DATA")
        .arg("panel")
        .args(args);
    command
}

const BUILD: [&str; 7] = [
    "build",
    "--model",
    "tiny-llama",
    "--protocol",
    "tiny.json",
    "--data",
    "data",
];

#[test]
fn panels_are_built_once_and_never_replaced() {
    let tiny = Tiny::new();
    let args = [&BUILD[..], &["--out", "panels", "--format", "json"]].concat();
    let output = panel(&tiny, &args).assert().code(0);
    let built: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(built["schema"], "kvassay.panel-build/1");
    let names: Vec<&str> = built["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["panel"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["math", "nll-64", "retrieval-768", "calibration"]);
    let math = tiny.path("panels/math.jsonl");
    let bytes = fs::read(&math).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 5);

    // Again: the same files.
    panel(&tiny, &args).assert().code(0);
    assert_eq!(fs::read(&math).unwrap(), bytes);

    // A file that is another panel is refused and kept.
    fs::write(&math, "mine\n").unwrap();
    panel(&tiny, &args)
        .assert()
        .code(2)
        .stderr(contains("math.jsonl: SHA-256: found "));
    assert_eq!(fs::read(&math).unwrap(), b"mine\n");

    let into_a_file = [&BUILD[..], &["--out", "tiny.json"]].concat();
    panel(&tiny, &into_a_file)
        .assert()
        .code(2)
        .stderr(contains("--out tiny.json: found a file, expected a folder"));
}

#[test]
fn tasks_are_listed_with_their_data() {
    let tiny = Tiny::new();
    panel(
        &tiny,
        &["list", "--protocol", "tiny.json", "--data", "data"],
    )
    .assert()
    .code(0)
    .stdout(contains("gsm8k/1 (math)"))
    .stdout(contains("gsm8k/questions.jsonl  unpinned  "))
    .stdout(contains("retrieval-768"));
    fs::remove_dir_all(tiny.path("data/gsm8k")).unwrap();
    panel(&tiny, &["list", "--data", "data"])
        .assert()
        .code(0)
        .stdout(contains("no data: task gsm8k: data/gsm8k: found none"));
    panel(&tiny, &[&BUILD[..], &["--out", "panels"]].concat())
        .assert()
        .code(2)
        .stderr(contains("found none of its source files"));
    assert!(!tiny.path("panels").exists());
    panel(&tiny, &["list", "--data", "nowhere"])
        .assert()
        .code(2)
        .stderr(contains("nowhere"));
}
