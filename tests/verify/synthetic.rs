//! A small run written through the public interface: three panels, a control or two, the second
//! native run, a recipe that passes (`AD`) and one that loses much (`SF`).

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.
#![allow(
    dead_code,
    reason = "not every test file that shares this module uses all of it"
)]

use std::fs;
use std::path::{Path, PathBuf};

use kvassay::certify;
use kvassay::recipe::{Component, Recipe, ScalePolicy, vector_bytes};
use kvassay::schema::*;
use kvassay::store::{CaseKey, RunDir};

const CASES: u32 = 6;
const DOCUMENTS: u32 = 4;
const TARGETS: u32 = 8;

/// The run, and certificates that are kept elsewhere.
pub struct Synthetic {
    root: tempfile::TempDir,
}

/// Whether an arm answers a case: arm, panel, case.
pub type Answers = dyn Fn(&str, &str, u32) -> bool;

/// Native answers all but the last case, `AD` too but for one case, `SF` almost nothing.
pub fn usual(arm: &str, panel: &str, case: u32) -> bool {
    match (arm, panel) {
        ("AD", "math") => case != 1 && case + 1 != CASES,
        ("SF", _) => case == 0,
        _ => case + 1 != CASES,
    }
}

impl Synthetic {
    /// The run with one control.
    pub fn new() -> Self {
        Synthetic::with(&["native"], &usual)
    }

    /// A run with these controls and answers; writes every certificate.
    pub fn with(controls: &[&str], answers: &Answers) -> Self {
        let synthetic = Synthetic {
            root: tempfile::tempdir().unwrap(),
        };
        write_run(&synthetic.run(), controls, answers);
        fs::create_dir(synthetic.root.path().join("kept")).unwrap();
        let dir = RunDir::open(&synthetic.run()).unwrap();
        let evidence = certify::load(&dir).unwrap();
        for recipe in ["AD", "SF"] {
            let certificate = certify::certify(recipe, &evidence).unwrap();
            dir.write_certificate(recipe, &certificate).unwrap();
            let path = synthetic.run().join(format!("certificates/{recipe}.json"));
            fs::copy(path, synthetic.kept(recipe)).unwrap();
        }
        synthetic
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// A certificate outside of the run.
    pub fn kept(&self, recipe: &str) -> PathBuf {
        self.root.path().join(format!("kept/{recipe}.json"))
    }
}

pub fn protocol(controls: &[&str]) -> Protocol {
    let proportion = |limit, divisor| ProportionRule { limit, divisor };
    let candidate = |name: &str| ProtocolCandidate {
        name: name.to_owned(),
        spec: Recipe::parse(name).unwrap().spec(),
    };
    Protocol {
        schema: PROTOCOL_SCHEMA.to_owned(),
        name: "synthetic".to_owned(),
        description: "For tests.".to_owned(),
        family_alpha: 0.05,
        models: vec![ProtocolModel {
            name: "*".to_owned(),
            sha256: None,
        }],
        controls: controls.iter().map(|&name| name.to_owned()).collect(),
        candidates: vec![candidate("AD"), candidate("SF")],
        objectives: vec![ObjectiveName::Preservation, ObjectiveName::Aggregate],
        required: ObjectiveName::Preservation,
        calibration: CalibrationPlan {
            documents: 2,
            lengths: vec![128],
            forced_tokens: 4,
            source: CalibrationSource::Measured,
        },
        panels: vec![
            PanelPlan::Math {
                task: "gsm8k".to_owned(),
                cases: CASES,
                max_new_tokens: 16,
            },
            PanelPlan::Nll {
                task: "wikipedia-nll".to_owned(),
                length: 256,
                documents: DOCUMENTS,
                targets: TARGETS,
            },
            PanelPlan::Retrieval {
                task: "needle".to_owned(),
                length: 512,
                cases: CASES,
                max_new_tokens: 8,
            },
        ],
        rules: Rules {
            gross_loss: proportion(0.8, 4),
            net_change: proportion(-0.9, 4),
            nll: NllRule {
                limit: 0.05,
                divisor: 2,
                resamples: 400,
                seed: 7,
            },
            retrieval: proportion(0.8, 2),
        },
        frozen_panels: Vec::new(),
        assay_sensitivity: AssaySensitivity {
            math: 0.5,
            retrieval: 0.5,
        },
        resource_limits: Some(ResourceLimits {
            peak_device_bytes: Some(9_000),
            largest_sample_gap_ms: Some(500),
        }),
        contrasts: Vec::new(),
        seed: 1,
    }
}

fn geometry() -> Geometry {
    Geometry {
        layers: 2,
        hidden_size: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab_size: 256,
        context: 1024,
        native_dtype: "f16".to_owned(),
        recurrent_layers: Vec::new(),
        attention_layers: Vec::new(),
    }
}

fn model() -> ModelIdentity {
    let files = vec![FileDigest {
        path: "model.safetensors".to_owned(),
        sha256: sha256_hex(b"weights"),
    }];
    ModelIdentity {
        name: "synthetic-model".to_owned(),
        family: "qwen3".to_owned(),
        weights_sha256: weights_sha256(files.iter()),
        files,
        tokenizer_sha256: sha256_hex(b"tokenizer"),
        quantised: None,
        penalties: Vec::new(),
        geometry: geometry(),
    }
}

fn arms(controls: &[&str]) -> Vec<ManifestArm> {
    let arm = |name: String, role, recipe: &str| ManifestArm {
        arm: name,
        role,
        recipe: Recipe::parse(recipe).unwrap().spec(),
        unsupported: None,
    };
    let name = |control: &str| match controls.len() {
        1 => control.to_owned(),
        _ => format!("control-{control}"),
    };
    let native = controls
        .iter()
        .map(|control| arm(name(control), ArmRole::Control, "native"));
    let mut arms: Vec<ManifestArm> = native.collect();
    arms.push(arm("native-aa".to_owned(), ArmRole::Aa, "native"));
    for recipe in ["AD", "SF"] {
        arms.push(arm(recipe.to_owned(), ArmRole::Candidate, recipe));
    }
    arms
}

fn case_of(plan: &PanelPlan, at: u32) -> PanelCase {
    let name = plan.panel_name();
    let task = match plan {
        PanelPlan::Math { max_new_tokens, .. } => CaseTask::Math {
            gold: (40 + at).to_string(),
            max_new_tokens: *max_new_tokens,
        },
        PanelPlan::Nll { targets, .. } => CaseTask::Nll {
            targets: *targets,
            article: format!("Article {at}"),
        },
        PanelPlan::Retrieval { max_new_tokens, .. } => CaseTask::Retrieval {
            gold: (1_234_560 + at).to_string(),
            depth: f64::from(at) / 10.0,
            max_new_tokens: *max_new_tokens,
        },
    };
    PanelCase {
        case: format!("{name}-{at:04}"),
        messages: vec![ChatMessage {
            role: "user".to_owned(),
            content: format!("Question {at} of {name}?"),
        }],
        prompt_ids: vec![1, 2, at],
        task,
    }
}

fn panel_text(plan: &PanelPlan) -> String {
    let task = plan.builtin_task().unwrap();
    let mut sources = task.accepted_sources().into_iter();
    let source = sources.find(|source| source.sha256.is_some()).unwrap();
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: plan.panel_name(),
        task: task.id(),
        tokenizer_sha256: sha256_hex(b"tokenizer"),
        sources: vec![FileDigest {
            path: format!("{}/{}", task.folder, source.file),
            sha256: source.sha256.unwrap(),
        }],
        parser: task.parser,
        cases: plan.case_count(),
    };
    let mut text = serde_json::to_string(&header).unwrap() + "\n";
    for at in 0..plan.case_count() {
        text += &(serde_json::to_string(&case_of(plan, at)).unwrap() + "\n");
    }
    text
}

