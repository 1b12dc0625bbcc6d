//! Needle after needle, as the demo models know them.

use super::super::demo;
use super::super::task::{Task, fill};
use super::Drafted;
use crate::stats::CounterRng;

/// A case of many needles with short articles in between.
pub(super) struct Draft {
    depth: f64,
    needles: Vec<Needle>,
}

struct Needle {
    key: &'static str,
    value: String,
    /// Its sentence, an article before it where one was drawn.
    text: String,
}

impl Draft {
    /// Draws as many needles as there are keys, and how much prose stands between them; the needle
    /// that is asked for is at `depth` of those that are kept.
    pub fn new(task: &Task, depth: f64, rng: &mut CounterRng) -> Self {
        let keys = demo::keys(rng, demo::KEYS);
        let prose = rng.below(3);
        let mut needle = |key: &'static str| {
            let mut text = String::new();
            if rng.below(4) < prose {
                text.push_str(demo::article(rng, 1).text.trim_end());
                text.push(' ');
            }
            let value = demo::needle(rng, key).1;
            text.push_str(&fill(&task.needle, &[("key", key), ("value", &value)]));
            text.push(' ');
            Needle { key, value, text }
        };
        Draft {
            depth,
            needles: keys.into_iter().map(&mut needle).collect(),
        }
    }
}

impl super::Draft for Draft {
    fn pieces(&self) -> usize {
        self.needles.len() - 1
    }

    /// The first needles, one more than `pieces`: there is always one to ask for.
    fn case(&self, pieces: usize) -> Drafted<'_> {
        let kept = &self.needles[..=pieces];
        let asked = ((self.depth * kept.len() as f64) as usize).min(pieces);
        Drafted {
            haystack: kept.iter().map(|needle| needle.text.as_str()).collect(),
            key: kept[asked].key,
            value: &kept[asked].value,
        }
    }
}
