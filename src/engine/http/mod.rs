//! The engine over HTTP: servers with an OpenAI-compatible interface, one for the candidate and one
//! for each control.
//!
//! Everything is asked greedily. What a server says is untrusted: replies are limited in size, and
//! every field that is used is checked. Replies must keep naming the model that the probe met.

mod address;
mod asker;
mod call_error;
mod client;
mod identity;
mod key;
mod open;
mod probe;
mod pump;
pub mod reply;
mod retry;
mod sampling;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::model::Tokenizer;
use crate::recipe::{Format, Recipe};
use crate::schema::{
    ENGAGEMENT_SCHEMA, Engagement, LayerAbsmax, LikelihoodDialect, ModelIdentity, PromptTemplate,
    Server, ServerRun, ServerSettings, WorkerIdentity,
};

use super::{
    ArmSetup, Engine, EngineError, GenerateObserver, GenerateRequest, Generation, Observer, Score,
    ScoreObserver, ScoreRequest,
};
use asker::Asker;
use identity::Found;
use pump::Bounds;
use reply::Answer;

pub use address::{AddressError, ServerUrl};
pub use client::REPLY_LIMIT;
pub use key::{ApiKey, KeyError};
pub use open::ConnectError;
pub use probe::{PROBE_PROMPTS, ProbeMaterial};
pub use retry::RetryPolicy;

/// Cases that may wait, per request at a time, for one that takes long.
const WINDOW: usize = 8;

/// How servers are asked.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Who renders chat messages.
    pub template: PromptTemplate,
    /// Most requests at a time.
    pub concurrency: usize,
    /// Seed of every request.
    pub seed: u64,
    /// Longest time that a request may take.
    pub timeout: Duration,
    /// Attempts and waits.
    pub retry: RetryPolicy,
    /// Key for every server.
    pub key: Option<Arc<ApiKey>>,
    /// Name of the served model, where a server has several.
    pub served_model: Option<String>,
}

/// A server, and the arms that it answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// `candidate`, or the name of the control.
    pub name: String,
    /// Arms.
    pub arms: Vec<String>,
    /// Address.
    pub url: ServerUrl,
}

/// A server that was met.
struct Endpoint {
    spec: ServerSpec,
    found: Found,
    asker: Asker,
    /// Set once probed, or adopted from the run that is continued.
    probe: Option<crate::schema::ServerProbe>,
}

/// See the module documentation.
pub struct HttpEngine {
    runtime: Runtime,
    settings: HttpSettings,
    model: ModelIdentity,
    worker: WorkerIdentity,
    endpoints: Vec<Endpoint>,
    /// Place of the open arm's server in `endpoints`.
    open: usize,
}

impl HttpEngine {
    /// The servers as manifests and certificates have them; those alone that were probed.
    pub fn servers(&self) -> ServerRun {
        let server = |endpoint: &Endpoint| {
            Some(Server {
                name: endpoint.spec.name.clone(),
                arms: endpoint.spec.arms.clone(),
                identity: endpoint.found.identity.clone(),
                probe: endpoint.probe.clone()?,
            })
        };
        ServerRun {
            settings: ServerSettings {
                template: self.settings.template,
                concurrency: u32::try_from(self.settings.concurrency).unwrap_or(u32::MAX),
                seed: self.settings.seed,
            },
            servers: self.endpoints.iter().filter_map(server).collect(),
        }
    }

    /// Smallest context that a server tells of, and the server's address.
    pub fn context(&self) -> Option<(u32, &ServerUrl)> {
        let told = |endpoint: &'_ Endpoint| endpoint.found.identity.context;
        self.endpoints
            .iter()
            .filter_map(|endpoint| Some((told(endpoint)?, &endpoint.spec.url)))
            .min_by_key(|(context, _)| *context)
    }

