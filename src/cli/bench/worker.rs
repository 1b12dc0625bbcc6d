//! `kvassay bench worker`.

use std::io::Write;
use std::path::Path;

use anyhow::{anyhow, bail};
use clap::Args as ClapArgs;
use serde::Serialize;

use crate::backend::cpu::{CpuBackend, claim_thread};
use crate::backend::cuda::{CudaBackend, Expected};
use crate::engine::EngineError;
use crate::engine::bench::{self, BenchError, Ground, Measured, Settings, Sink, Sizes, Work};
use crate::model::{ModelConfig, builtin_shape, read_config};
use crate::recipe::Recipe;
use crate::schema::WorkerIdentity;

use super::super::output::{self, Format};
use super::super::prepare::{load_failure, model_failure};
use super::super::resolve::{Worker, workers};
use super::super::{Exit, Failure};
use super::time;

/// Schema name of the JSON document.
const BENCH_SCHEMA: &str = "kvassay.bench-worker/1";

/// Most sequences side by side.
const MOST_SLOTS: usize = 65_536;

/// Recipes where none is named: the four pairs of formats.
const DEFAULT_RECIPES: [&str; 4] = ["native", "AD", "RD", "SD"];

/// Arguments of `kvassay bench worker`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A built-in shape, or a model's config.json; no weights are needed.
    #[arg(long, value_name = "qwen3-8b|CONFIG.json")]
    shape: String,
    /// What is timed: cpu, cuda, or auto, which is cuda where the driver sees a GPU.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto")]
    worker: String,
    /// Number of the GPU [default: 0].
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// A recipe; may be repeated [default: native AD RD SD].
    #[arg(long = "recipe", value_name = "RECIPE")]
    recipes: Vec<String>,
    /// Work: load, start, prefill-1k, prefill-8k, decode, attention, math, verify, nll, retrieval,
    /// or arm, which is math, nll and retrieval together [default: all but arm].
    #[arg(long, value_name = "WORK,...", value_delimiter = ',')]
    work: Vec<String>,
    /// Small sizes, for a look.
    #[arg(long)]
    quick: bool,
    /// Sequences side by side in math [default: 1536].
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Prompt tokens per pass [default: 8192].
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<usize>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for what was typed, 3 for what the worker cannot apply, 4 where it fails.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (worker, _) = workers(&args.worker, args.device.as_slice()).map_err(Failure::input)?;
    let settings = settings(args)?;
    let mut lines = Lines {
        format: args.format,
        document: Document::new(&settings),
        out,
        failed: None,
    };
    let outcome = match worker {
        Worker::Cpu => {
            claim_thread().map_err(Failure::worker)?;
            bench::run(&settings, "cpu", || Ok(CpuBackend::new()), &mut lines)
        }
        Worker::Cuda { device } => {
            let expected = Expected {
                head_dim: settings.config.widest(|layer| layer.head_dim),
                native: settings.config.native_dtype,
                exact: false,
            };
            let backend = || CudaBackend::expecting(device, expected);
            bench::run(&settings, "cuda", backend, &mut lines)
        }
    };
    outcome.map_err(failure)?;
    lines.end()?;
    Ok(Exit::Holds)
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let (name, config) = shape(&args.shape)?;
    let mut sizes = if args.quick {
        Sizes::QUICK
    } else {
        Sizes::FULL
    };
    sizes.slots = args.slots.unwrap_or(sizes.slots);
    sizes.prefill_chunk = args.prefill_chunk.unwrap_or(sizes.prefill_chunk);
    // With smaller chunks reading would take longer than the steps that `decode` is to measure.
    let least = 2 * sizes.step.0;
    for (option, value, range) in [
        ("--slots", sizes.slots, 1..=MOST_SLOTS),
        ("--prefill-chunk", sizes.prefill_chunk, least..=usize::MAX),
    ] {
        if !range.contains(&value) {
            let (start, end) = range.into_inner();
            let most = if end < usize::MAX {
                format!(" to {end}")
            } else {
                " or more".to_owned()
            };
            return Err(Failure::input(anyhow!(
                "{option}: found {value}, expected {start}{most}"
            )));
        }
    }
    let recipes = if args.recipes.is_empty() {
        DEFAULT_RECIPES.map(str::to_owned).to_vec()
    } else {
        args.recipes.clone()
    };
    let recipes = recipes.iter().map(|text| Recipe::parse(text));
    Ok(Settings {
        recipes: recipes.collect::<Result<_, _>>().map_err(Failure::input)?,
        works: works(&args.work).map_err(Failure::input)?,
        config,
        name,
        sizes,
    })
}

fn shape(text: &str) -> Result<(String, ModelConfig), Failure> {
    if let Some(config) = builtin_shape(text) {
        return Ok((text.to_owned(), config.map_err(model_failure)?));
    }
    let path = Path::new(text);
    if !path.exists() {
        return Err(Failure::input(anyhow!(
            "--shape {text}: found nothing there, expected qwen3-8b or a config.json"
        )));
    }
    let config = read_config(path).map_err(model_failure)?;
    Ok((text.to_owned(), config))
}

