//! `qualify`, `certify` and `calibrate` through the binary, on a tiny model with random weights.
//!
//! Such a model answers nothing, so no recipe can hold an objective: what is tested here is that
//! the evidence is complete, the exit codes are right and nothing is written by halves.

use std::collections::BTreeMap;
use std::fs;
#[cfg(unix)]
use std::process::Stdio;
#[cfg(unix)]
use std::time::{Duration, Instant};

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::command::{in_tiny_world, json};
use crate::tiny::{Tiny, files, outcome};

#[test]
fn a_survey_issues_every_certificate_and_requires_nothing() {
    let tiny = Tiny::new();
    let assert = tiny
        .command("qualify")
        .args(["--out", "run"])
        .assert()
        .code(0);
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    assert!(text.contains("survey, nothing required"), "{text}");
    assert!(text.contains("identical bits"), "{text}");
    assert!(text.contains("cannot pass at its sizes"), "{text}");
    assert!(text.contains("control_too_weak"), "{text}");
    let run = tiny.path("run");
    for (recipe, panels) in [("AF", 3), ("SD", 3)] {
        let certificate = json(&run.join(format!("certificates/{recipe}.json")));
        assert_eq!(certificate["schema"], "kvassay.certificate/1");
        assert_eq!(
            certificate["objectives"]["preservation"]["verdict"],
            "not_established"
        );
        let rules = certificate["objectives"]["preservation"]["rules"]
            .as_array()
            .unwrap();
        assert_eq!(rules.len(), panels);
        assert_eq!(certificate["engagement"]["differs_from_native"], true);
        assert_eq!(certificate["aa"]["identical_bits"], true);
        assert_eq!(certificate["aa"]["records"], 10);
    }
    assert!(run.join("calibration.json").exists());
    for arm in ["native", "native-aa", "AF", "SD"] {
        let math = fs::read_to_string(run.join(format!("arms/{arm}/math.jsonl"))).unwrap();
        assert_eq!(math.lines().count(), 4, "{arm}");
    }
}