    /// Why likelihoods cannot be asked of every server, if they cannot.
    pub fn likelihood_refused(&self) -> Option<String> {
        self.endpoints.iter().find_map(|endpoint| {
            let probe = endpoint.probe.as_ref()?;
            let why = probe.likelihood_refused.as_ref()?;
            Some(format!(
                "the server of {} offers no log-probabilities of prompts that could be checked ({why})",
                endpoint.spec.name
            ))
        })
    }

    /// Why prompts that this tool renders cannot be sent to every server, if they cannot.
    pub fn prompts_refused(&self) -> Option<String> {
        self.endpoints.iter().find_map(|endpoint| {
            let why = endpoint.probe.as_ref()?.prompts_refused.as_ref()?;
            Some(format!(
                "the server of {} takes no prompt that this tool rendered ({why})",
                endpoint.spec.name
            ))
        })
    }

    /// Why messages cannot be sent to every server, if they cannot.
    pub fn chat_refused(&self) -> Option<String> {
        self.endpoints.iter().find_map(|endpoint| {
            let why = endpoint.probe.as_ref()?.chat_refused.as_ref()?;
            Some(format!(
                "the server of {} answers no chat messages ({why})",
                endpoint.spec.name
            ))
        })
    }

    /// Prompts that this tool renders are sent as messages where the server renders them.
    pub fn renders(&self, request: &GenerateRequest) -> bool {
        self.settings.template == PromptTemplate::Local || request.messages.is_empty()
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoints[self.open]
    }

    fn bounds(&self, concurrency: usize) -> Bounds {
        Bounds {
            concurrency,
            window: self.settings.concurrency * WINDOW,
        }
    }

    /// Windows at a time: no more than llama.cpp has slots, as each keeps its prefix in one.
    fn windows(&self, dialect: LikelihoodDialect) -> usize {
        let concurrency = self.settings.concurrency;
        match (dialect, self.endpoint().found.slots) {
            (LikelihoodDialect::ForcedTokens, slots) => {
                concurrency.min(slots.unwrap_or(1).max(1) as usize)
            }
            _ => concurrency,
        }
    }
}

impl Engine for HttpEngine {
    fn model(&self) -> &ModelIdentity {
        &self.model
    }

    fn worker(&self) -> &WorkerIdentity {
        &self.worker
    }

    /// What a server stores is its own business: engagement shows whether it is the recipe, as far as
    /// formats of keys and values go.
    fn supports(&self, recipe: &Recipe) -> Result<(), EngineError> {
        match unseen(recipe) {
            Some(what) => Err(EngineError::Unsupported(what)),
            None => Ok(()),
        }
    }

    fn batch_cases(&self) -> usize {
        self.settings.concurrency * WINDOW / 2
    }

    fn is_streaming(&self) -> bool {
        true
    }

    fn calibrate(
        &mut self,
        _documents: &[Vec<u32>],
        _forced_tokens: u32,
        _observer: &mut dyn Observer,
    ) -> Result<Vec<LayerAbsmax>, EngineError> {
        Err(EngineError::Unsupported(
            "servers keep their scales to themselves: nothing can be calibrated over HTTP"
                .to_owned(),
        ))
    }

    fn name_arm(&mut self, arm: &str) -> Result<(), EngineError> {
        let answers = |endpoint: &Endpoint| endpoint.spec.arms.iter().any(|name| name == arm);
        match self.endpoints.iter().position(answers) {
            Some(at) => {
                self.open = at;
                Ok(())
            }
            None => Err(EngineError::Worker(format!("no server for arm {arm}"))),
        }
    }

    /// Asks the server again who it is. Nothing is read back of its cache.
    fn open_arm(&mut self, setup: &ArmSetup) -> Result<Engagement, EngineError> {
        self.check_unchanged()?;
        Ok(Engagement {
            schema: ENGAGEMENT_SCHEMA.to_owned(),
            recipe: setup.recipe.spec(),
            probe_tokens: 0,
            layers: Vec::new(),
            totals: None,
            unit_scales: false,
            differs_from_native: false,
            queries: None,
        })
    }

