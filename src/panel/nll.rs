//! Likelihood panels and calibration documents: windows from the start of articles.

use super::article_plan::Corpus;
use super::build::{Outcome, Setting, over_context};
use super::error::PanelError;
use super::task::Task;
use super::text::Text;
use crate::schema::{CaseTask, PanelCase};

/// Windows of `length` tokens, one per article; `index` is the panel's place in the protocol.
pub(super) fn build(
    setting: &Setting<'_>,
    panel: &str,
    task: &Task,
    (length, targets): (u32, u32),
    (text, index): (&mut Text<'_>, usize),
) -> Result<Outcome, PanelError> {
    if let Some(reason) = over_context(setting, panel, length as usize) {
        return Ok(Outcome::Unsupported(reason));
    }
    let articles = text.articles_of_panel(index);
    let cases = windows(
        setting,
        &mut text.corpus,
        &articles,
        (length, targets),
        panel,
    )?;
    setting.panel(task, panel, text.sources.clone(), cases)
}

/// One case per article: BOS, if the model has one, and the article's first tokens.
pub(super) fn windows(
    setting: &Setting<'_>,
    corpus: &mut Corpus<'_>,
    articles: &[usize],
    (length, targets): (u32, u32),
    name: &str,
) -> Result<Vec<PanelCase>, PanelError> {
    let bos = setting.tokenizer.bos();
    let text_tokens = text_tokens(setting, length);
    let mut cases = Vec::with_capacity(articles.len());
    for (index, &article) in articles.iter().enumerate() {
        let ids = &corpus.ids(article)?[..text_tokens];
        cases.push(PanelCase {
            case: format!("{name}-{index:04}"),
            messages: Vec::new(),
            prompt_ids: bos.into_iter().chain(ids.iter().copied()).collect(),
            task: CaseTask::Nll {
                targets,
                article: corpus.article(article).title.clone(),
            },
        });
    }
    Ok(cases)
}

/// Tokens of the article in a window of `length` tokens.
pub(super) fn text_tokens(setting: &Setting<'_>, length: u32) -> usize {
    (length as usize).saturating_sub(usize::from(setting.tokenizer.bos().is_some()))
}
