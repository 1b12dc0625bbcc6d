//! `qualify --shard` and `merge` through the binary, on a tiny model with random weights.

use std::fs;
use std::path::Path;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::tiny::{Tiny, outcome};

/// Runs part `shard` in a folder of its own.
fn part(tiny: &Tiny, shard: &str) -> String {
    let out = format!("part-{}", shard.replace('/', "-"));
    tiny.command("qualify")
        .args(["--out", &out, "--shard", shard])
        .assert()
        .code(0)
        .stdout(contains(format!("part {shard} of a run")));
    assert!(!tiny.path(&out).join("certificates").exists());
    out
}

fn merge(tiny: &Tiny, parts: &[&str], out: &str) -> assert_cmd::assert::Assert {
    tiny.kvassay()
        .arg("merge")
        .args(parts)
        .args(["--out", out])
        .assert()
}

/// Nothing stands where a merge failed, under any name.
fn is_untouched(tiny: &Tiny, out: &str) -> bool {
    let entries = fs::read_dir(tiny.path(".")).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    !names.any(|name| name == out || name.contains("merging"))
}

#[test]
fn parts_in_any_order_make_the_whole_run() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "whole"])
        .assert()
        .code(0);
    let parts: Vec<String> = ["2/3", "3/3", "1/3"]
        .iter()
        .map(|shard| part(&tiny, shard))
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    merge(&tiny, &parts, "merged")
        .code(0)
        .stdout(contains("survey, nothing required"));
    // Every record, panel, calibration, proof and certificate, to the byte.
    assert!(outcome(&tiny.path("merged")) == outcome(&tiny.path("whole")));
    let resources = |run: &str| -> Value {
        let path = tiny.path(run).join("arms/AF/resources.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    assert_eq!(resources("merged")["parts"].as_array().unwrap().len(), 3);
    assert_eq!(resources("whole")["parts"].as_array().unwrap().len(), 1);
    tiny.kvassay()
        .args(["verify", "merged/certificates/AF.json", "--run", "merged"])
        .assert()
        .code(0);
    // It is a run like others: nothing is left to do.
    tiny.command("qualify")
        .args(["--out", "merged", "--resume"])
        .assert()
        .code(0);
    merge(&tiny, &parts, "merged")
        .code(2)
        .stderr(contains("merged/run.json: found a run"));
    // Into an empty directory that nothing can replace: the working directory, and one behind a link.
    for folder in ["here", "there"] {
        fs::create_dir(tiny.path(folder)).unwrap();
    }
    let beside = parts.iter().map(|part| format!("../{part}"));
    tiny.kvassay()
        .current_dir(tiny.path("here"))
        .arg("merge")
        .args(beside)
        .args(["--out", "."])
        .assert()
        .code(0);
    std::os::unix::fs::symlink(tiny.path("there"), tiny.path("link")).unwrap();
    // What a killed part left of a last record is no record.
    let native = tiny.path(parts[1]).join("arms/native/math.jsonl");
    let mut bytes = fs::read(&native).unwrap();
    bytes.extend(b"{\"case\":\"x");
    fs::write(&native, bytes).unwrap();
    merge(&tiny, &parts, "link").code(0);
    for folder in ["here", "there"] {
        assert!(outcome(&tiny.path(folder)) == outcome(&tiny.path("whole")));
    }
}

/// Its totals are of what its cases stored: here of none.
#[test]
fn a_part_of_which_every_case_failed_is_merged() {
    let tiny = Tiny::new();
    let parts = [part(&tiny, "1/2"), part(&tiny, "2/2")];
    let arm = tiny.path(&parts[0]).join("arms/AF");
    for entry in fs::read_dir(&arm).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".jsonl") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let failed = text.lines().map(|line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            let fields = record.as_object_mut().unwrap();
            fields.retain(|field, _| {
                ["case", "case_sha256", "prompt_tokens", "depth"].contains(&field.as_str())
            });
            fields.insert("error".to_owned(), "broken".into());
            format!("{record}\n")
        });
        fs::write(&path, failed.collect::<String>()).unwrap();
    }
    let engagement = arm.join("engagement.json");
    let mut proof: Value = serde_json::from_str(&fs::read_to_string(&engagement).unwrap()).unwrap();
    proof.as_object_mut().unwrap().remove("totals").unwrap();
    fs::write(&engagement, proof.to_string()).unwrap();
    merge(&tiny, &[&parts[0], &parts[1]], "merged")
        .code(3)
        .stdout(contains("errored_records"));
}

