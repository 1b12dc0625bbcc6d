//! The conformance probe: what a server does with prompts before it is asked anything that counts.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::{GenerateRequest, ScoreRequest};
use crate::model::Tokenizer;
use crate::schema::{
    Finish, LikelihoodDialect, LikelihoodProbe, ParallelProbe, PromptForm, PromptTemplate,
    RepetitionPenalty, ServerProbe, StopProbe, TokenProbe,
};

use super::asker::Asker;
use super::client::CallError;
use super::reply::Answer;

/// Prompts that are asked one by one and side by side.
pub const PROBE_PROMPTS: usize = 16;
/// Most new tokens of each.
pub const PROBE_NEW_TOKENS: u32 = 32;
/// Targets of the probe's window.
pub const PROBE_TARGETS: u32 = 8;

/// What the probe asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeMaterial {
    /// The first prompts of the run, at most [`PROBE_PROMPTS`].
    pub prompts: Vec<GenerateRequest>,
    /// A window whose likelihood is asked for.
    pub window: Option<ScoreRequest>,
    /// The beginning of a window up to a target that ends within a character, with this one target:
    /// such tokens are asked for otherwise where the server tells nothing of them.
    pub part: Option<ScoreRequest>,
}

/// Probes a server. What it finds is set in `asker` for what is asked later.
pub(super) async fn probe(
    asker: &mut Asker,
    material: &ProbeMaterial,
    concurrency: usize,
) -> Result<ServerProbe, CallError> {
    let mut found = ServerProbe {
        reply_model: None,
        prompts: Vec::new(),
        prompts_refused: None,
        chat_refused: None,
        thinking_switch: false,
        repetition_penalty: None,
        reasoning: false,
        repeatable: None,
        parallel: None,
        stop: None,
        tokens: None,
        likelihood: None,
        likelihood_refused: None,
        prompt_cache_off: asker.identity.engine == "llama.cpp",
    };
    let prompts: Vec<GenerateRequest> = material
        .prompts
        .iter()
        .take(PROBE_PROMPTS)
        .map(|prompt| GenerateRequest {
            max_new_tokens: prompt.max_new_tokens.min(PROBE_NEW_TOKENS),
            ..prompt.clone()
        })
        .collect();
    forms(asker, &prompts, &mut found).await?;
    let askable: Vec<GenerateRequest> = prompts
        .into_iter()
        .filter(|prompt| asker.form(prompt).is_ok())
        .collect();
    if !askable.is_empty() {
        answers(asker, &askable, concurrency, &mut found).await?;
    }
    if let Some(window) = &material.window {
        likelihood(asker, window, material.part.as_ref(), &mut found).await?;
    }
    Ok(found)
}

