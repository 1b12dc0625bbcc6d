//! The built-in engine: a decoder on one backend, erased behind [`Engine`].
//!
//! Results do not depend on the batch layout, the order of requests or the chunking of prompts:
//! backends compute every row by itself, and nothing here looks at other sequences.

mod admission;
mod arm;
mod draft;
mod drive;
mod engagement;
mod footprint;
mod generate;
mod open;
mod probe;
mod sampler;
mod schedule;
mod tasks;

use std::sync::Arc;

use crate::backend::{Backend, BackendError};
use crate::model::{Decoder, LoadError, Workspace};
use crate::recipe::Recipe;
use crate::schema::{Engagement, KvTotals, LayerAbsmax, ModelIdentity, WorkerIdentity};

use super::{
    ArmSetup, BatchLayout, CaseError, Engine, EngineError, GenerateObserver, GenerateRequest,
    Observer, ScoreObserver, ScoreRequest, Watch,
};
pub(super) use arm::check_recipe;
pub(super) use open::check_cpu_memory;

use arm::Arm;
use drive::{Driver, Task};
use generate::{Continuation, Generate};
use sampler::Sampler;
use schedule::Sequence;
use tasks::{Bounds, Document, Likelihood, Measure, Window};

/// What an engine needs of a tokenizer.
pub trait TokenText {
    /// Text of token ids, special tokens left out.
    fn decode(&self, ids: &[u32]) -> String;

    /// Tokens that end a generation.
    fn eos_ids(&self) -> &[u32];
}

/// How an engine works where no arm says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSettings {
    /// Batch layout of calibration.
    pub layout: BatchLayout,
    /// Cases handed over at once, per slot: more make the tail of a batch, where few sequences
    /// are left, matter less; fewer lose less work to a kill.
    pub cases_per_slot: usize,
}

impl Default for LocalSettings {
    fn default() -> Self {
        LocalSettings {
            layout: BatchLayout {
                slots: 16,
                prefill_chunk: 256,
            },
            cases_per_slot: 4,
        }
    }
}

/// Who runs what: the identities that certificates name.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalIdentity {
    /// The model.
    pub model: ModelIdentity,
    /// The worker.
    pub worker: WorkerIdentity,
}

/// A model on one backend. See the module documentation.
pub struct LocalEngine<B: Backend> {
    identity: LocalIdentity,
    text: Box<dyn TokenText>,
    decoder: Decoder<B>,
    workspace: Workspace<B>,
    settings: LocalSettings,
    arm: Option<Arm<B>>,
    /// Looks at what the open arm takes.
    sampler: Option<Sampler>,
}

impl<B: Backend> LocalEngine<B> {
    /// An engine over a loaded decoder.
    ///
    /// # Errors
    /// [`LoadError::Activations`] where the backend cannot allocate them.
    pub fn from_decoder(
        decoder: Decoder<B>,
        text: Box<dyn TokenText>,
        identity: LocalIdentity,
        settings: LocalSettings,
    ) -> Result<Self, LoadError> {
        let workspace =
            Workspace::new(decoder.backend(), decoder.config()).map_err(LoadError::Activations)?;
        Ok(LocalEngine {
            identity,
            text,
            decoder,
            workspace,
            settings,
            arm: None,
            sampler: None,
        })
    }

    /// Batch layout that suits this worker.
    pub fn layout(&self) -> BatchLayout {
        self.settings.layout
    }

    /// The model's weights on their backend.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// Closes the open arm, whose cache gives its memory back.
    pub fn close_arm(&mut self) {
        self.arm = None;
    }

    fn bounds(&self) -> Bounds {
        let config = self.decoder.config();
        Bounds {
            context: config.context,
            vocab_size: config.vocab_size,
        }
    }

    /// Runs sequences on the open arm, whose cache grows to hold the longest of them.
    fn drive<T: Task>(
        decoder: &Decoder<B>,
        workspace: &mut Workspace<B>,
        arm: Option<&mut Arm<B>>,
        task: &mut T,
        queue: Vec<(usize, T::Sequence)>,
    ) -> Result<(), EngineError> {
        let arm = arm.ok_or_else(|| EngineError::Worker("no arm is open".to_owned()))?;
        let longest = queue.iter().map(|(_, s)| s.capacity()).max().unwrap_or(0);
        let layout = arm.layout();
        let (cache, admission) = arm.cache_for(decoder, longest)?;
        let mut driver = Driver {
            decoder,
            cache,
            workspace,
            layout,
            admission,
        };
        driver.run(task, queue).map_err(engine_error)
    }

