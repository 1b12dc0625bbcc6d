//! `kvassay import` through the binary: each harness, faults, verdicts, exit codes.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// Sample logs beside this file: the candidate loses question 1 and gains question 4 of six.
const FIXTURES: &str = "tests/import";

/// A working directory with the sample logs.
struct Place(TempDir);

/// What a command did.
struct Done {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURES);
        for entry in fs::read_dir(fixtures).unwrap() {
            let entry = entry.unwrap();
            fs::copy(
                entry.path(),
                place.path(entry.file_name().to_str().unwrap()),
            )
            .unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs `kvassay` with the words of `line`.
    fn run(&self, line: &str) -> Done {
        let output = Command::cargo_bin("kvassay")
            .unwrap()
            .current_dir(self.0.path())
            .args(line.split_whitespace())
            .output()
            .unwrap();
        Done {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    /// Verdict and reason of preservation in a certificate.
    fn verdict(&self, certificate: &str) -> (String, String) {
        let found = &self.json(certificate)["objectives"]["preservation"];
        let text = |field: &str| found[field].as_str().unwrap_or("null").to_owned();
        (text("verdict"), text("reason"))
    }
}

/// Digests change with protocols and sources; what stands around them must not.
fn without_digests(text: &str) -> String {
    let is_digest = |word: &str| {
        matches!(word.len(), 12 | 64) && word.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let word = |word: &str| match is_digest(word) {
        true => "[digest]".to_owned(),
        false => word.to_owned(),
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| !c.is_ascii_alphanumeric()) {
        out.push_str(&word(&rest[..at]));
        let end = at + rest[at..].chars().next().unwrap().len_utf8();
        out.push_str(&rest[at..end]);
        rest = &rest[end..];
    }
    out + &word(rest)
}

fn math_rule(certificate: &Value) -> (u64, u64, u64) {
    let rule = &certificate["objectives"]["preservation"]["rules"][0];
    assert_eq!(rule["rule"], "gross_loss");
    let count = |field: &str| rule[field].as_u64().unwrap();
    (count("pairs"), count("lost"), count("gained"))
}

/// A table with `cases` cases that are all right but for the first of the candidate, and whose
/// rows end with `tail`.
fn table(cases: usize, header: &str, tail: &str) -> String {
    let row = |case: usize| format!("q{case},1,{}{tail}\n", u8::from(case > 0));
    format!("case,native,candidate{header}\n") + &(0..cases).map(row).collect::<String>()
}

fn protocol_digest(place: &Place, name: &str) -> String {
    let shown = place.run("protocol list --format json");
    let list: Value = serde_json::from_str(&shown.out).unwrap();
    let protocols = list["protocols"].as_array().unwrap();
    let found = protocols.iter().find(|protocol| protocol["name"] == name);
    found.unwrap()["sha256"].as_str().unwrap().to_owned()
}

#[test]
fn help() {
    let place = Place::new();
    insta::assert_snapshot!("import_help", place.run("import --help").out);
    insta::assert_snapshot!("import_csv_help", place.run("import csv --help").out);
    insta::assert_snapshot!(
        "import_lm_eval_help",
        place.run("import lm-eval --help").out
    );
}

#[test]
fn every_harness_is_imported_and_certified_by_one_command() {
    let place = Place::new();
    let commands = [
        ("lm-eval --filter flexible-extract", "lm-eval", "jsonl"),
        ("inspect", "inspect", "json"),
        (
            "lighteval --metric extractive_match",
            "lighteval-newer",
            "parquet",
        ),
        ("lighteval", "lighteval-older", "parquet"),
    ];
    for (command, stem, end) in commands {
        let files = format!("--native {stem}-native.{end} --candidate {stem}-candidate.{end}");
        let done = place.run(&format!(
            "import {command} {files} --recipe AD --out {stem} --format json"
        ));
        assert_eq!(done.code, 0, "{stem}: {}", done.err);
        assert!(done.err.contains("6 pairs by content"), "{}", done.err);
        let disagrees = "our parser disagrees on 0 of 12 scored outputs";
        assert!(done.err.contains(disagrees), "{}", done.err);
        let summary: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(summary["exit"], 0);
        let certificate = &summary["certificates"][0];
        assert_eq!(math_rule(certificate), (6, 1, 1), "{stem}");
        assert_eq!(certificate["worker"]["kind"], "import");
        assert_eq!(certificate["engagement"], Value::Null);
        let path = format!("{stem}/certificates/AD.json");
        let expected = ("descriptive".to_owned(), "post_hoc".to_owned());
        assert_eq!(place.verdict(&path), expected);

        let stored = fs::read(place.path(&path)).unwrap();
        assert_eq!(place.run(&format!("certify {stem}")).code, 0);
        assert_eq!(
            fs::read(place.path(&path)).unwrap(),
            stored,
            "certified again"
        );
    }
    assert_eq!(
        place.json("inspect/certificates/AD.json")["model"]["name"],
        "org/model"
    );
}

#[test]
fn swapped_arms_swap_lost_and_gained() {
    let place = Place::new();
    place.write("t.csv", "case,a,b\nx,1,0\ny,1,0\nz,0,1\n");
    let import = |columns: &str, out: &str| {
        let done = place.run(&format!("import csv --pairs t.csv {columns} --out {out}"));
        assert_eq!(done.code, 0, "{}", done.err);
        math_rule(&place.json(&format!("{out}/certificates/candidate.json")))
    };
    let forth = import("--native-column a --candidate-column b", "ab");
    let back = import("--native-column b --candidate-column a", "ba");
    assert_eq!((forth, back), ((3, 2, 1), (3, 1, 2)));
}

#[test]
fn the_harness_decides_and_our_parser_is_only_counted() {
    let place = Place::new();
    let done = place.run(
        "import lm-eval --native lm-eval-native.jsonl --candidate lm-eval-candidate.jsonl \
         --filter strict-match --out run",
    );
    assert_eq!(done.code, 0, "{}", done.err);
    // The strict filter misses question 3 in both arms; our parser reads its answer.
    assert!(
        done.err.contains("our parser disagrees on 2 of 12"),
        "{}",
        done.err
    );
    let certificate = place.json("run/certificates/candidate.json");
    assert_eq!(math_rule(&certificate), (6, 1, 1));
    let rule = &certificate["objectives"]["preservation"]["rules"][0];
    assert_eq!(rule["control_correct"], 3);
    let report = place.json("run/import.json");
    assert_eq!(report["parser_disagreements"][0]["case"], "3");
    let caveats = certificate["caveats"].to_string();
    assert!(caveats.contains("On 2 of the 12 records"), "{caveats}");
    assert!(caveats.contains("filter strict-match"), "{caveats}");
}

#[test]
fn faults_are_listed_and_make_the_import_incomplete() {
    let place = Place::new();
    let log = fs::read_to_string(place.path("lm-eval-candidate.jsonl")).unwrap();
    let mut lines: Vec<String> = log
        .lines()
        .filter(|line| line.contains("\"flexible-extract\""))
        .map(str::to_owned)
        .collect();
    // In the candidate's order 5, 3, 1, 4, 2, 0: one of each fault.
    lines[0] = lines[0].replace("\"exact_match\": 0.0", "\"exact_match\": NaN");
    lines[1] = lines[1].replace("\"exact_match\": 1.0", "\"exact_match\": 0.5");
    lines[2] = lines[2].replace("#### 60\", \"arguments", "#### 61\", \"arguments");
    lines[3] = lines[4].clone();
    place.write("faults.jsonl", &(lines.join("\n") + "\n"));
    let command = "import lm-eval --native lm-eval-native.jsonl --candidate faults.jsonl \
                   --filter flexible-extract --recipe AD --out";
    let done = place.run(&format!("{command} run"));
    assert_eq!(done.code, 3);
    insta::assert_snapshot!("faults_text", without_digests(&done.out));
    insta::assert_snapshot!("faults_stderr", without_digests(&done.err));
    let report = place.json("run/import.json");
    let kinds: Vec<&str> = report["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| fault["kind"].as_str().unwrap())
        .collect();
    for kind in ["conflict", "duplicate", "missing", "unscored"] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
    assert_eq!(report["pairs"], 1);
    let done = place.run(&format!("{command} json --format json"));
    let summary: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, summary["exit"].as_u64()), (3, Some(3)));
}

#[test]
fn only_records_that_carry_the_protocol_are_more_than_descriptive() {
    let place = Place::new();
    let digest = protocol_digest(&place, "smoke");
    let import = |name: &str, text: &str| {
        place.write(name, text);
        let done = place.run(&format!(
            "import csv --pairs {name} --protocol smoke --recipe AD --out {name}.run"
        ));
        let (verdict, reason) = place.verdict(&format!("{name}.run/certificates/AD.json"));
        (done.code, verdict, reason)
    };
    let expected =
        |code: i32, verdict: &str, reason: &str| (code, verdict.to_owned(), reason.to_owned());
    let carried = table(32, ",protocol_sha256", &format!(",{digest}"));
    // What smoke names beside the math panel is not there.
    let incomplete = expected(3, "incomplete", "missing_records");
    assert_eq!(import("carried", &carried), incomplete);
    let detail =
        place.json("carried.run/certificates/AD.json")["objectives"]["preservation"]["detail"]
            .to_string();
    assert!(detail.contains("is not part of the run"), "{detail}");

    let post_hoc = expected(0, "descriptive", "post_hoc");
    assert_eq!(import("none", &table(32, "", "")), post_hoc);
    let other = table(32, ",protocol_sha256", &format!(",{}", "0".repeat(64)));
    assert_eq!(import("other", &other), post_hoc);
    let in_part = carried.replacen(&digest, "", 1);
    assert_eq!(import("in_part", &in_part), post_hoc);
    let large = table(33, ",protocol_sha256", &format!(",{digest}"));
    assert_eq!(
        import("large", &large),
        expected(0, "descriptive", "panel_undeclared")
    );
    let small = table(31, ",protocol_sha256", &format!(",{digest}"));
    assert_eq!(import("small", &small), incomplete);
}

#[test]
fn what_is_required_decides_the_exit_code() {
    let place = Place::new();
    place.write("t.csv", &table(32, "", ""));
    let done = place.run("import csv --pairs t.csv --require both --out run");
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(
        done.out
            .contains("required of each recipe: preservation and aggregate")
    );
}

#[test]
fn other_panels_and_other_controls_can_be_named() {
    let place = Place::new();
    place.write("t.csv", &table(8, "", ""));
    let done = place.run("import csv --pairs t.csv --panel retrieval-1k --out retrieval");
    assert_eq!(done.code, 0, "{}", done.err);
    let certificate = place.json("retrieval/certificates/candidate.json");
    let rule = &certificate["objectives"]["preservation"]["rules"][0];
    assert_eq!(
        (&rule["rule"], &rule["lost"]),
        (&"retrieval".into(), &1.into())
    );

    let several = "import csv --pairs t.csv --protocol study-workers --out workers";
    let done = place.run(several);
    assert_eq!(done.code, 2);
    let (_, names) = done.err.trim().rsplit_once("expected one of: ").unwrap();
    let first = names.split(", ").next().unwrap();
    let done = place.run(&format!("{several} --control {first}"));
    assert_eq!(done.code, 0, "{}", done.err);
    let certificate = place.json("workers/certificates/candidate.json");
    assert_eq!(math_rule(&certificate), (8, 1, 0));
}

#[test]
fn runs_without_their_report_are_descriptive_and_mixed_ones_refused() {
    let place = Place::new();
    place.write("t.csv", &table(32, "", ""));
    let done = place.run("import csv --pairs t.csv --recipe AD --out run");
    assert_eq!(done.code, 0, "{}", done.err);
    fs::remove_file(place.path("run/import.json")).unwrap();
    let done = place.run("certify run");
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("import.json is absent"), "{}", done.out);

    // Verdicts of another harness are no evidence of a worker of this tool.
    let manifest = fs::read_to_string(place.path("run/run.json")).unwrap();
    place.write("run/run.json", &manifest.replace("\"import\"", "\"cpu\""));
    let done = place.run("certify run");
    assert_eq!(done.code, 5);
    let found = "run.json: model.files: found no weight file, expected those of weights unknown";
    assert!(done.err.contains(found), "{}", done.err);
}

#[test]
fn refusals() {
    let place = Place::new();
    place.write("t.csv", &table(3, "", ""));
    place.write("u.csv", &table(3, "", ""));
    for name in ["x.eval", "y.eval"] {
        place.write(name, "PK\u{3}\u{4}");
    }
    assert_eq!(place.run("import csv --pairs t.csv --out taken").code, 0);
    let commands = [
        "csv --pairs t.csv --out taken",
        "csv --pairs no.csv --out run",
        "csv --pairs t.csv --native-column x --out run",
        "csv --pairs t.csv --panel nll-1k --out run",
        "csv --pairs t.csv --recipe k=natve,v=e4m3 --out run",
        "csv --pairs t.csv --recipe native --out run",
        "csv --pairs t.csv --protocol none --out run",
        "inspect --native x.eval --candidate y.eval --out run",
        "lighteval --native t.csv --candidate u.csv --out run",
        "lm-eval --native lm-eval-native.jsonl --candidate lm-eval-candidate.jsonl --out run",
        "lm-eval --native t.csv --candidate u.csv --out run",
    ];
    let mut text = String::new();
    for command in commands {
        let done = place.run(&format!("import {command}"));
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{command}");
        text += &format!("$ kvassay import {command}\n{}", done.err);
    }
    insta::assert_snapshot!("import_refusals", without_digests(&text));
    assert!(!place.path("run").exists(), "nothing is written by halves");
}

/// Native compared with itself loses nothing and gains nothing, whatever the recipe did.
#[test]
fn one_file_for_both_arms_is_refused_but_for_a_table_with_two_columns() {
    let place = Place::new();
    place.write("t.csv", &table(3, "", ""));
    place.write("one.csv", "case,correct\na,1\nb,0\n");
    let lm_eval = "lm-eval --filter strict-match --native lm-eval-native.jsonl";
    let shared = "found a file of both --native and --candidate, expected files of its own";
    let column = |name: &str| format!("found column {name} for both arms, expected a column for");
    let commands = [
        (
            format!("{lm_eval} --candidate lm-eval-native.jsonl"),
            shared.to_owned(),
        ),
        (
            format!("{lm_eval} --candidate lm-eval-candidate.jsonl ./lm-eval-native.jsonl"),
            shared.to_owned(),
        ),
        (
            "inspect --native inspect-native.json --candidate ./inspect-native.json".to_owned(),
            shared.to_owned(),
        ),
        (
            "lighteval --native lighteval-newer-native.parquet \
             --candidate lighteval-newer-native.parquet"
                .to_owned(),
            shared.to_owned(),
        ),
        (
            "csv --native one.csv --candidate ./one.csv".to_owned(),
            column("correct"),
        ),
        ("csv --pairs one.csv".to_owned(), column("correct")),
        (
            "csv --pairs t.csv --native-column candidate".to_owned(),
            column("candidate"),
        ),
        (
            "csv --pairs t.csv --candidate-column native".to_owned(),
            column("native"),
        ),
    ];
    for (command, expected) in commands {
        let done = place.run(&format!("import {command} --out run"));
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{command}");
        assert!(done.err.contains(&expected), "{command}: {}", done.err);
    }
    assert!(!place.path("run").exists());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("lm-eval-native.jsonl", place.path("link.jsonl")).unwrap();
        let done = place.run(&format!(
            "import {lm_eval} --candidate link.jsonl --out run"
        ));
        assert_eq!(done.code, 2);
    }
    // A column for each arm, and files of the same bytes: a deterministic worker may log them.
    let done = place.run("import csv --native t.csv --candidate t.csv --out both");
    assert_eq!(done.code, 0, "{}", done.err);
    fs::copy(place.path("one.csv"), place.path("two.csv")).unwrap();
    let done = place.run("import csv --native one.csv --candidate two.csv --out equal");
    assert_eq!(done.code, 0, "{}", done.err);
}

