//! A small world of evidence: clean until a test spoils it.

use std::collections::BTreeMap;

use crate::recipe::{Component, Recipe, ScalePolicy, vector_bytes};
use crate::schema::*;
use crate::store::samples;

use super::super::*;

/// Right means: the output is the gold answer. Digits parse, anything else does not.
pub struct ByText;

impl Rescore for ByText {
    fn math(
        &self,
        parser: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<MathScore, String> {
        if parser != "gsm8k/1" {
            return Err(format!("parser {parser}"));
        }
        let answer = output
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| output.to_owned());
        let correct = !truncated && answer.as_deref() == Some(gold);
        Ok(MathScore { answer, correct })
    }

    fn retrieval(
        &self,
        _: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<bool, String> {
        Ok(!truncated && output == gold)
    }
}

pub const GOLD: &str = "42";
pub const WRONG: &str = "41";

/// Math outcomes of an arm: right on the first `right` cases, but for the first `lost` of them,
/// and on `gained` cases after them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    pub right: usize,
    pub lost: usize,
    pub gained: usize,
}

impl Answers {
    pub fn right(right: usize) -> Self {
        Answers {
            right,
            ..Answers::default()
        }
    }

    fn is_right(self, case: usize) -> bool {
        (self.lost..self.right + self.gained).contains(&case)
    }
}

/// Protocol `samples::protocol` with cheaper resampling.
pub fn protocol() -> Protocol {
    cheaper(samples::protocol())
}

pub fn cheaper(mut protocol: Protocol) -> Protocol {
    // A built-in name stands for the built-in rules.
    protocol.name += "-cheaper";
    protocol.rules.nll.resamples = 4000;
    protocol
}

/// Clean evidence: controls that answer `right` math questions, every candidate of the protocol
/// with the same outcomes as the controls, and an A/A arm that equals the first control.
pub fn world(protocol: Protocol, right: usize) -> Evidence {
    let manifest = samples::manifest(protocol);
    let mut evidence = Evidence {
        manifest,
        panels: BTreeMap::new(),
        arms: BTreeMap::new(),
        import: None,
        calibration: None,
        files: vec![file("run.json")],
        judged_after: None,
    };
    evidence.manifest.arms.clear();
    for plan in evidence.manifest.protocol.panels.clone() {
        add_panel(&mut evidence, &plan);
    }
    evidence.calibration = Some(calibration(&evidence));
    let protocol = evidence.manifest.protocol.clone();
    for control in &protocol.controls {
        let name = if control == "native" {
            control.clone()
        } else {
            format!("control-{control}")
        };
        add_arm(&mut evidence, &name, ArmRole::Control, "native", right);
    }
    let first = evidence.manifest.arms[0].arm.clone();
    add_arm(&mut evidence, "native-aa", ArmRole::Aa, "native", right);
    let records = evidence.arms[&first].records.clone();
    arm_mut(&mut evidence, "native-aa").records = records;
    for candidate in &protocol.candidates {
        add_arm(
            &mut evidence,
            &candidate.name,
            ArmRole::Candidate,
            &candidate.spec,
            right,
        );
    }
    evidence
}

fn add_panel(evidence: &mut Evidence, plan: &PanelPlan) {
    let name = plan.panel_name();
    let task = |at: u32| match plan {
        PanelPlan::Math { max_new_tokens, .. } => CaseTask::Math {
            gold: GOLD.to_owned(),
            max_new_tokens: *max_new_tokens,
        },
        PanelPlan::Nll { targets, .. } => CaseTask::Nll {
            targets: *targets,
            article: format!("article {at}"),
        },
        PanelPlan::Retrieval { max_new_tokens, .. } => CaseTask::Retrieval {
            gold: GOLD.to_owned(),
            depth: 0.5,
            max_new_tokens: *max_new_tokens,
        },
    };
    let cases = (0..plan.case_count()).map(|at| GoldCase {
        case: format!("{name}-{at:04}"),
        case_sha256: sha256_hex(format!("{name}-{at}").as_bytes()),
        prompt_tokens: 9,
        task: task(at),
    });
    let gold = PanelGold {
        header: samples::header(plan, &evidence.manifest.model.tokenizer_sha256),
        cases: cases.collect(),
    };
    evidence.manifest.panels.push(ManifestPanel {
        panel: name.clone(),
        file: Some(file(&format!("panels/{name}.jsonl"))),
        cases: plan.case_count(),
        unsupported: None,
    });
    evidence.files.push(file(&format!("panels/{name}.jsonl")));
    evidence.panels.insert(name, gold);
}

