//! Panels of small and of real data.

mod build_small;
mod context;
mod files;
mod real_data;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::schema::{Geometry, Protocol, builtin_protocol};

/// A data folder that a test fills.
struct Data {
    dir: TempDir,
}

impl Data {
    fn new() -> Self {
        Data {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn resolve(&self) -> DataDir {
        DataDir::resolve(Some(self.dir.path())).unwrap()
    }

    /// Questions with gold 2, 4, 6, …
    fn with_questions(self, count: u32) -> Self {
        let lines: Vec<String> = (1..=count)
            .map(|i| {
                let question = format!("Ann has {i} pears and buys {i} more. How many has she?");
                let answer = format!("{i} + {i} = <<{i}+{i}={0}>>{0}\n#### {0}", 2 * i);
                json!({"question": question, "answer": answer}).to_string()
            })
            .collect();
        self.write("gsm8k/questions.jsonl", lines.join("\n"));
        self
    }

    /// Articles of growing length.
    fn with_articles(self, count: usize) -> Self {
        let lines: Vec<String> = (0..count)
            .map(|i| {
                let sentence =
                    |s: usize| format!("The town number {i} had {s} wells in its time. ");
                let text: String = (0..40 + 10 * i).map(sentence).collect();
                json!({"title": format!("Town {i}"), "text": text}).to_string()
            })
            .collect();
        self.write("wikipedia/articles.jsonl", lines.join("\n"));
        self
    }
}

fn geometry(context: u32) -> Geometry {
    Geometry {
        layers: 2,
        hidden_size: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab_size: 100_000,
        context,
        native_dtype: "f16".to_owned(),
        recurrent_layers: Vec::new(),
        attention_layers: Vec::new(),
    }
}

/// The smoke protocol with other panels and calibration.
fn protocol(panels: serde_json::Value, calibration: serde_json::Value) -> Protocol {
    let mut protocol = builtin_protocol("smoke").unwrap();
    protocol.panels = serde_json::from_value(panels).unwrap();
    protocol.calibration = serde_json::from_value(calibration).unwrap();
    protocol
}

/// Where real data lie, or a note that the test is skipped.
fn real_data() -> Option<DataDir> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let folder = std::env::var_os("KVASSAY_DATA").map_or(beside, PathBuf::from);
    if folder.join("gsm8k/test.jsonl").is_file() {
        return DataDir::resolve(Some(&folder)).ok();
    }
    println!(
        "skipped: no data in {} (KVASSAY_DATA names them)",
        folder.display()
    );
    None
}