fn write_run(path: &Path, controls: &[&str], answers: &Answers) {
    let protocol = protocol(controls);
    let texts: Vec<String> = protocol.panels.iter().map(panel_text).collect();
    let panels = protocol.panels.iter().zip(&texts).map(|(plan, text)| {
        let name = plan.panel_name();
        ManifestPanel {
            file: Some(FileDigest {
                path: format!("panels/{name}.jsonl"),
                sha256: sha256_hex(text.as_bytes()),
            }),
            panel: name,
            cases: plan.case_count(),
            unsupported: None,
        }
    });
    let manifest = Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        tool: ToolIdentity::current(),
        protocol_sha256: protocol.sha256().unwrap(),
        model: model(),
        worker: WorkerIdentity {
            kind: "cpu".to_owned(),
            device: "synthetic".to_owned(),
            arithmetic: "f32".to_owned(),
        },
        panels: panels.collect(),
        arms: arms(controls),
        limit: None,
        shard: None,
        servers: None,
        protocol: protocol.clone(),
    };
    let run = RunDir::create(path, &manifest).unwrap();
    fs::create_dir(path.join("panels")).unwrap();
    for (plan, text) in protocol.panels.iter().zip(&texts) {
        fs::write(
            path.join(format!("panels/{}.jsonl", plan.panel_name())),
            text,
        )
        .unwrap();
    }
    run.write_calibration(&calibration()).unwrap();
    for arm in &manifest.arms {
        write_arm(&run, arm, &protocol, answers);
    }
}

fn calibration() -> Calibration {
    Calibration {
        schema: CALIBRATION_SCHEMA.to_owned(),
        model: "synthetic-model".to_owned(),
        weights_sha256: model().weights_sha256,
        documents_sha256: sha256_hex(b"documents"),
        documents: 2,
        tokens: 264,
        source: CalibrationSource::Measured,
        layers: vec![LayerAbsmax { k: 224.0, v: 112.0 }; 2],
    }
}

