//! Math panels: one question, one exact number.

use super::build::{Outcome, Prompt, Setting, over_context};
use super::error::PanelError;
use super::gsm8k;
use super::task::{Task, fill};
use crate::schema::{CaseTask, PanelCase};

/// The first `cases` questions of the task's data, as prompts.
pub(super) fn build(
    setting: &Setting<'_>,
    panel: &str,
    task: &Task,
    cases: u32,
    max_new_tokens: u32,
) -> Result<Outcome, PanelError> {
    let source = setting.data.locate(task)?;
    let mut questions = gsm8k::read(&source)?;
    if questions.len() < cases as usize {
        return Err(PanelError::TooLittle {
            panel: panel.to_owned(),
            found: questions.len(),
            what: "questions".to_owned(),
            needed: cases as usize,
        });
    }
    questions.truncate(cases as usize);
    let mut built = Vec::with_capacity(questions.len());
    for (index, question) in questions.iter().enumerate() {
        let case = format!("{}-{index:04}", task.name);
        let Some((messages, prompt_ids)) = prompt(setting, panel, task, &question.text)? else {
            return Ok(Outcome::Unsupported(
                "the model has no chat template; the task gsm8k-plain asks the same questions without one"
                    .to_owned(),
            ));
        };
        let tokens = prompt_ids.len() + max_new_tokens as usize;
        if let Some(reason) = over_context(setting, &case, tokens) {
            return Ok(Outcome::Unsupported(reason));
        }
        built.push(PanelCase {
            case,
            messages,
            prompt_ids,
            task: CaseTask::Math {
                gold: question.gold.to_string(),
                max_new_tokens,
            },
        });
    }
    setting.panel(task, panel, source.digests(), built)
}

/// Messages and token ids; `None` where a chat template is needed and missing.
fn prompt(
    setting: &Setting<'_>,
    panel: &str,
    task: &Task,
    question: &str,
) -> Result<Option<Prompt>, PanelError> {
    let text = fill(&task.prompt, &[("question", question)]);
    if task.chat {
        return setting.chat(panel, text);
    }
    let ids = setting
        .tokenizer
        .encode(&text)
        .map_err(PanelError::tokenizer(panel))?;
    let prompt_ids = setting.tokenizer.bos().into_iter().chain(ids).collect();
    Ok(Some((Vec::new(), prompt_ids)))
}
