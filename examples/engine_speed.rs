//! Speed of the CPU worker on a real model: `engine_speed MODEL` prints the median tokens per
//! second of prompts of 512 tokens and of generating 64 tokens at batch 1, five times each.
//!
//! The same work as `llama-bench -p 512 -n 64`, and like there the prompt is arbitrary tokens.

#![allow(clippy::print_stdout)] // A program that prints.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use kvassay::backend::cpu::claim_thread;
use kvassay::engine::{
    ArmSetup, BatchLayout, CaseError, Engine, GenerateObserver, GenerateRequest, Generation,
    LocalEngine, Observer, Score, ScoreObserver, ScoreRequest,
};
use kvassay::recipe::Recipe;

const PROMPT: usize = 512;
const NEW: u32 = 64;
const REPEATS: usize = 5;

/// Takes outcomes and keeps how many tokens were generated.
#[derive(Default)]
struct Count {
    generated: usize,
}

impl Observer for Count {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Count {
    fn generated(&mut self, _: usize, outcome: Result<Generation, CaseError>) {
        self.generated += outcome.map_or(0, |generation| generation.ids.len());
    }
}

impl ScoreObserver for Count {
    fn scored(&mut self, _: usize, _: Result<Score, CaseError>) {}
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: engine_speed MODEL")?;
    claim_thread()?;
    let mut engine = LocalEngine::cpu(kvassay::model::open(Path::new(&model))?)?;
    engine.open_arm(&ArmSetup {
        recipe: Recipe::native(),
        absmax: None,
        layout: BatchLayout {
            slots: 1,
            prefill_chunk: PROMPT,
        },
        probe: (1000..1016).collect(),
    })?;
    let ids: Vec<u32> = (0..=PROMPT as u32)
        .map(|i| 1000 + i * 37 % 20_000)
        .collect();
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let start = Instant::now();
        let window = ScoreRequest {
            ids: ids.clone(),
            targets: 1,
        };
        engine.score(&[window], &mut Count::default())?;
        prefill.push(PROMPT as f64 / start.elapsed().as_secs_f64());

        let request = GenerateRequest {
            prompt_ids: ids[..1].to_vec(),
            max_new_tokens: NEW,
            draft: Vec::new(),
            messages: Vec::new(),
        };
        let mut count = Count::default();
        let start = Instant::now();
        engine.generate(&[request], &mut count)?;
        decode.push(count.generated as f64 / start.elapsed().as_secs_f64());
    }
    println!("prefill {PROMPT}: {:.1} tok/s", median(prefill));
    println!("decode, batch 1: {:.1} tok/s", median(decode));
    Ok(())
}