#[test]
fn two_runs_and_a_resumed_run_hold_the_same_bytes() {
    let tiny = Tiny::new();
    for out in ["one", "two"] {
        tiny.command("qualify")
            .args(["--out", out])
            .assert()
            .code(0);
    }
    let one = outcome(&tiny.path("one"));
    assert!(one == outcome(&tiny.path("two")));

    // A run that lost its tail: half an arm, its engagement and the certificates.
    let two = tiny.path("two");
    fs::remove_dir_all(two.join("certificates")).unwrap();
    fs::remove_dir_all(two.join("arms/SD")).unwrap();
    let records = two.join("arms/AF/retrieval-768.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    fs::write(&records, &text[..text.len() / 2]).unwrap();
    fs::remove_file(two.join("arms/AF/engagement.json")).unwrap();
    // Documents that lost their last line feed alone.
    for document in [
        "run.json",
        "arms/native/start.json",
        "arms/native/engagement.json",
    ] {
        let text = fs::read_to_string(two.join(document)).unwrap();
        fs::write(two.join(document), text.trim_end()).unwrap();
    }
    tiny.command("qualify")
        .args(["--out", "two", "--resume"])
        .assert()
        .code(0);
    assert!(one == outcome(&two));
}

/// Files that may depend on how answers came about: what says so, what follows from it, and the
/// cases that are generated twice.
fn says_how(name: &str) -> bool {
    name.ends_with("start.json")
        || name.contains(".regenerated.")
        || name.starts_with("certificates")
}

#[test]
fn verified_and_plain_runs_hold_the_same_records() {
    let tiny = Tiny::new();
    tiny.write_small_demo();
    let qualify = |out: &str, more: &[&str]| {
        let mut kvassay = tiny.kvassay();
        kvassay
            .args(["qualify", "AD", "SF", "--protocol", "demo-small.json"])
            .args(["--worker", "cpu", "--out", out])
            .args(more);
        kvassay
    };
    let run = |out: &str, more: &[&str]| {
        // So few cases do not establish what named recipes must hold.
        let assert = qualify(out, more).assert().code(1);
        let files = outcome(&tiny.path(out));
        (
            String::from_utf8(assert.get_output().stderr.clone()).unwrap(),
            files,
        )
    };
    let (verified, first) = run("verified", &[]);
    let (plain, second) = run("plain", &["--plain"]);
    let saved: Vec<&str> = verified
        .lines()
        .filter(|line| line.contains("decoding steps saved by"))
        .collect();
    let arms = ["AD math", "AD retrieval", "SF math", "SF retrieval"];
    for arm in arms {
        assert!(
            saved.iter().any(|line| line.starts_with(arm)),
            "{arm}: {verified}"
        );
    }
    assert!(!plain.contains("saved"), "{plain}");
    let results = |files: &BTreeMap<String, Vec<u8>>| -> BTreeMap<String, Vec<u8>> {
        let results = files.iter().filter(|(name, _)| !says_how(name));
        results
            .map(|(name, bytes)| (name.clone(), bytes.clone()))
            .collect()
    };
    assert!(results(&first) == results(&second));
    let answers = |files: &BTreeMap<String, Vec<u8>>| {
        let certificate: Value = serde_json::from_slice(&files["certificates/AD.json"]).unwrap();
        certificate["answers"].clone()
    };
    let all = first
        .keys()
        .filter(|name| name.starts_with("arms/AD") && name.contains(".regenerated."));
    assert!(all.count() >= 2);
    let regenerated = answers(&first)["regenerated"].as_u64().unwrap();
    assert_eq!(regenerated, 2 * 6, "of two panels with answers");
    assert_eq!(
        answers(&first),
        serde_json::json!({"mode": "verified", "regenerated": regenerated, "mismatches": 0})
    );
    assert_eq!(
        answers(&second),
        serde_json::json!({"mode": "plain", "regenerated": 0, "mismatches": 0})
    );
    // A run goes on as it began.
    qualify("verified", &["--resume", "--plain"])
        .assert()
        .code(2)
        .stderr(contains(
            "arms/AD/start.json: answers: found verified, expected plain",
        ));
    // A verified answer that is not the arm's own: no certificate, and exit code 4.
    let records = tiny.path("verified/arms/AD/math.regenerated.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    let finish = |text: &str| text.replacen("\"finish\":\"stop\"", "\"finish\":\"length\"", 1);
    fs::write(&records, finish(&text)).unwrap();
    assert_ne!(finish(&text), text);
    let mut certify = tiny.kvassay();
    certify.args(["certify", "verified"]);
    for mut kvassay in [certify, qualify("verified", &["--resume"])] {
        kvassay
            .assert()
            .code(4)
            .stderr(contains("finish of the verified answer differs"));
    }
}

#[test]
fn a_finished_run_is_only_certified_again() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run"])
        .assert()
        .code(0);
    let before = files(&tiny.path("run"));
    tiny.command("qualify")
        .args(["--out", "run", "--resume"])
        .assert()
        .code(0);
    assert!(before == files(&tiny.path("run")));

    fs::remove_dir_all(tiny.path("run/certificates")).unwrap();
    let mut certify = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    let output = certify
        .current_dir(tiny.path("."))
        .args(["certify", "run", "--format", "json"])
        .assert()
        .code(0);
    assert!(before == files(&tiny.path("run")));
    let summary: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(summary["schema"], "kvassay.summary/1");
    assert_eq!(summary["certificates"].as_array().unwrap().len(), 2);
}

#[test]
fn named_recipes_must_hold_what_is_required() {
    let tiny = Tiny::new();
    let assert = tiny
        .command("qualify")
        .args([
            "SD",
            "--out",
            "run",
            "--require",
            "both",
            "--format",
            "json",
        ])
        .assert()
        .code(1);
    let summary: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(summary["exit"], 1);
    assert_eq!(
        summary["required"],
        serde_json::json!(["preservation", "aggregate"])
    );
    assert_eq!(summary["certificates"].as_array().unwrap().len(), 1);
    assert!(
        !tiny.path("run/calibration.json").exists(),
        "no arm has fixed scales"
    );
}

#[test]
fn an_undeclared_recipe_is_descriptive_and_never_holds() {
    let tiny = Tiny::new();
    let recipe = "k=native,v=e5m2:dynamic";
    tiny.command("qualify")
        .args([recipe, "--out", "run"])
        .assert()
        .code(1);
    let certificate = json(&tiny.path(&format!("run/certificates/{recipe}.json")));
    assert_eq!(
        certificate["objectives"]["preservation"]["verdict"],
        "descriptive"
    );
    assert_eq!(certificate["recipe"]["spec"], recipe);
}

#[test]
fn a_limit_leaves_the_evidence_incomplete() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run", "--limit", "2"])
        .assert()
        .code(3)
        .stdout(contains("incomplete"));
    tiny.command("qualify")
        .args(["AF", "--out", "named", "--limit", "2"])
        .assert()
        .code(3);
    // A limit that cuts nothing leaves nothing out.
    tiny.command("qualify")
        .args(["--out", "whole", "--limit", "4"])
        .assert()
        .code(0);
}

