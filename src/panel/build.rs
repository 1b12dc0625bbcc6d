//! Builds every panel of a protocol for one tokenizer.

use std::collections::HashMap;

use super::data::DataDir;
use super::error::{PanelError, thousands};
use super::file::Panel;
use super::task::{Task, builtin_tasks};
use super::text::Text;
use super::tokenizer::PanelTokenizer;
use super::{math, nll, retrieval};
use crate::schema::{
    CALIBRATION_PANEL, CaseTask, ChatMessage, FileDigest, Geometry, PANEL_SCHEMA, PanelCase,
    PanelHeader, PanelPlan, Protocol,
};

/// Most tokens of the probe sequence.
const PROBE_TOKENS: usize = 256;
/// Name of the calibration documents, as of a panel.
pub(super) const CALIBRATION: &str = CALIBRATION_PANEL;

/// Panels of a protocol for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltPanels {
    /// In the protocol's order.
    pub panels: Vec<BuiltPanel>,
    /// Documents for fixed scales; `None` where the protocol asks for none, or where a document
    /// with its forced tokens does not fit the model's context.
    pub calibration: Option<CalibrationDocs>,
    /// Token ids of a short text from which engagement is read back: the start of the first
    /// calibration document, else of the first case.
    pub probe: Vec<u32>,
}

/// One panel of the protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltPanel {
    /// Panel name.
    pub name: String,
    /// The panel, or why there is none.
    pub outcome: Outcome,
}

/// A panel, or why the model cannot be asked it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The whole panel.
    Built(Panel),
    /// Reason, in words.
    Unsupported(String),
}

/// Calibration documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationDocs {
    /// Token ids of each document, BOS included if the model has one.
    pub documents: Vec<Vec<u32>>,
    /// SHA-256 of the calibration panel file.
    pub sha256: String,
}

/// What [`materialise`] makes: [`BuiltPanels`] with the calibration as a panel file's contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Materialised {
    /// In the protocol's order.
    pub panels: Vec<BuiltPanel>,
    /// Calibration documents, in the form of a likelihood panel without targets; `None` where the
    /// protocol asks for none.
    pub calibration: Option<Outcome>,
    /// As [`BuiltPanels::probe`].
    pub probe: Vec<u32>,
}

impl BuiltPanels {
    /// Panels that the model can be asked, with their names.
    pub fn supported(&self) -> impl Iterator<Item = (&str, &Panel)> {
        self.panels.iter().filter_map(|built| match &built.outcome {
            Outcome::Built(panel) => Some((built.name.as_str(), panel)),
            Outcome::Unsupported(_) => None,
        })
    }

    /// Tokens of the longest sequence that a run may store: of a case with its answer, or of a
    /// calibration document with `forced` tokens.
    pub fn longest(&self, forced: u32) -> usize {
        let of_case = |case: &PanelCase| {
            let answer = match case.task {
                CaseTask::Math { max_new_tokens, .. }
                | CaseTask::Retrieval { max_new_tokens, .. } => max_new_tokens,
                CaseTask::Nll { .. } | CaseTask::Imported { .. } => 0,
            };
            case.prompt_ids.len() + answer as usize
        };
        let cases = self.supported().flat_map(|(_, panel)| &panel.cases);
        let documents = self.calibration.iter().flat_map(|docs| &docs.documents);
        let documents = documents.map(|ids| ids.len() + forced as usize);
        cases.map(of_case).chain(documents).max().unwrap_or(0)
    }
}

/// Builds panels, calibration documents and the probe.
///
/// # Errors
/// [`PanelError`]: data that are missing, altered, malformed or too little; an unknown task; a
/// tokenizer or template that fails. A panel that the model cannot be asked is no error.
pub fn build(
    protocol: &Protocol,
    data: &DataDir,
    tokenizer: &dyn PanelTokenizer,
    geometry: &Geometry,
) -> Result<BuiltPanels, PanelError> {
    let materialised = materialise(protocol, data, tokenizer, geometry)?;
    Ok(BuiltPanels {
        panels: materialised.panels,
        calibration: match materialised.calibration {
            Some(Outcome::Built(panel)) => Some(CalibrationDocs {
                documents: panel.cases.into_iter().map(|c| c.prompt_ids).collect(),
                sha256: panel.sha256,
            }),
            Some(Outcome::Unsupported(_)) | None => None,
        },
        probe: materialised.probe,
    })
}

