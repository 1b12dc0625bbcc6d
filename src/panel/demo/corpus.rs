//! Documents in the proportions and forms on which the demo models were trained.

use serde_json::{Value, json};

use super::{Draw, article, keys, needle, needle_question, problem};

/// SplitMix64: small, seeded and good enough to draw text.
pub struct SplitMix(u64);

impl SplitMix {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Draw for SplitMix {
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// One training document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// A word problem: user and assistant.
    Math([String; 2]),
    /// Questions about one haystack: user and assistant by turns, the haystack in the first.
    Retrieval(Vec<[String; 2]>),
    /// An article.
    Prose(String),
}

impl Document {
    /// `{"kind": …, "turns": [[user, assistant], …]}` or `{"kind": "prose", "text": …}`.
    pub fn to_json(&self) -> Value {
        match self {
            Document::Math(turn) => json!({"kind": "math", "turns": [turn]}),
            Document::Retrieval(turns) => json!({"kind": "retrieval", "turns": turns}),
            Document::Prose(text) => json!({"kind": "prose", "text": text}),
        }
    }
}

/// Draws a document: half word problems, four in ten retrieval, the rest articles.
pub fn document(draw: &mut dyn Draw) -> Document {
    match draw.below(10) {
        0..=4 => {
            let problem = problem(draw);
            Document::Math([problem.question, problem.solution])
        }
        5..=8 => Document::Retrieval(retrieval(draw)),
        _ => {
            let sentences = 4 + draw.below(60) as usize;
            Document::Prose(article(draw, sentences).text)
        }
    }
}

/// A haystack with needles, then several questions about it: more to learn per document.
fn retrieval(draw: &mut dyn Draw) -> Vec<[String; 2]> {
    // Short contexts are frequent, long ones are seen often enough.
    let most = [4, 8, 16, 32, 64, 96][draw.below(6) as usize];
    let count = 1 + draw.below(most) as usize;
    let keys = keys(draw, count);
    let prose = draw.below(3);
    let mut haystack = String::new();
    let mut values = Vec::new();
    for key in &keys {
        if draw.below(4) < prose {
            let text = article(draw, 1).text;
            haystack.push_str(text.trim_end());
            haystack.push(' ');
        }
        let (sentence, value) = needle(draw, key);
        haystack.push_str(&sentence);
        haystack.push(' ');
        values.push(value);
    }
    let mut turns = Vec::new();
    for turn in 0..8 {
        let asked = draw.below(keys.len() as u64) as usize;
        let question = needle_question(keys[asked]);
        let user = if turn == 0 {
            format!("{haystack}\n{question}")
        } else {
            question
        };
        turns.push([user, values[asked].clone()]);
    }
    turns
}
