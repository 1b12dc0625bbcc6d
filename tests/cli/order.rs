//! Protocols and records: which came first, through the binary, on a tiny model with random
//! weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kvassay::schema::{Protocol, canonical_sha256};
use serde_json::Value;

use crate::command::{in_tiny_world, json};
use crate::tiny::Tiny;

#[test]
fn on_a_finished_run() {
    crate::tiny::on_a_finished_run(&[
        every_arm_says_which_protocol_stood_before_its_first_record,
        a_protocol_edited_in_the_run_is_caught,
        a_run_without_proof_of_order_is_descriptive_resumed_or_not,
        a_resume_under_a_changed_protocol_names_both_digests,
        another_protocol_judges_without_touching_the_run,
    ]);
}

/// Verdict, reason and detail of preservation in the one certificate of a JSON summary.
fn preservation(summary: &str) -> (String, String, String) {
    let summary: Value = serde_json::from_str(summary).unwrap();
    let result = &summary["certificates"][0]["objectives"]["preservation"];
    let text = |key: &str| result[key].as_str().unwrap().to_owned();
    (text("verdict"), text("reason"), text("detail"))
}

fn certified(tiny: &Tiny, more: &[&str]) -> (String, String, String) {
    let args = [&["certify", "run", "--format", "json"], more].concat();
    let (code, out, err) = in_tiny_world(tiny, &args);
    assert_eq!(code, 0, "{err}");
    preservation(&out)
}

/// Loosens a limit in the run's manifest; the digest is redone where `redo` says so.
fn edit_manifest(tiny: &Tiny, redo: bool) -> (String, String) {
    let path = tiny.path("run/run.json");
    let mut manifest = json(&path);
    let before = manifest["protocol_sha256"].as_str().unwrap().to_owned();
    manifest["protocol"]["rules"]["gross_loss"]["limit"] = 0.9.into();
    let protocol: Protocol = serde_json::from_value(manifest["protocol"].clone()).unwrap();
    let after = canonical_sha256(&protocol).unwrap();
    if redo {
        manifest["protocol_sha256"] = after.clone().into();
    }
    fs::write(&path, serde_json::to_string_pretty(&manifest).unwrap()).unwrap();
    (before, after)
}

fn every_arm_says_which_protocol_stood_before_its_first_record(tiny: &Tiny) {
    let digest = json(&tiny.path("run/run.json"))["protocol_sha256"].clone();
    for arm in ["native", "native-aa", "SD"] {
        let start = json(&tiny.path(&format!("run/arms/{arm}/start.json")));
        assert_eq!(start["schema"], "kvassay.arm-start/1");
        assert_eq!(start["protocol_sha256"], digest);
        assert_eq!(start["protocol"], "tiny");
    }
    let certificate = json(&tiny.path("run/certificates/SD.json"));
    let evidence = certificate["evidence"].to_string();
    assert_eq!(evidence.matches("/start.json").count(), 3, "{evidence}");
}

fn a_protocol_edited_in_the_run_is_caught(tiny: &Tiny) {
    let (before, after) = edit_manifest(tiny, false);
    let (code, out, err) = in_tiny_world(tiny, &["certify", "run"]);
    assert_eq!((code, out.as_str()), (5, ""), "{err}");
    assert!(err.contains("protocol_sha256") && err.contains(&before) && err.contains(&after));

    let (before, after) = edit_manifest(tiny, true);
    let (verdict, reason, detail) = certified(tiny, &[]);
    assert_eq!(
        (verdict.as_str(), reason.as_str()),
        ("descriptive", "protocol_changed")
    );
    assert!(
        detail.contains(&before) && detail.contains(&after),
        "{detail}"
    );

    // The same edit in the protocol file as well: a resume does not go on either.
    let mut protocol = crate::tiny::protocol();
    protocol["rules"]["gross_loss"]["limit"] = 0.9.into();
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
    let assert = tiny
        .command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(2)
        .stdout("");
    let err = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(err.contains("arms/native/start.json"), "{err}");
    assert!(err.contains(&before) && err.contains(&after), "{err}");
}

fn a_run_without_proof_of_order_is_descriptive_resumed_or_not(tiny: &Tiny) {
    fs::remove_file(tiny.path("run/arms/native/start.json")).unwrap();
    let (verdict, reason, detail) = certified(tiny, &[]);
    assert_eq!(
        (verdict.as_str(), reason.as_str()),
        ("descriptive", "protocol_unproved")
    );
    assert!(detail.contains("arm native"), "{detail}");
    tiny.command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(1);
    assert_eq!(certified(tiny, &[]).1, "protocol_unproved");
}

