//! `kvassay memory` and the byte accounting behind it, against published figures.

use kvassay::recipe::{self, CacheShape, Recipe};
use serde_json::Value;

use crate::command::{stderr, stdout};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// One published row: recipe, blocks, token slots, GiB of 17,000 blocks, percent saved.
type Published = (&'static str, u64, u64, &'static str, &'static str);

/// Qwen3-8B, 40 GiB with 36 MiB in reserve. The study prints 19.265 GiB and 48.427% for the last
/// row, where its allocator rounded up; the stored bytes themselves give what stands here.
const QWEN3_8B: [Published; 3] = [
    ("native", 18_188, 291_008, "37.354", "0.0000"),
    ("AF", 24_251, 388_016, "28.015", "25.0000"),
    ("SD", 35_274, 564_384, "19.260", "48.4375"),
];

fn check(row: &Value, published: &Published) {
    let (name, blocks, slots, gib, saved) = *published;
    assert_eq!(row["name"], name);
    assert_eq!(row["blocks"], blocks, "{name}");
    assert_eq!(row["token_slots"], slots, "{name}");
    let bytes = row["equal_slots_bytes"].as_u64().expect("a count");
    assert_eq!(format!("{:.3}", bytes as f64 / GIB as f64), gib, "{name}");
    assert_eq!(
        format!("{:.4}", 100.0 * row["saved"].as_f64().expect("a number")),
        saved,
        "{name}"
    );
}

#[test]
fn the_binary_reproduces_the_published_memory_table() {
    let mut args = vec![
        "memory",
        "fixtures/configs/qwen3-8b.json",
        "--budget",
        "40GiB",
    ];
    args.extend([
        "--reserve",
        "36MiB",
        "--blocks",
        "17000",
        "--format",
        "json",
    ]);
    args.extend(["--recipe", "AF", "--recipe", "SD"]);
    let report: Value = serde_json::from_str(&stdout(&args)).unwrap();
    assert_eq!(report["schema"], "kvassay.memory/1");
    assert_eq!(report["page_tokens"], 16);
    let rows = report["recipes"].as_array().unwrap();
    assert_eq!(rows.len(), QWEN3_8B.len());
    for (row, published) in rows.iter().zip(&QWEN3_8B) {
        check(row, published);
    }
}

#[test]
fn the_library_reproduces_every_published_count() {
    let qwen = CacheShape {
        layers: 36,
        kv_heads: 8,
        head_dim: 128,
    };
    let phi = CacheShape {
        layers: 40,
        kv_heads: 10,
        head_dim: 128,
    };
    let slots = |shape: &CacheShape, recipe: &str, budget, reserve| {
        let recipe = Recipe::parse(recipe).unwrap();
        recipe::capacity(budget, reserve, recipe::bytes_per_token(&recipe, shape)).token_slots
    };
    for (recipe, _, expected, ..) in QWEN3_8B {
        assert_eq!(
            slots(&qwen, recipe, 40 * GIB, 36 * MIB),
            expected,
            "{recipe}"
        );
    }
    assert_eq!(slots(&qwen, "native", 40 * GIB, 0), 291_264);
    assert_eq!(slots(&qwen, "AF", 40 * GIB, 0), 388_352);
    assert_eq!(slots(&phi, "native", 32 * GIB, 0), 167_760);
    assert_eq!(slots(&phi, "AF", 32 * GIB, 0), 223_696);
}

#[test]
fn the_binary_reads_a_head_dim_that_follows_from_other_fields() {
    let args = [
        "memory",
        "fixtures/configs/phi-4.json",
        "--budget",
        "32GiB",
        "--format",
        "json",
    ];
    let report: Value = serde_json::from_str(&stdout(&args)).unwrap();
    let slots = |name: &str| {
        let rows = report["recipes"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["token_slots"].as_u64().unwrap()
    };
    assert_eq!((slots("native"), slots("AF")), (167_760, 223_696));
    assert_eq!(report["recipes"].as_array().unwrap().len(), 7);
}

/// One checkpoint of the study: file, and by hand (fixtures/configs/README.md) bytes per token
/// beyond every window, of what windows hold, and of recurrent states.
const NINE: [(&str, u64, u64, u64); 9] = [
    ("phi-4", 40 * 10 * 512, 0, 0),
    ("ministral-3-8b", 34 * 8 * 512, 0, 0),
    ("qwen3-8b", 36 * 8 * 512, 0, 0),
    ("qwen2.5-7b", 28 * 4 * 512, 0, 0),
    ("qwen3-8b-awq", 36 * 8 * 512, 0, 0),
    ("gemma-4-12b", 8 * 2048, 40 * 8 * 1024 * 1024, 0),
    ("gemma-4-26b-a4b", 5 * 2 * 2048, 25 * 8 * 1024 * 1024, 0),
    ("qwen3.5-9b", 8 * 4 * 1024, 0, 51_511_296),
    ("qwen3.8-27b", 16 * 4 * 1024, 0, 153_944_064),
];

fn memory_of(file: &str, tokens: u64) -> Value {
    let (model, tokens) = (format!("fixtures/configs/{file}.json"), tokens.to_string());
    let mut args = vec!["memory", &model, "--budget", "40GiB", "--tokens", &tokens];
    args.extend(["--format", "json"]);
    serde_json::from_str(&stdout(&args)).unwrap()
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut rows = report["recipes"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == name).unwrap()
}

#[test]
fn the_nine_checkpoints_keep_what_is_computed_by_hand() {
    for (file, per_token, window, recurrent) in NINE {
        let report = memory_of(file, 8192);
        assert_eq!(report["sequence_tokens"], 8192, "{file}");
        let native = row(&report, "native");
        let cache = 8192 * per_token + window;
        assert_eq!(native["bytes_per_token"], per_token, "{file}");
        let sequence = &native["sequence"];
        assert_eq!(sequence["cache_bytes"], cache, "{file}");
        // Windows of 1,024 tokens lie in up to 65 pages, and 8,192 tokens are whole pages.
        let pages = 8192 * per_token + window / 1024 * 65 * 16;
        assert_eq!(sequence["page_bytes"], pages, "{file}");
        let stored = 8192 * (per_token + window / 1024);
        assert_eq!(sequence["stored_bytes"], stored, "{file}");
        assert_eq!(sequence["recurrent_bytes"], recurrent, "{file}");
        assert_eq!(sequence["persistent_bytes"], cache + recurrent, "{file}");
        assert_eq!(
            sequence["sequences"],
            40 * GIB / (pages + recurrent),
            "{file}"
        );
        // One byte instead of two for keys and values, states as they are.
        let half = &row(&report, "SF")["sequence"];
        assert_eq!(half["cache_bytes"], cache / 2, "{file}");
        assert_eq!(half["recurrent_bytes"], recurrent, "{file}");
        let is_uniform = window == 0 && recurrent == 0;
        assert_eq!(native.get("token_slots").is_some(), is_uniform, "{file}");
    }
    let short = memory_of("gemma-4-12b", 1000);
    let cache = 1000 * (8 * 2048 + 40 * 8 * 1024);
    assert_eq!(row(&short, "native")["sequence"]["cache_bytes"], cache);
}

/// Proportions of persistent state that the study prints, at the lengths that give them.
#[test]
fn published_proportions_of_persistent_state() {
    for (file, tokens, recipe, published) in [
        ("gemma-4-26b-a4b", 8192, "AD", "24.70"),
        ("gemma-4-26b-a4b", 8192, "SD", "49.39"),
        ("qwen3.8-27b", 14_336, "AF", "21.48"),
        ("qwen3.8-27b", 14_336, "SF", "42.96"),
        ("qwen3.8-27b", 16_128, "AD", "21.48"),
        ("qwen3.8-27b", 16_128, "SD", "42.96"),
    ] {
        let report = memory_of(file, tokens);
        let row = row(&report, recipe);
        let saved = row["saved"].as_f64().unwrap();
        assert_eq!(row["sequence"]["saved"], row["saved"]);
        assert_eq!(
            format!("{:.2}", 100.0 * saved),
            published,
            "{file} {recipe}"
        );
    }
}

#[test]
fn a_folder_with_a_config_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("some-model");
    std::fs::create_dir(&model).unwrap();
    let config = r#"{"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}"#;
    std::fs::write(model.join("config.json"), config).unwrap();
    let text = stdout(&["memory", model.to_str().unwrap(), "--budget", "1 MiB"]);
    assert!(
        text.starts_with("some-model: 2 layers, 4 KV heads, head_dim 16\n"),
        "{text}"
    );
}

/// What the binary says of a model's shape, by the head of its text.
fn shape(model: &str) -> String {
    let text = stdout(&["memory", model, "--budget", "1MiB"]);
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn gguf_files_and_demo_models_are_models() {
    let tiny = shape("fixtures/gguf/tiny.gguf");
    assert_eq!(tiny, "tiny: 1 layers, 2 KV heads, head_dim 16");
    for name in ["tolerant", "sensitive"] {
        let demo = shape(&format!("demo-{name}"));
        let folder = shape(&format!("fixtures/demo/{name}"));
        assert_eq!(demo, format!("demo-{folder}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.gguf");
    std::fs::write(&broken, "GGUF").unwrap();
    let message = stderr(&["memory", broken.to_str().unwrap(), "--budget", "1MiB"]);
    assert!(message.contains("broken.gguf: version"), "{message}");
}

#[test]
fn text_and_help() {
    let mut args = vec![
        "memory",
        "fixtures/configs/qwen3-8b.json",
        "--budget",
        "40GiB",
    ];
    args.extend(["--reserve", "36MiB"]);
    insta::assert_snapshot!("memory_text", stdout(&args));
    args.extend([
        "--recipe",
        "k=e4m3,v=e4m3:fixed,skip-layers=0,-1",
        "--format",
        "json",
    ]);
    insta::assert_snapshot!("memory_json", stdout(&args));
    insta::assert_snapshot!("memory_help", stdout(&["memory", "--help"]));
    let hybrid = [
        "memory",
        "fixtures/configs/qwen3.8-27b.json",
        "--budget",
        "40GiB",
    ];
    insta::assert_snapshot!("memory_hybrid", stdout(&hybrid));
    let windows = [
        "memory",
        "fixtures/configs/gemma-4-12b.json",
        "--budget",
        "40GiB",
    ];
    insta::assert_snapshot!("memory_windows", stdout(&windows));
}

/// 36 layers of 8 heads of 128 elements.
#[test]
fn groups_and_first_tokens_are_counted() {
    let text = stdout(&[
        "memory",
        "fixtures/configs/qwen3-8b.json",
        "--budget",
        "40GiB",
        "--recipe",
        "k=int4,v=int4-64",
        "--recipe",
        "k=native,v=e4m3,sink=4",
        "--format",
        "json",
    ]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = document["recipes"].as_array().unwrap();
    let of = |row: usize, field: &str| rows[row][field].as_u64();
    let heads = 36 * 8;
    assert_eq!(of(1, "bytes_per_token"), Some(heads * (80 + 72)));
    assert_eq!(of(1, "sink_bytes"), None);
    assert_eq!(of(2, "bytes_per_token"), Some(heads * (256 + 132)));
    assert_eq!(of(2, "sink_bytes"), Some(heads * 4 * 256));
}

#[test]
fn refusals_exit_with_2() {
    let qwen = "fixtures/configs/qwen3-8b.json";
    let messages = [
        stderr(&["memory", qwen, "--budget", "1GiB", "--recipe", "ad"]),
        stderr(&["memory", qwen, "--budget", "1GiB", "--reserve", "2GiB"]),
        stderr(&[
            "memory",
            qwen,
            "--budget",
            "1GiB",
            "--recipe",
            "k=e4m3,v=e4m3,skip-layers=36",
        ]),
        stderr(&["memory", "fixtures/configs/none.json", "--budget", "1GiB"]),
        stderr(&["memory", "fixtures/configs/none.gguf", "--budget", "1GiB"]),
        stderr(&["memory", "Cargo.toml", "--budget", "1GiB"]),
        stderr(&[
            "memory",
            "fixtures/configs/gemma-4-12b.json",
            "--budget",
            "1GiB",
            "--blocks",
            "7",
        ]),
        stderr(&["memory", qwen, "--budget", "1GiB", "--tokens", "0"]),
        stderr(&["memory", qwen, "--budget", "40G"]),
        stderr(&["memory", qwen]),
    ];
    insta::assert_snapshot!("memory_refusals", messages.join("\n"));
}
