//! Needles between the sentences of articles.

use super::super::haystack::{Haystack, Insert};
use super::super::task::{Task, fill};
use super::Drafted;
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

/// A case with needles between the sentences of articles.
pub(super) struct Draft<'a> {
    haystack: &'a Haystack,
    /// First word of the haystack.
    start: usize,
    key: String,
    value: String,
    /// The needle and the others, sorted by depth.
    inserts: Vec<Insert>,
}

impl<'a> Draft<'a> {
    /// Draws keys, values and places; the needle that is asked for is at `depth`.
    pub fn new(task: &Task, haystack: &'a Haystack, depth: f64, rng: &mut CounterRng) -> Self {
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
            haystack,
            start,
            key: keys[0].clone(),
            value: values[0].clone(),
            inserts,
        }
    }
}

impl super::Draft for Draft<'_> {
    fn pieces(&self) -> usize {
        self.haystack.len()
    }

    fn case(&self, words: usize) -> Drafted<'_> {
        Drafted {
            haystack: self.haystack.text(self.start, words, &self.inserts),
            key: &self.key,
            value: &self.value,
        }
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
