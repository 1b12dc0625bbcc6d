//! What a run over HTTP plans otherwise: arms, the probe's prompts, panels that servers cannot be
//! asked.

use crate::engine::http::{HttpEngine, PROBE_PROMPTS, ProbeMaterial};
use crate::engine::{EngineError, GenerateRequest, ScoreRequest};
use crate::model::Tokenizer;
use crate::panel::{BuiltPanels, Outcome, Panel};
use crate::recipe::Recipe;
use crate::schema::{ArmRole, CaseTask, Extent, Manifest, PanelCase, Protocol};

use super::plan::{arm, assemble};
use super::work::{generate_request, score_request};

/// Names of the protocol's controls, each with its arm: `native` for the only one.
pub fn control_arms(protocol: &Protocol) -> Vec<(String, String)> {
    let is_only = protocol.controls.len() == 1;
    let arm = |name: &String| match is_only {
        true => "native".to_owned(),
        false => format!("control-{name}"),
    };
    let controls = protocol.controls.iter();
    controls.map(|name| (name.clone(), arm(name))).collect()
}

/// The manifest of a run of `candidate` on servers: every control, the first control again, then the
/// candidate.
///
/// # Errors
/// As [`super::manifest`].
pub fn server_manifest(
    protocol: &Protocol,
    protocol_sha256: String,
    panels: &BuiltPanels,
    candidate: &Recipe,
    extent: Extent,
    engine: &HttpEngine,
) -> Result<Manifest, EngineError> {
    let native = Recipe::native();
    let mut arms = Vec::new();
    for (_, name) in control_arms(protocol) {
        arms.push(arm(&name, ArmRole::Control, &native, engine)?);
    }
    arms.push(arm("native-aa", ArmRole::Aa, &native, engine)?);
    arms.push(arm(&candidate.name, ArmRole::Candidate, candidate, engine)?);
    let mut manifest = assemble(protocol, protocol_sha256, panels, arms, extent, engine);
    manifest.servers = Some(engine.servers());
    Ok(manifest)
}

/// What the conformance probe asks: the first prompts of the panels, their shortest window, and the
/// shortest beginning of one that ends within a character.
pub fn probe_material(panels: &BuiltPanels, tokenizer: &Tokenizer) -> ProbeMaterial {
    let cases = || panels.supported().flat_map(|(_, panel)| &panel.cases);
    let request = |case: &PanelCase| generate_request(case, Vec::new());
    let prompts: Vec<GenerateRequest> = cases().filter_map(request).take(PROBE_PROMPTS).collect();
    // Every form of prompt that the run has must be tried.
    let other = cases().filter_map(request).find(|prompt| {
        prompts
            .iter()
            .all(|tried| tried.messages.is_empty() != prompt.messages.is_empty())
    });
    let windows: Vec<ScoreRequest> = cases().filter_map(score_request).collect();
    let part = |window: &ScoreRequest| {
        let first = window.ids.len().saturating_sub(window.targets as usize);
        let targets = window.ids.iter().enumerate().skip(first.max(1));
        let mut parts = targets.filter(|(_, id)| tokenizer.piece(**id).contains('\u{fffd}'));
        let (at, _) = parts.next()?;
        Some(ScoreRequest {
            ids: window.ids[..=at].to_vec(),
            targets: 1,
        })
    };
    ProbeMaterial {
        part: windows
            .iter()
            .filter_map(part)
            .min_by_key(|part| part.ids.len()),
        prompts: other.into_iter().chain(prompts).collect(),
        window: windows.into_iter().min_by_key(|window| window.ids.len()),
    }
}

/// Leaves out panels that do not fit a server's context.
pub fn fit_context(panels: &mut BuiltPanels, engine: &HttpEngine) {
    let Some((context, url)) = engine.context() else {
        return;
    };
    refuse(panels, |panel| {
        let longest = panel.cases.iter().map(tokens).max().unwrap_or(0);
        (longest > context as usize).then(|| {
            format!(
                "needs {longest} tokens, prompt and answer, more than the context of {context} \
                 that {url} tells"
            )
        })
    });
}

/// Leaves out panels that the probe found a server unable to be asked.
pub fn fit_probe(panels: &mut BuiltPanels, engine: &HttpEngine) {
    let (likelihoods, prompts) = (engine.likelihood_refused(), engine.prompts_refused());
    let chats = engine.chat_refused();
    refuse(panels, |panel| {
        let case = panel.cases.first()?;
        match generate_request(case, Vec::new()) {
            Some(request) if engine.renders(&request) => prompts.clone(),
            Some(_) => chats.clone(),
            None => likelihoods.clone(),
        }
    });
}

fn refuse(panels: &mut BuiltPanels, why: impl Fn(&Panel) -> Option<String>) {
    for built in &mut panels.panels {
        if let Outcome::Built(panel) = &built.outcome
            && let Some(reason) = why(panel)
        {
            built.outcome = Outcome::Unsupported(reason);
        }
    }
}

/// Tokens of a case with its answer; scoring a window takes one more, which is thrown away.
fn tokens(case: &PanelCase) -> usize {
    let answer = match case.task {
        CaseTask::Math { max_new_tokens, .. } | CaseTask::Retrieval { max_new_tokens, .. } => {
            max_new_tokens as usize
        }
        CaseTask::Nll { .. } => 1,
        CaseTask::Imported { .. } => 0,
    };
    case.prompt_ids.len() + answer
}
