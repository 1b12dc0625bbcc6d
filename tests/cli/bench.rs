//! `bench worker` through the binary, on a shape small enough for any machine.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::str::contains;
use serde_json::{Value, json};

/// Two layers, grouped heads, a head of its own.
fn config() -> Value {
    json!({
        "model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 512,
    })
}

fn write(folder: &Path, config: &Value) -> PathBuf {
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

fn bench(shape: &Path, arguments: &[&str]) -> Command {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    kvassay.args(["bench", "worker", "--worker", "cpu", "--quick", "--shape"]);
    kvassay.arg(shape).args(arguments);
    kvassay
}

/// Attention is that of the first layer that attends, which is not the first of a model that begins with a
/// recurrent state.
#[test]
fn attention_of_a_model_that_begins_with_a_recurrent_layer_is_measured() {
    let shape = Path::new("fixtures/parity/qwen3_5/config.json");
    let arguments = [
        "--work",
        "attention",
        "--recipe",
        "native",
        "--recipe",
        "SF",
    ];
    let mut command = bench(shape, &[&arguments[..], &["--format", "json"]].concat());
    let assert = command.assert().code(0);
    let document: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let rows = document["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// Every kind of work has a figure, a time and a share of a floor that bounds it; what a recipe
/// changes is measured under each.
#[test]
fn all_work_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let shape = write(folder.path(), &config());
    let all = "load,start,prefill-1k,prefill-8k,decode,attention,math,nll,retrieval,arm";
    let arguments = [
        "--work", all, "--recipe", "native", "--recipe", "SF", "--format", "json",
    ];
    let assert = bench(&shape, &arguments).assert().code(0);
    let document: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(document["schema"], "kvassay.bench-worker/1");
    assert_eq!(document["worker"]["kind"], "cpu");
    assert_eq!(document["bus_bytes_per_second"], Value::Null);
    for rate in ["copy_bytes_per_second", "product_operations_per_second"] {
        assert!(document[rate].as_f64().unwrap() > 1e6, "{rate}");
    }
    let rows = document["measured"].as_array().unwrap();
    let label = |row: &Value| {
        let recipe = row["recipe"].as_str().unwrap_or("-").to_owned();
        (recipe, row["work"].as_str().unwrap().to_owned())
    };
    let mut expected = vec![("-", "load"), ("-", "start")];
    for recipe in ["native", "SF"] {
        expected.extend(all.split(',').skip(2).map(|work| (recipe, work)));
    }
    let found: Vec<_> = rows.iter().map(label).collect();
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(recipe, work)| (recipe.to_owned(), work.to_owned()))
        .collect();
    assert_eq!(found, expected);
    for row in rows {
        let number = |field: &str| row[field].as_f64().unwrap_or(f64::NAN);
        assert!(number("seconds") > 0.0 && number("figure") > 0.0, "{row}");
        if row["recipe"].is_null() {
            // Weights stay with the host.
            assert!(row["floor_seconds"].is_null(), "{row}");
        } else {
            let share = number("floor_seconds") / number("seconds");
            assert_eq!(number("share_of_floor"), share, "{row}");
            assert!(share > 0.0, "{row}");
        }
    }
    // 16 questions of 16 tokens, 4 windows and 4 cases of 4 tokens at either length.
    let arm = rows.last().unwrap()["what"].as_str().unwrap();
    assert!(
        arm.starts_with("32 cases") && arm.ends_with("288 new"),
        "{arm}"
    );
}

#[test]
fn text_states_bounds_and_a_line_per_work() {
    let folder = tempfile::tempdir().unwrap();
    let shape = write(folder.path(), &config());
    let assert = bench(&shape, &["--work", "prefill-1k", "--recipe", "AD"]).assert();
    let output = assert.code(0).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains(" on cpu: "), "{text}");
    assert!(lines[1].starts_with("bounds: copy of "), "{text}");
    assert!(lines[2].starts_with("prefill-1k  AD "), "{text}");
    assert!(
        lines[2].contains("tok/s") && lines[2].contains("% of "),
        "{text}"
    );
}

#[test]
fn statistics_are_timed_at_their_sizes() {
    let kvassay = |more: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("kvassay").unwrap();
        let args = ["bench", "stats", "--quick"];
        let assert = command.args(args).args(more).assert().code(0);
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    let document: Value = serde_json::from_str(&kvassay(&["--format", "json"])).unwrap();
    assert_eq!(document["schema"], "kvassay.bench-stats/1");
    let rows = document["measured"].as_array().unwrap();
    let methods: Vec<&str> = rows
        .iter()
        .map(|row| row["method"].as_str().unwrap())
        .collect();
    let expected = [
        "clopper_pearson_upper",
        "clopper_pearson_upper",
        "tango_lower",
        "mcnemar_exact",
        "sign_test",
        "holm",
        "bootstrap_ratio_upper",
    ];
    assert_eq!(methods, expected);
    for row in rows {
        assert!(row["seconds"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["calls"].as_u64().unwrap() >= 5, "{row}");
    }
    let text = kvassay(&[]);
    assert_eq!(text.lines().count(), 1 + expected.len(), "{text}");
    assert!(text.contains("bootstrap_ratio_upper"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config();
    small["max_position_embeddings"] = json!(200);
    let shape = write(folder.path(), &small);
    bench(&shape, &["--work", "math"])
        .assert()
        .code(2)
        .stderr(contains(
            "math: needs 236 tokens, the model's context is 200",
        ));
    bench(&shape, &["--work", "mathematics"])
        .assert()
        .code(2)
        .stderr(contains(
            "--work: found `mathematics`, expected load, start",
        ));
    bench(&shape, &["--slots", "0"])
        .assert()
        .code(2)
        .stderr(contains("--slots: found 0, expected 1 to 65536"));
    bench(Path::new("nowhere"), &[])
        .assert()
        .code(2)
        .stderr(contains(
            "--shape nowhere: found nothing there, expected qwen3-8b",
        ));
    bench(&shape, &["--work", "start", "--recipe", "AQ"])
        .assert()
        .code(2);
    small["model_type"] = json!("gemma4");
    let shape = write(folder.path(), &small);
    bench(&shape, &[])
        .assert()
        .code(3)
        .stderr(contains("model_type"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_missing_gpu_is_a_worker_failure() {
    let folder = tempfile::tempdir().unwrap();
    let shape = write(folder.path(), &config());
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    kvassay.args([
        "bench", "worker", "--worker", "cuda", "--device", "9999", "--quick", "--shape",
    ]);
    kvassay
        .arg(shape)
        .assert()
        .code(4)
        .stdout("")
        .stderr(contains("error: "));
}
