//! A deterministic engine without a model.

use std::ops::ControlFlow;

use crate::engine::{
    ArmSetup, CaseError, Engine, EngineError, GenerateObserver, GenerateRequest, Generation,
    Observer, Score, ScoreObserver, ScoreRequest,
};
use crate::recipe::{Component, Recipe, ScalePolicy, vector_bytes};
use crate::schema::{
    ComponentTotals, ENGAGEMENT_SCHEMA, Engagement, FileDigest, Finish, Geometry, KvTotals,
    LayerAbsmax, LayerEngagement, ModelIdentity, WorkerIdentity, weights_sha256,
};

use super::lie::Lie;

const LAYERS: usize = 2;
/// Ends every answer, and stands nowhere else.
const STOP: u32 = 99;

/// No two scales that follow from it are the same.
const ABSMAX: [LayerAbsmax; LAYERS] = [
    LayerAbsmax { k: 3.0, v: 4.0 },
    LayerAbsmax { k: 5.0, v: 0.5 },
];

/// Answers follow from the prompt and the recipe alone, unless told otherwise.
pub struct FakeEngine {
    model: ModelIdentity,
    worker: WorkerIdentity,
    arm: Option<ArmSetup>,
    /// Recipe that it refuses.
    pub refuses: Option<String>,
    /// First prompt token of a case that fails.
    pub fails: Option<u32>,
    /// Native results depend on the number of slots.
    pub noisy: bool,
    /// Forward passes until the worker dies.
    pub lifetime: Option<u64>,
    /// Cases per batch.
    pub batch: usize,
    /// Requests finish in the order in which they came, not the first one last.
    pub finishes_in_order: bool,
    /// What it does instead of applying recipes.
    pub lie: Lie,
    /// Answers are followed by so much text.
    pub padding: usize,
    /// Drafts of all requests so far.
    pub drafts: Vec<Vec<u32>>,
    /// Calls of `calibrate`.
    pub calibrations: usize,
    /// Recipes of the arms that were opened.
    pub opened: Vec<String>,
}

impl FakeEngine {
    pub fn new(kind: &str) -> Self {
        FakeEngine {
            model: model(),
            worker: WorkerIdentity {
                kind: kind.to_owned(),
                device: "fake".to_owned(),
                arithmetic: "exact".to_owned(),
            },
            arm: None,
            refuses: None,
            fails: None,
            noisy: false,
            lifetime: None,
            batch: 2,
            finishes_in_order: false,
            lie: Lie::None,
            padding: 0,
            drafts: Vec::new(),
            calibrations: 0,
            opened: Vec::new(),
        }
    }

    fn pass(&mut self, observer: &mut dyn Observer) -> Result<ControlFlow<()>, EngineError> {
        if let Some(left) = &mut self.lifetime {
            *left = left
                .checked_sub(1)
                .ok_or_else(|| EngineError::Worker("out of life".to_owned()))?;
        }
        Ok(observer.tokens(1))
    }

    fn setup(&self) -> &ArmSetup {
        self.arm.as_ref().expect("an arm is open")
    }

    /// Changes with the recipe, and with the batch layout where noisy.
    fn salt(&self) -> u32 {
        let setup = self.setup();
        let quantised = u32::from(!setup.recipe.is_native());
        let noise = if self.noisy {
            setup.layout.slots as u32
        } else {
            0
        };
        quantised + noise
    }

    fn nll_sum(&self, ids: &[u32]) -> f64 {
        let sum = f64::from(ids.iter().sum::<u32>()) * 0.1 + f64::from(self.salt());
        f64::from_bits(sum.to_bits() + self.lie.about_bits(ids, self.setup()))
    }

    fn stored(&self, tokens: usize) -> Option<KvTotals> {
        let setup = self.setup();
        let absmax = setup.absmax.as_deref().unwrap_or_default();
        let mut sum = KvTotals::default();
        for layer in 0..LAYERS {
            sum.merge(&in_layer(&setup.recipe, absmax, layer, tokens));
        }
        self.lie.about_case(sum)
    }

    /// Requests in the order in which they finish.
    fn finishing(&self, requests: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..requests).collect();
        if !self.finishes_in_order {
            order.rotate_left(usize::min(1, requests));
        }
        order
    }

    fn fails(&self, ids: &[u32]) -> Option<CaseError> {
        (self.fails.is_some() && ids.first() == self.fails.as_ref())
            .then(|| CaseError("beyond the context".to_owned()))
    }
}

impl Engine for FakeEngine {
    fn model(&self) -> &ModelIdentity {
        &self.model
    }

    fn worker(&self) -> &WorkerIdentity {
        &self.worker
    }

    fn supports(&self, recipe: &Recipe) -> Result<(), EngineError> {
        match &self.refuses {
            Some(name) if *name == recipe.name => {
                Err(EngineError::Unsupported(format!("no kernel for {name}")))
            }
            _ => Ok(()),
        }
    }

    fn batch_cases(&self) -> usize {
        self.batch
    }