    /// Stores documents (with forced tokens behind them) on `arm`.
    fn measure<'a>(
        &mut self,
        arm: &mut Arm<B>,
        documents: &[Vec<u32>],
        forced_tokens: u32,
        observer: &'a mut dyn Observer,
    ) -> Result<Measure<'a>, EngineError> {
        let bounds = self.bounds();
        for (index, ids) in documents.iter().enumerate() {
            bounds
                .check(ids, forced_tokens as usize)
                .map_err(|error| document_error(index, &error))?;
        }
        let queue = documents
            .iter()
            .map(|ids| Document::new(ids, forced_tokens))
            .enumerate()
            .collect();
        let mut task = Measure::new(observer, self.decoder.config().layers.len());
        Self::drive(
            &self.decoder,
            &mut self.workspace,
            Some(arm),
            &mut task,
            queue,
        )?;
        match task.failed.take() {
            Some((index, error)) => Err(document_error(index, &error)),
            None => Ok(task),
        }
    }
}

impl<B: Backend> Engine for LocalEngine<B> {
    fn model(&self) -> &ModelIdentity {
        &self.identity.model
    }

    fn worker(&self) -> &WorkerIdentity {
        &self.identity.worker
    }

    fn supports(&self, recipe: &Recipe) -> Result<(), EngineError> {
        arm::try_recipe(&self.decoder, recipe)
    }

    /// The state of a recurrent layer is that of the last token: a draft's tokens could not be taken
    /// back.
    fn takes_drafts(&self) -> bool {
        !self.decoder.config().is_recurrent()
    }

    fn batch_cases(&self) -> usize {
        let layout = self.arm.as_ref().map_or(self.settings.layout, Arm::layout);
        layout.slots * self.settings.cases_per_slot
    }

    /// Closes the open arm. Every forced token is stored, the last one included. Once the observer
    /// broke, the result covers the documents that had finished.
    fn calibrate(
        &mut self,
        documents: &[Vec<u32>],
        forced_tokens: u32,
        observer: &mut dyn Observer,
    ) -> Result<Vec<LayerAbsmax>, EngineError> {
        (self.arm, self.sampler) = (None, None);
        let mut arm = Arm::new(&self.decoder, Recipe::native(), None, self.settings.layout)?;
        let measured = self.measure(&mut arm, documents, forced_tokens, observer)?;
        Ok(measured.absmax)
    }

    fn open_arm(&mut self, setup: &ArmSetup) -> Result<Engagement, EngineError> {
        (self.arm, self.sampler) = (None, None);
        let sampler = Sampler::start(self.decoder.backend().meter(), sampler::INTERVAL);
        let (arm, engagement) = self.probed(setup)?;
        (self.arm, self.sampler) = (Some(arm), Some(sampler));
        Ok(engagement)
    }

    fn watch(&self) -> Option<Arc<dyn Watch>> {
        self.sampler.as_ref().map(Sampler::watch)
    }

    fn generate(
        &mut self,
        requests: &[GenerateRequest],
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError> {
        let bounds = self.bounds();
        let mut task = Generate {
            text: self.text.as_ref(),
            observer,
        };
        let mut queue = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            match bounds.check(&request.prompt_ids, request.max_new_tokens as usize) {
                Err(error) => task.observer.generated(index, Err(error)),
                Ok(()) if request.max_new_tokens == 0 => {
                    let nothing = task.outcome(Vec::new(), KvTotals::default());
                    task.observer.generated(index, Ok(nothing));
                }
                Ok(()) => {
                    let takes_drafts = self.takes_drafts();
                    let usable =
                        |id| takes_drafts && bounds.holds(id) && !self.text.eos_ids().contains(&id);
                    queue.push((index, Continuation::new(request, usable)));
                }
            }
        }
        let arm = self.arm.as_mut();
        Self::drive(&self.decoder, &mut self.workspace, arm, &mut task, queue)
    }

    fn score(
        &mut self,
        requests: &[ScoreRequest],
        observer: &mut dyn ScoreObserver,
    ) -> Result<(), EngineError> {
        let bounds = self.bounds();
        let mut queue = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            match Window::new(request, bounds) {
                Err(error) => observer.scored(index, Err(error)),
                Ok(window) => queue.push((index, window)),
            }
        }
        let mut task = Likelihood { observer };
        let arm = self.arm.as_mut();
        Self::drive(&self.decoder, &mut self.workspace, arm, &mut task, queue)
    }
}

fn document_error(index: usize, error: &CaseError) -> EngineError {
    EngineError::Worker(format!("document {index}: {error}"))
}

fn engine_error(error: BackendError) -> EngineError {
    match error {
        BackendError::Unsupported(what) => EngineError::Unsupported(what),
        other => EngineError::Worker(other.to_string()),
    }
}
