//! `tools/recompute.py`, which shares no code with the binary, comes to every figure of its
//! certificates, and names what was changed. Needs `python3`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::tiny::Tiny;

/// The program on the run in `run`; `None`, and a line that says so, where there is no `python3`.
fn recompute(run: &Path, recipes: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/recompute.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(run)
        .args(recipes)
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: python3: {error}");
            None
        }
    }
}

/// Code and stdout, both as a caller of the program sees them.
fn outcome(output: &Output) -> (Option<i32>, &str) {
    (
        output.status.code(),
        std::str::from_utf8(&output.stdout).unwrap(),
    )
}

/// Lines of differences, without their indentation.
fn differences(output: &Output) -> Vec<&str> {
    let (code, stdout) = outcome(output);
    assert_eq!(code, Some(5), "{stdout}");
    stdout.lines().skip(1).map(str::trim_start).collect()
}

/// Rewrites the JSON file at `path`.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn tiny_run(recipes: &[&str]) -> Tiny {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run"])
        .args(recipes)
        .output()
        .unwrap();
    tiny
}

#[test]
fn nothing_differs_and_each_change_is_named() {
    let tiny = tiny_run(&[]);
    let run = tiny.path("run");
    let Some(output) = recompute(&run, &[]) else {
        return;
    };
    let (code, stdout) = outcome(&output);
    assert_eq!(code, Some(0), "{stdout}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    for (line, name) in lines.iter().zip(["AF", "SD"]) {
        assert!(line.starts_with(&format!("{name}: ")), "{line}");
        assert!(
            line.ends_with(" figures recomputed, none differs"),
            "{line}"
        );
    }

    // One figure in the last place, of the certificate that is asked for.
    let path = run.join("certificates/AF.json");
    let issued = fs::read(&path).unwrap();
    let pointer = "/objectives/preservation/rules/1/document_sd";
    edit(&path, |certificate| {
        let figure = certificate.pointer_mut(pointer).unwrap();
        *figure = json!(figure.as_f64().unwrap().next_up());
    });
    let output = recompute(&run, &["AF"]).unwrap();
    let found = differences(&output);
    assert_eq!(found.len(), 1, "{found:?}");
    let start = "objectives.preservation.rules[1].document_sd: certificate has ";
    assert!(found[0].starts_with(start), "{found:?}");
    assert_eq!(recompute(&run, &["SD"]).unwrap().status.code(), Some(0));

    // One digest.
    fs::write(&path, &issued).unwrap();
    edit(&path, |certificate| {
        let file = &mut certificate["evidence"][0];
        assert_eq!(file["path"], "arms/AF/engagement.json");
        file["sha256"] = json!("0".repeat(64));
    });
    let output = recompute(&run, &["AF"]).unwrap();
    let found = differences(&output);
    assert_eq!(found.len(), 1, "{found:?}");
    let start = "evidence.arms/AF/engagement.json: certificate has \"000";
    assert!(found[0].starts_with(start), "{found:?}");
    fs::write(&path, &issued).unwrap();
}

#[test]
fn a_changed_output_is_scored_again() {
    let tiny = tiny_run(&["AF"]);
    let run = tiny.path("run");
    let records = run.join("arms/AF/math.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut record: Value = serde_json::from_str(first).unwrap();
    record["output"] = json!("#### 123456");
    fs::write(&records, format!("{record}\n{rest}")).unwrap();
    let Some(output) = recompute(&run, &["AF"]) else {
        return;
    };
    let found = differences(&output);
    let case = record["case"].as_str().unwrap();
    let named = |start: String| found.iter().any(|line| line.starts_with(&start));
    assert!(
        named(format!("arms/AF/math.jsonl {case}.answer: record has ")),
        "{found:?}"
    );
    assert!(
        named("evidence.arms/AF/math.jsonl: certificate has ".to_owned()),
        "{found:?}"
    );

    // A line that is no record is no difference: nothing can be said.
    fs::write(&records, format!("{{\n{rest}")).unwrap();
    let output = recompute(&run, &["AF"]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("arms/AF/math.jsonl:1: no JSON"), "{stderr}");
}

#[test]
fn incomplete_and_undeclared_recipes_are_recomputed_as_well() {
    let tiny = tiny_run(&["--limit", "2", "AF", "k=int8,v=int4,sink=2"]);
    let Some(output) = recompute(&tiny.path("run"), &[]) else {
        return;
    };
    let (code, stdout) = outcome(&output);
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
}