fn file(path: &str) -> FileDigest {
    FileDigest {
        path: path.to_owned(),
        sha256: sha256_hex(path.as_bytes()),
    }
}

fn add_arm(evidence: &mut Evidence, name: &str, role: ArmRole, recipe: &str, right: usize) {
    evidence.manifest.arms.push(ManifestArm {
        arm: name.to_owned(),
        role,
        recipe: recipe.to_owned(),
        unsupported: None,
    });
    let geometry = &evidence.manifest.model.geometry;
    let mut arm = ArmEvidence {
        start: Some(start(&evidence.manifest)),
        engagement: Some(engagement(recipe, geometry)),
        ..ArmEvidence::default()
    };
    // The candidate's likelihoods differ a little from document to document.
    let factor = |at: usize| match role {
        ArmRole::Candidate => 1.001 + 0.0001 * (at * 7 % 11) as f64 - 0.0005,
        _ => 1.0,
    };
    for (panel, gold) in &evidence.panels {
        let records = gold.cases.iter().enumerate();
        let records = records.map(|(at, case)| {
            let record = record(case, at, right, factor(at));
            let tokens = u64::from(record.prompt_tokens) - u64::from(record.targets.is_some());
            Record {
                kv: Some(over_layers(recipe, geometry, tokens)),
                ..record
            }
        });
        arm.records.insert(panel.clone(), records.collect());
        arm.files.push(file(&format!("arms/{name}/{panel}.jsonl")));
    }
    evidence.arms.insert(name.to_owned(), arm);
    add_totals(evidence, name);
}

/// Sums what the arm's records stored.
pub fn add_totals(evidence: &mut Evidence, arm: &str) {
    let arm = arm_mut(evidence, arm);
    let mut totals = KvTotals::default();
    for kv in arm.records.values().flatten().filter_map(|r| r.kv.as_ref()) {
        totals.merge(kv);
    }
    if let Some(engagement) = &mut arm.engagement {
        engagement.totals = Some(totals);
    }
}

fn record(case: &GoldCase, at: usize, right: usize, factor: f64) -> Record {
    let blank = Record {
        case: case.case.clone(),
        case_sha256: case.case_sha256.clone(),
        prompt_tokens: 9,
        ..Record::default()
    };
    match case.task {
        CaseTask::Nll { targets, .. } => Record {
            targets: Some(targets),
            nll_sum: Some(factor * (260.0 + 7.0 * (at * 5 % 13) as f64)),
            ..blank
        },
        CaseTask::Math { .. } => answered(blank, Answers::right(right).is_right(at), true),
        CaseTask::Retrieval { .. } | CaseTask::Imported { .. } => answered(blank, true, false),
    }
}

fn answered(record: Record, is_right: bool, is_math: bool) -> Record {
    let text = if is_right { GOLD } else { WRONG };
    Record {
        output: Some(text.to_owned()),
        output_ids: Some(vec![u32::from(is_right)]),
        output_tokens: Some(1),
        finish: Some(Finish::Stop),
        answer: is_math.then(|| Some(text.to_owned())),
        correct: Some(is_right),
        ..record
    }
}

/// Sixteen tokens read back.
fn engagement(recipe: &str, geometry: &Geometry) -> Engagement {
    let parsed = Recipe::parse(recipe).unwrap();
    Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: parsed.spec(),
        probe_tokens: 16,
        layers: (0..geometry.layers)
            .map(|layer| {
                let KvTotals { k, v } = in_layer(&parsed, geometry, layer, 16);
                LayerEngagement { layer, k, v }
            })
            .collect(),
        totals: None,
        unit_scales: false,
        differs_from_native: !parsed.is_native(),
        queries: None,
    }
}

/// What so many tokens store: one element of every quantised vector differs.
fn in_layer(recipe: &Recipe, geometry: &Geometry, layer: u32, tokens: u64) -> KvTotals {
    let vectors = tokens * u64::from(geometry.kv_heads);
    let fixed = |component: Component| component.scale == Some(ScalePolicy::Fixed);
    let totals = |component: Component, calibrated: f32| ComponentTotals {
        bytes: vectors * vector_bytes(component, geometry.head_dim),
        elements: vectors * u64::from(geometry.head_dim),
        saturated: 0,
        changed: if component.is_quantised() { vectors } else { 0 },
        scale_min: component
            .scale
            .map(|_| if fixed(component) { calibrated } else { 0.25 }),
        scale_max: component
            .scale
            .map(|_| if fixed(component) { calibrated } else { 0.5 }),
    };
    let (k, v) = recipe.components_at(layer as usize, geometry.layers as usize);
    let LayerAbsmax {
        k: k_absmax,
        v: v_absmax,
    } = absmax(layer);
    KvTotals {
        k: totals(k, k_absmax / 448.0),
        v: totals(v, v_absmax / 448.0),
    }
}

