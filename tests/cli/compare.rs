//! `kvassay compare` through the binary: runs of a tiny model whose answers are then written anew,
//! so that there is something to compare.

use std::fs;
use std::path::Path;

use kvassay::schema::sha256_hex;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::tiny::Tiny;

/// Two declared models, two declared contrasts of three candidates.
fn protocol() -> Value {
    let mut protocol = crate::tiny::protocol();
    protocol["models"] = json!([{"name": "tiny-llama"}, {"name": "tiny-other"}]);
    protocol["candidates"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "RD", "spec": "k=e4m3:dynamic,v=native"}));
    protocol["contrasts"] = json!(["AF-SD", "AF-RD"]);
    protocol["panels"][0]["cases"] = 6.into();
    for rule in ["gross_loss", "net_change", "nll", "retrieval"] {
        protocol["rules"][rule]["divisor"] = 12.into();
    }
    protocol
}

/// Rewrites every record of an arm on a panel, given its number and its case in the panel.
fn rewrite(run: &Path, arm: &str, panel: &str, change: impl Fn(usize, &Value, &mut Value)) {
    let cases = fs::read_to_string(run.join(format!("panels/{panel}.jsonl"))).unwrap();
    let path = run.join(format!("arms/{arm}/{panel}.jsonl"));
    let mut text = String::new();
    let records = fs::read_to_string(&path).unwrap();
    for (at, (line, case)) in records.lines().zip(cases.lines().skip(1)).enumerate() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        change(at, &serde_json::from_str(case).unwrap(), &mut record);
        text += &format!("{record}\n");
    }
    fs::write(path, text).unwrap();
}

/// Answers the first `right` cases of an arm rightly and the others wrongly.
fn answer(run: &Path, arm: &str, panel: &str, right: usize) {
    rewrite(run, arm, panel, |at, case, record| {
        let is_right = at < right;
        let gold = case["gold"].as_str().unwrap();
        let given = if is_right { gold } else { "77777" };
        record["output"] = given.into();
        record["finish"] = "stop".into();
        record["correct"] = is_right.into();
        if panel == "math" {
            record["answer"] = given.into();
            for score in record["secondary"].as_object_mut().unwrap().values_mut() {
                *score = is_right.into();
            }
        }
    });
}

/// Mean NLL of 2 nats in the first document, growing by a quarter, plus `more`.
fn nll(run: &Path, arm: &str, more: f64) {
    rewrite(run, arm, "nll-64", |at, _, record| {
        let targets = record["targets"].as_f64().unwrap();
        record["nll_sum"] = (targets * (2.0 + 0.25 * at as f64 + more)).into();
    });
}

/// A finished run whose arms give what a reader can check: AF answers all of 6 questions, SD none.
fn finished() -> Tiny {
    let tiny = Tiny::new();
    fs::write(tiny.protocol(), protocol().to_string()).unwrap();
    tiny.command("qualify")
        // Answers are rewritten below: verified ones would differ from those generated plainly.
        .args(["--out", "one", "--plain"])
        .assert()
        .code(0);
    let run = tiny.path("one");
    for (arm, right, more) in [
        ("native", 6, 0.0),
        ("native-aa", 6, 0.0),
        ("AF", 6, 0.0),
        ("RD", 5, 0.125),
        ("SD", 0, 0.0),
    ] {
        answer(&run, arm, "math", right);
        answer(&run, arm, "retrieval-768", 3);
        nll(&run, arm, more);
    }
    tiny
}

