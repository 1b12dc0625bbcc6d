//! The work that is measured, and how much of it.

use crate::backend::cuda::STEP_ROWS;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Weights from the host's memory to the worker.
    Load,
    /// From weights in memory to the first answer.
    Start,
    /// Prompts of 1,024 tokens.
    Prefill1k,
    /// Prompts of 8,192 tokens.
    Prefill8k,
    /// One token for each of many sequences.
    Decode,
    /// Attention of such a step alone.
    Attention,
    /// Prompts like those of grade-school mathematics, with 256 new tokens each.
    Math,
    /// The same answers verified instead of generated.
    Verify,
    /// Likelihood of the last 128 tokens of windows.
    Nll,
    /// Long prompts with 16 new tokens each.
    Retrieval,
    /// Math, likelihood and retrieval as the protocol `reference` has them.
    Arm,
}

impl Work {
    /// Every kind, in the order in which they are measured by default.
    pub const ALL: [Work; 11] = [
        Work::Load,
        Work::Start,
        Work::Prefill1k,
        Work::Prefill8k,
        Work::Decode,
        Work::Attention,
        Work::Math,
        Work::Verify,
        Work::Nll,
        Work::Retrieval,
        Work::Arm,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Work::Load => "load",
            Work::Start => "start",
            Work::Prefill1k => "prefill-1k",
            Work::Prefill8k => "prefill-8k",
            Work::Decode => "decode",
            Work::Attention => "attention",
            Work::Math => "math",
            Work::Verify => "verify",
            Work::Nll => "nll",
            Work::Retrieval => "retrieval",
            Work::Arm => "arm",
        }
    }

    /// Whether how the cache is stored makes a difference.
    pub fn has_recipe(self) -> bool {
        !matches!(self, Work::Load | Work::Start)
    }
}

/// Sizes of all work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Divisor of sides and bytes of the probes.
    pub shrink: usize,
    /// Repetitions of which the median counts, after one that does not.
    pub repeats: usize,
    /// Sequences side by side in math.
    pub slots: usize,
    /// Sequences side by side where they are long.
    pub long_slots: usize,
    /// Prompt tokens per pass.
    pub prefill_chunk: usize,
    /// Shorter and longer length in tokens.
    pub lengths: [usize; 2],
    /// Prompts of a prefill at the shorter length; an eighth of them at the longer one.
    pub prompts: usize,
    /// Sequences of a decode step, and tokens that each has stored.
    pub step: (usize, usize),
    /// Questions of math and their new tokens.
    pub math: (usize, usize),
    /// Windows of each length and their targets.
    pub nll: (usize, usize),
    /// Cases of retrieval at each length and their new tokens.
    pub retrieval: (usize, usize),
}

impl Sizes {
    /// The sizes of the built-in protocol `reference`, and of a full GPU.
    pub const FULL: Sizes = Sizes {
        shrink: 1,
        repeats: 5,
        slots: STEP_ROWS,
        long_slots: 32,
        prefill_chunk: 8192,
        lengths: [1024, 8192],
        prompts: 32,
        step: (256, 1024),
        math: (1319, 256),
        nll: (64, 128),
        retrieval: (200, 16),
    };

    /// Small enough for a look, too small for figures.
    pub const QUICK: Sizes = Sizes {
        shrink: 16,
        repeats: 2,
        slots: 8,
        long_slots: 4,
        prefill_chunk: 256,
        lengths: [128, 256],
        prompts: 8,
        step: (8, 128),
        math: (16, 16),
        nll: (4, 32),
        retrieval: (4, 4),
    };

    /// Tokens of the longest sequence of some work.
    pub fn longest(&self, work: Work) -> usize {
        let [short, long] = self.lengths;
        match work {
            Work::Load => 1,
            Work::Start => super::panel::FIRST_PROMPT + 1,
            Work::Prefill1k => short + 1,
            Work::Prefill8k => long + 1,
            // The first sequences go on while the last ones are still read.
            Work::Decode => self.step.1 * 2,
            Work::Attention => self.step.1,
            Work::Math | Work::Verify => super::panel::LONGEST_QUESTION + self.math.1,
            Work::Nll | Work::Retrieval => long,
            Work::Arm => long.max(self.longest(Work::Math)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let mut names = Work::ALL.map(Work::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Work::ALL.len());
    }

    #[test]
    fn the_longest_sequence_of_an_arm_is_that_of_its_parts() {
        for sizes in [Sizes::FULL, Sizes::QUICK] {
            let parts = [Work::Math, Work::Nll, Work::Retrieval];
            let longest = parts.map(|work| sizes.longest(work)).into_iter().max();
            assert_eq!(Some(sizes.longest(Work::Arm)), longest);
        }
    }
}