/// Fails with code 2 and one line, before anything is written.
fn refused(tiny: &Tiny, args: &[&str], message: &str) {
    let assert = tiny
        .command("qualify")
        .args(args)
        .assert()
        .code(2)
        .stdout("");
    let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(stderr.contains(message), "{args:?}: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
    assert!(
        !tiny.path("refused").exists(),
        "{args:?}: wrote a run directory"
    );
}

#[test]
fn what_was_typed_wrong_is_refused() {
    let tiny = Tiny::new();
    let out = ["--out", "refused"];
    refused(&tiny, &[&out[..], &["k8v8"]].concat(), "k8v8");
    refused(
        &tiny,
        &[&out[..], &["native"]].concat(),
        "control of every run",
    );
    refused(
        &tiny,
        &[&out[..], &["AF", "k=native,v=e4m3:fixed"]].concat(),
        "twice",
    );
    for (option, value, message) in [
        ("--worker", "gpu", "expected auto, cpu or cuda"),
        (
            "--worker",
            "http://localhost:8000",
            "expected one: the server of --worker stores its cache in one way",
        ),
        ("--device", "1", "expected the cuda worker"),
        ("--device", "0,1", "expected the cuda worker"),
        ("--jobs", "0", "invalid value '0'"),
        ("--jobs", "-1", "invalid value '-1' for '--jobs <N>'"),
        ("--limit", "-1", "invalid value '-1' for '--limit <N>'"),
        (
            "--protocol",
            "tinny",
            "neither a file nor a built-in protocol",
        ),
        ("--model", "nowhere", "nowhere"),
        ("--data", "nowhere", "nowhere"),
    ] {
        let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
        let mut args = BTreeMap::from([
            ("--model", "tiny-llama"),
            ("--protocol", "tiny.json"),
            ("--data", "data"),
            ("--worker", "cpu"),
            ("--out", "refused"),
        ]);
        args.insert(option, value);
        kvassay.current_dir(tiny.path(".")).arg("qualify");
        for (option, value) in args {
            kvassay.args([option, value]);
        }
        kvassay
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(message));
        assert!(!tiny.path("refused").exists(), "{option} {value}");
    }
    tiny.command("qualify")
        .args(["--require", "both"])
        .assert()
        .code(2)
        .stderr(contains("RECIPES"));
}

#[test]
fn a_broken_protocol_is_refused() {
    let tiny = Tiny::new();
    let whole = crate::tiny::protocol();
    let mut changes: Vec<(Value, &str)> = Vec::new();
    let mut change = |pointer: &str, value: Value, message: &'static str| {
        let mut protocol = whole.clone();
        *protocol.pointer_mut(pointer).unwrap() = value;
        changes.push((protocol, message));
    };
    change("/rules/gross_loss/divisor", 1.into(), "divisor");
    change("/candidates/0/spec", "k=fp8,v=native".into(), "fp8");
    change("/schema", "kvassay.protocol/2".into(), "kvassay.protocol/2");
    change("/family_alpha", 1.5.into(), "family_alpha");
    change("/controls", serde_json::json!(["a", "b"]), "controls");
    for (protocol, message) in changes {
        fs::write(tiny.protocol(), protocol.to_string()).unwrap();
        refused(&tiny, &["--out", "refused"], message);
    }
    fs::write(tiny.protocol(), "{").unwrap();
    refused(&tiny, &["--out", "refused"], "tiny.json");
}

#[test]
fn a_missing_shard_is_refused() {
    let tiny = Tiny::new();
    let index = serde_json::json!({
        "metadata": {"total_size": 1},
        "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"},
    });
    fs::write(
        tiny.model().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    fs::remove_file(tiny.model().join("model.safetensors")).unwrap();
    refused(
        &tiny,
        &["--out", "refused"],
        "model-00001-of-00002.safetensors",
    );
}

