//! Evidence that was changed below a certificate that was kept elsewhere.

use std::fs;

use serde_json::{Value, json};

use crate::edits::edits;
use crate::synthetic::Synthetic;
use crate::{Outcome, verify, with_file};

type EditLines = fn(&mut Vec<String>);

fn first_json(lines: &mut [String], change: impl FnOnce(&mut Value)) {
    let mut record: Value = serde_json::from_str(&lines[0]).unwrap();
    change(&mut record);
    lines[0] = record.to_string();
}

/// Ways to spoil a record file that is read line by line.
const LINE_EDITS: [(&str, EditLines); 20] = [
    ("removed", |lines| drop(lines.remove(1))),
    ("all removed", Vec::clear),
    ("doubled", |lines| lines.insert(1, lines[0].clone())),
    ("doubled at the end", |lines| lines.push(lines[0].clone())),
    ("reordered", |lines| lines.swap(0, 2)),
    ("truncated line", |lines| lines[0].truncate(20)),
    ("empty line", |lines| lines.insert(1, String::new())),
    ("garbage", |lines| lines.push("garbage".to_owned())),
    ("a NaN", |lines| {
        lines[0] = lines[0].replacen("\"prompt_tokens\":3", "\"prompt_tokens\":NaN", 1)
    }),
    ("white space", |lines| {
        lines[0] = lines[0].replacen(':', ": ", 1)
    }),
    ("CR before LF", |lines| {
        lines.iter_mut().for_each(|line| line.push('\r'))
    }),
    ("case", |lines| {
        first_json(lines, |record| record["case"] = json!("other"))
    }),
    ("case_sha256", |lines| {
        first_json(lines, |record| {
            record["case_sha256"] = json!("0".repeat(64))
        });
    }),
    ("prompt_tokens", |lines| {
        first_json(lines, |record| record["prompt_tokens"] = json!(4))
    }),
    ("unknown field", |lines| {
        first_json(lines, |record| record["colour"] = json!(1))
    }),
    ("doubled field", |lines| {
        lines[0] = lines[0].replacen('{', "{\"case\":\"x\",", 1)
    }),
    ("error", |lines| {
        first_json(lines, |record| record["error"] = json!("timeout"))
    }),
    ("kv", |lines| {
        first_json(lines, |record| record["kv"]["v"]["changed"] = json!(1))
    }),
    ("kv beyond 64 bits in sum", |lines| {
        for line in &mut lines[..2] {
            let mut record: Value = serde_json::from_str(line).unwrap();
            record["kv"]["v"]["bytes"] = json!(u64::MAX);
            *line = record.to_string();
        }
    }),
    ("every line another's", |lines| {
        let first = lines[0].clone();
        lines.fill(first);
    }),
];

#[test]
fn every_edit_of_record_lines_is_caught() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    for arm in ["native", "native-aa", "AD"] {
        for panel in ["math", "nll-256", "retrieval-512"] {
            let path = run.join(format!("arms/{arm}/{panel}.jsonl"));
            let text = fs::read_to_string(&path).unwrap();
            for (what, edit) in LINE_EDITS {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                edit(&mut lines);
                let mut spoiled = lines.join("\n");
                if !spoiled.is_empty() {
                    spoiled.push('\n');
                }
                assert_ne!(spoiled, text, "{what}");
                let outcome = with_file(&path, Some(spoiled.as_bytes()), || verify(&kept, &run));
                let Outcome::Mismatch(_) = &outcome else {
                    panic!("{what} in {arm}/{panel}: {outcome:?}");
                };
                let named = format!("evidence[arms/{arm}/{panel}.jsonl].sha256: certificate says");
                assert!(
                    outcome.text().contains(&named),
                    "{what}: {}",
                    outcome.text()
                );
            }
            for end in ["{\"case\":\"torn", "\n", "\0", " "] {
                let longer = format!("{text}{end}");
                let outcome = with_file(&path, Some(longer.as_bytes()), || verify(&kept, &run));
                assert!(outcome.is_caught(), "{end:?} at the end of {arm}/{panel}");
            }
        }
    }
}

