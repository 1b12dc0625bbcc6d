//! Source texts of the demo panels: generated, always the same, and pinned by digest in `tasks/`.

use std::collections::HashSet;

use serde_json::json;

use super::{SplitMix, article, problem};

/// Seeds of the panels' texts. The training text was drawn from seeds 1001 to 1016, the
/// development set from seed 7.
const PROBLEMS_SEED: u64 = 2001;
const ARTICLES_SEED: u64 = 2002;
/// Word problems.
const PROBLEMS: usize = 1_319;
/// Articles: enough for the likelihood panels and the calibration.
const ARTICLES: usize = 96;
/// Sentences of an article: at least 1,024 tokens of the demo tokenizer.
const SENTENCES: usize = 90;

/// JSON lines of the generator `name`; `None` where there is no such generator.
pub(in crate::panel) fn generate(name: &str) -> Option<Vec<u8>> {
    let lines: Vec<String> = match name {
        "demo-problems" => problems(),
        "demo-articles" => articles(),
        _ => return None,
    };
    Some(lines.concat().into_bytes())
}

fn problems() -> Vec<String> {
    let mut draw = SplitMix::new(PROBLEMS_SEED);
    let mut seen = HashSet::new();
    let mut lines = Vec::with_capacity(PROBLEMS);
    while lines.len() < PROBLEMS {
        let problem = problem(&mut draw);
        if seen.insert(problem.question.clone()) {
            let line = json!({"question": problem.question, "answer": problem.solution});
            lines.push(format!("{line}\n"));
        }
    }
    lines
}

fn articles() -> Vec<String> {
    let mut draw = SplitMix::new(ARTICLES_SEED);
    (0..ARTICLES)
        .map(|number| {
            let article = article(&mut draw, SENTENCES);
            // Places share names; titles must not.
            let title = format!("{} ({number})", article.title);
            format!("{}\n", json!({"title": title, "text": article.text}))
        })
        .collect()
}