#[test]
fn what_a_config_asks_and_nothing_applies_is_unsupported() {
    let tiny = Tiny::new();
    let path = tiny.model().join("config.json");
    let sound: serde_json::Value = json(&path);
    let changes = [
        ("model_type", "mamba".into(), "mamba"),
        (
            "rope_scaling",
            serde_json::json!({"rope_type": "spiral", "factor": 2.0}),
            "spiral",
        ),
        ("num_local_experts", 8.into(), "num_local_experts"),
        (
            "attn_logit_softcapping",
            50.0.into(),
            "attn_logit_softcapping",
        ),
    ];
    for (field, value, message) in changes {
        let mut config = sound.clone();
        config[field] = value;
        fs::write(&path, config.to_string()).unwrap();
        tiny.command("qualify")
            .args(["--out", "refused"])
            .assert()
            .code(3)
            .stderr(predicates::str::contains("unsupported"))
            .stderr(predicates::str::contains(message));
        assert!(!tiny.path("refused").exists());
    }
}

/// No panel fits, nor the calibration: nothing runs but the probe, and nothing is said to be needed.
#[test]
fn a_context_shorter_than_every_panel_is_unsupported() {
    let tiny = Tiny::new();
    let path = tiny.model().join("config.json");
    let mut config: serde_json::Value = json(&path);
    config["max_position_embeddings"] = 8.into();
    fs::write(&path, config.to_string()).unwrap();
    tiny.command("qualify")
        .args(["AD", "--out", "run"])
        .assert()
        .code(3)
        .stdout(contains("context of 8"));
    let result = &json(&tiny.path("run/certificates/AD.json"))["objectives"]["preservation"];
    assert_eq!(result["verdict"], "unsupported");
    let (code, text, _) = in_tiny_world(&tiny, &["power", "--run", "run"]);
    assert_eq!(code, 0);
    assert!(
        text.starts_with("AD: no rule was evaluated: preservation unsupported (panel_unsupported)"),
        "{text}"
    );
    assert!(!text.contains("nothing is needed"), "{text}");
    let verify = ["verify", "run/certificates/AD.json", "--run", "run"];
    assert_eq!(in_tiny_world(&tiny, &verify).0, 0);
}

#[test]
fn another_run_or_foreign_files_in_the_run_directory_are_refused() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["AF", "--out", "run", "--limit", "1"])
        .assert()
        .code(3);
    let before = files(&tiny.path("run"));
    for args in [
        &["AF"][..],
        &["SD", "--resume"],
        &["AF", "--limit", "2", "--resume"],
        &["AF", "--resume"],
    ] {
        tiny.command("qualify")
            .args(args)
            .args(["--out", "run"])
            .assert()
            .code(2)
            .stderr(contains("run"));
    }
    assert!(before == files(&tiny.path("run")));

    fs::create_dir(tiny.path("notes")).unwrap();
    fs::write(tiny.path("notes/diary.txt"), "dear diary").unwrap();
    tiny.command("qualify")
        .args(["AF", "--out", "notes"])
        .assert()
        .code(2)
        .stderr(contains("diary.txt"));
}

#[test]
fn changed_panels_and_records_are_refused() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["SD", "--out", "run"])
        .assert()
        .code(1);
    let panel = tiny.path("run/panels/math.jsonl");
    let text = fs::read_to_string(&panel).unwrap();
    fs::write(&panel, text.replace("pears", "plums")).unwrap();
    tiny.command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(2)
        .stderr(contains("math.jsonl").and(contains("expected")));
    fs::write(&panel, text).unwrap();

    let records = tiny.path("run/arms/SD/math.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    fs::write(&records, text.replacen("gsm8k", "other", 1)).unwrap();
    tiny.command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(2)
        .stderr(contains("math.jsonl"));
}

#[test]
fn calibrate_writes_what_a_run_measures() {
    let tiny = Tiny::new();
    tiny.command("calibrate")
        .args(["--out", "scales.json"])
        .assert()
        .code(0);
    tiny.command("qualify")
        .args(["AF", "--out", "run", "--limit", "1"])
        .assert()
        .code(3);
    let measured = json(&tiny.path("scales.json"));
    assert_eq!(measured, json(&tiny.path("run/calibration.json")));
    assert_eq!(measured["layers"].as_array().unwrap().len(), 2);
    assert_eq!(measured["tokens"], 64 + 4);
    // An earlier calibration is replaced, and nothing else is.
    tiny.command("calibrate")
        .args(["--out", "scales.json"])
        .assert()
        .code(0);
    let protocol = fs::read(tiny.protocol()).unwrap();
    tiny.command("calibrate")
        .args(["--out", "tiny.json"])
        .assert()
        .code(2)
        .stderr(contains(
            "--out tiny.json: found a file that is no calibration",
        ));
    assert_eq!(fs::read(tiny.protocol()).unwrap(), protocol);
    // That of a run is its evidence, by whatever way it is reached.
    let mut inside = vec!["run/calibration.json"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("run/arms", tiny.path("elsewhere")).unwrap();
        inside.push("elsewhere/scales.json");
    }
    for out in inside {
        tiny.command("calibrate")
            .args(["--out", out])
            .assert()
            .code(2)
            .stderr(contains("found a file of the run"));
    }
}

