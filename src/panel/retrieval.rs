//! Retrieval panels: one needle among needles of other keys.

use super::build::{Outcome, Prompt, Setting, over_context};
use super::error::{PanelError, thousands};
use super::haystack::{Haystack, Insert};
use super::streams;
use super::task::{Task, fill};
use super::text::Text;
use crate::schema::{CaseTask, PanelCase};
use crate::stats::CounterRng;

/// First and second words of keys.
const KEY_WORDS: [[&str; 32]; 2] = [
    [
        "amber", "azure", "bronze", "calm", "cedar", "cobalt", "coral", "crimson", "dusty",
        "early", "frozen", "gentle", "golden", "hollow", "indigo", "ivory", "jade", "late",
        "lunar", "marble", "misty", "noble", "olive", "pale", "quiet", "rapid", "scarlet",
        "silent", "silver", "solar", "velvet", "winter",
    ],
    [
        "anchor", "badger", "beacon", "bridge", "canyon", "castle", "comet", "eagle", "falcon",
        "garden", "harbor", "heron", "island", "jaguar", "kettle", "lantern", "meadow", "mirror",
        "ribbon", "orchard", "otter", "parrot", "pillar", "raven", "river", "saddle", "temple",
        "tiger", "tunnel", "valley", "walnut", "window",
    ],
];
/// Needle values have five digits, the fewest that the scorer takes for a value. Where every digit is
/// a token, an answer in one short sentence and its stop token still fit into 16 new tokens.
const VALUES: std::ops::Range<u64> = 10_000..100_000;

/// Sizes of a retrieval panel.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Tokens of prompt plus answer allowance.
    pub length: u32,
    /// Cases.
    pub cases: u32,
    /// Answer allowance.
    pub max_new_tokens: u32,
}

/// Cases with the needle at depth (i + 0.5) / cases, each depth once, in a seeded order.
pub(super) fn build(
    setting: &Setting<'_>,
    panel: &str,
    task: &Task,
    sizes: Sizes,
    text: &Text<'_>,
) -> Result<Outcome, PanelError> {
    let Sizes { length, cases, .. } = sizes;
    if let Some(reason) = over_context(setting, panel, length as usize) {
        return Ok(Outcome::Unsupported(reason));
    }
    let mut strata: Vec<u32> = (0..cases).collect();
    streams::depths(setting.seed, length).shuffle(&mut strata);
    let mut built = Vec::with_capacity(strata.len());
    for (index, stratum) in (0..cases).zip(strata) {
        let depth = (f64::from(stratum) + 0.5) / f64::from(cases);
        let mut rng = streams::retrieval_case(setting.seed, length, index);
        let draft = Draft::new(task, &text.haystack, depth, &mut rng);
        match draft.fit(setting, panel, sizes)? {
            Fit::Prompt((messages, prompt_ids)) => built.push(PanelCase {
                case: format!("{panel}-{index:04}"),
                messages,
                prompt_ids,
                task: CaseTask::Retrieval {
                    gold: draft.value,
                    depth,
                    max_new_tokens: sizes.max_new_tokens,
                },
            }),
            Fit::None(reason) => return Ok(Outcome::Unsupported(reason)),
        }
    }
    setting.panel(task, panel, text.sources.clone(), built)
}

/// A case before its haystack is cut to length.
struct Draft<'a> {
    task: &'a Task,
    haystack: &'a Haystack,
    /// First word of the haystack.
    start: usize,
    key: String,
    value: String,
    /// The needle and the others, sorted by depth.
    inserts: Vec<Insert>,
}

enum Fit {
    Prompt(Prompt),
    None(String),
}

impl<'a> Draft<'a> {
    fn new(task: &'a Task, haystack: &'a Haystack, depth: f64, rng: &mut CounterRng) -> Self {
        let start = haystack.sentence_start(rng.below(haystack.len() as u64) as usize);
        let keys = distinct(rng, task.distractors + 1, |rng| {
            KEY_WORDS
                .map(|words| words[rng.below(words.len() as u64) as usize])
                .join(" ")
        });
        let values = distinct(rng, task.distractors + 1, |rng| {
            (VALUES.start + rng.below(VALUES.end - VALUES.start)).to_string()
        });
        let mut inserts: Vec<Insert> = keys
            .iter()
            .zip(&values)
            .enumerate()
            .map(|(index, (key, value))| Insert {
                text: fill(&task.needle, &[("key", key), ("value", value)]),
                depth: if index == 0 {
                    depth
                } else {
                    rng.below(1 << 32) as f64 / f64::powi(2.0, 32)
                },
            })
            .collect();
        inserts.sort_by(|a, b| a.depth.total_cmp(&b.depth));
        Draft {
            task,
            haystack,
            start,
            key: keys[0].clone(),
            value: values[0].clone(),
            inserts,
        }
    }