#[test]
fn every_edit_of_a_record_is_caught() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    let mut count = 0;
    for (arm, panel) in [
        ("AD", "math"),
        ("native", "nll-256"),
        ("native-aa", "retrieval-512"),
    ] {
        let path = run.join(format!("arms/{arm}/{panel}.jsonl"));
        let text = fs::read_to_string(&path).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        for edit in edits(&serde_json::from_str(first).unwrap()) {
            let spoiled = format!("{}\n{rest}", edit.tree);
            let outcome = with_file(&path, Some(spoiled.as_bytes()), || verify(&kept, &run));
            assert!(
                outcome.is_caught(),
                "{arm}/{panel} {} went unseen",
                edit.name
            );
            count += 1;
        }
    }
    println!("{count} edits of records caught");
    assert!(count > 200, "{count}");
}

#[test]
fn every_edit_of_manifest_engagement_and_calibration_is_caught() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    let kept = synthetic.kept("SF");
    let mut count = 0;
    for file in [
        "run.json",
        "calibration.json",
        "arms/SF/engagement.json",
        "arms/native/engagement.json",
        "arms/SF/resources.json",
        "arms/native-aa/resources.json",
    ] {
        let path = run.join(file);
        let text = fs::read_to_string(&path).unwrap();
        for edit in edits(&serde_json::from_str(&text).unwrap()) {
            let spoiled = serde_json::to_string_pretty(&edit.tree).unwrap() + "\n";
            let outcome = with_file(&path, Some(spoiled.as_bytes()), || verify(&kept, &run));
            assert!(outcome.is_caught(), "{file} {} went unseen", edit.name);
            count += 1;
        }
    }
    println!("{count} edits of documents caught");
    assert!(count > 1000, "{count}");
}

#[test]
fn every_edit_of_a_panel_is_caught() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    let path = run.join("panels/math.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for at in [0, 1] {
        let lines: Vec<&str> = text.lines().collect();
        for edit in edits(&serde_json::from_str(lines[at]).unwrap()) {
            let spoiled = text.replacen(lines[at], &edit.tree.to_string(), 1);
            let outcome = with_file(&path, Some(spoiled.as_bytes()), || verify(&kept, &run));
            assert!(outcome.is_caught(), "line {at} {} went unseen", edit.name);
        }
    }
    let crlf = text.replace('\n', "\r\n");
    let outcome = with_file(&path, Some(crlf.as_bytes()), || verify(&kept, &run));
    assert!(
        outcome
            .text()
            .contains("panels/math.jsonl: the run holds SHA-256")
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    let kept = synthetic.kept("SF");
    let certificate: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    let list = certificate["evidence"].as_array().unwrap();
    assert_eq!(list.len(), 1 + 1 + 3 + 3 * 6, "{list:#?}");
    for file in list {
        let name = file["path"].as_str().unwrap();
        let outcome = with_file(&run.join(name), None, || verify(&kept, &run));
        match &outcome {
            Outcome::Refused(why) => {
                assert_eq!(name, "run.json");
                assert!(why.contains("found no run.json"), "{why}");
            }
            _ => {
                let named = format!("evidence[{name}].sha256: certificate says");
                assert!(
                    outcome.text().contains(&named),
                    "{name}: {}",
                    outcome.text()
                );
                assert!(outcome.text().contains("no such file in the run"));
            }
        }
    }
}

#[test]
fn files_that_the_certificate_does_not_name_do_not_matter() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    fs::write(run.join("notes.txt"), "x").unwrap();
    fs::create_dir(run.join("arms/later")).unwrap();
    fs::write(run.join("arms/later/math.jsonl"), "{\"torn").unwrap();
    fs::write(run.join("arms/AD/math.attempts.jsonl"), "?").unwrap();
    // Another candidate may still be running, and calibration serves only recipes with fixed scales.
    fs::write(run.join("arms/SF/math.jsonl"), "no record\n").unwrap();
    fs::write(run.join("arms/SF/engagement.json"), "{}").unwrap();
    let calibration = fs::read(run.join("calibration.json")).unwrap();
    fs::remove_file(run.join("calibration.json")).unwrap();
    fs::remove_dir_all(run.join("certificates")).unwrap();
    let outcome = verify(&synthetic.kept("AD"), &run);
    assert!(!outcome.is_caught(), "{}", outcome.text());
    fs::write(run.join("calibration.json"), calibration).unwrap();
    assert!(verify(&synthetic.kept("SF"), &run).is_caught());
}
