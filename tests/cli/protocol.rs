//! `kvassay protocol new`, and protocol files through the binary.

use std::fs;
use std::path::Path;

use kvassay::schema::{Protocol, builtin_protocol};
use serde_json::Value;

use crate::command::{kvassay, stderr, stdout};
use crate::tiny::Tiny;

/// Everything declared anew, in the order of the options.
const DECLARED: [&str; 46] = [
    "--name",
    "ours",
    "--model",
    "llama-8b=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "--model",
    "qwen-8b",
    "--candidate",
    "AD",
    "--candidate",
    "edges=k=e4m3:fixed,v=e4m3:fixed,skip-layers=-1,0",
    "--candidate",
    "k=native,v=int8",
    "--control",
    "native",
    "--objective",
    "aggregate",
    "--contrast",
    "AD-edges",
    "--panel",
    "math:cases=500",
    "--panel",
    "nll:length=2k,documents=32,targets=64",
    "--panel",
    "retrieval:length=4k,cases=300,max_new_tokens=12",
    "--panel",
    "retrieval:length=1k,cases=20",
    "--calibration",
    "4:1k,2k:16",
    "--family-alpha",
    "0.1",
    "--divisor",
    "nll=8",
    "--divisor",
    "retrieval=12",
    "--limit",
    "net_change=-1.5pp",
    "--limit",
    "retrieval=3%",
    "--limit",
    "nll=0.7%",
    "--seed",
    "7",
    "--description",
    "Two models, three recipes",
    "--required",
    "aggregate",
];

fn new(out: &Path, args: &[&str]) -> Vec<String> {
    let mut all = vec!["protocol".to_owned(), "new".to_owned()];
    all.extend(["--out".to_owned(), out.to_str().unwrap().to_owned()]);
    all.extend(args.iter().map(|&arg| arg.to_owned()));
    all
}

fn printed(out: &Path, args: &[&str]) -> String {
    let all = new(out, args);
    let text = stdout(&all.iter().map(String::as_str).collect::<Vec<_>>());
    text.replace(out.parent().unwrap().to_str().unwrap(), "DIR")
}

fn refusal(out: &Path, args: &[&str]) -> String {
    let all = new(out, args);
    let text = stderr(&all.iter().map(String::as_str).collect::<Vec<_>>());
    text.replace(out.parent().unwrap().to_str().unwrap(), "DIR")
}

#[test]
fn everything_can_be_declared_and_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let toml = dir.path().join("ours.toml");
    insta::assert_snapshot!("protocol_new_text", printed(&toml, &DECLARED));
    let text = fs::read_to_string(&toml).unwrap();
    insta::assert_snapshot!("protocol_new_toml", text);
    let json = dir.path().join("ours.json");
    let args = [&DECLARED[..], &["--format", "json"]].concat();
    let document: Value = serde_json::from_str(&printed(&json, &args)).unwrap();
    assert_eq!(document["file"], "DIR/ours.json");
    insta::assert_snapshot!(
        "protocol_new_json",
        serde_json::to_string_pretty(&document).unwrap()
    );
    let text = fs::read_to_string(&json).unwrap();
    assert!(text.ends_with("}\n"));
    let first = Protocol::from_json(&text).unwrap();
    let second = Protocol::from_toml(&fs::read_to_string(&toml).unwrap()).unwrap();
    assert_eq!(first, second);
    assert_eq!(document["sha256"], second.sha256().unwrap());
    // Nothing but the two files is left behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    let shown = stdout(&["protocol", "show", toml.to_str().unwrap()]);
    assert!(printed(&dir.path().join("b.toml"), &DECLARED).ends_with(&shown));
}

#[test]
fn what_is_not_declared_is_taken_over_divisors_where_the_family_is_as_large() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    printed(&path, &["--name", "mine"]);
    let mine = Protocol::from_toml(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut expected = builtin_protocol("reference").unwrap();
    expected.name.clone_from(&mine.name);
    expected.description.clone_from(&mine.description);
    assert_eq!(mine, expected);
    assert!(
        !mine.description.contains("divisors"),
        "{}",
        mine.description
    );

    // From a file; one candidate has no contrast with those of before.
    let other = dir.path().join("other.json");
    let from = path.to_str().unwrap();
    printed(
        &other,
        &["--name", "other", "--from", from, "--candidate", "SD"],
    );
    let other = Protocol::from_json(&fs::read_to_string(&other).unwrap()).unwrap();
    assert!(other.contrasts.is_empty());
    assert_eq!(other.rules.gross_loss.divisor, 2);
    assert_eq!(other.rules.nll.divisor, 1);
    let said = "as in mine, but for divisors, which are the least of this family";
    assert!(other.description.contains(said), "{}", other.description);
}

/// Digests of the panels of `--from` say nothing of panels that are declared anew.
#[test]
fn frozen_panels_go_with_the_panels_that_they_froze() {
    let dir = tempfile::tempdir().unwrap();
    let frozen = |name: &str, changes: &[&str]| {
        let out = dir.path().join(format!("{name}.json"));
        let mut args = vec!["--name", name, "--from", "demo"];
        args.extend(changes);
        printed(&out, &args);
        let protocol: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
        let digests = protocol.get("frozen_panels").and_then(Value::as_array);
        digests.map_or(0, Vec::len)
    };
    assert_eq!(frozen("same", &[]), 12);
    assert_eq!(frozen("limits", &["--limit", "gross_loss=3%"]), 12);
    assert_eq!(
        frozen("panels", &["--panel", "math:cases=50,task=demo-math"]),
        0
    );
    assert_eq!(frozen("seed", &["--seed", "5"]), 0);
    assert_eq!(frozen("calibration", &["--calibration", "checkpoint"]), 0);
}

