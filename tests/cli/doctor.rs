//! `doctor` through the binary: it answers on every machine.

use assert_cmd::Command;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> String {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let assert = kvassay.arg("doctor").args(arguments).assert().code(0);
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

/// Every check says what was found or what is missing, and the verdict follows from the last one.
#[test]
fn every_check_says_something() {
    let report: Value = serde_json::from_str(&doctor(&["--format", "json"])).unwrap();
    assert_eq!(report["schema"], "kvassay.doctor/1");
    let checks = report["checks"].as_array().unwrap();
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    for name in [
        "driver",
        "compiler",
        "matrix products",
        "kernel self-test",
        "embedded kernels",
    ] {
        assert!(!check(name)["found"].as_str().unwrap().is_empty(), "{name}");
    }
    assert_eq!(check("cpu worker")["ok"], true);
    assert_eq!(report["cuda"], check("kernel self-test")["ok"]);
}

#[test]
fn text_names_the_worker() {
    let text = doctor(&[]);
    assert!(
        text.contains("The built-in worker of this machine is c"),
        "{text}"
    );
}

#[test]
fn a_missing_model_is_bad_input() {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let arguments = ["doctor", "--model", "nowhere"];
    kvassay.args(arguments).assert().code(2).stdout("");
}

fn report(code: i32, model: &str) -> Value {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let arguments = ["doctor", "--format", "json", "--model", model];
    let assert = kvassay.args(arguments).assert().code(code);
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

/// A demo model's 16-bit weights and its cache.
#[test]
fn a_model_that_runs_says_what_it_takes() {
    let report = report(0, "demo-tolerant");
    let model = &report["model"];
    assert_eq!(
        (&model["runs"], &model["family"]),
        (&Value::Bool(true), &"qwen3".into())
    );
    let files = std::fs::metadata("fixtures/demo/tolerant/model.safetensors").unwrap();
    assert_eq!(model["weights"]["stored_bytes"], files.len());
    assert_eq!(model["recipes"][0]["name"], "native");
    // 1,024 bytes per token, as the summary of a run says.
    let tokens = model["sequence_tokens"].as_u64().unwrap();
    assert_eq!(model["recipes"][0]["bytes_per_token"], 1024);
    assert_eq!(model["recipes"][0]["cache_bytes"], 1024 * tokens);
    assert!(model.get("refused").is_none());
    let text = doctor(&["--model", "demo-tolerant"]);
    assert!(text.contains("\nmodel demo-tolerant: runs\n"), "{text}");
}

/// What no worker runs is named with its place; the rest of its report stands.
#[test]
fn a_model_that_is_refused_says_why_and_what_it_would_keep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string("fixtures/configs/qwen3.8-27b.json").unwrap();
    let keeps_its_states = |report: &Value| {
        let model = &report["model"];
        assert_eq!(model["layers"][0]["kind"], "recurrent");
        assert_eq!(model["recipes"][0]["recurrent_bytes"], 153_944_064);
        let native = &model["recipes"][0];
        assert_eq!(native["cache_bytes"], 65_536 * 8192);
        model.clone()
    };
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["model_type"] = "qwen3_5_moe".into();
    std::fs::write(&path, config.to_string()).unwrap();
    let model = keeps_its_states(&report(3, path.to_str().unwrap()));
    assert_eq!(model["runs"], false);
    let refused = model["refused"].as_str().unwrap();
    let expected = "config.json: unsupported: model_type = \"qwen3_5_moe\"";
    assert!(refused.contains(expected), "{refused}");
    // The same without experts, and with what a decoder needs, runs.
    config["model_type"] = "qwen3_5".into();
    config["dtype"] = "bfloat16".into();
    config["text_config"]["intermediate_size"] = 17_408.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let model = keeps_its_states(&report(0, path.to_str().unwrap()));
    assert_eq!(
        (&model["runs"], &model["family"]),
        (&true.into(), &"qwen3_5".into())
    );
    // A config that lacks what a decoder needs cannot be read as one.
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let arguments = ["doctor", "--model", "fixtures/configs/qwen3-8b.json"];
    kvassay.args(arguments).assert().code(2).stdout("");
}

/// A width of heads that one of the workers lacks is said with the worker's name.
#[test]
fn a_width_that_only_the_cpu_worker_has_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let noted = |head_dim: u32| {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 48, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": head_dim,
            "vocab_size": 128, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
        });
        std::fs::write(&path, config.to_string()).unwrap();
        let report = report(0, path.to_str().unwrap());
        assert_eq!(report["model"]["runs"], true);
        report["model"]["notes"].to_string()
    };
    let note = "the CUDA worker has heads of multiples of 8 up to 512 elements, not 12";
    assert!(noted(12).contains(note));
    assert!(!noted(16).contains("CUDA worker"));
}

/// What a run refuses and a look at the headers cannot see is said.
#[test]
fn values_of_weights_are_said_not_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir("fixtures/demo/tolerant").unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let weights = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    // NaN in the last element, in any of the 16-bit and 32-bit formats.
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(&[0xff; 4]);
    std::fs::write(&weights, bytes).unwrap();
    let path = folder.path().to_str().unwrap();
    let note = "Values of weights were not read: a run refuses weights that are NaN or infinite.";
    let model = &report(0, path)["model"];
    assert_eq!(model["runs"], true);
    assert!(
        model["notes"].as_array().unwrap().contains(&note.into()),
        "{model}"
    );
    assert!(doctor(&["--model", path]).contains(note));
    // A config alone has none.
    let config = folder.path().join("config.json");
    let model = &report(0, config.to_str().unwrap())["model"];
    assert!(
        !model["notes"].to_string().contains("Values of weights"),
        "{model}"
    );
}

/// A pipe in place of a file never blocks.
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let [folder, path] = [folder.path(), &path].map(|path| path.to_str().unwrap());
    let memory = ["memory", "--budget", "1GiB"];
    for (command, model) in [
        (&["doctor", "--model"][..], folder),
        (&memory, folder),
        (&memory, path),
    ] {
        let mut kvassay = Command::cargo_bin("kvassay").unwrap();
        kvassay.timeout(std::time::Duration::from_secs(60));
        let assert = kvassay.args(command).arg(model).assert();
        let assert = assert.code(2).stdout("");
        let text = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        let expected = "config.json: file: found a pipe, expected a regular file";
        assert!(text.contains(expected), "{command:?}: {text}");
    }
}
