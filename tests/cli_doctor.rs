//! `doctor` through the binary: it answers on every machine.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

use assert_cmd::Command;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> String {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let assert = kvassay.arg("doctor").args(arguments).assert().code(0);
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

/// Every check says what was found or what is missing, and the verdict follows from the last one.
#[test]
fn every_check_says_something() {
    let report: Value = serde_json::from_str(&doctor(&["--format", "json"])).unwrap();
    assert_eq!(report["schema"], "kvassay.doctor/1");
    let checks = report["checks"].as_array().unwrap();
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    for name in [
        "driver",
        "compiler",
        "matrix products",
        "kernel self-test",
        "embedded kernels",
    ] {
        assert!(!check(name)["found"].as_str().unwrap().is_empty(), "{name}");
    }
    assert_eq!(check("cpu worker")["ok"], true);
    assert_eq!(report["cuda"], check("kernel self-test")["ok"]);
}

#[test]
fn text_names_the_worker() {
    let text = doctor(&[]);
    assert!(
        text.contains("The built-in worker of this machine is c"),
        "{text}"
    );
}

#[test]
fn a_missing_model_is_bad_input() {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let arguments = ["doctor", "--model", "nowhere"];
    kvassay.args(arguments).assert().code(2).stdout("");
}