#[test]
fn what_cannot_be_declared_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.toml");
    let name = ["--name", "x"];
    let with = |args: &[&str]| refusal(&out, &[&name[..], args].concat());
    let mut messages = vec![
        refusal(&out, &["--name", "smoke"]),
        refusal(&dir.path().join("x.yaml"), &name),
        refusal(&dir.path().join("absent/x.toml"), &name),
        refusal(&out, &["--name", "a/b"]),
    ];
    for args in [
        &["--from", "refrence"][..],
        &["--model", "m=nowhere"],
        &["--model", "src/lib.rs"],
        &["--model", "m", "--model", "m"],
        &["--model", "other=fixtures/demo/tolerant"],
        &["--candidate", "k=fp8,v=native"],
        &["--candidate", "mine=k=fp8,v=native"],
        &["--candidate", "mine=AF"],
        &["--candidate", "native"],
        &["--candidate", "AF", "--candidate", "AF"],
        &["--candidate", "AF", "--contrast", "AF-SF"],
        &["--control", "AF"],
        &["--objective", "preservation", "--required", "aggregate"],
        &["--contrast", "AF-RF", "--contrast", "RF-AF"],
        &["--panel", "math:cases=0"],
        &["--panel", "math:cases=9", "--panel", "math:cases=8"],
        &["--panel", "math:cases=9,task=needle"],
        &["--panel", "nll:length=64,documents=9"],
        &["--calibration", "0:1k:16"],
        &["--divisor", "gross_loss=11"],
        &["--divisor", "nll=9", "--divisor", "nll=9"],
        &["--limit", "retrieval=100%"],
        &["--seed", "9223372036854775808"],
        &["--description", " "],
    ] {
        messages.push(with(args));
    }
    // clap's own words stand around these.
    for args in [
        ["--panel", "math"],
        ["--family-alpha", "0.6"],
        ["--family-alpha", "nan"],
        ["--limit", "net_change=1pp"],
        ["--divisor", "losses=1"],
        ["--seed", "-1"],
    ] {
        let text = with(&args);
        messages.push(text.lines().next().unwrap().to_owned() + "\n");
    }
    insta::assert_snapshot!("protocol_new_refusals", messages.join("\n"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_is_replaced_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.toml");
    fs::write(&path, "notes").unwrap();
    let message = refusal(&path, &["--name", "x"]);
    assert!(message.contains("expected none, or --force"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    printed(&path, &["--name", "x", "--force"]);
    assert!(Protocol::from_toml(&fs::read_to_string(&path).unwrap()).is_ok());
    // A folder cannot be replaced.
    let folder = dir.path().join("y.toml");
    fs::create_dir(&folder).unwrap();
    let all = new(&folder, &["--name", "y", "--force"]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    kvassay(&all).assert().code(2).stdout("");
    assert!(folder.is_dir());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn other_rules_under_the_name_of_a_builtin_protocol_are_refused() {
    let tiny = Tiny::new();
    let path = tiny.path("smoke.json");
    let mut protocol = builtin_protocol("smoke").unwrap();
    let stands = protocol.sha256().unwrap();
    fs::write(&path, serde_json::to_string(&protocol).unwrap()).unwrap();
    stdout(&["protocol", "show", path.to_str().unwrap()]);

    protocol.rules.gross_loss.limit = 0.2;
    let found = protocol.sha256().unwrap();
    fs::write(&path, serde_json::to_string(&protocol).unwrap()).unwrap();
    let shown = stderr(&["protocol", "show", path.to_str().unwrap()]);
    let mut qualify = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    let assert = qualify
        .current_dir(tiny.path("."))
        .args(["qualify", "--model", "tiny-llama", "--data", "data"])
        .args(["--protocol", "smoke.json", "--out", "run"])
        .assert()
        .code(2)
        .stdout("");
    let qualified = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    for message in [shown, qualified] {
        assert!(message.contains("same name, other rules"), "{message}");
        assert!(
            message.contains(&stands) && message.contains(&found),
            "{message}"
        );
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    }
    assert!(!tiny.path("run").exists());
}

#[test]
fn files_beyond_measure_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    let message = stderr(&["protocol", "show", path.to_str().unwrap()]);
    assert!(message.contains("found 1048577 bytes"), "{message}");
    fs::write(&path, [0xff, 0xfe, b'a', 0]).unwrap();
    let message = stderr(&["protocol", "show", path.to_str().unwrap()]);
    assert!(message.contains("UTF-8"), "{message}");
}

#[test]
fn help() {
    insta::assert_snapshot!("protocol_new_help", stdout(&["protocol", "new", "--help"]));
}

#[test]
fn resource_limits_are_declared_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limited.toml");
    let file = path.to_str().unwrap();
    let text = stdout(&[
        "protocol",
        "new",
        "--name",
        "limited",
        "--out",
        file,
        "--peak-memory",
        "76GiB",
        "--sample-gap",
        "500",
    ]);
    let expected = "every arm: at most 76 GiB of device memory in use, at most 500 ms between two \
                    samples of it\n";
    assert!(text.contains(expected), "{text}");
    let protocol = Protocol::from_toml(&fs::read_to_string(&path).unwrap()).unwrap();
    let limits = protocol.resource_limits.unwrap();
    assert_eq!(limits.peak_device_bytes, Some(76 << 30));
    assert_eq!(limits.largest_sample_gap_ms, Some(500));
    // What is not given anew stays.
    let second = dir.path().join("second.json");
    let text = stdout(&[
        "protocol",
        "new",
        "--name",
        "second",
        "--from",
        file,
        "--out",
        second.to_str().unwrap(),
        "--sample-gap",
        "100",
    ]);
    assert!(
        text.contains("76 GiB") && text.contains("at most 100 ms"),
        "{text}"
    );
}