fn works(names: &[String]) -> anyhow::Result<Vec<Work>> {
    if names.is_empty() {
        let parts = Work::ALL.into_iter().filter(|work| *work != Work::Arm);
        return Ok(parts.collect());
    }
    let mut works = Vec::new();
    for name in names {
        match Work::ALL.into_iter().find(|work| work.name() == name) {
            Some(work) => works.push(work),
            None => bail!(
                "--work: found `{name}`, expected {}",
                Work::ALL.map(Work::name).join(", ")
            ),
        }
    }
    Ok(works)
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Load(error) => load_failure(error),
        BenchError::Context { .. } => Failure::input(error),
        BenchError::Engine(EngineError::Unsupported(_)) => Failure::unsupported(error),
        BenchError::Engine(EngineError::Worker(_))
        | BenchError::Backend(_)
        | BenchError::Cases { .. }
        | BenchError::Differs { .. } => Failure::worker(error),
    }
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    shape: String,
    worker: Option<WorkerIdentity>,
    /// Bytes per second of a copy within the device, read and written ones together.
    copy_bytes_per_second: f64,
    /// Operations per second of a large product.
    product_operations_per_second: f64,
    /// Bytes per second from the host's memory to the device; null on the cpu.
    bus_bytes_per_second: Option<f64>,
    measured: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    work: &'static str,
    recipe: Option<String>,
    what: String,
    seconds: f64,
    figure: f64,
    unit: &'static str,
    floor_seconds: Option<f64>,
    floor_bound: Option<&'static str>,
    share_of_floor: Option<f64>,
}

impl Document {
    fn new(settings: &Settings) -> Self {
        Document {
            schema: BENCH_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            shape: settings.name.clone(),
            worker: None,
            copy_bytes_per_second: 0.0,
            product_operations_per_second: 0.0,
            bus_bytes_per_second: None,
            measured: Vec::new(),
        }
    }
}

/// Prints lines as they come, or one document at the end.
struct Lines<'a> {
    format: Format,
    document: Document,
    out: &'a mut dyn Write,
    /// The first line that could not be written.
    failed: Option<std::io::Error>,
}

impl Lines<'_> {
    fn line(&mut self, text: &str) {
        if self.format == Format::Text && self.failed.is_none() {
            let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
            self.failed = written.err();
        }
    }

    fn end(self) -> Result<(), Failure> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        match self.format {
            Format::Json => output::write_json(self.out, &self.document),
            Format::Text => Ok(()),
        }
    }
}

impl Sink for Lines<'_> {
    fn ground(&mut self, ground: &Ground) {
        let rates = ground.rates;
        let (side, bytes) = ground.probe;
        self.document.worker = Some(ground.worker.clone());
        self.document.copy_bytes_per_second = rates.copy;
        self.document.product_operations_per_second = rates.product;
        self.document.bus_bytes_per_second = rates.bus;
        let worker = &ground.worker;
        let shape = self.document.shape.clone();
        self.line(&format!(
            "{shape} on {}: {}, {}",
            worker.kind, worker.device, worker.arithmetic
        ));
        self.line(&format!(
            "bounds: copy of {} MiB {:.1} GB/s, product of side {side} {:.3} TFLOP/s{}",
            bytes >> 20,
            rates.copy / 1e9,
            rates.product / 1e12,
            rates
                .bus
                .map_or_else(String::new, |bus| format!(", bus {:.1} GB/s", bus / 1e9))
        ));
    }

    fn measured(&mut self, measured: &Measured) {
        let recipe = measured.recipe.as_deref().unwrap_or("-");
        let floor = measured.floor.map_or_else(String::new, |floor| {
            let share = 100.0 * measured.share().unwrap_or_default();
            format!(
                "  {share:5.1}% of {} floor {}",
                floor.bound.name(),
                time(floor.seconds)
            )
        });
        self.line(&format!(
            "{:<10}  {recipe:<8}  {:>12} {:<5}  {}{floor}  ({})",
            measured.work,
            number(measured.figure),
            measured.unit,
            time(measured.seconds),
            measured.what
        ));
        self.document.measured.push(Row {
            work: measured.work,
            recipe: measured.recipe.clone(),
            what: measured.what.clone(),
            seconds: measured.seconds,
            figure: measured.figure,
            unit: measured.unit,
            floor_seconds: measured.floor.map(|floor| floor.seconds),
            floor_bound: measured.floor.map(|floor| floor.bound.name()),
            share_of_floor: measured.share(),
        });
    }
}

fn number(x: f64) -> String {
    if x >= 1000.0 {
        format!("{x:.0}")
    } else {
        format!("{x:.2}")
    }
}