/// A published pair: outcomes of two systems on the 1,319 questions of GSM8K.
#[test]
fn the_public_outcomes_lose_64_and_gain_293() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let data = std::env::var_os("KVASSAY_DATA").map_or(shared, PathBuf::from);
    let file = data.join("gsm8k/public_outcomes_6b.csv");
    if !file.exists() {
        // Captured unless the test fails or `--nocapture` is given.
        let mut err = std::io::stderr();
        std::io::Write::write_fmt(
            &mut err,
            format_args!("skipped: {} is absent\n", file.display()),
        )
        .unwrap();
        return;
    }
    let place = Place::new();
    fs::copy(file, place.path("public_outcomes_6b.csv")).unwrap();
    let done = place.run(
        "import csv --pairs public_outcomes_6b.csv --native-column 6b_finetuning \
         --candidate-column 6b_verification --recipe verification --out run",
    );
    assert_eq!(done.code, 0, "{}", done.err);
    let certificate = place.json("run/certificates/verification.json");
    assert_eq!(math_rule(&certificate), (1319, 64, 293));
    insta::assert_snapshot!("public_outcomes_text", without_digests(&done.out));
    let caveats = certificate["caveats"].to_string();
    assert!(
        caveats.contains("pairing rests on case ids alone"),
        "{caveats}"
    );
}