/// Nothing that `--resume` could do would change it.
#[test]
fn records_that_stand_twice_in_a_part_are_merged_and_named() {
    let tiny = Tiny::new();
    let parts = [part(&tiny, "1/2"), part(&tiny, "2/2")];
    let records = tiny.path(&parts[1]).join("arms/AF/math.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    let first = text.lines().next().unwrap();
    fs::write(&records, format!("{text}{first}\n")).unwrap();
    merge(&tiny, &[&parts[0], &parts[1]], "merged")
        .code(3)
        .stdout(contains("duplicate_records"));
}

#[test]
fn a_killed_part_goes_on_and_is_not_merged_before() {
    let tiny = Tiny::new();
    let (one, two) = (part(&tiny, "1/2"), part(&tiny, "2/2"));
    let records = tiny.path(&two).join("arms/AF/math.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    assert_eq!(text.lines().count(), 2);
    fs::write(&records, &text[..text.len() - 9]).unwrap();
    merge(&tiny, &[&one, &two], "merged").code(3).stderr(
        contains("part-2-2/arms/AF/math.jsonl: found 1 of 2 records").and(contains("--resume")),
    );
    assert!(is_untouched(&tiny, "merged"));
    tiny.command("qualify")
        .args(["--out", &two, "--shard", "2/2", "--resume"])
        .assert()
        .code(0);
    assert_eq!(fs::read_to_string(&records).unwrap(), text);
    let engagement = tiny.path(&one).join("arms/SD/engagement.json");
    let bytes = fs::read(&engagement).unwrap();
    fs::remove_file(&engagement).unwrap();
    merge(&tiny, &[&one, &two], "merged")
        .code(3)
        .stderr(contains(
            "part-1-2/arms/SD/engagement.json: found no totals",
        ));
    fs::write(&engagement, bytes).unwrap();
    let flipped = match text.contains("\"correct\":true") {
        true => text.replacen("\"correct\":true", "\"correct\":false", 1),
        false => text.replacen("\"correct\":false", "\"correct\":true", 1),
    };
    fs::write(&records, flipped).unwrap();
    merge(&tiny, &[&one, &two], "merged")
        .code(5)
        .stderr(contains("arm AF, panel math"));
    assert!(is_untouched(&tiny, "merged"));
    fs::write(&records, text).unwrap();
    merge(&tiny, &[&one, &two], "merged").code(0);
}

#[test]
fn a_part_is_asked_for_by_its_own_name() {
    let tiny = Tiny::new();
    let one = part(&tiny, "1/2");
    // Another part, or the whole, is another run.
    for more in [&["--shard", "2/2"][..], &[]] {
        tiny.command("qualify")
            .args(["--out", &one, "--resume"])
            .args(more)
            .assert()
            .code(2)
            .stderr(contains("shard: found \"1/2\""));
    }
    let asks = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    let panel = |arm: &str, panel: &str| tiny.path(&one).join(format!("arms/{arm}/{panel}.jsonl"));
    assert_eq!(asks(&panel("native", "math")), 2);
    // Nothing but a whole run is judged.
    for command in ["certify", "compare"] {
        tiny.kvassay()
            .args([command, &one])
            .assert()
            .code(3)
            .stdout("")
            .stderr(contains("run.json: shard: found 1/2").and(contains("kvassay merge")));
    }
    assert!(!tiny.path(&one).join("certificates").exists());
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "whole"])
        .assert()
        .code(0);
    let (one, two) = (part(&tiny, "1/2"), part(&tiny, "2/2"));
    let third = part(&tiny, "3/3");
    let cases: [(&[&str], u8, &str); 5] = [
        (&[&one], 3, "found parts 1 of 2, expected 2 as well"),
        (&[&one, &one, &two], 2, "expected every part once"),
        (&[&one, &third], 2, "expected parts of"),
        (&[&one, "whole"], 2, "whole/run.json: shard: found none"),
        (&[&one, "nowhere"], 2, "nowhere"),
    ];
    for (parts, code, text) in cases {
        merge(&tiny, parts, "merged")
            .code(i32::from(code))
            .stderr(contains(text));
        assert!(is_untouched(&tiny, "merged"), "{text}");
    }
    // Parts of different runs, and of one run on different scales.
    let changed = |file: &str, from: &str, to: &str| {
        let path = tiny.path(&two).join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let refused = merge(&tiny, &[&one, &two], "merged").code(2);
        fs::write(&path, text).unwrap();
        assert!(is_untouched(&tiny, "merged"));
        String::from_utf8(refused.get_output().stderr.clone()).unwrap()
    };
    let text = changed(
        "run.json",
        "\"arithmetic\": \"f32\"",
        "\"arithmetic\": \"f64\"",
    );
    assert!(
        text.contains("worker.arithmetic: found \"f64\", expected \"f32\""),
        "{text}"
    );
    let text = changed("calibration.json", "\"k\": ", "\"k\": 1");
    assert!(text.contains("expected the same calibration"), "{text}");
    let text = changed(
        "arms/AF/engagement.json",
        "\"probe_tokens\": ",
        "\"probe_tokens\": 1",
    );
    assert!(text.contains("expected the same probe"), "{text}");
    merge(&tiny, &[&one, &two], "merged").code(0);
}

#[test]
fn what_only_a_whole_run_answers_is_refused_before_anything_runs() {
    let tiny = Tiny::new();
    let cases: [(&[&str], &str); 4] = [
        (&["--format", "junit"], "--format junit"),
        (&["--write", "markdown=report.md"], "--write"),
        (&["AF", "--require", "both"], "--require"),
        (&["--baseline", "AF.json"], "--baseline"),
    ];
    for (more, what) in cases {
        tiny.command("qualify")
            .args(["--out", "part", "--shard", "1/2"])
            .args(more)
            .assert()
            .code(2)
            .stderr(contains(format!("--shard 1/2: found {what}")));
        assert!(is_untouched(&tiny, "part"));
    }
    for text in ["0/2", "3/2", "2", "1/0", "a/b"] {
        tiny.command("qualify")
            .args(["--out", "part", "--shard", text])
            .assert()
            .code(2)
            .stderr(contains("expected I/N"));
    }
    let assert = tiny
        .command("qualify")
        .args(["--out", "part", "--shard", "4/4", "--format", "json"])
        .assert()
        .code(0);
    let document: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(document["schema"], "kvassay.shard/1");
    assert_eq!(document["shard"], "4/4");
    assert_eq!(document["errors"], 0);
    assert_eq!(
        document["arms"],
        serde_json::json!(["native", "native-aa", "AF", "SD"])
    );
    assert!(document["records"].as_u64().unwrap() > 0);
}
