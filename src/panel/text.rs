//! The encyclopaedia text of a protocol, divided among its panels.

use super::article_plan::{ArticlePlan, Corpus, HaystackNeed, Need, Purpose, divide};
use super::build::{CALIBRATION, Setting};
use super::error::PanelError;
use super::haystack::Haystack;
use super::nll;
use super::task::{HaystackKind, Task, TaskKind, builtin_task};
use super::wikipedia;
use crate::schema::{FileDigest, PanelCase, PanelPlan, Protocol};

/// Task whose sources serve the calibration where no panel has text of its own.
const TEXT_TASK: &str = "wikipedia-nll";

/// Articles, who uses them, and the haystack.
pub(super) struct Text<'a> {
    pub corpus: Corpus<'a>,
    pub sources: Vec<FileDigest>,
    pub haystack: Haystack,
    users: Vec<(User, Vec<usize>)>,
}

/// Who uses articles of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The panel at this place in the protocol.
    Panel(usize),
    /// Calibration documents of this length.
    Calibration(u32),
}

impl<'a> Text<'a> {
    /// Reads and divides the text; reads nothing where the protocol needs none.
    ///
    /// The division follows from the protocol alone, not from what fits the model: two models with
    /// one tokenizer get the same panels.
    pub fn open(
        setting: &Setting<'a>,
        protocol: &Protocol,
        tasks: &[Task],
    ) -> Result<Self, PanelError> {
        let (users, needs): (Vec<User>, Vec<Need>) = needs(setting, protocol).into_iter().unzip();
        let haystack_need = haystack_need(setting, protocol, tasks);
        if needs.is_empty() && haystack_need.is_none() {
            return Ok(Text {
                corpus: Corpus::new(Vec::new(), setting.tokenizer),
                sources: Vec::new(),
                haystack: Haystack::default(),
                users: Vec::new(),
            });
        }
        let located = match tasks.iter().find(|task| task.kind != TaskKind::Math) {
            Some(task) => setting.data.locate(task)?,
            None => match builtin_task(TEXT_TASK) {
                Some(task) => setting.data.locate(&task)?,
                None => return Err(no_text_task()),
            },
        };
        let mut corpus = Corpus::new(wikipedia::read(&located)?, setting.tokenizer);
        let ArticlePlan { chosen, haystack } =
            divide(&mut corpus, &needs, haystack_need.as_ref(), setting.seed)?;
        let mut words = Haystack::default();
        for article in haystack {
            words.push(&corpus.article(article).text);
        }
        Ok(Text {
            corpus,
            sources: located.digests(),
            haystack: words,
            users: users.into_iter().zip(chosen).collect(),
        })
    }

    /// Articles of the likelihood panel at this place in the protocol.
    pub fn articles_of_panel(&self, index: usize) -> Vec<usize> {
        let of_panel = self
            .users
            .iter()
            .find(|(user, _)| *user == User::Panel(index));
        of_panel.map_or_else(Vec::new, |(_, articles)| articles.clone())
    }

    /// Calibration documents of every length.
    pub fn calibration_windows(
        &mut self,
        setting: &Setting<'_>,
    ) -> Result<Vec<PanelCase>, PanelError> {
        let mut cases = Vec::new();
        for (user, articles) in &self.users {
            if let User::Calibration(length) = *user {
                let name = format!("{CALIBRATION}-{length}");
                let windows =
                    nll::windows(setting, &mut self.corpus, articles, (length, 0), &name)?;
                cases.extend(windows);
            }
        }
        Ok(cases)
    }
}

fn no_text_task() -> PanelError {
    PanelError::Task {
        panel: CALIBRATION.to_owned(),
        found: "none".to_owned(),
        expected: TEXT_TASK.to_owned(),
    }
}

fn needs(setting: &Setting<'_>, protocol: &Protocol) -> Vec<(User, Need)> {
    let panels = protocol
        .panels
        .iter()
        .enumerate()
        .filter_map(|(index, plan)| {
            let PanelPlan::Nll {
                length, documents, ..
            } = *plan
            else {
                return None;
            };
            let need = need(setting, Purpose::Nll, plan.panel_name(), length, documents);
            Some((User::Panel(index), need))
        });
    let plan = &protocol.calibration;
    let calibration = plan.lengths.iter().map(|&length| {
        let name = format!("{CALIBRATION} at {length} tokens");
        let need = need(setting, Purpose::Calibration, name, length, plan.documents);
        (User::Calibration(length), need)
    });
    panels
        .chain(calibration)
        .filter(|(_, need)| need.articles > 0)
        .collect()
}

fn need(setting: &Setting<'_>, purpose: Purpose, name: String, length: u32, articles: u32) -> Need {
    Need {
        name,
        purpose,
        tokens: nll::text_tokens(setting, length),
        articles: articles as usize,
        fits: length as usize <= setting.context,
    }
}

/// The longest retrieval panel asks for one haystack of its length at least, and has no use for
/// more text than its cases can show. Panels that do not fit the model need none at least.
fn haystack_need(
    setting: &Setting<'_>,
    protocol: &Protocol,
    tasks: &[Task],
) -> Option<HaystackNeed> {
    let of_articles = |task: &Task| task.haystack == HaystackKind::Articles;
    let plans = protocol.panels.iter().zip(tasks);
    let retrieval = plans.filter_map(|(plan, task)| match plan {
        PanelPlan::Retrieval { length, cases, .. } if of_articles(task) => {
            Some((*length, *cases, plan.panel_name()))
        }
        PanelPlan::Retrieval { .. } | PanelPlan::Math { .. } | PanelPlan::Nll { .. } => None,
    });
    let mut retrieval: Vec<(u32, u32, String)> = retrieval.collect();
    retrieval.sort_by_key(|(length, cases, _)| (*length, *cases));
    let mut fitting = retrieval
        .iter()
        .filter(|(length, ..)| *length as usize <= setting.context);
    let longest = retrieval.last()?;
    // Where none fits, nothing is asked for and no message names it.
    let (least, _, name) = fitting
        .next_back()
        .unwrap_or(&(0, 0, String::new()))
        .clone();
    let (length, cases, _) = longest;
    Some(HaystackNeed {
        name,
        least: least as usize,
        enough: *length as usize * *cases as usize,
    })
}