/// Finds out in which forms prompts can be sent.
async fn forms(
    asker: &mut Asker,
    prompts: &[GenerateRequest],
    found: &mut ServerProbe,
) -> Result<(), CallError> {
    let by_server = |prompt: &&GenerateRequest| {
        asker.template == PromptTemplate::Server && !prompt.messages.is_empty()
    };
    // A long prompt may be refused for its length.
    let length = |prompt: &&GenerateRequest| prompt.prompt_ids.len();
    let chat = prompts.iter().filter(by_server).min_by_key(length);
    let raw = prompts.iter().filter(|prompt| !by_server(prompt));
    let raw = raw.min_by_key(length);
    if let Some(prompt) = chat {
        asker.thinking_switch = true;
        let first = answer(asker, PromptForm::Messages, prompt, found).await;
        let reply = match first {
            Err(error) if error.is_refusal() => {
                asker.thinking_switch = false;
                answer(asker, PromptForm::Messages, prompt, found).await
            }
            other => other,
        };
        found.thinking_switch = asker.thinking_switch;
        match reply {
            Ok(reply) => {
                found.prompts.push(PromptForm::Messages);
                note_model(asker, reply.model.as_ref(), found);
            }
            Err(error) if error.is_refusal() => {
                asker.chat = false;
                found.chat_refused = Some(error.what().to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(prompt) = raw {
        let mut refusals = Vec::new();
        for form in [
            PromptForm::TokenIds,
            PromptForm::Text,
            PromptForm::TextWithoutBos,
        ] {
            match checked(asker, form, prompt, found).await? {
                Ok(reply) => {
                    asker.raw = Some(form);
                    found.prompts.push(form);
                    note_model(asker, reply.model.as_ref(), found);
                    break;
                }
                Err(why) => refusals.push(format!("{}: {why}", form.words())),
            }
        }
        if asker.raw.is_none() {
            found.prompts_refused = Some(refusals.join("; "));
        }
    }
    Ok(())
}

/// An answer to a prompt that this tool tokenised, if the server's count of its tokens is ours; why
/// it is not, otherwise.
async fn checked(
    asker: &mut Asker,
    form: PromptForm,
    prompt: &GenerateRequest,
    found: &mut ServerProbe,
) -> Result<Result<Answer, String>, CallError> {
    match answer(asker, form, prompt, found).await {
        Ok(reply) if reply.prompt_tokens.is_some() || form == PromptForm::TokenIds => Ok(Ok(reply)),
        Ok(_) => Ok(Err(
            "the server does not say how many tokens it read".to_owned()
        )),
        Err(error) if error.is_about_form() => Ok(Err(error.what().to_owned())),
        Err(error) => Err(error),
    }
}

/// An answer, without `repetition_penalty` from here on where the server refuses a prompt for it.
async fn answer(
    asker: &mut Asker,
    form: PromptForm,
    prompt: &GenerateRequest,
    found: &mut ServerProbe,
) -> Result<Answer, CallError> {
    let first = asker.answer_as(form, prompt, &mut |_| {}).await;
    let is_open = asker.repetition_penalty && !asker.identity.heeds_repetition_penalty();
    match first {
        Err(error) if error.is_about_fields() && is_open => {
            asker.repetition_penalty = false;
            let second = asker.answer_as(form, prompt, &mut |_| {}).await;
            match &second {
                Ok(_) => found.repetition_penalty = Some(RepetitionPenalty::Refused),
                // The field is not what the server refuses.
                Err(_) => asker.repetition_penalty = true,
            }
            second
        }
        Ok(answer) if asker.repetition_penalty => {
            found.repetition_penalty = Some(RepetitionPenalty::Sent);
            Ok(answer)
        }
        other => other,
    }
}

/// Replies must name one model from here on.
fn note_model(asker: &mut Asker, model: Option<&String>, found: &mut ServerProbe) {
    if asker.reply_model.is_none() {
        asker.reply_model = model.cloned();
        found.reply_model = model.cloned();
    }
}

async fn answers(
    asker: &Asker,
    prompts: &[GenerateRequest],
    concurrency: usize,
    found: &mut ServerProbe,
) -> Result<(), CallError> {
    let once = gather(asker, prompts, 1).await?;
    // What the server refuses is left out: its case will be errored.
    let (mut answered, mut refused) = (Vec::new(), None);
    for (prompt, answer) in prompts.iter().zip(once) {
        match answer {
            Ok(answer) => answered.push((prompt.clone(), answer)),
            Err(error) => refused = Some(error),
        }
    }
    if let (true, Some(error)) = (answered.is_empty(), refused) {
        return Err(error);
    }
    let (prompts, once): (Vec<GenerateRequest>, Vec<Answer>) = answered.into_iter().unzip();
    // What is refused from here on depends on more than the prompt, and so would the cases.
    let again = answered_all(gather(asker, &prompts[..1], 1).await?)?;
    found.repeatable = Some(once[0].text == again[0].text);
    let together = answered_all(gather(asker, &prompts, concurrency).await?)?;
    found.parallel = Some(parallel(&asker.tokenizer, &once, &together));
    let all = || once.iter().chain(&again).chain(&together);
    found.reasoning = all().any(|answer| answer.reasoning);
    found.stop = Some(stop(&asker.tokenizer, &once));
    found.tokens = Some(tokens(asker, &prompts[0], &once[0]).await?);
    Ok(())
}

fn answered_all(answers: Vec<Result<Answer, CallError>>) -> Result<Vec<Answer>, CallError> {
    answers.into_iter().collect()
}

/// Answers by the place of their prompts, and the refusals of the server.
///
/// # Errors
/// As [`Asker::answer`], refusals apart.
async fn gather(
    asker: &Asker,
    prompts: &[GenerateRequest],
    concurrency: usize,
) -> Result<Vec<Result<Answer, CallError>>, CallError> {
    let places = Arc::new(Semaphore::new(concurrency.max(1)));
    let mut tasks = JoinSet::new();
    for (index, prompt) in prompts.iter().cloned().enumerate() {
        let (asker, places) = (asker.clone(), Arc::clone(&places));
        tasks.spawn(async move {
            let _place = places.acquire().await;
            (index, asker.answer(&prompt, &mut |_| {}).await)
        });
    }
    let mut answers = Vec::with_capacity(prompts.len());
    while let Some(done) = tasks.join_next().await {
        let (index, answer) =
            done.map_err(|error| CallError::Server(format!("a probe failed: {error}")))?;
        match answer {
            Err(error) if !error.is_refusal() => return Err(error),
            answer => answers.push((index, answer)),
        }
    }
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

fn parallel(tokenizer: &Tokenizer, once: &[Answer], together: &[Answer]) -> ParallelProbe {
    // Text that the tokenizer fails on counts as one token, alike or not.
    let ids = |answer: &Answer| tokenizer.encode_rendered(&answer.text).unwrap_or_default();
    let mut found = ParallelProbe {
        prompts: u32::try_from(once.len()).unwrap_or(u32::MAX),
        max_new_tokens: PROBE_NEW_TOKENS,
        differing: 0,
        differing_tokens: 0,
        tokens: 0,
    };
    for (a, b) in once.iter().zip(together) {
        let (one, other) = (ids(a), ids(b));
        found.tokens += one.len() as u64;
        if a.text != b.text {
            let same = one.iter().zip(&other).take_while(|(x, y)| x == y).count();
            found.differing += 1;
            found.differing_tokens += (one.len().max(other.len()) - same).max(1) as u64;
        }
    }
    found
}

fn stop(tokenizer: &Tokenizer, answers: &[Answer]) -> StopProbe {
    let ends: Vec<String> = tokenizer
        .eos_ids()
        .iter()
        .map(|&id| tokenizer.piece(id))
        .filter(|text| !text.trim().is_empty())
        .collect();
    let count = |holds: &dyn Fn(&Answer) -> bool| {
        u32::try_from(answers.iter().filter(|answer| holds(answer)).count()).unwrap_or(u32::MAX)
    };
    StopProbe {
        stopped: count(&|answer| answer.finish == Finish::Stop),
        cut: count(&|answer| answer.finish == Finish::Length),
        leaked: count(&|answer| ends.iter().any(|end| answer.text.contains(end.as_str()))),
    }
}

async fn tokens(
    asker: &Asker,
    prompt: &GenerateRequest,
    answer: &Answer,
) -> Result<TokenProbe, CallError> {
    let bos = asker.tokenizer.bos();
    let leading = |ids: &[u32]| {
        let count = ids.iter().take_while(|&&id| Some(id) == bos).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    // As a server of this form gets it: what it adds shows in its own tokens.
    let form = match asker.raw {
        Some(PromptForm::TextWithoutBos) => PromptForm::TextWithoutBos,
        _ => PromptForm::Text,
    };
    let text = asker.text(prompt, form)?;
    let servers = asker.tokenize(&text).await?;
    Ok(TokenProbe {
        ours: u32::try_from(prompt.prompt_ids.len()).unwrap_or(u32::MAX),
        servers: answer.prompt_tokens,
        bos_ours: leading(&prompt.prompt_ids),
        bos_servers: servers.map(|ids| leading(&ids)),
    })
}

/// Finds out how likelihoods can be asked for, and asks twice.
async fn likelihood(
    asker: &mut Asker,
    window: &ScoreRequest,
    part: Option<&ScoreRequest>,
    found: &mut ServerProbe,
) -> Result<(), CallError> {
    let window = ScoreRequest {
        ids: window.ids.clone(),
        targets: window.targets.min(PROBE_TARGETS),
    };
    let dialects: &[LikelihoodDialect] = match asker.identity.engine.as_str() {
        "llama.cpp" => &[LikelihoodDialect::ForcedTokens],
        _ => &[
            LikelihoodDialect::PromptLogprobs,
            LikelihoodDialect::EchoLogprobs,
        ],
    };
    let mut refusals = Vec::new();
    for &dialect in dialects {
        let first = asker.likelihood(dialect, &window, &mut |_| {}).await;
        if let (Ok(_), Some(part)) = (
            &first,
            part.filter(|_| dialect == LikelihoodDialect::ForcedTokens),
        ) && let Err(error) = asker.likelihood(dialect, part, &mut |_| {}).await
        {
            refusals.push(format!(
                "{}, targets that end within a character: {}",
                dialect.name(),
                error.what()
            ));
            if error.is_about_form() || error.is_failure() {
                continue;
            }
            return Err(error);
        }
        match first {
            Ok(first) => {
                let second = asker.likelihood(dialect, &window, &mut |_| {}).await?;
                let targets = f64::from(window.targets.max(1));
                found.likelihood = Some(LikelihoodProbe {
                    dialect,
                    repeatable: first.to_bits() == second.to_bits(),
                    difference: (first - second).abs() / targets,
                });
                return Ok(());
            }
            Err(error) if error.is_about_form() || error.is_failure() => {
                refusals.push(format!("{}: {}", dialect.name(), error.what()));
            }
            Err(error) => return Err(error),
        }
    }
    found.likelihood_refused = Some(refusals.join("; "));
    Ok(())
}
