//! Local engines over tiny models, and observers that write down what they hear.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kvassay::backend::Backend;
use kvassay::engine::{
    ArmSetup, BatchLayout, CaseError, Engine, GenerateObserver, GenerateRequest, Generation,
    LocalEngine, LocalIdentity, LocalSettings, Observer, Score, ScoreObserver, ScoreRequest,
    TokenText,
};
use kvassay::model::{Decoder, ModelConfig, WeightSource};
use kvassay::recipe::Recipe;
use kvassay::schema::{LayerAbsmax, ModelIdentity, WorkerIdentity};

/// Text is the ids, separated by blanks.
pub struct Numbers {
    pub eos: Vec<u32>,
}

impl TokenText for Numbers {
    fn decode(&self, ids: &[u32]) -> String {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        words.join(" ")
    }

    fn eos_ids(&self) -> &[u32] {
        &self.eos
    }
}

pub fn identity(config: &ModelConfig) -> LocalIdentity {
    LocalIdentity {
        model: ModelIdentity {
            name: "tiny".to_owned(),
            family: config.family.name().to_owned(),
            files: Vec::new(),
            weights_sha256: String::new(),
            tokenizer_sha256: String::new(),
            quantised: None,
            penalties: Vec::new(),
            geometry: config.geometry(),
        },
        worker: WorkerIdentity {
            kind: "test".to_owned(),
            device: "test".to_owned(),
            arithmetic: "test".to_owned(),
        },
    }
}

pub fn engine<B: Backend>(
    config: &ModelConfig,
    weights: &dyn WeightSource,
    backend: B,
    eos: &[u32],
) -> LocalEngine<B> {
    let decoder = Decoder::load(config.clone(), weights, backend).unwrap();
    let text = Box::new(Numbers { eos: eos.to_vec() });
    let settings = LocalSettings {
        layout: layout(3, 10),
        ..LocalSettings::default()
    };
    LocalEngine::from_decoder(decoder, text, identity(config), settings).unwrap()
}

pub fn layout(slots: usize, prefill_chunk: usize) -> BatchLayout {
    BatchLayout {
        slots,
        prefill_chunk,
    }
}

pub fn setup(recipe: &str, absmax: &[LayerAbsmax], layout: BatchLayout) -> ArmSetup {
    let recipe = Recipe::parse(recipe).unwrap();
    ArmSetup {
        absmax: recipe.needs_calibration().then(|| absmax.to_vec()),
        recipe,
        layout,
        probe: (0..12).collect(),
    }
}

/// Outcomes by request number, tokens heard of, and when to break.
pub struct Log<T> {
    pub outcomes: BTreeMap<usize, Result<T, CaseError>>,
    pub passes: usize,
    pub tokens: u64,
    pub break_after: usize,
}

impl<T> Log<T> {
    pub fn new() -> Self {
        Log {
            outcomes: BTreeMap::new(),
            passes: 0,
            tokens: 0,
            break_after: usize::MAX,
        }
    }

    fn add(&mut self, index: usize, outcome: Result<T, CaseError>) {
        assert!(
            self.outcomes.insert(index, outcome).is_none(),
            "reported twice"
        );
    }
}

impl<T> Observer for Log<T> {
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()> {
        assert!(self.passes < self.break_after, "ran on after a break");
        self.passes += 1;
        self.tokens += tokens;
        if self.passes == self.break_after {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Log<Generation> {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        self.add(index, outcome);
    }
}

impl ScoreObserver for Log<Score> {
    fn scored(&mut self, index: usize, outcome: Result<Score, CaseError>) {
        self.add(index, outcome);
    }
}

/// Generates and returns the outcomes in the order of the requests.
pub fn generate(
    engine: &mut dyn Engine,
    requests: &[GenerateRequest],
) -> Vec<Result<Generation, CaseError>> {
    let mut log = Log::new();
    engine.generate(requests, &mut log).unwrap();
    assert_eq!(log.outcomes.len(), requests.len());
    log.outcomes.into_values().collect()
}

/// Scores and returns the outcomes in the order of the requests.
pub fn score(engine: &mut dyn Engine, requests: &[ScoreRequest]) -> Vec<Result<Score, CaseError>> {
    let mut log = Log::new();
    engine.score(requests, &mut log).unwrap();
    assert_eq!(log.outcomes.len(), requests.len());
    log.outcomes.into_values().collect()
}
