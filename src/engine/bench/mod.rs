//! Speed of a built-in worker on seeded random weights, each figure beside the least time that
//! the work can take on the device at hand.
//!
//! Wall clock for whole panels, the device's clock for single operations; medians after a warm-up,
//! save for panels of minutes, which run once after it.

mod floor;
mod kernel;
mod observers;
mod panel;
mod verify;
mod work;

use std::time::{Duration, Instant};

pub use floor::{Bound, Floor, Rates};
pub use work::{Sizes, Work};

use crate::backend::BackendError;
use crate::backend::timing::Timed;
use crate::model::{Decoder, LoadError, ModelConfig, NoiseWeights};
use crate::recipe::Recipe;
use crate::schema::{LayerAbsmax, ModelIdentity, WorkerIdentity};

use super::local::{
    LocalEngine, LocalIdentity, LocalSettings, TokenText, check_cpu_memory, check_recipe,
};
use super::{Engine, EngineError};
use floor::Costs;
use observers::{Silent, Unstopped};
use panel::ids;

/// Largest side of the product whose rate is the bound, and bytes of copies.
const PRODUCT_SIDE: usize = 8192;
/// Tokens that fixed scales are calibrated on.
const CALIBRATION_TOKENS: usize = 256;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shape of the model.
    pub config: ModelConfig,
    /// Its name.
    pub name: String,
    /// Recipes, each of which does all the work.
    pub recipes: Vec<Recipe>,
    /// Work, in order.
    pub works: Vec<Work>,
    /// How much of it.
    pub sizes: Sizes,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the work.
    pub work: &'static str,
    /// Name of the recipe, where it matters.
    pub recipe: Option<String>,
    /// What was done, in words.
    pub what: String,
    /// Seconds.
    pub seconds: f64,
    /// The figure that people quote.
    pub figure: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The least time, where something bounds the work.
    pub floor: Option<Floor>,
}

impl Measured {
    /// Share of the floor that was reached: 1 is as fast as can be.
    pub fn share(&self) -> Option<f64> {
        self.floor.map(|floor| floor.seconds / self.seconds)
    }
}

/// What is known before the first figure.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The worker.
    pub worker: WorkerIdentity,
    /// Rates that bound it.
    pub rates: Rates,
    /// Side of the product that was timed, and bytes of the copy.
    pub probe: (usize, usize),
}

/// Hears of figures as they come.
pub trait Sink {
    /// The worker and its rates.
    fn ground(&mut self, ground: &Ground);

    /// A figure.
    fn measured(&mut self, measured: &Measured);
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The worker could not be opened or loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The worker failed, or cannot apply a recipe.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The same, in a single operation.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A case failed, whose time says nothing.
    #[error("{work}: {failed} of {cases} cases failed, the first with: {first}")]
    Cases {
        /// Work.
        work: &'static str,
        /// Failed cases.
        failed: usize,
        /// All cases.
        cases: usize,
        /// What is wrong with one.
        first: String,
    },
    /// Verified answers are not those that plain generation gave.
    #[error("verify: {differing} of {cases} answers differ from plain generation, expected none")]
    Differs {
        /// Answers that differ.
        differing: usize,
        /// All answers.
        cases: usize,
    },
    /// The shape is too small for some work.
    #[error("{work}: needs {needed} tokens, the model's context is {context}")]
    Context {
        /// Work.
        work: &'static str,
        /// Tokens of the longest sequence.
        needed: usize,
        /// The model's.
        context: usize,
    },
}

/// A loaded worker and what bounds it.
struct Bench<B: Timed> {
    engine: LocalEngine<B>,
    costs: Costs,
    rates: Rates,
    sizes: Sizes,
    opened: Duration,
    uploaded: Duration,
}

/// Opens a worker of the built-in kind `kind` with `open`, gives it random weights and measures.
///
/// # Errors
/// [`BenchError`]; figures that `sink` heard of stand.
pub fn run<B: Timed>(
    settings: &Settings,
    kind: &str,
    open: impl FnOnce() -> Result<B, BackendError>,
    sink: &mut dyn Sink,
) -> Result<(), BenchError> {
    for work in &settings.works {
        let (needed, context) = (settings.sizes.longest(*work), settings.config.context);
        if needed > context {
            return Err(BenchError::Context {
                work: work.name(),
                needed,
                context,
            });
        }
    }
    for recipe in &settings.recipes {
        check_recipe(&settings.config, recipe)?;
    }
    if kind == "cpu" {
        check_cpu_memory(&settings.config)?;
    }
    let began = Instant::now();
    let backend = open().map_err(LoadError::Device)?;
    let opened = began.elapsed();
    let worker = WorkerIdentity {
        kind: kind.to_owned(),
        device: backend.device(),
        arithmetic: backend.arithmetic(),
    };
    let ground = ground(&backend, worker.clone(), settings.sizes)?;
    sink.ground(&ground);
    let mut bench = Bench::load(settings, backend, worker, ground.rates, opened)?;
    for &work in settings.works.iter().filter(|work| !work.has_recipe()) {
        sink.measured(&bench.once(work)?);
    }
    // What this device cannot store is known before any recipe is timed, and after the start is: a
    // cache that was tried would be part of it.
    for recipe in &settings.recipes {
        bench.engine.supports(recipe)?;
    }
    for recipe in &settings.recipes {
        let absmax = bench.absmax(recipe)?;
        for &work in settings.works.iter().filter(|work| work.has_recipe()) {
            sink.measured(&bench.measure(work, recipe, absmax.as_deref())?);
        }
    }
    Ok(())
}