/// As [`build`], with the calibration as a panel that can be written to a file.
///
/// # Errors
/// As [`build`].
pub fn materialise(
    protocol: &Protocol,
    data: &DataDir,
    tokenizer: &dyn PanelTokenizer,
    geometry: &Geometry,
) -> Result<Materialised, PanelError> {
    let setting = Setting {
        data,
        tokenizer,
        context: geometry.context as usize,
        seed: protocol.seed,
    };
    let tasks: Vec<Task> = protocol
        .panels
        .iter()
        .map(task_of)
        .collect::<Result<_, _>>()?;
    let mut text = Text::open(&setting, protocol, &tasks)?;
    let mut panels = Vec::with_capacity(tasks.len());
    for (index, (plan, task)) in protocol.panels.iter().zip(&tasks).enumerate() {
        panels.push(BuiltPanel {
            name: plan.panel_name(),
            outcome: build_one(&setting, index, plan, task, &mut text)?,
        });
    }
    let windows = text.calibration_windows(&setting)?;
    let first = windows.first().map(|window| window.prompt_ids.clone());
    let calibration = calibration(&setting, protocol, windows, &text)?;
    let probe = probe(&setting, calibration.as_ref(), &panels, first)?;
    let named = panels
        .iter()
        .map(|panel| (panel.name.as_str(), &panel.outcome));
    let calibration_panel = calibration.as_ref().map(|outcome| (CALIBRATION, outcome));
    for (name, outcome) in named.chain(calibration_panel) {
        check_frozen(protocol, name, outcome)?;
    }
    Ok(Materialised {
        panels,
        calibration,
        probe,
    })
}

/// Chat messages, none without a template, and token ids.
pub(super) type Prompt = (Vec<ChatMessage>, Vec<u32>);

/// What every builder needs.
pub(super) struct Setting<'a> {
    pub data: &'a DataDir,
    pub tokenizer: &'a dyn PanelTokenizer,
    /// Longest sequence of the model, in tokens.
    pub context: usize,
    pub seed: u64,
}

impl Setting<'_> {
    /// A finished panel.
    pub fn panel(
        &self,
        task: &Task,
        panel: &str,
        sources: Vec<FileDigest>,
        cases: Vec<PanelCase>,
    ) -> Result<Outcome, PanelError> {
        check_contents(panel, &cases)?;
        let header = PanelHeader {
            schema: PANEL_SCHEMA.to_owned(),
            panel: panel.to_owned(),
            task: task.id(),
            tokenizer_sha256: self.tokenizer.sha256().to_owned(),
            sources,
            parser: task.parser.clone(),
            cases: u32::try_from(cases.len()).unwrap_or(u32::MAX),
        };
        Panel::new(header, cases).map(Outcome::Built)
    }

    /// One user message and its token ids; `None` where the model has no chat template.
    pub fn chat(&self, panel: &str, content: String) -> Result<Option<Prompt>, PanelError> {
        let messages = vec![ChatMessage {
            role: "user".to_owned(),
            content,
        }];
        let ids = self.tokenizer.chat(&messages);
        let ids = ids.map_err(PanelError::tokenizer(panel))?;
        Ok(ids.map(|ids| (messages, ids)))
    }
}

/// Each case asks something of its own: one that came twice would count as two pairs.
fn check_contents(panel: &str, cases: &[PanelCase]) -> Result<(), PanelError> {
    let mut contents = HashMap::new();
    for case in cases {
        if let Some(first) = contents.insert(case.content(), &case.case) {
            return Err(PanelError::Doubled {
                panel: panel.to_owned(),
                case: case.case.clone(),
                first: first.clone(),
            });
        }
    }
    Ok(())
}

/// Why `tokens` tokens do not fit the model, if they do not.
pub(super) fn over_context(setting: &Setting<'_>, what: &str, tokens: usize) -> Option<String> {
    (tokens > setting.context).then(|| {
        format!(
            "{what} needs {} tokens, prompt and answer, more than the model's context of {}",
            thousands(tokens),
            thousands(setting.context)
        )
    })
}

