//! `kvassay stats` and `kvassay audit` through the binary.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

fn kvassay(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("kvassay").unwrap();
    command.args(args);
    command
}

fn stdout(args: &[&str]) -> String {
    let output = kvassay(args).assert().success().get_output().clone();
    assert!(output.stderr.is_empty(), "data goes to stdout alone");
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(args: &[&str]) -> String {
    let output = kvassay(args).assert().code(2).get_output().clone();
    assert!(output.stdout.is_empty(), "errors go to stderr alone");
    String::from_utf8(output.stderr).unwrap()
}

/// Exit code and answers of a batch.
fn batch(input: impl Into<Vec<u8>>) -> (i32, Vec<Value>) {
    let output = kvassay(&["stats", "batch"])
        .write_stdin(input.into())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (output.status.code().unwrap(), lines.collect())
}

#[test]
fn help() {
    insta::assert_snapshot!("stats_help", stdout(&["stats", "--help"]));
    insta::assert_snapshot!("stats_batch_help", stdout(&["stats", "batch", "--help"]));
    insta::assert_snapshot!(
        "stats_tango_lower_help",
        stdout(&["stats", "tango_lower", "--help"])
    );
    insta::assert_snapshot!("audit_help", stdout(&["audit", "--help"]));
}

#[test]
fn single_statistics_as_text() {
    let commands = [
        "clopper_pearson_upper --k 6 --n 1319 --alpha 0.05/24",
        "clopper_pearson_upper --k 3 --n 20 --alpha 0.75",
        "tango_lower --lost 6 --gained 3 --n 1319 --alpha 0.05/24",
        "tango_upper --lost 3 --gained 6 --n 1319 --alpha 0.05/24",
        "tango_interval --lost 33 --gained 37 --n 1319 --confidence 0.95",
        "mcnemar_exact --lost 1210 --gained 0",
        "sign_test --positive 10 --negative 0",
        "holm --p 0.01,nan,0.03",
        "bootstrap_ratio_upper --native 2,3,2.5 --candidate 2.02,3.09,2.45 --alpha 0.05 --seed 1",
    ];
    let mut shown = String::new();
    for command in commands {
        let args: Vec<&str> = ["stats"].into_iter().chain(command.split(' ')).collect();
        shown += &format!("$ kvassay stats {command}\n{}\n", stdout(&args));
    }
    insta::assert_snapshot!("stats_text", shown);
}

#[test]
fn single_statistics_as_json() {
    let args = [
        "stats",
        "mcnemar_exact",
        "--lost",
        "7",
        "--gained",
        "1",
        "--format",
        "json",
    ];
    let document: Value = serde_json::from_str(&stdout(&args)).unwrap();
    assert_eq!(document["p"], 0.0703125);
    let before = [
        "stats",
        "--format",
        "json",
        "mcnemar_exact",
        "--lost",
        "7",
        "--gained",
        "1",
    ];
    assert_eq!(stdout(&args), stdout(&before));
}

#[test]
fn single_statistics_outside_their_domain() {
    let commands = [
        "clopper_pearson_upper --k 7 --n 6 --alpha 0.05",
        "clopper_pearson_upper --k 0 --n 0 --alpha 0.05",
        "clopper_pearson_upper --k -1 --n 6 --alpha 0.05",
        "clopper_pearson_upper --k 1 --n 6 --alpha 5%",
        "tango_lower --lost 4 --gained 3 --n 6 --alpha 0.05",
        "tango_lower --lost 4 --gained 1 --n 6 --alpha 0.6",
        "tango_interval --lost 4 --gained 1 --n 6 --confidence 95",
        "holm --p 0.01,1.03",
        "bootstrap_ratio_upper --native 2 --candidate 2 --alpha 0.05",
        "bootstrap_ratio_upper --native -2,1 --candidate 2,2 --alpha 0.05",
        "wald --k 1",
        "batch --format text",
    ];
    let mut shown = String::new();
    for command in commands {
        let args: Vec<&str> = ["stats"].into_iter().chain(command.split(' ')).collect();
        shown += &format!("$ kvassay stats {command}\n{}\n", stderr(&args));
    }
    insta::assert_snapshot!("stats_refusals", shown);
}

#[test]
fn batch_answers_in_order_with_every_kind_of_id() {
    let ids = [
        json!(1),
        json!("one"),
        json!(null),
        json!([1, {"a": 2.5}]),
        json!(true),
    ];
    let input: String = ids
        .iter()
        .map(|id| json!({"id": id, "method": "sign_test", "positive": 10, "negative": 0}))
        .map(|line| format!("{line}\n"))
        .collect();
    let (code, answers) = batch(input);
    assert_eq!(code, 0);
    assert_eq!(answers.len(), ids.len());
    for (answer, id) in answers.iter().zip(&ids) {
        assert_eq!(&answer["id"], id);
        assert_eq!(answer["p_two_sided"], 0.001953125);
        assert_eq!(answer["p_greater"], 0.0009765625);
    }
}

#[test]
fn batch_answers_the_good_lines_around_bad_ones() {
    let input = concat!(
        r#"{"id":1,"method":"clopper_pearson_upper","k":6,"n":1319,"alpha":0.0020833333333333333}"#,
        "\n\n   \n",
        r#"{"id":2,"method":"clopper_pearson_upper","k":6,"n":1319}"#,
        "\n",
        r#"{"id":"x","method":"clopper_pearson_upper","k":-6,"n":1319,"alpha":0.05}"#,
        "\n",
        r#"{"id":3,"method":"clopper_pearson_upper","k":"6","n":1319,"alpha":0.05}"#,
        "\n",
        r#"{"id":4,"method":"clopper_pearson_upper","k":6,"n":1319,"alpha":NaN}"#,
        "\n",
        r#"{"id":5,"method":"median","k":6}"#,
        "\n",
        r#"{"id":6,"method":"tango_upper","lost":1,"gained":1,"n":9,"alpha":0.7}"#,
        "\n",
        r#"{"id":7,"method":"holm","p":[]}"#,
        "\n",
        r#"{"id":8,"method":"bootstrap_ratio_upper","native":[2.0,3.0],"candidate":[2.1,3.0],"alpha":0.05,"resamples":100000,"seed":18446744073709551615}"#,
        "\n",
        r#"[{"id":9}]"#,
        "\nid 10\n",
        r#"{"id":11,"method":"mcnemar_exact","lost":1210,"gained":0}"#,
    );
    let (code, answers) = batch(input);
    assert_eq!(code, 2);
    let shown: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
    insta::assert_snapshot!("stats_batch", shown);
}

/// Every golden vector of the bounds also through the batch interface.
#[test]
fn batch_reproduces_golden_bounds() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/stats/clopper_pearson_upper.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let input: String = cases
        .iter()
        .map(|case| {
            let mut line = case["inputs"].clone();
            line["id"] = case["id"].clone();
            line["method"] = json!("clopper_pearson_upper");
            format!("{line}\n")
        })
        .collect();
    let (code, answers) = batch(input);
    assert_eq!((code, answers.len()), (0, cases.len()));
    for (answer, case) in answers.iter().zip(cases) {
        assert_eq!(answer["id"], case["id"]);
        let expected = case["expected"]["upper"].as_f64().unwrap();
        let found = answer["value"].as_f64().unwrap();
        assert!(
            (found - expected).abs() <= 1e-12 * expected,
            "{answer} {case}"
        );
    }
}

