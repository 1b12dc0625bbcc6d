//! Retrieval panels: one needle among needles of other keys.

mod articles;
mod codes;

use super::build::{Outcome, Prompt, Setting, over_context};
use super::error::{PanelError, thousands};
use super::streams;
use super::task::{HaystackKind, Task, fill};
use super::text::Text;
use crate::schema::{CaseTask, PanelCase};

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
        let fit = match task.haystack {
            HaystackKind::Articles => {
                let draft = articles::Draft::new(task, &text.haystack, depth, &mut rng);
                Fitting::new(setting, panel, task, sizes, &draft).fit()?
            }
            HaystackKind::Codes => {
                let draft = codes::Draft::new(task, depth, &mut rng);
                Fitting::new(setting, panel, task, sizes, &draft).fit()?
            }
        };
        match fit {
            Fit::Prompt((messages, prompt_ids), gold) => built.push(PanelCase {
                case: format!("{panel}-{index:04}"),
                messages,
                prompt_ids,
                task: CaseTask::Retrieval {
                    gold,
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
trait Draft {
    /// Most pieces that the haystack can have.
    fn pieces(&self) -> usize;

    /// The case with so many pieces.
    fn case(&self, pieces: usize) -> Drafted<'_>;
}

/// What is put into the task's prompt, and the answer.
struct Drafted<'a> {
    haystack: String,
    key: &'a str,
    value: &'a str,
}

enum Fit {
    /// The prompt and the gold value.
    Prompt(Prompt, String),
    None(String),
}

/// Cuts the haystack of a draft to length.
struct Fitting<'a> {
    setting: &'a Setting<'a>,
    panel: &'a str,
    task: &'a Task,
    sizes: Sizes,
    draft: &'a dyn Draft,
}

impl<'a> Fitting<'a> {
    fn new(
        setting: &'a Setting<'a>,
        panel: &'a str,
        task: &'a Task,
        sizes: Sizes,
        draft: &'a dyn Draft,
    ) -> Self {
        Fitting {
            setting,
            panel,
            task,
            sizes,
            draft,
        }
    }

    /// The prompt with the most pieces whose tokens, with the answer allowance, stay within the
    /// length.
    fn fit(&self) -> Result<Fit, PanelError> {
        let sizes = self.sizes;
        let budget = sizes.length.saturating_sub(sizes.max_new_tokens) as usize;
        let Some(empty) = self.prompt(0)? else {
            return Ok(Fit::None(
                "the model has no chat template, which this task needs (among the math tasks, gsm8k-plain needs none)"
                    .to_owned(),
            ));
        };
        let least = empty.0.1.len();
        if least > budget {
            return Ok(Fit::None(format!(
                "the question and its needles take {} tokens and the answer {}, more than the length of {}",
                thousands(least),
                sizes.max_new_tokens,
                thousands(sizes.length as usize)
            )));
        }
        let mut best = empty;
        let mut search = Search::new(least, budget, self.draft.pieces());
        while let Some(pieces) = search.next_pieces() {
            let Some(prompt) = self.prompt(pieces)? else {
                break;
            };
            if search.tried(pieces, prompt.0.1.len()) {
                best = prompt;
            }
        }
        if search.took_all() {
            return Ok(Fit::None(format!(
                "every needle together takes {} tokens with the answer, less than the length of {}",
                thousands(search.fits.1 + sizes.max_new_tokens as usize),
                thousands(sizes.length as usize)
            )));
        }
        Ok(Fit::Prompt(best.0, best.1))
    }

    /// The prompt and its gold value; `None` where the model has no chat template.
    fn prompt(&self, pieces: usize) -> Result<Option<(Prompt, String)>, PanelError> {
        let drafted = self.draft.case(pieces);
        let values = [
            ("haystack", drafted.haystack.as_str()),
            ("key", drafted.key),
        ];
        let prompt = self
            .setting
            .chat(self.panel, fill(&self.task.prompt, &values))?;
        Ok(prompt.map(|prompt| (prompt, drafted.value.to_owned())))
    }
}

/// Searches the greatest number of pieces (words, or needles) that fits: one more does not.
///
/// Tokens grow with pieces almost in proportion, so each guess follows from the tokens per piece seen
/// so far; a guess outside the bracket is replaced by its middle.
struct Search {
    budget: usize,
    /// Pieces that fit, and their tokens.
    fits: (usize, usize),
    /// Least number of pieces known, or taken, not to fit.
    too_many: usize,
    /// Pieces of the whole haystack.
    all: usize,
    tokens_per_piece: f64,
    trials: u32,
}

/// Guesses before the search goes on by halves, which is certain to end soon.
const GUESSES: u32 = 12;

impl Search {
    fn new(least: usize, budget: usize, pieces: usize) -> Self {
        Search {
            budget,
            fits: (0, least),
            too_many: pieces + 1,
            all: pieces,
            tokens_per_piece: 1.4,
            trials: 0,
        }
    }

    /// The whole haystack fits, so that it is too short for the length.
    fn took_all(&self) -> bool {
        self.fits.0 == self.all && self.fits.1 < self.budget
    }

    fn next_pieces(&self) -> Option<usize> {
        let (pieces, tokens) = self.fits;
        if pieces + 1 >= self.too_many {
            return None;
        }
        let more = ((self.budget - tokens) as f64 / self.tokens_per_piece) as usize;
        let guess = pieces + more.max(1);
        Some(if guess < self.too_many && self.trials < GUESSES {
            guess
        } else {
            pieces + (self.too_many - pieces) / 2
        })
    }

    /// Takes note of a trial and says whether it fits.
    fn tried(&mut self, pieces: usize, tokens: usize) -> bool {
        let (fitting_pieces, fitting_tokens) = self.fits;
        self.trials += 1;
        let gained = tokens.saturating_sub(fitting_tokens) as f64;
        self.tokens_per_piece = (gained / (pieces - fitting_pieces) as f64).max(0.5);
        let fits = tokens <= self.budget;
        if fits {
            self.fits = (pieces, tokens);
        } else {
            self.too_many = pieces;
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
            let tokens = |pieces: usize| least + costs[..pieces].iter().sum::<usize>();
            let mut search = Search::new(least, budget, costs.len());
            let mut trials = 0;
            while let Some(words) = search.next_pieces() {
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
