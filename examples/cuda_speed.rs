//! Speed of the CUDA worker on seeded random weights: `cuda_speed [qwen3-8b|CONFIG.json]
//! [SEQUENCES] [NEW] [RECIPE]...` prints tokens per second of prompts of 1,024 and 8,192 tokens, and of a
//! panel shaped like math: prompts of 70 to 220 tokens, greedy.

#![allow(clippy::print_stdout)] // A program that prints.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, TensorData};
use kvassay::engine::{
    ArmSetup, BatchLayout, CaseError, Engine, GenerateObserver, GenerateRequest, Generation,
    LocalEngine, LocalIdentity, LocalSettings, Observer, Score, ScoreObserver, ScoreRequest,
    TokenText,
};
use kvassay::model::{Decoder, ModelConfig, ModelError, WeightSource, read_config};
use kvassay::recipe::Recipe;
use kvassay::schema::{FileDigest, Geometry, LayerAbsmax, ModelIdentity, WorkerIdentity};

/// Weights from a counter, in F16, drawn from one long block of noise.
struct Noise {
    block: Vec<half::f16>,
    next: RefCell<usize>,
}

impl Noise {
    fn new() -> Self {
        let number = |i: u32| {
            let bits = (i ^ (i >> 13)).wrapping_mul(0x9e37_79b1);
            ((bits ^ (bits >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        Noise {
            block: (0..1 << 22)
                .map(|i| half::f16::from_f32(number(i)))
                .collect(),
            next: RefCell::new(0),
        }
    }
}

impl WeightSource for Noise {
    fn load(&self, _: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let count: usize = shape.iter().product();
        if shape.len() == 1 {
            return Ok(TensorData::F32(vec![1.0; count]));
        }
        let mut next = self.next.borrow_mut();
        let gain = half::f16::from_f32(1.0 / (shape[1] as f32).sqrt());
        *next += 7919;
        let scaled: Vec<half::f16> = self.block.iter().map(|&x| x * gain).collect();
        let start = *next % scaled.len();
        let endless = scaled[start..].iter().chain(scaled.iter().cycle());
        Ok(TensorData::F16(endless.take(count).copied().collect()))
    }

    fn contains(&self, _: &str) -> bool {
        false
    }

    fn files(&self) -> &[FileDigest] {
        &[]
    }
}

struct Silent;

impl TokenText for Silent {
    fn decode(&self, _: &[u32]) -> String {
        String::new()
    }

    fn eos_ids(&self) -> &[u32] {
        &[]
    }
}

#[derive(Default)]
struct Count {
    generated: usize,
    failed: usize,
}

impl Observer for Count {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Count {
    fn generated(&mut self, _: usize, outcome: Result<Generation, CaseError>) {
        match outcome {
            Ok(generation) => self.generated += generation.ids.len(),
            Err(_) => self.failed += 1,
        }
    }
}

impl ScoreObserver for Count {
    fn scored(&mut self, _: usize, outcome: Result<Score, CaseError>) {
        self.failed += usize::from(outcome.is_err());
    }
}

fn identity(config: &ModelConfig, backend: &CudaBackend) -> LocalIdentity {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    LocalIdentity {
        model: ModelIdentity {
            name: "noise".to_owned(),
            family: config.family.name().to_owned(),
            files: Vec::new(),
            weights_sha256: String::new(),
            tokenizer_sha256: String::new(),
            geometry: Geometry {
                layers: size(config.layers),
                hidden_size: size(config.hidden_size),
                heads: size(config.heads),
                kv_heads: size(config.kv_heads),
                head_dim: size(config.head_dim),
                vocab_size: size(config.vocab_size),
                context: size(config.context),
                native_dtype: config.native_dtype.name().to_owned(),
            },
        },
        worker: WorkerIdentity {
            kind: "cuda".to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        },
    }
}

fn open(path: &Path) -> Result<LocalEngine<CudaBackend>, Box<dyn std::error::Error>> {
    let config = read_config(path)?;
    let start = Instant::now();
    let backend = CudaBackend::new(0)?;
    println!("kernels ready after {:.2} s", start.elapsed().as_secs_f64());
    let identity = identity(&config, &backend);
    let decoder = Decoder::load(config, &Noise::new(), backend)?;
    println!("weights ready after {:.2} s", start.elapsed().as_secs_f64());
    let engine = LocalEngine::from_decoder(
        decoder,
        Box::new(Silent),
        identity,
        LocalSettings::default(),
    )?;
    Ok(engine)
}

fn ids(seed: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| ((i * 7919 + seed * 104_729) % 30_000) as u32)
        .collect()
}

fn arm(
    engine: &mut dyn Engine,
    recipe: &str,
    layout: BatchLayout,
) -> Result<(), Box<dyn std::error::Error>> {
    let recipe = Recipe::parse(recipe)?;
    let layers = engine.model().geometry.layers as usize;
    engine.open_arm(&ArmSetup {
        absmax: recipe
            .needs_calibration()
            .then(|| vec![LayerAbsmax { k: 20.0, v: 20.0 }; layers]),
        recipe,
        layout,
        probe: ids(1, 16),
    })?;
    Ok(())
}

/// Prompts of `length` tokens, one target each, `count` in all.
fn prefill(
    engine: &mut dyn Engine,
    length: usize,
    count: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    for round in 0..2 {
        let windows: Vec<ScoreRequest> = (0..count)
            .map(|i| ScoreRequest {
                ids: ids(i, length + 1),
                targets: 1,
            })
            .collect();
        let start = Instant::now();
        let mut outcome = Count::default();
        engine.score(&windows, &mut outcome)?;
        let rate = (count * length) as f64 / start.elapsed().as_secs_f64();
        if round == 1 {
            println!(
                "  prefill {count} x {length}: {rate:.0} tok/s, {} failed",
                outcome.failed
            );
        }
    }
    Ok(())
}

fn math(
    engine: &mut dyn Engine,
    sequences: usize,
    new: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let requests: Vec<GenerateRequest> = (0..sequences)
        .map(|i| GenerateRequest {
            prompt_ids: ids(i, 70 + i * 37 % 151),
            max_new_tokens: new,
        })
        .collect();
    let start = Instant::now();
    let mut outcome = Count::default();
    engine.generate(&requests, &mut outcome)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "  {sequences} prompts of 70-220, {new} new each: {seconds:.2} s, {:.0} tok/s, {} failed",
        outcome.generated as f64 / seconds,
        outcome.failed
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let config = arguments
        .next()
        .ok_or("usage: cuda_speed CONFIG.json [SEQUENCES] [NEW] [RECIPE]...")?;
    let sequences = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let new = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let mut recipes: Vec<String> = arguments.collect();
    if recipes.is_empty() {
        recipes = ["native", "SD", "SF", "AD"].map(str::to_owned).to_vec();
    }
    let mut engine = open(Path::new(&config))?;
    for recipe in &recipes {
        println!("{recipe}");
        arm(
            &mut engine,
            recipe,
            BatchLayout {
                slots: 16,
                prefill_chunk: 4096,
            },
        )?;
        prefill(&mut engine, 1024, 32)?;
        prefill(&mut engine, 8192, 4)?;
        arm(
            &mut engine,
            recipe,
            BatchLayout {
                slots: 512,
                prefill_chunk: 2048,
            },
        )?;
        math(&mut engine, sequences, new)?;
    }
    Ok(())
}
