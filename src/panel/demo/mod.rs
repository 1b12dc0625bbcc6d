//! Generated demo texts: word problems, encyclopedia-like articles and needles. The same code
//! writes the training text of the demo models and, from other seeds, the demo panels.

mod corpus;
mod math;
mod prose;
mod sources;
mod words;

#[cfg(test)]
mod tests;

pub use corpus::{Document, SplitMix, document};
pub use math::{Problem, problem};
pub use prose::{Article, article};
pub(super) use sources::generate;

use crate::stats::CounterRng;

/// A source of random numbers, so that generators do not depend on one generator.
pub trait Draw {
    /// A number below `n`, which is positive.
    fn below(&mut self, n: u64) -> u64;
}

impl Draw for CounterRng {
    fn below(&mut self, n: u64) -> u64 {
        CounterRng::below(self, n)
    }
}

/// Uniform over `low..=high`.
fn between(draw: &mut dyn Draw, low: u32, high: u32) -> u32 {
    low + draw.below(u64::from(high - low) + 1) as u32
}

/// Uniform over `options`.
fn pick<'a, T: ?Sized>(draw: &mut dyn Draw, options: &[&'a T]) -> &'a T {
    options[draw.below(options.len() as u64) as usize]
}

/// One needle: a key word and its value of four digits.
pub fn needle(draw: &mut dyn Draw, key: &str) -> (String, String) {
    let value = between(draw, 1000, 9999).to_string();
    (format!("The code of {key} is {value}."), value)
}

/// The question that asks for a needle's value.
pub fn needle_question(key: &str) -> String {
    format!("What is the code of {key}?")
}

/// Number of keys.
pub const KEYS: usize = words::KEYS.len();

/// `count` different keys, at most [`KEYS`].
pub fn keys(draw: &mut dyn Draw, count: usize) -> Vec<&'static str> {
    let mut all = words::KEYS.to_vec();
    let count = count.min(all.len());
    for i in 0..count {
        let j = i + draw.below((all.len() - i) as u64) as usize;
        all.swap(i, j);
    }
    all.truncate(count);
    all
}
