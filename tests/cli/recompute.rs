//! `tools/recompute.py`, which shares no code with the binary, comes to every figure of its
//! certificates, and names what was changed. Needs `python3`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::tiny::{Tiny, protocol};

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

/// The run that `import HARNESS` makes of the texts of a native and a candidate log.
fn imported(
    tiny: &Tiny,
    name: &str,
    harness: &str,
    logs: &[String; 2],
    options: &[&str],
) -> PathBuf {
    let paths = ["native", "candidate"].map(|arm| format!("{name}-{arm}"));
    for (path, log) in paths.iter().zip(logs) {
        fs::write(tiny.path(path), log).unwrap();
    }
    tiny.kvassay()
        .args(["import", harness, "--out", name])
        .args(["--native", &paths[0]])
        .args(["--candidate", &paths[1]])
        .arg("--protocol")
        .args(options)
        .output()
        .unwrap();
    tiny.path(name)
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

#[test]
fn what_an_import_lacks_is_recomputed_as_well() {
    let tiny = Tiny::new();
    let lm_eval = |cases: &[u32]| -> String {
        let line = |case: &u32| {
            let doc = json!({"question": format!("Question {case}?")});
            let sample = json!({"doc_id": case, "doc": doc, "target": "18", "resps": [["18"]],
                                "exact_match": 1.0});
            format!("{sample}\n")
        };
        cases.iter().map(line).collect()
    };
    // The second answer is empty, also where the harness failed on it.
    let inspect = |status: &str, error: &Value| {
        let sample = |id: u32, output: &str, error: &Value| {
            json!({"id": id, "input": format!("Question {id}?"), "target": "18", "error": error,
                   "output": {"completion": output}, "scores": {"match": {"value": "C"}}})
        };
        let samples = [sample(1, "18", &Value::Null), sample(2, "", error)];
        json!({"status": status, "samples": samples}).to_string()
    };
    let csv = |rows: &str| format!("case,correct,error\n{rows}");
    let whole = || inspect("success", &Value::Null);
    let timeout = json!({"message": "timeout"});
    let worlds = [
        (
            "missing",
            "lm-eval",
            [lm_eval(&[1, 2]), lm_eval(&[1])],
            "missing_records",
        ),
        (
            "ids",
            "csv",
            [csv("a,1,\nb,1,\n"), csv("a,1,\nc,1,\n")],
            "missing_records",
        ),
        (
            "ended",
            "inspect",
            [whole(), inspect("error", &Value::Null)],
            "missing_records",
        ),
        (
            "failed",
            "inspect",
            [whole(), inspect("success", &timeout)],
            "errored_records",
        ),
        (
            "twice",
            "csv",
            [csv("a,1,\nb,1,\n"), csv("a,1,\nb,,x\nb,,x\n")],
            "duplicate_records",
        ),
    ];
    for (name, harness, logs, reason) in worlds {
        let run = imported(&tiny, name, harness, &logs, &["tiny.json"]);
        let Some(output) = recompute(&run, &[]) else {
            return;
        };
        let (code, stdout) = outcome(&output);
        assert_eq!(code, Some(0), "{name}: {stdout}");

        // Neither reason nor count is taken from the certificate.
        let mut unparsed = Value::Null;
        edit(&run.join("certificates/candidate.json"), |certificate| {
            let incomplete = &mut certificate["objectives"]["aggregate"]["incomplete"];
            assert_eq!(*incomplete, reason, "{name}");
            *incomplete = json!("no_panel");
            unparsed = std::mem::replace(&mut certificate["counts"]["unparsed"], json!(7));
        });
        let of_reason = format!("certificate has \"no_panel\", recomputed \"{reason}\"");
        let expected = [
            format!("objectives.aggregate.incomplete: {of_reason}"),
            format!("counts.unparsed: certificate has 7, recomputed {unparsed}"),
        ];
        let output = recompute(&run, &[]).unwrap();
        assert_eq!(differences(&output), expected, "{name}");
    }
}

#[test]
fn imports_of_one_control_of_too_many_cases_and_without_report_are_recomputed_as_well() {
    let tiny = Tiny::new();
    let mut several = protocol();
    several["controls"] = json!(["first", "second"]);
    fs::write(tiny.path("several.json"), several.to_string()).unwrap();
    let shown = tiny
        .kvassay()
        .args(["protocol", "show", "tiny.json", "--format", "json"])
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let digest = shown["sha256"].as_str().unwrap();
    // One more than the protocol names, under its digest.
    let rows: String = (0..5).map(|case| format!("{case},1,{digest}\n")).collect();
    let log = format!("case,correct,protocol_sha256\n{rows}");
    let logs = [log.clone(), log];
    let agrees = |run: &Path, expected: &str| {
        let certificate = fs::read(run.join("certificates/AF.json")).unwrap();
        let certificate: Value = serde_json::from_slice(&certificate).unwrap();
        let reason = &certificate["objectives"]["preservation"]["reason"];
        assert_eq!(*reason, expected);
        let Some(output) = recompute(run, &[]) else {
            return;
        };
        let (code, stdout) = outcome(&output);
        assert_eq!(code, Some(0), "{expected}: {stdout}");
    };
    let options = ["several.json", "--recipe", "AF", "--control", "second"];
    let several = imported(&tiny, "several", "csv", &logs, &options);
    agrees(&several, "post_hoc");
    let options = ["tiny.json", "--recipe", "AF"];
    let large = imported(&tiny, "large", "csv", &logs, &options);
    agrees(&large, "panel_undeclared");
    fs::remove_file(large.join("import.json")).unwrap();
    tiny.kvassay().args(["certify", "large"]).output().unwrap();
    agrees(&large, "post_hoc");
}
