//! From paired samples to a run directory.

use std::collections::BTreeMap;
use std::path::Path;

use crate::panel::{Panel, write_panel};
use crate::schema::{
    ArmRole, CaseTask, ChatMessage, FileDigest, Geometry, IMPORT_PARSER, IMPORT_SCHEMA,
    IMPORT_WORKER, ImportArm, ImportReport, MANIFEST_SCHEMA, Manifest, ManifestArm, ManifestPanel,
    ModelIdentity, PANEL_SCHEMA, PanelCase, PanelHeader, PanelPlan, ParserDisagreement, Protocol,
    Record, ToolIdentity, WorkerIdentity,
};
use crate::store::RunDir;

use super::ImportError;
use super::pair::{Case, Paired, pair};
use super::rescore::{Opinion, opinion};
use super::sample::{ArmLog, Logs, Sample, Score};

/// What nobody says.
const UNKNOWN: &str = "unknown";

/// What an import stands for.
#[derive(Clone, Debug)]
pub struct ImportPlan {
    /// Protocol whose rules are applied.
    pub protocol: Protocol,
    /// Its digest.
    pub protocol_sha256: String,
    /// The protocol's panel that the cases stand for; no likelihood panel.
    pub panel: PanelPlan,
    /// Arm of the native samples.
    pub control_arm: String,
    /// Arm of the candidate samples.
    pub candidate_arm: String,
    /// The candidate's recipe: a canonical specification or a free name.
    pub recipe: String,
    /// Model name; the harness's own where absent.
    pub model: Option<String>,
}

/// Pairs the samples and writes a new run directory: manifest, panel, records and report.
///
/// # Errors
/// As [`pair`]; [`ImportError::Store`] and [`ImportError::Panel`] where the directory is not
/// vacant or cannot be written.
pub fn write(
    path: &Path,
    plan: &ImportPlan,
    logs: &Logs,
) -> Result<(RunDir, ImportReport), ImportError> {
    let paired = pair(logs)?;
    let panel = panel(plan, logs, &paired)?;
    let name = plan.panel.panel_name();
    let file = FileDigest {
        path: format!("panels/{name}.jsonl"),
        sha256: panel.sha256.clone(),
    };
    let dir = RunDir::create(path, &manifest(plan, logs, &panel, &file))?;
    write_panel(&path.join(&file.path), &panel.header, &panel.cases)?;
    let mut report = report(plan, logs, &paired);
    for (at, arm) in [&plan.control_arm, &plan.candidate_arm]
        .into_iter()
        .enumerate()
    {
        let records = records(plan, (arm, at), &paired, &panel, &mut report);
        dir.write_records(arm, &name, &records)?;
    }
    report.parser_disagreements.sort();
    dir.write_import_report(&report)?;
    Ok((dir, report))
}

fn panel(plan: &ImportPlan, logs: &Logs, paired: &Paired) -> Result<Panel, ImportError> {
    let cases: Vec<PanelCase> = paired.cases.iter().map(panel_case).collect();
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: plan.panel.panel_name(),
        task: format!("{}/{}", logs.harness, logs.metric),
        tokenizer_sha256: UNKNOWN.to_owned(),
        sources: Vec::new(),
        parser: IMPORT_PARSER.to_owned(),
        cases: u32::try_from(cases.len()).unwrap_or(u32::MAX),
    };
    Ok(Panel::new(header, cases)?)
}

fn panel_case(case: &Case) -> PanelCase {
    let content = case.content.as_ref();
    let question = content.and_then(|content| content.question.clone());
    let message = |content| ChatMessage {
        role: "user".to_owned(),
        content,
    };
    PanelCase {
        case: case.name.clone(),
        messages: question.map(message).into_iter().collect(),
        prompt_ids: Vec::new(),
        task: CaseTask::Imported {
            gold: content.and_then(|content| content.gold.clone()),
            content_sha256: content.map(super::Content::sha256),
        },
    }
}