/// Questions enough to be stopped in the midst of them.
fn long_protocol(tiny: &Tiny) {
    let mut protocol = crate::tiny::protocol();
    protocol["panels"][0]["max_new_tokens"] = 600.into();
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
}

/// Longest time that a process gets for anything.
#[cfg(unix)]
const MOST: Duration = Duration::from_secs(300);

/// Starts or continues `qualify SD` and sends `signal` once the record file `path` of the run holds
/// at least `least` bytes. Record files are created, empty, when a run starts.
#[cfg(unix)]
fn stopped(tiny: &Tiny, path: &str, least: u64, signal: &str) -> std::process::Output {
    stopped_as("env", tiny, path, least, signal)
}

/// The same, started by a program that becomes the one which it starts.
#[cfg(unix)]
fn stopped_as(
    starter: &str,
    tiny: &Tiny,
    path: &str,
    least: u64,
    signal: &str,
) -> std::process::Output {
    let mut child = std::process::Command::new(starter)
        .arg(env!("CARGO_BIN_EXE_kvassay"))
        .current_dir(tiny.path("."))
        .args([
            "qualify",
            "SD",
            "--model",
            "tiny-llama",
            "--protocol",
            "tiny.json",
        ])
        .args([
            "--data", "data", "--worker", "cpu", "--out", "run", "--resume",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let path = tiny.path("run/arms").join(path);
    let reached = || fs::metadata(&path).is_ok_and(|found| found.len() >= least);
    let began = Instant::now();
    while !reached() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "ended before {}",
            path.display()
        );
        if began.elapsed() > MOST {
            child.kill().unwrap();
            panic!("{} is not there after {MOST:?}", path.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args([signal, &id])
        .status()
        .unwrap();
    assert!(sent.success());
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > MOST {
            child.kill().unwrap();
            panic!("{signal} has not ended the process after {MOST:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

/// Whether a process started here is told of SIGHUP: not where the tests run under `nohup`, and
/// kvassay knows of that from /proc alone.
#[cfg(unix)]
fn takes_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 0)
}

/// `nohup` starts a program with SIGHUP ignored: it outlives its terminal.
#[cfg(target_os = "linux")]
#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let tiny = Tiny::new();
    long_protocol(&tiny);
    let output = stopped_as("nohup", &tiny, "native/math.jsonl", 0, "-HUP");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(tiny.path("run/certificates/SD.json").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_is_incomplete_and_says_how_to_go_on() {
    // Ctrl-C, a job that is cancelled or out of time, and a terminal that is closed.
    for (signal, again) in [
        ("-INT", "Ctrl-C again ends at once"),
        ("-TERM", "a second signal ends at once"),
        ("-HUP", "a second signal ends at once"),
    ] {
        if signal == "-HUP" && !takes_hangups() {
            continue;
        }
        let tiny = Tiny::new();
        long_protocol(&tiny);
        let output = stopped(&tiny, "native/math.jsonl", 0, signal);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{signal}: {stderr}");
        assert!(stderr.contains(again), "{signal}: {stderr}");
        assert!(stderr.contains("interrupted: the run in "), "{stderr}");
        assert!(stderr.contains("--resume"), "{signal}: {stderr}");
        assert!(output.stdout.is_empty());
        assert!(!tiny.path("run/certificates").exists());
    }
}

#[cfg(unix)]
#[test]
fn a_killed_run_ends_with_the_bytes_of_an_uninterrupted_one() {
    let tiny = Tiny::new();
    long_protocol(&tiny);
    tiny.command("qualify")
        .args(["SD", "--out", "whole"])
        .assert()
        .code(1);
    // In the first arm, at its end, and in the arms behind it.
    for (path, least) in [
        ("native/math.jsonl", 0),
        ("native/retrieval-768.jsonl", 1),
        ("native-aa/math.jsonl", 1),
        ("native-aa/retrieval-768.jsonl", 1),
    ] {
        let output = stopped(&tiny, path, least, "-KILL");
        assert_eq!(
            output.status.code(),
            None,
            "{path}: not ended by the signal"
        );
    }
    assert!(!tiny.path("run/certificates").exists());
    tiny.command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(1);
    assert!(outcome(&tiny.path("whole")) == outcome(&tiny.path("run")));

    // What each of the killed processes took stays written down.
    // A killed process may have come to the end of the arm.
    for (run, parts) in [("whole", 1..=1), ("run", 2..=3)] {
        let resources = json(&tiny.path(run).join("arms/native-aa/resources.json"));
        let found = resources["parts"].as_array().unwrap();
        assert!(parts.contains(&found.len()), "{run}: {resources:#}");
        let certificate = json(&tiny.path(run).join("certificates/SD.json"));
        let summary = &certificate["resources"]["native-aa"];
        assert_eq!(summary["parts"], found.len());
        for part in found {
            assert!(part["allocations"]["weights"].as_u64() > Some(0));
            assert!(part["allocations"]["cache"].as_u64() > Some(0));
        }
        let verified = assert_cmd::Command::cargo_bin("kvassay")
            .unwrap()
            .current_dir(tiny.path("."))
            .args(["verify", &format!("{run}/certificates/SD.json")])
            .args(["--run", run])
            .assert();
        verified.code(0);
    }
}

#[test]
fn arms_side_by_side_give_the_bytes_of_a_serial_run() {
    let tiny = Tiny::new();
    for (out, jobs) in [("serial", "1"), ("beside", "3"), ("many", "9")] {
        tiny.command("qualify")
            .args(["--out", out, "--jobs", jobs])
            .assert()
            .code(0);
        assert!(
            outcome(&tiny.path(out)) == outcome(&tiny.path("serial")),
            "{out}"
        );
    }
    let verified = assert_cmd::Command::cargo_bin("kvassay")
        .unwrap()
        .current_dir(tiny.path("."))
        .args(["verify", "beside/certificates/AF.json", "--run", "beside"])
        .assert();
    verified.code(0);
}

#[test]
fn a_crossed_resource_limit_is_incomplete_and_names_limit_and_figure() {
    let tiny = Tiny::new();
    let mut protocol = crate::tiny::protocol();
    protocol["resource_limits"] = serde_json::json!({"peak_device_bytes": 1000});
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
    tiny.command("qualify")
        .args(["SD", "--out", "run"])
        .assert()
        .code(3)
        .stdout(contains("incomplete (resource_limit"))
        .stdout(contains("peak_device_bytes allows 1000"));
    let certificate = json(&tiny.path("run/certificates/SD.json"));
    let sampled = &certificate["resources"]["SD"]["sampled"];
    if cfg!(target_os = "linux") {
        assert_eq!(sampled["scope"], "process");
        assert!(sampled["peak_bytes"].as_u64() > Some(1000));
        assert!(sampled["samples"].as_u64() > Some(0));
    }
    // Without what an arm took, nothing shows that it kept the limit.
    fs::remove_file(tiny.path("run/arms/SD/resources.json")).unwrap();
    assert_cmd::Command::cargo_bin("kvassay")
        .unwrap()
        .current_dir(tiny.path("."))
        .args(["verify", "run/certificates/SD.json", "--run", "run"])
        .assert()
        .code(5)
        .stdout(contains("arms/SD/resources.json"));
}

/// What an earlier process took and is not written down any more, nobody knows.
#[test]
fn resource_evidence_that_is_lost_before_a_resume_stays_unknown() {
    let tiny = Tiny::new();
    let mut protocol = crate::tiny::protocol();
    protocol["resource_limits"] = serde_json::json!({"peak_device_bytes": 1u64 << 50});
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
    tiny.command("qualify")
        .args(["SD", "--out", "run"])
        .assert()
        .code(1);
    fs::remove_file(tiny.path("run/arms/SD/resources.json")).unwrap();
    let records = tiny.path("run/arms/SD/math.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    let (kept, _) = text.trim_end().rsplit_once('\n').unwrap();
    fs::write(&records, format!("{kept}\n")).unwrap();
    tiny.command("qualify")
        .args(["SD", "--out", "run", "--resume"])
        .assert()
        .code(3)
        .stdout(contains("resources_unknown"));
    let resources = json(&tiny.path("run/arms/SD/resources.json"));
    assert_eq!(resources["parts"][0]["device"], "unknown");
    assert_eq!(resources["parts"].as_array().unwrap().len(), 2);
}

#[test]
fn help() {
    for command in ["qualify", "certify", "calibrate"] {
        let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
        let assert = kvassay
            .env("COLUMNS", "100")
            .args([command, "--help"])
            .assert()
            .code(0);
        let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
        insta::assert_snapshot!(format!("help_{command}"), text);
    }
}