    fn calibrate(
        &mut self,
        documents: &[Vec<u32>],
        _forced_tokens: u32,
        observer: &mut dyn Observer,
    ) -> Result<Vec<LayerAbsmax>, EngineError> {
        self.calibrations += 1;
        for _ in documents {
            if self.pass(observer)?.is_break() {
                break;
            }
        }
        Ok(ABSMAX.to_vec())
    }

    fn open_arm(&mut self, setup: &ArmSetup) -> Result<Engagement, EngineError> {
        self.arm = Some(setup.clone());
        self.opened.push(setup.recipe.name.clone());
        let absmax = setup.absmax.as_deref().unwrap_or_default();
        Ok(self.lie.about_probe(engagement(setup, absmax)))
    }

    fn generate(
        &mut self,
        requests: &[GenerateRequest],
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError> {
        for index in self.finishing(requests.len()) {
            let GenerateRequest {
                prompt_ids: prompt,
                draft,
                ..
            } = &requests[index];
            self.drafts.push(draft.clone());
            if self.pass(observer)?.is_break() || self.pass(observer)?.is_break() {
                return Ok(());
            }
            if let Some(error) = self.fails(prompt) {
                observer.generated(index, Err(error));
                continue;
            }
            let wrong = prompt[0].is_multiple_of(3) && self.salt() > 0;
            let token = self.lie.about_token(prompt, self.setup());
            let answer = prompt.iter().sum::<u32>() + u32::from(wrong);
            let generation = Generation {
                text: format!("the answer is {answer}") + &" ".repeat(self.padding),
                ids: vec![
                    answer,
                    self.lie.about_draft(self.salt() + token, draft),
                    STOP,
                ],
                output_tokens: Some(3),
                finish: Finish::Stop,
                kv: self.stored(prompt.len() + 2),
            };
            observer.generated(index, Ok(generation));
        }
        Ok(())
    }

    fn score(
        &mut self,
        requests: &[ScoreRequest],
        observer: &mut dyn ScoreObserver,
    ) -> Result<(), EngineError> {
        for index in self.finishing(requests.len()) {
            let ids = &requests[index].ids;
            if self.pass(observer)?.is_break() {
                return Ok(());
            }
            let outcome = match self.fails(ids) {
                Some(error) => Err(error),
                None => Ok(Score {
                    nll_sum: self.nll_sum(ids),
                    kv: self.stored(ids.len() - 1),
                }),
            };
            observer.scored(index, outcome);
        }
        Ok(())
    }
}

fn engagement(setup: &ArmSetup, absmax: &[LayerAbsmax]) -> Engagement {
    let tokens = setup.probe.len();
    let layers: Vec<KvTotals> = (0..LAYERS)
        .map(|layer| in_layer(&setup.recipe, absmax, layer, tokens))
        .collect();
    Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: setup.recipe.spec(),
        probe_tokens: tokens as u64,
        layers: (0u32..)
            .zip(layers)
            .map(|(layer, KvTotals { k, v })| LayerEngagement { layer, k, v })
            .collect(),
        totals: None,
        unit_scales: false,
        differs_from_native: !setup.recipe.is_native(),
        queries: None,
    }
}

/// What so many tokens store in one layer: every second element of a quantised component differs.
fn in_layer(recipe: &Recipe, absmax: &[LayerAbsmax], layer: usize, tokens: usize) -> KvTotals {
    let elements = 8 * tokens as u64;
    let component = |component: Component, absmax: Option<f32>| {
        let scale = match component.scale {
            Some(ScalePolicy::Fixed) => absmax.map(|absmax| (absmax / 448.0, absmax / 448.0)),
            Some(ScalePolicy::Dynamic) => Some((0.25, 0.5)),
            None => None,
        };
        ComponentTotals {
            bytes: tokens as u64 * vector_bytes(component, 8),
            elements,
            saturated: 0,
            changed: if scale.is_some() { elements / 2 } else { 0 },
            scale_min: scale.map(|(low, _)| low),
            scale_max: scale.map(|(_, high)| high),
        }
    };
    KvTotals {
        k: component(recipe.k, absmax.get(layer).map(|absmax| absmax.k)),
        v: component(recipe.v, absmax.get(layer).map(|absmax| absmax.v)),
    }
}

fn model() -> ModelIdentity {
    let files = vec![FileDigest {
        path: "fake.gguf".to_owned(),
        sha256: "0".repeat(64),
    }];
    ModelIdentity {
        name: "fake".to_owned(),
        family: "llama".to_owned(),
        weights_sha256: weights_sha256(files.iter()),
        files,
        tokenizer_sha256: "1".repeat(64),
        quantised: None,
        penalties: Vec::new(),
        geometry: Geometry {
            layers: LAYERS as u32,
            hidden_size: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            vocab_size: 100,
            context: 64,
            native_dtype: "f16".to_owned(),
            recurrent_layers: Vec::new(),
            attention_layers: Vec::new(),
        },
    }
}