fn write_arm(run: &RunDir, arm: &ManifestArm, protocol: &Protocol, answers: &Answers) {
    run.start_arm(&arm.arm, AnswerMode::Plain).unwrap();
    let recipe = Recipe::parse(&arm.recipe).unwrap();
    let mut sum: Option<KvTotals> = None;
    for plan in &protocol.panels {
        let panel = plan.panel_name();
        let mut keys = Vec::new();
        let mut records = Vec::new();
        for at in 0..plan.case_count() {
            let case = case_of(plan, at);
            let line = serde_json::to_string(&case).unwrap();
            // The last target of a window and the last token of an answer are never stored.
            let stored = match plan {
                PanelPlan::Nll { .. } => 2,
                PanelPlan::Math { .. } | PanelPlan::Retrieval { .. } => 6,
            };
            let kv = totals(&recipe, 2 * stored);
            let record = Record {
                case: case.case.clone(),
                case_sha256: sha256_hex(line.as_bytes()),
                prompt_tokens: 3,
                kv: Some(kv.clone()),
                ..Record::default()
            };
            keys.push(CaseKey {
                case: case.case,
                case_sha256: record.case_sha256.clone(),
            });
            sum.get_or_insert_default().merge(&kv);
            let is_right = answers(&arm.arm, &panel, at);
            records.push(outcome(
                record,
                &case.task,
                is_right,
                !recipe.is_native(),
                at,
            ));
        }
        let mut log = run.record_log(&arm.arm, &panel, &keys).unwrap();
        log.append(&records).unwrap();
    }
    run.write_engagement(&arm.arm, &engagement(&recipe, sum))
        .unwrap();
    run.write_resources(&arm.arm, &resources()).unwrap();
}

/// Two parts, none of whose figures is the other's, within the limits.
fn resources() -> Resources {
    let part = |at: u64| ResourcePart {
        device: "synthetic".to_owned(),
        total_bytes: Some(10_000),
        allocations: Allocations {
            weights: 4_000,
            cache: 1_000 + 100 * at,
            counters: 300 - at,
            staging: 20 + at,
            graphs: 0,
            states: 0,
        },
        sampled: Some(MemorySamples {
            scope: SampleScope::Device,
            peak_bytes: 8_000 + at,
            samples: 40 + at,
            largest_gap_ms: 30 - at,
        }),
    };
    Resources {
        parts: vec![part(1), part(2)],
        ..Resources::empty()
    }
}

fn outcome(record: Record, task: &CaseTask, is_right: bool, is_quantised: bool, at: u32) -> Record {
    match task {
        CaseTask::Math { gold, .. } => {
            let answer = if is_right { gold.as_str() } else { "7" };
            Record {
                answer: Some(Some(answer.to_owned())),
                secondary: [("gsm8k-last-number/1".to_owned(), is_right)].into(),
                ..answered(record, format!("Let me see.\n#### {answer}"), is_right)
            }
        }
        CaseTask::Retrieval { gold, depth, .. } => {
            let value = if is_right { gold.as_str() } else { "7654321" };
            Record {
                depth: Some(*depth),
                ..answered(record, format!("The code is {value}."), is_right)
            }
        }
        CaseTask::Nll { targets, .. } => {
            // The recipe's likelihoods differ a little from document to document.
            let factor = if is_quantised {
                1.001 + 0.0003 * f64::from(at % 3)
            } else {
                1.0
            };
            Record {
                targets: Some(*targets),
                nll_sum: Some(factor * (20.0 + 1.7 * f64::from(at))),
                ..record
            }
        }
        CaseTask::Imported { .. } => panic!("no import here"),
    }
}

fn answered(record: Record, output: String, is_right: bool) -> Record {
    Record {
        output: Some(output),
        output_ids: Some(vec![5, 6, u32::from(is_right), 2]),
        output_tokens: Some(4),
        finish: Some(Finish::Stop),
        correct: Some(is_right),
        ..record
    }
}

/// Counters of so many tokens in one layer, with two heads of 16; fixed scales follow from `absmax`.
fn component(component: Component, tokens: u64, absmax: f32) -> ComponentTotals {
    let vectors = tokens * 2;
    let fixed = component.scale == Some(ScalePolicy::Fixed);
    let (low, high) = match fixed {
        true => (absmax / 448.0, absmax / 448.0),
        false => (0.25, 0.5),
    };
    ComponentTotals {
        bytes: vectors * vector_bytes(component, 16),
        elements: vectors * 16,
        saturated: 0,
        changed: if component.is_quantised() { vectors } else { 0 },
        scale_min: component.scale.map(|_| low),
        scale_max: component.scale.map(|_| high),
    }
}

fn totals(recipe: &Recipe, tokens: u64) -> KvTotals {
    KvTotals {
        k: component(recipe.k, tokens, 224.0),
        v: component(recipe.v, tokens, 112.0),
    }
}

fn engagement(recipe: &Recipe, sum: Option<KvTotals>) -> Engagement {
    let KvTotals { k, v } = totals(recipe, 16);
    let layer = |layer| LayerEngagement {
        layer,
        k: k.clone(),
        v: v.clone(),
    };
    Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: recipe.spec(),
        probe_tokens: 16,
        layers: (0..2).map(layer).collect(),
        totals: sum,
        unit_scales: false,
        differs_from_native: !recipe.is_native(),
        queries: None,
    }
}
