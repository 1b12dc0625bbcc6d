//! Which article serves which purpose: panels, calibration and haystack never share one.

use std::collections::HashMap;

use super::error::{PanelError, thousands};
use super::streams;
use super::tokenizer::PanelTokenizer;
use super::wikipedia::Article;

/// Tokens never outnumber bytes by more than this (a token that stands for no byte at the start).
const TOKENS_WITHOUT_BYTES: usize = 16;

/// Articles with their token ids, made when first needed: a large text need not be tokenised
/// whole.
pub(super) struct Corpus<'a> {
    articles: Vec<Article>,
    ids: Vec<Option<Vec<u32>>>,
    tokenizer: &'a dyn PanelTokenizer,
}

impl<'a> Corpus<'a> {
    pub fn new(articles: Vec<Article>, tokenizer: &'a dyn PanelTokenizer) -> Self {
        Corpus {
            ids: vec![None; articles.len()],
            articles,
            tokenizer,
        }
    }

    /// The article at `index`.
    pub fn article(&self, index: usize) -> &Article {
        &self.articles[index]
    }

    /// Its token ids.
    pub fn ids(&mut self, index: usize) -> Result<&[u32], PanelError> {
        let Article { title, text } = &self.articles[index];
        let slot = &mut self.ids[index];
        if slot.is_none() {
            let ids = self.tokenizer.encode(text);
            *slot = Some(ids.map_err(PanelError::tokenizer(&format!("text, article {title}")))?);
        }
        Ok(slot.as_deref().unwrap_or_default())
    }

    /// Whether it has at least `tokens` tokens.
    fn holds(&mut self, index: usize, tokens: usize) -> Result<bool, PanelError> {
        if self.articles[index].text.len() + TOKENS_WITHOUT_BYTES < tokens {
            return Ok(false);
        }
        Ok(self.ids(index)?.len() >= tokens)
    }
}

/// What articles are taken for. Articles of one purpose may serve several lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Windows of likelihood panels.
    Nll,
    /// Documents of the calibration.
    Calibration,
}

/// Articles needed at one length.
#[derive(Clone, Debug)]
pub(super) struct Need {
    /// Panel, for messages.
    pub name: String,
    /// What for.
    pub purpose: Purpose,
    /// Tokens per article, BOS left out.
    pub tokens: usize,
    /// Articles.
    pub articles: usize,
    /// The panel fits the model; of one that does not, whatever there is is set aside.
    pub fits: bool,
}

/// Text needed by retrieval panels.
#[derive(Clone, Debug)]
pub(super) struct HaystackNeed {
    /// Panel of the greatest length, for messages.
    pub name: String,
    /// Least number of tokens: that length.
    pub least: usize,
    /// Number of tokens beyond which more text makes no difference.
    pub enough: usize,
}

/// The partition of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ArticlePlan {
    /// Articles of each need, in the order of the needs.
    pub chosen: Vec<Vec<usize>>,
    /// Articles of the haystack.
    pub haystack: Vec<usize>,
}

/// Divides the articles in an order drawn from `seed`: long needs first, likelihood panels before
/// the calibration; an article that serves a long need also serves shorter needs of the same
/// purpose, so that few articles are used up; what is left is haystack.
///
/// # Errors
/// [`PanelError::TooLittle`], which says what the text yields.
pub(super) fn divide(
    corpus: &mut Corpus<'_>,
    needs: &[Need],
    haystack: Option<&HaystackNeed>,
    seed: u64,
) -> Result<ArticlePlan, PanelError> {
    let mut order: Vec<usize> = (0..corpus.articles.len()).collect();
    streams::articles(seed).shuffle(&mut order);
    let mut by_length: Vec<usize> = (0..needs.len()).collect();
    by_length.sort_by_key(|&at| (std::cmp::Reverse(needs[at].tokens), needs[at].purpose));

    let mut taken: HashMap<usize, Purpose> = HashMap::new();
    let mut chosen = vec![Vec::new(); needs.len()];
    for at in by_length {
        chosen[at] = choose(corpus, &needs[at], &order, &taken)?;
        taken.extend(
            chosen[at]
                .iter()
                .map(|&article| (article, needs[at].purpose)),
        );
    }
    order.retain(|article| !taken.contains_key(article));
    let haystack = match haystack {
        Some(need) => haystack_articles(corpus, need, &order)?,
        None => Vec::new(),
    };
    Ok(ArticlePlan { chosen, haystack })
}

fn choose(
    corpus: &mut Corpus<'_>,
    need: &Need,
    order: &[usize],
    taken: &HashMap<usize, Purpose>,
) -> Result<Vec<usize>, PanelError> {
    let shared = |article: &&usize| taken.get(article) == Some(&need.purpose);
    let free = |article: &&usize| !taken.contains_key(article);
    let mut chosen = Vec::new();
    for &article in order.iter().filter(shared).chain(order.iter().filter(free)) {
        if chosen.len() == need.articles {
            break;
        }
        if corpus.holds(article, need.tokens)? {
            chosen.push(article);
        }
    }
    if chosen.len() < need.articles && need.fits {
        return Err(PanelError::TooLittle {
            panel: need.name.clone(),
            found: chosen.len(),
            what: format!(
                "articles of at least {} tokens that nothing else uses",
                thousands(need.tokens)
            ),
            needed: need.articles,
        });
    }
    Ok(chosen)
}

fn haystack_articles(
    corpus: &mut Corpus<'_>,
    need: &HaystackNeed,
    free: &[usize],
) -> Result<Vec<usize>, PanelError> {
    let mut tokens = 0;
    let mut articles = Vec::new();
    for &article in free {
        if tokens >= need.enough {
            break;
        }
        tokens += corpus.ids(article)?.len();
        articles.push(article);
    }
    if tokens < need.least {
        return Err(PanelError::TooLittle {
            panel: need.name.clone(),
            found: tokens,
            what: format!(
                "tokens of haystack in {} articles that nothing else uses",
                free.len()
            ),
            needed: need.least,
        });
    }
    Ok(articles)
}
