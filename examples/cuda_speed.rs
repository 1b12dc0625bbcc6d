//! Speed of the CUDA worker on seeded random weights: `cuda_speed CONFIG.json WORK[,WORK]...
//! [RECIPE]...`, where WORK is `prefill:COUNTxLENGTH` (prompts side by side in passes of 4,096
//! tokens), `math:COUNTxNEW` (prompts of 70 to 220 tokens, NEW tokens each, greedily, 512 at a
//! time) or `layouts:COUNTxNEW` (the same prompts under other layouts must give the same tokens).
//! Prints tokens per second.

#![allow(clippy::print_stdout)] // A program that prints.

use std::cell::RefCell;
use std::collections::BTreeMap;
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

/// Weights from a counter, in F16, drawn from one long block of noise per width.
#[derive(Default)]
struct Noise {
    blocks: RefCell<BTreeMap<usize, Vec<half::f16>>>,
    next: RefCell<usize>,
}

fn block(inner: usize) -> Vec<half::f16> {
    let gain = 1.0 / (inner as f32).sqrt();
    let number = |i: u32| {
        let bits = (i ^ (i >> 13)).wrapping_mul(0x9e37_79b1);
        ((bits ^ (bits >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..1 << 22)
        .map(|i| half::f16::from_f32(number(i) * gain))
        .collect()
}

impl WeightSource for Noise {
    fn load(&self, _: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let count: usize = shape.iter().product();
        if shape.len() == 1 {
            return Ok(TensorData::F32(vec![1.0; count]));
        }
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.entry(shape[1]).or_insert_with(|| block(shape[1]));
        let mut next = self.next.borrow_mut();
        *next = (*next + 7919) % block.len();
        let mut data = Vec::with_capacity(count);
        let mut part = &block[*next..];
        while data.len() < count {
            let missing = count - data.len();
            data.extend_from_slice(&part[..part.len().min(missing)]);
            part = block;
        }
        Ok(TensorData::F16(data))
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
    ids: BTreeMap<usize, Vec<u32>>,
    generated: usize,
    failed: usize,
}

impl Observer for Count {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Count {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        match outcome {
            Ok(generation) => {
                self.generated += generation.ids.len();
                self.ids.insert(index, generation.ids);
            }
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
    let decoder = Decoder::load(config, &Noise::default(), backend)?;
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
            draft: Vec::new(),
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

/// Runs prompts under three layouts and compares the tokens.
fn layouts(engine: &mut dyn Engine, recipe: &str, count: usize, new: usize) -> Outcome {
    let requests: Vec<GenerateRequest> = (0..count)
        .map(|i| GenerateRequest {
            prompt_ids: ids(i, 1 + i * 331 % 1500),
            max_new_tokens: new as u32,
            draft: Vec::new(),
        })
        .collect();
    let mut expected: Option<BTreeMap<usize, Vec<u32>>> = None;
    for (slots, prefill_chunk) in [(count, 4096), (3, 100), (17, 1111)] {
        arm(
            engine,
            recipe,
            BatchLayout {
                slots,
                prefill_chunk,
            },
        )?;
        let mut outcome = Count::default();
        engine.generate(&requests, &mut outcome)?;
        match &expected {
            None => expected = Some(outcome.ids),
            Some(expected) => println!(
                "  {slots} slots, chunks of {prefill_chunk}: same tokens: {}",
                *expected == outcome.ids
            ),
        }
    }
    Ok(())
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// `COUNTxSIZE`.
fn sizes(text: &str) -> Result<(usize, usize), Box<dyn std::error::Error>> {
    let (count, size) = text.split_once('x').ok_or("expected COUNTxSIZE")?;
    Ok((count.parse()?, size.parse()?))
}

fn run(engine: &mut dyn Engine, recipe: &str, work: &str) -> Outcome {
    let (kind, size) = work.split_once(':').ok_or("expected KIND:COUNTxSIZE")?;
    let (count, size) = sizes(size)?;
    let layout = |slots, prefill_chunk| BatchLayout {
        slots,
        prefill_chunk,
    };
    match kind {
        "prefill" => {
            arm(engine, recipe, layout(16, 4096))?;
            prefill(engine, size, count)
        }
        "math" => {
            arm(engine, recipe, layout(512, 2048))?;
            math(engine, count, u32::try_from(size)?)
        }
        "layouts" => layouts(engine, recipe, count, size),
        other => Err(format!("{other}: expected prefill, math or layouts").into()),
    }
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: cuda_speed CONFIG.json WORK[,WORK]... [RECIPE]...";
    let config = arguments.next().ok_or(usage)?;
    let works = arguments.next().ok_or(usage)?;
    let mut recipes: Vec<String> = arguments.collect();
    if recipes.is_empty() {
        recipes = ["native", "SD", "SF", "AD"].map(str::to_owned).to_vec();
    }
    let mut engine = open(Path::new(&config))?;
    for recipe in &recipes {
        println!("{recipe}");
        for work in works.split(',') {
            run(&mut engine, recipe, work)?;
        }
    }
    Ok(())
}