/// As floats, numbers next to each other would be one.
#[test]
fn whole_numbers_of_any_length_are_told_apart() {
    let place = Place::new();
    let line = |target: &str| {
        format!(
            "{{\"doc_id\":0,\"doc\":{{\"question\":\"How many?\"}},\"target\":{target},\"exact_match\":1.0}}\n"
        )
    };
    place.write("a.jsonl", &line("100000000000000000000"));
    place.write("b.jsonl", &line("100000000000000000007"));
    let import = |candidate: &str, out: &str| {
        place.run(&format!(
            "import lm-eval --native a.jsonl --candidate {candidate} --recipe AD --model m --out {out}"
        ))
    };
    assert_eq!(import("a.jsonl", "same").code, 2, "one file for both arms");
    place.write("c.jsonl", &line("100000000000000000000"));
    assert_eq!(import("c.jsonl", "same").code, 0);
    let done = import("b.jsonl", "other");
    assert_eq!(done.code, 3, "{}", done.out);
    let report = place.json("other/import.json").to_string();
    assert!(report.contains("several gold answers"), "{report}");

    let twice = line("1").replace("1.0", "1.0,\"exact_match\":0.0");
    place.write("d.jsonl", &twice);
    let done = import("d.jsonl", "twice");
    assert_eq!(done.code, 2);
    assert!(
        done.err
            .contains("d.jsonl:1: found key `exact_match` a second time"),
        "{}",
        done.err
    );
    assert!(!place.path("twice").exists());
}

#[test]
fn a_model_has_a_name() {
    let place = Place::new();
    place.write("t.csv", &table(3, "", ""));
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let line = "import csv --pairs t.csv --recipe AD --out run --model";
    let output = kvassay
        .current_dir(place.0.path())
        .args(line.split_whitespace())
        .arg("")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!place.path("run").exists());
}