fn a_resume_under_a_changed_protocol_names_both_digests(tiny: &Tiny) {
    let digest = |value: &Value| {
        let protocol: Protocol = serde_json::from_value(value.clone()).unwrap();
        protocol.sha256().unwrap()
    };
    let before = digest(&crate::tiny::protocol());
    let mut protocol = crate::tiny::protocol();
    protocol["rules"]["retrieval"]["limit"] = 0.06.into();
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
    let run = fs::read(tiny.path("run/run.json")).unwrap();
    let assert = tiny
        .command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(2)
        .stdout("");
    let err = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    for part in ["run.json", &before, &digest(&protocol), "start another run"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert_eq!(fs::read(tiny.path("run/run.json")).unwrap(), run);
}

fn another_protocol_judges_without_touching_the_run(tiny: &Tiny) {
    let mut other = crate::tiny::protocol();
    other["name"] = "later".into();
    other["rules"]["gross_loss"]["limit"] = 0.9.into();
    fs::write(tiny.path("later.json"), other.to_string()).unwrap();
    let before = files(&tiny.path("run"));
    let under = ["--protocol", "later.json"];
    let (verdict, reason, detail) = certified(tiny, &under);
    assert_eq!(
        (verdict.as_str(), reason.as_str()),
        ("descriptive", "protocol_after_records")
    );
    assert!(detail.contains("under later"), "{detail}");
    let (code, text, _) = in_tiny_world(tiny, &["certify", "run", "--protocol", "later.json"]);
    assert_eq!(code, 0);
    assert!(text.contains("protocol later"), "{text}");
    assert!(text.contains("certificates: printed only"), "{text}");

    // The run's own protocol is no exception: it is asked for after the records.
    assert_eq!(
        certified(tiny, &["--protocol", "tiny.json"]).1,
        "protocol_after_records"
    );

    let own = ["certify", "run", "--protocol", "tiny.json", "--out", "own"];
    assert_eq!(in_tiny_world(tiny, &own).0, 0);
    let verify = ["verify", "own/SD.json", "--run", "run"];
    let (code, out, err) = in_tiny_world(tiny, &verify);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("expected --protocol"), "{err}");
    let under_own = [&verify[..], &["--protocol", "tiny.json"]].concat();
    assert_eq!(in_tiny_world(tiny, &under_own).0, 0);

    for inside in ["run", "run/certificates", "run/certificates/later"] {
        let args = [
            "certify",
            "run",
            "--protocol",
            "later.json",
            "--out",
            inside,
        ];
        let (code, out, err) = in_tiny_world(tiny, &args);
        assert_eq!((code, out.as_str()), (2, ""), "{inside}: {err}");
        assert!(err.contains("expected one outside of it"), "{err}");
    }
    let args = [
        "certify",
        "run",
        "--protocol",
        "later.json",
        "--out",
        "judged",
    ];
    let (code, text, _) = in_tiny_world(tiny, &args);
    assert_eq!(code, 0);
    assert!(text.contains("certificates: judged"), "{text}");
    let stored = json(&tiny.path("judged/SD.json"));
    assert_eq!(stored["protocol"]["name"], "later");
    let (code, _, err) = in_tiny_world(tiny, &args);
    assert_eq!(code, 2);
    assert!(err.contains("SD.json"), "{err}");

    // It is verified under its own protocol, and under no other.
    let verify = |more: &[&str]| {
        let args = [&["verify", "judged/SD.json", "--run", "run"][..], more].concat();
        in_tiny_world(tiny, &args)
    };
    let (code, out, _) = verify(&under);
    assert_eq!(code, 0, "{out}");
    let (code, out, err) = verify(&[]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(
        err.contains("under protocol later") && err.contains("--protocol"),
        "{err}"
    );
    let (code, out, _) = verify(&["--protocol", "tiny.json"]);
    assert_eq!(code, 5, "{out}");
    assert!(out.contains("protocol.sha256"), "{out}");
    assert!(before == files(&tiny.path("run")), "the run was changed");
    assert_eq!(in_tiny_world(tiny, &["certify", "run", "--out", "x"]).0, 2);
}

#[test]
fn a_declared_model_is_known_by_its_weights() {
    let tiny = Tiny::new();
    let new = [
        "protocol",
        "new",
        "--name",
        "declared",
        "--from",
        "tiny.json",
        "--out",
        "declared.toml",
        "--model",
        "tiny-llama=tiny-llama",
        "--candidate",
        "mine=k=e4m3,v=e5m2",
    ];
    let (code, text, err) = in_tiny_world(&tiny, &new);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("tiny-llama  weights "), "{text}");
    let run = |out: &str| {
        let args = [
            "qualify",
            "mine",
            "--model",
            "tiny-llama",
            "--protocol",
            "declared.toml",
            "--data",
            "data",
            "--format",
            "json",
            "--out",
            out,
        ];
        let (code, summary, err) = in_tiny_world(&tiny, &args);
        assert_eq!(code, 1, "{err}");
        preservation(&summary)
    };
    let (verdict, reason, _) = run("first");
    assert_eq!(
        (verdict.as_str(), reason.as_str()),
        ("not_established", "control_too_weak")
    );
    let certificate = json(&tiny.path("first/certificates/mine.json"));
    assert_eq!(
        certificate["recipe"]["spec"],
        "k=e4m3:dynamic,v=e5m2:dynamic"
    );
    let declared = &certificate["model"]["weights_sha256"];

    // One bit of the last weight.
    let weights = tiny.path("tiny-llama/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 0x80;
    fs::write(&weights, bytes).unwrap();
    let (verdict, reason, detail) = run("second");
    assert_eq!(
        (verdict.as_str(), reason.as_str()),
        ("descriptive", "model_undeclared")
    );
    let found = json(&tiny.path("second/run.json"))["model"]["weights_sha256"].clone();
    assert_ne!(&found, declared);
    for digest in [&found, declared] {
        assert!(detail.contains(digest.as_str().unwrap()), "{detail}");
    }
}

fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}
