//! Counts the arithmetic of a run: `operations RUN MODEL [SECONDS]` prints the floating-point
//! operations of all its records (a multiply-add is two) and, given the time they took, the rate.
//!
//! Counted are projections and attention, causal and without anything that is computed in vain:
//! beyond its keys and values, the last layer counts for the rows whose logits are wanted.
//! Calibration, norms, rotary and softmax are left out.

#![allow(clippy::print_stdout)] // A program that prints.

use std::path::Path;

use kvassay::model::{ModelConfig, ModelSource};
use kvassay::schema::Record;
use kvassay::store::RunDir;

/// Operations of one sequence of `tokens` stored tokens whose last `wanted` rows have logits.
fn sequence(config: &ModelConfig, tokens: u64, wanted: u64) -> u64 {
    let size = |n: usize| n as u64;
    let hidden = size(config.hidden_size);
    let (mut operations, last) = (
        wanted * 2 * hidden * size(config.vocab_size),
        config.layers.len() - 1,
    );
    for (at, layer) in config.layers.iter().enumerate() {
        let (q, kv) = (size(layer.q_width()), size(layer.kv_width()));
        let rest = 2 * hidden * q * 2 + 2 * hidden * size(config.intermediate_size) * 3;
        let first = if at == last { tokens - wanted } else { 0 };
        // Two products of 2 operations per element that a row looks at.
        let seen = |row: u64| row.min(layer.window.map_or(u64::MAX, size));
        let attended = (first + 1..=tokens).map(seen).sum::<u64>() * 4 * q;
        operations += tokens * 2 * hidden * 2 * kv + (tokens - first) * rest + attended;
    }
    operations
}

/// Stored tokens and rows with logits of one record.
fn rows(record: &Record) -> (u64, u64) {
    let prompt = u64::from(record.prompt_tokens);
    match (record.targets, record.output_tokens) {
        // The last token of a window, and the last of an answer, is never stored.
        (Some(targets), _) => (prompt - 1, u64::from(targets)),
        (None, Some(output)) => (prompt + u64::from(output) - 1, u64::from(output)),
        (None, None) => (0, 0),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (run, model, seconds) = match args.as_slice() {
        [_, run, model] => (run, model, None),
        [_, run, model, seconds] => (run, model, Some(seconds.parse::<f64>()?)),
        _ => return Err("usage: operations RUN MODEL [SECONDS]".into()),
    };
    let config = ModelSource::parse(Path::new(model)).open()?.config;
    let dir = RunDir::open(Path::new(run))?;
    let manifest = dir.manifest();
    let (mut tokens, mut operations) = (0, 0);
    for arm in &manifest.arms {
        for panel in &manifest.panels {
            for record in dir.records(&arm.arm, &panel.panel)? {
                let (stored, wanted) = rows(&record);
                tokens += stored;
                operations += sequence(&config, stored, wanted);
            }
        }
    }
    println!("{tokens} tokens, {:.3} TFLOP", operations as f64 / 1e12);
    if let Some(seconds) = seconds {
        println!("{:.1} GFLOP/s", operations as f64 / 1e9 / seconds);
    }
    Ok(())
}