    /// The prompt with the most haystack words whose tokens, with the answer allowance, stay
    /// within the length.
    fn fit(&self, setting: &Setting<'_>, panel: &str, sizes: Sizes) -> Result<Fit, PanelError> {
        let budget = sizes.length.saturating_sub(sizes.max_new_tokens) as usize;
        let Some(empty) = self.prompt(setting, panel, 0)? else {
            return Ok(Fit::None(
                "the model has no chat template, which this task needs (among the math tasks, gsm8k-plain needs none)"
                    .to_owned(),
            ));
        };
        let least = empty.1.len();
        if least > budget {
            return Ok(Fit::None(format!(
                "the question and its needles take {} tokens and the answer {}, more than the length of {}",
                thousands(least),
                sizes.max_new_tokens,
                thousands(sizes.length as usize)
            )));
        }
        let mut best = empty;
        let mut search = Search::new(least, budget, self.haystack.len());
        while let Some(words) = search.next_words() {
            let Some(prompt) = self.prompt(setting, panel, words)? else {
                break;
            };
            if search.tried(words, prompt.1.len()) {
                best = prompt;
            }
        }
        Ok(Fit::Prompt(best))
    }

    fn prompt(
        &self,
        setting: &Setting<'_>,
        panel: &str,
        words: usize,
    ) -> Result<Option<Prompt>, PanelError> {
        let haystack = self.haystack.text(self.start, words, &self.inserts);
        let values = [("haystack", haystack.as_str()), ("key", self.key.as_str())];
        setting.chat(panel, fill(&self.task.prompt, &values))
    }
}

/// The first `count` different draws.
fn distinct(
    rng: &mut CounterRng,
    count: usize,
    mut draw: impl FnMut(&mut CounterRng) -> String,
) -> Vec<String> {
    let mut drawn: Vec<String> = Vec::with_capacity(count);
    while drawn.len() < count {
        let next = draw(rng);
        if !drawn.contains(&next) {
            drawn.push(next);
        }
    }
    drawn
}

/// Searches the greatest number of words that fits: one more does not.
///
/// Tokens grow with words almost in proportion, so each guess follows from the tokens per word seen
/// so far; a guess outside the bracket is replaced by its middle.
struct Search {
    budget: usize,
    /// Words that fit, and their tokens.
    fits: (usize, usize),
    /// Least number of words known, or taken, not to fit.
    too_many: usize,
    tokens_per_word: f64,
    trials: u32,
}

/// Guesses before the search goes on by halves, which is certain to end soon.
const GUESSES: u32 = 12;

impl Search {
    fn new(least: usize, budget: usize, words: usize) -> Self {
        Search {
            budget,
            fits: (0, least),
            too_many: words + 1,
            tokens_per_word: 1.4,
            trials: 0,
        }
    }

    fn next_words(&self) -> Option<usize> {
        let (words, tokens) = self.fits;
        if words + 1 >= self.too_many {
            return None;
        }
        let more = ((self.budget - tokens) as f64 / self.tokens_per_word) as usize;
        let guess = words + more.max(1);
        Some(if guess < self.too_many && self.trials < GUESSES {
            guess
        } else {
            words + (self.too_many - words) / 2
        })
    }

    /// Takes note of a trial and says whether it fits.
    fn tried(&mut self, words: usize, tokens: usize) -> bool {
        let (fitting_words, fitting_tokens) = self.fits;
        self.trials += 1;
        let gained = tokens.saturating_sub(fitting_tokens) as f64;
        self.tokens_per_word = (gained / (words - fitting_words) as f64).max(0.5);
        let fits = tokens <= self.budget;
        if fits {
            self.fits = (words, tokens);
        } else {
            self.too_many = words;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the tokens per word, the search ends at the boundary.
        #[test]
        fn the_search_ends_where_one_more_word_is_too_many(
            costs in proptest::collection::vec(0_usize..6, 1..300),
            least in 0_usize..50, budget in 50_usize..400,
        ) {
            let tokens = |words: usize| least + costs[..words].iter().sum::<usize>();
            let mut search = Search::new(least, budget, costs.len());
            let mut trials = 0;
            while let Some(words) = search.next_words() {
                prop_assert!(words <= costs.len());
                search.tried(words, tokens(words));
                trials += 1;
                prop_assert!(trials <= 12 + 9, "does not end");
            }
            let words = search.fits.0;
            prop_assert!(tokens(words) <= budget);
            prop_assert!(words == costs.len() || tokens(words + 1) > budget);
        }
    }
}