/// Copies a run and changes its manifest.
fn copy(tiny: &Tiny, to: &str, change: impl Fn(&mut Value)) {
    fn copy_dir(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.path().is_dir() {
                copy_dir(&entry.path(), &target);
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    copy_dir(&tiny.path("one"), &tiny.path(to));
    let path = tiny.path(to).join("run.json");
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

/// The run of the other declared model.
fn copy_other(tiny: &Tiny) {
    let weights = sha256_hex(format!("{}\n", "12".repeat(32)).as_bytes());
    copy(tiny, "two", |manifest| {
        manifest["model"]["name"] = "tiny-other".into();
        let files = manifest["model"]["files"].as_array_mut().unwrap();
        let mut files = files.iter_mut();
        let own = files.find(|file| file["path"] == "model.safetensors");
        own.unwrap()["sha256"] = "12".repeat(32).into();
        manifest["model"]["weights_sha256"] = weights.clone().into();
    });
    let path = tiny.path("two/calibration.json");
    let mut calibration: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    calibration["model"] = "tiny-other".into();
    calibration["weights_sha256"] = weights.into();
    fs::write(path, calibration.to_string()).unwrap();
}

fn compare(tiny: &Tiny, args: &[&str]) -> (i32, String, String) {
    let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    let output = kvassay
        .current_dir(tiny.path("."))
        .arg("compare")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn document(tiny: &Tiny, args: &[&str], code: i32) -> Value {
    let (found, stdout, stderr) = compare(tiny, &[args, &["--format", "json"]].concat());
    assert_eq!(found, code, "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["schema"], "kvassay.compare/1");
    assert_eq!(document["exit"], code);
    document
}

/// Digests of the tiny world, named.
fn named(tiny: &Tiny, text: &str) -> String {
    let manifest = fs::read_to_string(tiny.path("one/run.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut text = text.to_owned();
    for (digest, name) in [
        (&manifest["protocol_sha256"], "<protocol>"),
        (&manifest["model"]["weights_sha256"], "<weights>"),
    ] {
        let digest = digest.as_str().unwrap();
        text = text.replace(digest, name).replace(&digest[..12], name);
    }
    text
}

#[test]
fn both_models_make_the_family_whole() {
    let tiny = finished();
    copy_other(&tiny);
    let (code, text, stderr) = compare(&tiny, &["one", "two/"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    insta::assert_snapshot!("compare_text", named(&tiny, &text));

    let whole = document(&tiny, &["one", "two"], 0);
    insta::assert_snapshot!(
        "compare_json",
        named(&tiny, &serde_json::to_string_pretty(&whole).unwrap())
    );

    // A filter shows less and changes nothing.
    let some = document(&tiny, &["one", "two", "--contrast", "AF-SD"], 0);
    for (all, few) in whole["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .zip(some["endpoints"].as_array().unwrap())
    {
        let all = all["contrasts"].as_array().unwrap();
        let few = few["contrasts"].as_array().unwrap();
        assert_eq!((all.len(), few.len()), (4, 2));
        assert!(few.iter().all(|row| all.contains(row)));
    }
}

#[test]
fn what_is_missing_is_listed_and_ends_with_3() {
    let tiny = finished();
    let (code, text, _) = compare(
        &tiny,
        &["one", "--contrast", "AF-SD", "--contrast", "SD-RD"],
    );
    assert_eq!(code, 3);
    insta::assert_snapshot!("compare_missing", named(&tiny, &text));

    let found = document(&tiny, &["one"], 3);
    let math = &found["endpoints"][0];
    assert_eq!(
        (&math["family_size"], &math["family_missing"]),
        (&4.into(), &2.into())
    );
    assert_eq!(math["contrasts"][0]["adjusted_p"], 4.0 * 0.03125);
    assert_eq!(found["missing"].as_array().unwrap().len(), 6);
    assert_eq!(found["missing"][0]["reason"], "run_not_given");

    // A contrast outside of the family, on evidence that is complete, is what was asked for.
    let asked = document(&tiny, &["one", "--contrast", "native-SD"], 0);
    let row = &asked["endpoints"][0]["contrasts"][0];
    assert_eq!(
        (&row["declared"], &row["adjusted_p"]),
        (&false.into(), &Value::Null)
    );

    copy_other(&tiny);
    let path = tiny.path("two/arms/AF/nll-64.jsonl");
    let records = fs::read_to_string(&path).unwrap();
    fs::write(&path, records.lines().next().unwrap().to_owned() + "\n").unwrap();
    let found = document(&tiny, &["one", "two"], 3);
    let reasons: Vec<&Value> = found["missing"].as_array().unwrap().iter().collect();
    assert_eq!(reasons.len(), 2);
    assert_eq!(reasons[0]["reason"], "missing_records");
    assert_eq!(reasons[0]["run"], "two");
}

#[test]
fn runs_and_contrasts_that_do_not_fit_are_refused() {
    let tiny = finished();
    copy(&tiny, "elsewhere", |manifest| {
        manifest["protocol"]["seed"] = 12.into();
        manifest["protocol_sha256"] = "34".repeat(32).into();
    });
    copy_other(&tiny);
    rewrite(&tiny.path("two"), "SD", "math", |_, _, record| {
        record["correct"] = true.into();
    });
    let refused = |args: &[&str], expected: i32, parts: &[&str]| {
        let (code, stdout, stderr) = compare(&tiny, args);
        assert_eq!((code, stdout.as_str()), (expected, ""), "{stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    };
    let digest = "34".repeat(32);
    refused(
        &["one", "elsewhere"],
        2,
        &["one/run.json", "elsewhere/run.json", &digest],
    );
    refused(&["one", "one"], 2, &["tiny-llama is given twice"]);
    tiny.kvassay()
        .args(["report", "one", "one", "--out", "page.html"])
        .assert()
        .code(2)
        .stderr(contains(
            "one/run.json, one/run.json: model tiny-llama is given twice",
        ));
    assert!(!tiny.path("page.html").exists());
    refused(&["one", "nowhere"], 2, &["nowhere"]);
    let arms = "native, AF, SD, RD";
    refused(&["one", "--contrast", "AF-XX"], 2, &["`AF-XX`", arms]);
    refused(&["one", "--contrast", "AF-AF"], 2, &["`AF-AF`", arms]);
    // The digest is not that of the protocol; an output contradicts its record.
    refused(&["elsewhere"], 5, &["elsewhere", "protocol_sha256"]);
    refused(&["one", "two"], 5, &["two", "arm SD, panel math"]);
    // Native that differs from native.
    nll(&tiny.path("one"), "native-aa", 0.5);
    refused(&["one"], 4, &["one", "A/A difference"]);
}

#[test]
fn help_compare() {
    let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    let output = kvassay.args(["compare", "--help"]).output().unwrap();
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
    let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    kvassay.arg("compare").assert().code(2).stdout("");
}
