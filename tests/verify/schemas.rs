//! `kvassay verify --schema-only`: every stored file of a run has the form that its JSON Schema
//! describes, and strangers' files are pointed at.

use std::fs;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::files;
use crate::synthetic::Synthetic;

fn command(synthetic: &Synthetic, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    kvassay
        .current_dir(synthetic.root())
        .args(["verify", "--schema-only"])
        .args(args)
        .assert()
}

#[test]
fn every_file_of_a_run_is_valid() {
    let synthetic = Synthetic::new();
    let mut kinds = std::collections::BTreeSet::new();
    for name in files(&synthetic.run())
        .iter()
        .filter(|name| *name != "run.lock")
    {
        let assert = command(&synthetic, &[&format!("run/{name}")]).code(0);
        let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
        assert!(text.starts_with("valid: "), "{text}");
        let kind = text.split("docs/schemas/").nth(1).unwrap();
        kinds.insert(kind.split('.').next().unwrap().to_owned());
    }
    let expected = [
        "arm-start",
        "calibration",
        "certificate",
        "engagement",
        "manifest",
        "panel-case",
        "record",
        "resources",
    ];
    assert!(kinds.iter().map(String::as_str).eq(expected), "{kinds:?}");
    let protocol = concat!(env!("CARGO_MANIFEST_DIR"), "/protocols/reference.toml");
    command(&synthetic, &[protocol])
        .code(0)
        .stdout(contains("docs/schemas/protocol.json"));
}

#[test]
fn each_violation_has_its_json_pointer() {
    let synthetic = Synthetic::new();
    let kept = synthetic.kept("AD");
    let mut tree: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    tree["objectives"]["preservation"]["rules"][2]["bound"] = "1%".into();
    tree["evidence"][0]["sha256"] = "abc".into();
    tree["colour"] = 1.into();
    tree.as_object_mut().unwrap().remove("memory");
    fs::write(&kept, tree.to_string()).unwrap();
    command(&synthetic, &["kept/AD.json"])
        .code(2)
        .stdout(contains(
            "INVALID: kept/AD.json against docs/schemas/certificate.json: 4 found",
        ))
        .stdout(contains(
            "#/objectives/preservation/rules/2/bound: found 1%, but",
        ))
        .stdout(contains("#/evidence/0/sha256: found abc, but"))
        .stdout(contains("colour").and(contains("memory")));
    let assert = command(&synthetic, &["kept/AD.json", "--format", "json"]).code(2);
    let found: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(found["verified"], false);
    assert_eq!(found["mismatches"].as_array().unwrap().len(), 4);
}

#[test]
fn records_and_panels_are_named_by_line() {
    let synthetic = Synthetic::new();
    let path = synthetic.run().join("arms/AD/math.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let spoiled = text.replacen("\"stop\"", "\"tired\"", 1) + "{\"torn\n{\"case\":1,\"case\":2}\n";
    fs::write(&path, spoiled).unwrap();
    command(&synthetic, &["run/arms/AD/math.jsonl"])
        .code(2)
        .stdout(contains("  line 1: #/finish: found tired, but"))
        .stdout(contains("  line 7: #: found {\"torn, but"))
        .stdout(contains("  line 8: ").and(contains("`case` a second time")));
    let path = synthetic.run().join("panels/math.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"kind\":\"math\"", "\"kind\":\"poem\"", 1),
    )
    .unwrap();
    command(&synthetic, &["run/panels/math.jsonl"])
        .code(2)
        .stdout(contains("  line 2: #"));
}

#[test]
fn what_declares_no_schema_is_refused() {
    let synthetic = Synthetic::new();
    for (text, message) in [
        (
            "{}",
            "schema: found none, expected one of kvassay.certificate/1, ",
        ),
        ("[1]", "schema: found none"),
        (
            "{\"schema\":\"kvassay.certificate/2\"}",
            "found `kvassay.certificate/2`",
        ),
        ("{\"schema\":1,\"schema\":2}", "`schema` a second time"),
        ("", "EOF"),
    ] {
        fs::write(synthetic.root().join("strange.json"), text).unwrap();
        command(&synthetic, &["strange.json"])
            .code(2)
            .stderr(contains(message).and(contains("strange.json")));
    }
    fs::write(synthetic.root().join("strange.toml"), "a = = 1").unwrap();
    command(&synthetic, &["strange.toml"])
        .code(2)
        .stderr(contains("strange.toml"));
}