const TABLE: &str = "label,pairs,lost,gained,alpha\n\
                     AF,1319,6,3,0.05/24\n\
                     AD,1319,6,10,0.05/24\n\
                     \"SF, both\",1319,22,23,0.05/24\n\
                     RD,1319,1210,0,0.05/24\n\
                     post hoc,1319,23,24,\n";

/// Runs in a directory of its own, so that messages hold no machine's paths.
fn audit(table: &[u8], args: &[&str]) -> assert_cmd::assert::Assert {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("table.csv"), table).unwrap();
    let mut command = kvassay(&["audit", "table.csv"]);
    command.args(args).current_dir(folder.path()).assert()
}

fn audited(table: &[u8], args: &[&str]) -> String {
    let output = audit(table, args).success().get_output().clone();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn audit_as_text() {
    insta::assert_snapshot!("audit_text", audited(TABLE.as_bytes(), &[]));
}

#[test]
fn audit_as_json() {
    let text = audited(TABLE.as_bytes(), &["--format", "json"]);
    insta::assert_snapshot!("audit_json", text);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], "kvassay.audit/1");
    let first = &document["rows"][0];
    assert_eq!(first["gross_loss"]["pass"], true);
    assert_eq!(first["net_change"]["pass"], false);
    let upper = first["gross_loss"]["upper"].as_f64().unwrap();
    assert!((upper - 0.012_823_657_925_912_124).abs() < 1e-14);
}