/// Times the copies and the product that bound everything else.
fn ground<B: Timed>(
    backend: &B,
    worker: WorkerIdentity,
    sizes: Sizes,
) -> Result<Ground, BackendError> {
    let side = PRODUCT_SIDE / sizes.shrink;
    let bytes = (1 << 30) / sizes.shrink;
    Ok(Ground {
        rates: Rates {
            copy: backend.copy_rate(bytes)?,
            product: kernel::product_rate(backend, side)?,
            bus: backend.bus_rate(bytes / 4)?,
        },
        probe: (side, bytes),
        worker,
    })
}

impl<B: Timed> Bench<B> {
    fn load(
        settings: &Settings,
        backend: B,
        worker: WorkerIdentity,
        rates: Rates,
        opened: Duration,
    ) -> Result<Self, BenchError> {
        let config = settings.config.clone();
        let costs = Costs::new(&config);
        // No bus lies between the CPU worker and its weights, whose memory files would share.
        let noise = match worker.kind.as_str() {
            "cpu" => NoiseWeights::new(config.native_dtype),
            _ => NoiseWeights::of_files(&config),
        };
        let identity = LocalIdentity {
            model: ModelIdentity {
                name: settings.name.clone(),
                family: config.family.name().to_owned(),
                files: Vec::new(),
                weights_sha256: String::new(),
                tokenizer_sha256: String::new(),
                quantised: None,
                penalties: Vec::new(),
                geometry: config.geometry(),
            },
            worker,
        };
        let began = Instant::now();
        let decoder = Decoder::load(config, &noise, backend)?;
        decoder.backend().wait()?;
        let uploaded = began.elapsed().saturating_sub(noise.spent());
        let text: Box<dyn TokenText> = Box::new(Silent);
        Ok(Bench {
            engine: LocalEngine::from_decoder(decoder, text, identity, LocalSettings::default())?,
            costs,
            rates,
            sizes: settings.sizes,
            opened,
            uploaded,
        })
    }

    /// Fixed scales, from calibration on noise.
    fn absmax(&mut self, recipe: &Recipe) -> Result<Option<Vec<LayerAbsmax>>, EngineError> {
        if !recipe.needs_calibration() {
            return Ok(None);
        }
        let context = self.engine.model().geometry.context as usize;
        let document = ids(0, CALIBRATION_TOKENS.min(context), self.vocabulary());
        self.engine
            .calibrate(&[document], 0, &mut Unstopped)
            .map(Some)
    }

    fn vocabulary(&self) -> u32 {
        self.engine.model().geometry.vocab_size
    }

    /// Work that no recipe changes.
    fn once(&mut self, work: Work) -> Result<Measured, BenchError> {
        let bytes = self.costs.loaded();
        let uploaded = self.uploaded.as_secs_f64();
        let floor = self.rates.bus.map(|bus| Floor {
            seconds: bytes / bus,
            bound: Bound::Bus,
        });
        if work == Work::Load {
            return Ok(Measured {
                work: work.name(),
                recipe: None,
                what: "weights from memory to the worker".to_owned(),
                seconds: uploaded,
                figure: bytes / uploaded / 1e9,
                unit: "GB/s",
                floor,
            });
        }
        let began = Instant::now();
        self.first_answer()?;
        let answered = began.elapsed().as_secs_f64();
        let opened = self.opened.as_secs_f64();
        let seconds = opened + uploaded + answered;
        Ok(Measured {
            work: work.name(),
            recipe: None,
            what: format!(
                "weights in memory to the first answer: worker and kernels {opened:.2} s, weights \
                 {uploaded:.2} s, arm and answer {answered:.2} s"
            ),
            seconds,
            figure: seconds,
            unit: "s",
            floor,
        })
    }
}
