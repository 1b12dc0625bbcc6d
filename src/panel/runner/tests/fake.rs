//! A deterministic engine without a model, and the little world that it runs in.

use std::ops::ControlFlow;
use std::path::Path;

use crate::engine::{
    ArmSetup, CaseError, Engine, EngineError, GenerateObserver, GenerateRequest, Generation,
    Observer, Score, ScoreObserver, ScoreRequest,
};
use crate::panel::{BuiltPanel, BuiltPanels, CalibrationDocs, Outcome, Panel};
use crate::recipe::Recipe;
use crate::schema::{
    AssaySensitivity, CalibrationPlan, CaseTask, ComponentTotals, ENGAGEMENT_SCHEMA, Engagement,
    Finish, Geometry, KvTotals, LayerAbsmax, LayerEngagement, ModelIdentity, NllRule,
    ObjectiveName, PANEL_SCHEMA, PROTOCOL_SCHEMA, PanelCase, PanelHeader, PanelPlan,
    ProportionRule, Protocol, ProtocolCandidate, ProtocolModel, Rules, WorkerIdentity,
};

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
        Ok(vec![LayerAbsmax { k: 3.0, v: 4.0 }])
    }

    fn open_arm(&mut self, setup: &ArmSetup) -> Result<Engagement, EngineError> {
        self.arm = Some(setup.clone());
        self.opened.push(setup.recipe.name.clone());
        let totals = kv(setup.probe.len(), &setup.recipe);
        Ok(Engagement {
            schema: ENGAGEMENT_SCHEMA.to_owned(),
            recipe: setup.recipe.spec(),
            probe_tokens: setup.probe.len() as u64,
            layers: vec![LayerEngagement {
                layer: 0,
                k: totals.k,
                v: totals.v,
            }],
            totals: None,
            unit_scales: false,
            differs_from_native: !setup.recipe.is_native(),
        })
    }

    fn generate(
        &mut self,
        requests: &[GenerateRequest],
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError> {
        for index in self.finishing(requests.len()) {
            let prompt = &requests[index].prompt_ids;
            if self.pass(observer)?.is_break() || self.pass(observer)?.is_break() {
                return Ok(());
            }
            if let Some(error) = self.fails(prompt) {
                observer.generated(index, Err(error));
                continue;
            }
            let wrong = prompt[0].is_multiple_of(3) && self.salt() > 0;
            let answer = prompt.iter().sum::<u32>() + u32::from(wrong);
            let generation = Generation {
                text: format!("the answer is {answer}"),
                ids: vec![answer, self.salt(), 0],
                finish: Finish::Stop,
                kv: Some(kv(prompt.len() + 2, &self.setup().recipe)),
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
                    nll_sum: f64::from(ids.iter().sum::<u32>()) * 0.1 + f64::from(self.salt()),
                    kv: Some(kv(ids.len(), &self.setup().recipe)),
                }),
            };
            observer.scored(index, outcome);
        }
        Ok(())
    }
}

fn kv(tokens: usize, recipe: &Recipe) -> KvTotals {
    let elements = 8 * tokens as u64;
    let component = |quantised: bool| ComponentTotals {
        bytes: if quantised { elements } else { 2 * elements },
        elements,
        saturated: 0,
        changed: if quantised { elements / 2 } else { 0 },
        scale_min: quantised.then_some(0.25),
        scale_max: quantised.then_some(0.5),
    };
    KvTotals {
        k: component(recipe.k.scale.is_some()),
        v: component(recipe.v.scale.is_some()),
    }
}

fn model() -> ModelIdentity {
    ModelIdentity {
        name: "fake".to_owned(),
        family: "llama".to_owned(),
        files: Vec::new(),
        weights_sha256: "0".repeat(64),
        tokenizer_sha256: "1".repeat(64),
        geometry: Geometry {
            layers: 1,
            hidden_size: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            vocab_size: 100,
            context: 64,
            native_dtype: "f16".to_owned(),
        },
    }
}