fn over_layers(recipe: &str, geometry: &Geometry, tokens: u64) -> KvTotals {
    let parsed = Recipe::parse(recipe).unwrap();
    let mut sum = KvTotals::default();
    for layer in 0..geometry.layers {
        sum.merge(&in_layer(&parsed, geometry, layer, tokens));
    }
    sum
}

/// Absmax of a layer; no two layers or components have the same.
fn absmax(layer: u32) -> LayerAbsmax {
    LayerAbsmax {
        k: 10.0 + 3.0 * layer as f32,
        v: 2.0 + 0.5 * layer as f32,
    }
}

/// The calibration from which the scales of fixed recipes follow.
fn calibration(evidence: &Evidence) -> Calibration {
    let model = &evidence.manifest.model;
    Calibration {
        schema: CALIBRATION_SCHEMA.to_owned(),
        model: model.name.clone(),
        weights_sha256: model.weights_sha256.clone(),
        documents_sha256: "d".repeat(64),
        documents: 2,
        tokens: 2112,
        source: CalibrationSource::Measured,
        layers: (0..model.geometry.layers).map(absmax).collect(),
    }
}

pub fn arm_mut<'a>(evidence: &'a mut Evidence, arm: &str) -> &'a mut ArmEvidence {
    evidence.arms.get_mut(arm).unwrap()
}

pub fn records_mut<'a>(evidence: &'a mut Evidence, arm: &str, panel: &str) -> &'a mut Vec<Record> {
    arm_mut(evidence, arm).records.get_mut(panel).unwrap()
}

/// Gives an arm other answers on a panel.
pub fn answer(evidence: &mut Evidence, arm: &str, panel: &str, answers: Answers) {
    for (at, record) in records_mut(evidence, arm, panel).iter_mut().enumerate() {
        *record = answered(record.clone(), answers.is_right(at), panel == "math");
    }
}

/// Multiplies an arm's likelihoods on a panel.
pub fn scale_nll(evidence: &mut Evidence, arm: &str, panel: &str, factor: f64) {
    for record in records_mut(evidence, arm, panel) {
        record.nll_sum = record.nll_sum.map(|sum| factor * sum);
    }
}

fn start(manifest: &Manifest) -> ArmStart {
    ArmStart {
        schema: ARM_START_SCHEMA.to_owned(),
        protocol: manifest.protocol.name.clone(),
        protocol_sha256: manifest.protocol_sha256.clone(),
        answers: Some(AnswerMode::Plain),
    }
}

/// Another protocol from the start: changed by `change`, with its digest, in every arm.
pub fn change_protocol(evidence: &mut Evidence, change: impl FnOnce(&mut Protocol)) {
    edit_protocol(evidence, change);
    let start = start(&evidence.manifest);
    for arm in evidence.arms.values_mut() {
        arm.start = Some(start.clone());
    }
}

/// The manifest's protocol changed by `change`, and its digest, after the records.
pub fn edit_protocol(evidence: &mut Evidence, change: impl FnOnce(&mut Protocol)) {
    let manifest = &mut evidence.manifest;
    change(&mut manifest.protocol);
    manifest.protocol_sha256 = canonical_sha256(&manifest.protocol).unwrap();
}

pub fn certificate(evidence: &Evidence, candidate: &str) -> Certificate {
    certify_with(candidate, evidence, &ByText).unwrap()
}

/// Verdict and reason of both objectives.
pub fn verdicts(certificate: &Certificate) -> [(Verdict, Option<&str>); 2] {
    [ObjectiveName::Preservation, ObjectiveName::Aggregate].map(|name| {
        let result = certificate.objectives.get(name);
        assert_eq!(result.reason.is_none(), result.verdict == Verdict::Pass);
        assert_eq!(result.detail.is_none(), result.verdict == Verdict::Pass);
        (result.verdict, result.reason.as_deref())
    })
}