    fn generate(
        &mut self,
        requests: &[GenerateRequest],
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError> {
        let asker = self.endpoint().asker.clone();
        let list: Arc<[GenerateRequest]> = requests.into();
        let tokenizer = Arc::clone(&asker.tokenizer);
        let ask = move |index: usize, attempts: pump::Attempts<Answer>| {
            let (asker, list) = (asker.clone(), Arc::clone(&list));
            async move {
                let mut heard = pump::Heard::default();
                let mut failed = |failure| attempts.failed(&mut heard, failure);
                let outcome = asker.answer(&list[index], &mut failed).await;
                attempts.ended(heard, &outcome);
                outcome
            }
        };
        let bounds = self.bounds(self.settings.concurrency);
        let count = requests.len();
        pump::observe(
            &self.runtime,
            count,
            bounds,
            ask,
            observer,
            |observer, index, outcome| {
                let tokens = outcome.as_ref().map_or(0, |answer| {
                    requests[index].prompt_ids.len() as u64 + output_tokens(answer, &tokenizer)
                });
                observer.generated(index, outcome.map(generation));
                tokens
            },
        )
    }

    fn score(
        &mut self,
        requests: &[ScoreRequest],
        observer: &mut dyn ScoreObserver,
    ) -> Result<(), EngineError> {
        let endpoint = self.endpoint();
        let probe = endpoint.probe.as_ref();
        let dialect = probe.and_then(|probe| probe.likelihood.as_ref());
        let Some(dialect) = dialect.map(|found| found.dialect) else {
            let what = format!("{}: offers no likelihoods", endpoint.spec.url);
            return Err(EngineError::Unsupported(what));
        };
        let asker = endpoint.asker.clone();
        let list: Arc<[ScoreRequest]> = requests.into();
        let ask = move |index: usize, attempts: pump::Attempts<f64>| {
            let (asker, list) = (asker.clone(), Arc::clone(&list));
            async move {
                let mut heard = pump::Heard::default();
                let mut failed = |failure| attempts.failed(&mut heard, failure);
                let outcome = asker.likelihood(dialect, &list[index], &mut failed).await;
                attempts.ended(heard, &outcome);
                outcome
            }
        };
        let bounds = self.bounds(self.windows(dialect));
        let count = requests.len();
        pump::observe(
            &self.runtime,
            count,
            bounds,
            ask,
            observer,
            |observer, index, outcome| {
                let tokens = outcome
                    .as_ref()
                    .map_or(0, |_| requests[index].ids.len() as u64);
                let score = |nll_sum| Score { nll_sum, kv: None };
                observer.scored(index, outcome.map(score));
                tokens
            },
        )
    }
}

/// What of a recipe no server shows, so that nothing could be certified of it.
pub fn unseen(recipe: &Recipe) -> Option<String> {
    let part = if recipe.q != Format::Native {
        "a format of queries (q=)"
    } else if recipe.sink > 0 {
        "first tokens that stay native (sink)"
    } else if !recipe.skip_layers.is_empty() {
        "layers that stay native (skip-layers)"
    } else {
        return None;
    };
    Some(format!(
        "{} has {part}, of which no server tells: only recipes of keys and values run on servers",
        recipe.name
    ))
}

/// Servers do not tell token ids in a common way: none are recorded.
fn generation(answer: Answer) -> Generation {
    Generation {
        text: answer.text,
        ids: Vec::new(),
        output_tokens: answer.output_tokens,
        finish: answer.finish,
        kv: None,
    }
}

/// Generated tokens, for progress.
fn output_tokens(answer: &Answer, tokenizer: &Tokenizer) -> u64 {
    match answer.output_tokens {
        Some(tokens) => u64::from(tokens),
        None => tokenizer
            .encode_text(&answer.text)
            .map_or(0, |ids| ids.len() as u64),
    }
}