#[test]
fn audit_limits_decide() {
    let limits = [
        "--format",
        "json",
        "--gross-limit",
        "1%",
        "--net-margin",
        "1.2pp",
    ];
    let document: Value = serde_json::from_str(&audited(TABLE.as_bytes(), &limits)).unwrap();
    let first = &document["rows"][0];
    assert_eq!(first["gross_loss"]["limit"], 0.01);
    assert_eq!(first["gross_loss"]["pass"], false);
    assert_eq!(first["net_change"]["limit"], -0.012);
    assert_eq!(first["net_change"]["pass"], true);
    let proportions = [
        "--format",
        "json",
        "--gross-limit",
        "0.01",
        "--net-margin",
        "0.012",
    ];
    let same: Value = serde_json::from_str(&audited(TABLE.as_bytes(), &proportions)).unwrap();
    assert_eq!(same, document);
    let alpha = ["--format", "json", "--alpha", "0.05/24"];
    let plain = b"label,pairs,lost,gained\nAF,1319,6,3\n";
    let document: Value = serde_json::from_str(&audited(plain, &alpha)).unwrap();
    assert_eq!(document["alpha"], 0.05 / 24.0);
    assert_eq!(document["rows"][0]["alpha"], 0.05 / 24.0);
}

#[test]
fn audit_notes_the_columns_that_it_ignores() {
    let table = b"\xef\xbb\xbfmodel,label,pairs,lost,gained,seed\r\nq, AF ,1319.0,6,3,1\r\n";
    let output = audit(table, &["--format", "json"])
        .success()
        .get_output()
        .clone();
    insta::assert_snapshot!(
        String::from_utf8(output.stderr).unwrap(),
        @"kvassay: note: table.csv: ignored columns: `model`, `seed`"
    );
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["rows"][0]["label"], "AF");
    assert_eq!(document["rows"][0]["pairs"], 1319);
}

#[test]
fn audit_refuses_what_it_cannot_read() {
    let head = "label,pairs,lost,gained\n";
    let mut shown = String::new();
    for body in [
        "AF,1319,-6,3",
        "AF,1319,x,3",
        "AF,9,6,4",
        "AF,1319,6",
        "A,9,0,0\nA,9,0,0",
        "",
    ] {
        let output = audit(format!("{head}{body}\n").as_bytes(), &[])
            .code(2)
            .get_output()
            .clone();
        assert!(output.stdout.is_empty());
        shown += &format!("{body:?}\n{}\n", String::from_utf8(output.stderr).unwrap());
    }
    for table in ["", "label,lost,gained\nA,0,0\n"] {
        let output = audit(table.as_bytes(), &[]).code(2).get_output().clone();
        shown += &format!("{table:?}\n{}\n", String::from_utf8(output.stderr).unwrap());
    }
    insta::assert_snapshot!("audit_refusals", shown);
    let missing = stderr(&["audit", "no-such-file.csv"]);
    assert!(
        missing.starts_with("kvassay: error: no-such-file.csv: cannot open: "),
        "{missing}"
    );
    for flags in [
        ["--gross-limit", "2"],
        ["--gross-limit", "-2%"],
        ["--net-margin", "one"],
        ["--alpha", "0.7"],
        ["--format", "xml"],
    ] {
        audit(TABLE.as_bytes(), &flags).code(2);
    }
}