/// A protocol of five questions, three documents and three needles.
pub fn protocol() -> Protocol {
    let proportion = |limit| ProportionRule { limit, divisor: 4 };
    let candidate = |name: &str, spec: &str| ProtocolCandidate {
        name: name.to_owned(),
        spec: spec.to_owned(),
    };
    Protocol {
        schema: PROTOCOL_SCHEMA.to_owned(),
        name: "tiny".to_owned(),
        description: "A protocol of tests.".to_owned(),
        family_alpha: 0.05,
        models: vec![ProtocolModel {
            name: "*".to_owned(),
            sha256: None,
        }],
        controls: vec!["native".to_owned()],
        candidates: vec![
            candidate("AF", "k=native,v=e4m3:fixed"),
            candidate("AD", "k=native,v=e4m3:dynamic"),
        ],
        objectives: vec![ObjectiveName::Preservation, ObjectiveName::Aggregate],
        required: ObjectiveName::Preservation,
        calibration: CalibrationPlan {
            documents: 2,
            lengths: vec![16],
            forced_tokens: 4,
        },
        panels: vec![
            PanelPlan::Math {
                task: "gsm8k".to_owned(),
                cases: 5,
                max_new_tokens: 8,
            },
            PanelPlan::Nll {
                task: "wikipedia-nll".to_owned(),
                length: 16,
                documents: 3,
                targets: 4,
            },
            PanelPlan::Retrieval {
                task: "needle".to_owned(),
                length: 16,
                cases: 3,
                max_new_tokens: 8,
            },
        ],
        rules: Rules {
            gross_loss: proportion(0.02),
            net_change: proportion(-0.01),
            nll: NllRule {
                limit: 0.01,
                divisor: 4,
                resamples: 1000,
                seed: 1,
            },
            retrieval: proportion(0.05),
        },
        frozen_panels: Vec::new(),
        assay_sensitivity: AssaySensitivity {
            math: 0.5,
            retrieval: 0.9,
        },
        contrasts: Vec::new(),
        seed: 1,
    }
}

/// Panels of so many questions, three documents and three needles, written to and read back
/// from `dir`.
pub fn panels(dir: &Path, questions: u32) -> BuiltPanels {
    let math = |i: u32, ids: &[u32]| {
        (
            format!("gsm8k-{i:04}"),
            CaseTask::Math {
                gold: ids.iter().sum::<u32>().to_string(),
                max_new_tokens: 8,
            },
        )
    };
    let nll = |i: u32, _: &[u32]| {
        (
            format!("nll-{i:04}"),
            CaseTask::Nll {
                targets: 4,
                article: format!("Article {i}"),
            },
        )
    };
    let retrieval = |i: u32, ids: &[u32]| {
        (
            format!("needle-{i:04}"),
            CaseTask::Retrieval {
                gold: format!("the answer is {}", ids.iter().sum::<u32>()),
                depth: f64::from(i) / 4.0,
                max_new_tokens: 8,
            },
        )
    };
    BuiltPanels {
        panels: vec![
            panel(dir, "math", "gsm8k/1", questions, &math),
            panel(dir, "nll-16", "", 3, &nll),
            panel(dir, "retrieval-16", "needle/1", 3, &retrieval),
        ],
        calibration: Some(CalibrationDocs {
            documents: vec![vec![1; 16], vec![2; 16]],
            sha256: "2".repeat(64),
        }),
        probe: vec![7; 16],
    }
}

/// Name and task of case `i`, given its prompt.
type MakeTask = dyn Fn(u32, &[u32]) -> (String, CaseTask);

fn panel(dir: &Path, name: &str, parser: &str, cases: u32, task: &MakeTask) -> BuiltPanel {
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: name.to_owned(),
        task: "test/1".to_owned(),
        tokenizer_sha256: "1".repeat(64),
        sources: Vec::new(),
        parser: parser.to_owned(),
        cases,
    };
    let lines: Vec<PanelCase> = (1..=cases)
        .map(|i| {
            let prompt_ids = vec![i, i + 10, 20];
            let (case, task) = task(i, &prompt_ids);
            PanelCase {
                case,
                messages: Vec::new(),
                prompt_ids,
                task,
            }
        })
        .collect();
    let path = dir.join(format!("{name}.jsonl"));
    let sha256 = crate::panel::write_panel(&path, &header, &lines).unwrap();
    let panel: Panel = crate::panel::read_panel(&path, &sha256).unwrap();
    BuiltPanel {
        name: name.to_owned(),
        outcome: Outcome::Built(panel),
    }
}