fn manifest(plan: &ImportPlan, logs: &Logs, panel: &Panel, file: &FileDigest) -> Manifest {
    let arm = |name: &str, role, recipe: &str| ManifestArm {
        arm: name.to_owned(),
        role,
        recipe: recipe.to_owned(),
        unsupported: None,
    };
    Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        tool: ToolIdentity::current(),
        protocol: plan.protocol.clone(),
        protocol_sha256: plan.protocol_sha256.clone(),
        model: ModelIdentity {
            name: model_name(plan, logs),
            family: UNKNOWN.to_owned(),
            files: Vec::new(),
            weights_sha256: UNKNOWN.to_owned(),
            tokenizer_sha256: UNKNOWN.to_owned(),
            quantised: None,
            penalties: Vec::new(),
            geometry: Geometry::unknown(),
        },
        worker: WorkerIdentity {
            kind: IMPORT_WORKER.to_owned(),
            device: logs.harness.to_owned(),
            arithmetic: UNKNOWN.to_owned(),
        },
        panels: vec![ManifestPanel {
            panel: panel.header.panel.clone(),
            file: Some(file.clone()),
            cases: panel.header.cases,
            unsupported: None,
        }],
        arms: vec![
            arm(&plan.control_arm, ArmRole::Control, "native"),
            arm(&plan.candidate_arm, ArmRole::Candidate, &plan.recipe),
        ],
        limit: None,
        shard: None,
        servers: None,
    }
}

/// The given name, else the one that both arms state.
fn model_name(plan: &ImportPlan, logs: &Logs) -> String {
    let same = logs.native.model == logs.candidate.model;
    let stated = logs.native.model.clone().filter(|_| same);
    let name = plan.model.clone().or(stated);
    name.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The report without what this crate's own parsers say.
fn report(plan: &ImportPlan, logs: &Logs, paired: &Paired) -> ImportReport {
    let [native, candidate] = &paired.case_set_sha256;
    ImportReport {
        schema: IMPORT_SCHEMA.to_owned(),
        harness: logs.harness.to_owned(),
        panel: plan.panel.panel_name(),
        metric: logs.metric.clone(),
        filter: logs.filter.clone(),
        pairing: paired.pairing,
        native: import_arm(&plan.control_arm, &logs.native, native),
        candidate: import_arm(&plan.candidate_arm, &logs.candidate, candidate),
        pairs: paired.cases.iter().filter(|case| case.is_pair()).count() as u64,
        faults: paired.faults.clone(),
        parser_compared: 0,
        parser_disagreements: Vec::new(),
    }
}

fn import_arm(arm: &str, log: &ArmLog, case_set_sha256: &str) -> ImportArm {
    let digests = log.samples.iter().map(|sample| &sample.protocol_sha256);
    let mut protocols: Vec<String> = digests.clone().flatten().cloned().collect();
    protocols.sort_unstable();
    protocols.dedup();
    ImportArm {
        arm: arm.to_owned(),
        files: log.files.clone(),
        samples: log.samples.len() as u64,
        case_set_sha256: case_set_sha256.to_owned(),
        model: log.model.clone(),
        protocol_sha256: protocols,
        without_protocol: digests.filter(|digest| digest.is_none()).count() as u64,
        unfinished: log.unfinished.clone(),
    }
}

/// The records of one arm (its name, and 0 for native or 1 for the candidate), in panel order.
fn records(
    plan: &ImportPlan,
    (arm, at): (&str, usize),
    paired: &Paired,
    panel: &Panel,
    report: &mut ImportReport,
) -> Vec<Record> {
    let mut records = Vec::new();
    for (case, case_sha256) in paired.cases.iter().zip(&panel.case_sha256s) {
        let gold = case
            .content
            .as_ref()
            .and_then(|content| content.gold.as_deref());
        for sample in &case.samples[at] {
            let second = match (&sample.output, gold) {
                (Some(output), Some(gold)) => opinion(&plan.panel, output, gold),
                _ => None,
            };
            if let (Score::Correct(harness_correct), Some(second)) = (&sample.score, &second) {
                report.parser_compared += 1;
                if second.correct != *harness_correct {
                    report.parser_disagreements.push(ParserDisagreement {
                        case: case.name.clone(),
                        arm: arm.to_owned(),
                        parser: second.parser.to_owned(),
                        harness_correct: *harness_correct,
                    });
                }
            }
            records.push(record(case, case_sha256, sample, second));
        }
    }
    records
}

fn record(case: &Case, case_sha256: &str, sample: &Sample, second: Option<Opinion>) -> Record {
    let (correct, error) = match (&case.conflict, &sample.score) {
        (Some(conflict), _) => (None, Some(format!("conflict: {conflict}"))),
        (None, Score::Correct(right)) => (Some(*right), None),
        (None, Score::Unscored(what)) => (None, Some(format!("unscored: {what}"))),
        (None, Score::Errored(why)) => (None, Some(why.clone())),
    };
    let mut secondary = BTreeMap::new();
    let mut answer = None;
    if let Some(second) = second {
        secondary.insert(second.parser.to_owned(), second.correct);
        answer = second.answer.map(Some);
    }
    Record {
        case: case.name.clone(),
        case_sha256: case_sha256.to_owned(),
        output: sample.output.clone(),
        answer,
        correct,
        secondary,
        error,
        ..Record::default()
    }
}
