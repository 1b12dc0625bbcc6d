//! The object-safe seam between panels and whatever runs the model.
//!
//! An engine knows its model and worker, opens one arm (a recipe with its scales and a batch
//! layout) at a time, generates greedily and scores text. It knows nothing of panels or rules.

pub mod bench;
pub mod http;
mod local;

use std::ops::ControlFlow;
use std::sync::Arc;

pub use local::{LocalEngine, LocalIdentity, LocalSettings, TokenText};

use crate::recipe::Recipe;
use crate::schema::{
    ChatMessage, Engagement, Finish, KvTotals, LayerAbsmax, ModelIdentity, ResourcePart,
    WorkerIdentity,
};

/// Whatever runs a model. See the module documentation.
pub trait Engine {
    /// The model's identity.
    fn model(&self) -> &ModelIdentity;

    /// The worker's identity.
    fn worker(&self) -> &WorkerIdentity;

    /// Whether this worker can run `recipe` on this model.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`], naming what cannot be applied.
    fn supports(&self, recipe: &Recipe) -> Result<(), EngineError>;

    /// A good number of cases to hand over at once: records are appended and synced per batch.
    fn batch_cases(&self) -> usize;

    /// Largest absolute key and value per layer over native runs of `documents` (token ids),
    /// each followed by `forced_tokens` greedy tokens with end-of-sequence ignored.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    fn calibrate(
        &mut self,
        documents: &[Vec<u32>],
        forced_tokens: u32,
        observer: &mut dyn Observer,
    ) -> Result<Vec<LayerAbsmax>, EngineError>;

    /// Says which arm [`Engine::open_arm`] opens next: a run over HTTP has a server for each.
    ///
    /// # Errors
    /// [`EngineError::Worker`] for an arm that the engine has no server for.
    fn name_arm(&mut self, _arm: &str) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether all cases of a panel may be handed over at once: the engine takes them in order and
    /// reports outcomes as they come. Records then wait for at most about `batch_cases` others.
    fn is_streaming(&self) -> bool {
        false
    }

    /// Whether drafts ([`GenerateRequest::draft`]) save it work. One that ignores them generates
    /// plainly, whatever it is asked.
    fn takes_drafts(&self) -> bool {
        true
    }

    /// Opens an arm and reads its engagement back from a probe sequence. Closes the arm before.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] or [`EngineError::Worker`].
    fn open_arm(&mut self, setup: &ArmSetup) -> Result<Engagement, EngineError>;

    /// What the arm that is open, or was opened last, takes of the machine; `None` where nothing is
    /// known of it (servers).
    fn watch(&self) -> Option<Arc<dyn Watch>> {
        None
    }

    /// Generates greedily for every request, in any order; each outcome is reported once.
    ///
    /// # Errors
    /// [`EngineError::Worker`] ends the run; what concerns one case is its [`CaseError`].
    fn generate(
        &mut self,
        requests: &[GenerateRequest],
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError>;

    /// Sums the negative log-likelihood of the last targets of every request.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    fn score(
        &mut self,
        requests: &[ScoreRequest],
        observer: &mut dyn ScoreObserver,
    ) -> Result<(), EngineError>;
}

/// Looks at what an arm takes, from any thread and also after the arm was closed.
pub trait Watch: Send + Sync {
    /// Figures since the arm was opened.
    fn part(&self) -> ResourcePart;
}

/// One arm.
#[derive(Clone, Debug)]
pub struct ArmSetup {
    /// The recipe.
    pub recipe: Recipe,
    /// Largest absolute values per layer, where the recipe has fixed scales.
    pub absmax: Option<Vec<LayerAbsmax>>,
    /// Batch layout. Results do not depend on it; the A/A arm uses another one to show that.
    pub layout: BatchLayout,
    /// Token ids of the probe sequence from which engagement is read back.
    pub probe: Vec<u32>,
}

/// How sequences are laid out in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    /// Sequences decoded side by side.
    pub slots: usize,
    /// Prompt tokens per forward pass.
    pub prefill_chunk: usize,
}

/// A prompt to continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerateRequest {
    /// Exact prompt token ids.
    pub prompt_ids: Vec<u32>,
    /// The chat messages behind the prompt; none where it is no chat. Servers render them.
    pub messages: Vec<ChatMessage>,
    /// Most new tokens.
    pub max_new_tokens: u32,
    /// Tokens that the answer may begin with, such as another arm's answer; empty for none. An
    /// engine may feed them beside the prompt and take over those that it would have generated
    /// itself, or ignore them: the outcome is the same to the bit.
    pub draft: Vec<u32>,
}

/// What became of one request's draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftUse {
    /// Tokens of the draft that were fed.
    pub fed: u64,
    /// Those of them that the arm would have generated too: decoding steps that were saved.
    pub taken: u64,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Generated text, special tokens left out.
    pub text: String,
    /// Generated token ids, the stop token included; none from servers.
    pub ids: Vec<u32>,
    /// Number of generated tokens, the stop token included; `None` where a server does not say.
    pub output_tokens: Option<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// What the sequence stored in the cache (built-in workers).
    pub kv: Option<KvTotals>,
}

/// A window to score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreRequest {
    /// Token ids of the window.
    pub ids: Vec<u32>,
    /// Scored targets at its end.
    pub targets: u32,
}

/// A scored window.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Sum over the targets, natural log, in nats; f64 sum of terms from f32 logits.
    pub nll_sum: f64,
    /// What the sequence stored in the cache (built-in workers).
    pub kv: Option<KvTotals>,
}

/// Hears of progress between forward passes and may stop the work.
pub trait Observer {
    /// `tokens` more prompt or new tokens were processed. Break to stop: requests that have not
    /// finished are dropped without an outcome.
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()>;

    /// An attempt at request number `index` failed (servers).
    fn attempt_failed(&mut self, _index: usize, _failure: &FailedAttempt) {}
}

/// One failed attempt at a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// HTTP status, where there was a reply.
    pub status: Option<u16>,
    /// What went wrong.
    pub error: String,
    /// Wait before the next attempt, in milliseconds; `None` where it was the last.
    pub wait_ms: Option<u64>,
}

/// Hears of finished generations.
pub trait GenerateObserver: Observer {
    /// Request number `index` finished.
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>);

    /// A request that had a draft finished.
    fn drafted(&mut self, _draft: DraftUse) {}
}

/// Hears of finished scores.
pub trait ScoreObserver: Observer {
    /// Request number `index` finished.
    fn scored(&mut self, index: usize, outcome: Result<Score, CaseError>);
}

/// What went wrong with one case; recorded, and blocks a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaseError(pub String);

/// What went wrong with the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or layout cannot do this; no quality claim follows.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The worker failed.
    #[error("worker failure: {0}")]
    Worker(String),
}