/// The panel is the one that the protocol froze, where it names one for this tokenizer.
fn check_frozen(protocol: &Protocol, name: &str, outcome: &Outcome) -> Result<(), PanelError> {
    let Outcome::Built(panel) = outcome else {
        return Ok(());
    };
    let tokenizer = &panel.header.tokenizer_sha256;
    match protocol.frozen_sha256(name, tokenizer) {
        Some(frozen) if frozen != panel.sha256 => Err(PanelError::Frozen {
            panel: name.to_owned(),
            found: panel.sha256.clone(),
            expected: frozen.to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

fn task_of(plan: &PanelPlan) -> Result<Task, PanelError> {
    let kind = plan.kind();
    plan.builtin_task().ok_or_else(|| {
        let fitting = builtin_tasks().into_iter().filter(|task| task.kind == kind);
        let names: Vec<String> = fitting.map(|task| task.name).collect();
        PanelError::Task {
            panel: plan.panel_name(),
            found: plan.task().to_owned(),
            expected: format!("a task of kind {}: {}", kind.name(), names.join(", ")),
        }
    })
}

fn build_one(
    setting: &Setting<'_>,
    index: usize,
    plan: &PanelPlan,
    task: &Task,
    text: &mut Text<'_>,
) -> Result<Outcome, PanelError> {
    let panel = plan.panel_name();
    match *plan {
        PanelPlan::Math {
            cases,
            max_new_tokens,
            ..
        } => math::build(setting, &panel, task, cases, max_new_tokens),
        PanelPlan::Nll {
            length, targets, ..
        } => nll::build(setting, &panel, task, (length, targets), (text, index)),
        PanelPlan::Retrieval {
            length,
            cases,
            max_new_tokens,
            ..
        } => {
            let sizes = retrieval::Sizes {
                length,
                cases,
                max_new_tokens,
            };
            retrieval::build(setting, &panel, task, sizes, text)
        }
    }
}

/// The calibration documents as a panel; `None` where the protocol asks for none.
fn calibration(
    setting: &Setting<'_>,
    protocol: &Protocol,
    cases: Vec<PanelCase>,
    text: &Text<'_>,
) -> Result<Option<Outcome>, PanelError> {
    let plan = &protocol.calibration;
    if plan.documents == 0 || plan.lengths.is_empty() {
        return Ok(None);
    }
    let longest = plan.lengths.iter().max().copied().unwrap_or(0);
    let tokens = longest as usize + plan.forced_tokens as usize;
    if let Some(reason) = over_context(setting, CALIBRATION, tokens) {
        return Ok(Some(Outcome::Unsupported(reason)));
    }
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: CALIBRATION.to_owned(),
        task: format!("{CALIBRATION}/1"),
        tokenizer_sha256: setting.tokenizer.sha256().to_owned(),
        sources: text.sources.clone(),
        parser: String::new(),
        cases: u32::try_from(cases.len()).unwrap_or(u32::MAX),
    };
    Panel::new(header, cases).map(|panel| Some(Outcome::Built(panel)))
}

/// What every arm is asked first: the beginning of some case, and where none fits the model that of
/// `window`, or any tokens.
fn probe(
    setting: &Setting<'_>,
    calibration: Option<&Outcome>,
    panels: &[BuiltPanel],
    window: Option<Vec<u32>>,
) -> Result<Vec<u32>, PanelError> {
    let outcomes = panels.iter().map(|panel| &panel.outcome);
    let case = calibration
        .into_iter()
        .chain(outcomes)
        .find_map(|outcome| match outcome {
            Outcome::Built(panel) => panel.cases.first(),
            Outcome::Unsupported(_) => None,
        });
    let ids = match (case, window) {
        (Some(case), _) => case.prompt_ids.clone(),
        (None, Some(window)) => window,
        (None, None) => {
            let ids = setting.tokenizer.encode(CALIBRATION);
            ids.map_err(PanelError::tokenizer(CALIBRATION))?
        }
    };
    Ok(ids[..ids.len().min(PROBE_TOKENS).min(setting.context)].to_vec())
}
