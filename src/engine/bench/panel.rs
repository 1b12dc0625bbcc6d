//! Work through the engine, on the wall clock.

use std::time::Instant;

use crate::backend::timing::Timed;
use crate::engine::{ArmSetup, BatchLayout, Engine, EngineError, GenerateRequest, ScoreRequest};
use crate::recipe::Recipe;
use crate::schema::LayerAbsmax;

use super::floor::{Cost, Floor};
use super::kernel::median;
use super::observers::Count;
use super::verify::taken_over;
use super::{Bench, BenchError, Measured, Work};

/// Tokens of the prompt whose answer is waited for first.
pub(super) const FIRST_PROMPT: usize = 16;
/// Shortest and longest prompt of math.
const SHORTEST_QUESTION: usize = 70;
/// See [`SHORTEST_QUESTION`].
pub(super) const LONGEST_QUESTION: usize = 220;
/// New tokens of a sequence that warms up.
const WARM_TOKENS: u32 = 2;
/// Tokens of a probe.
const PROBE: usize = 16;

/// Tokens that are generated one by one.
fn generated(request: &GenerateRequest) -> usize {
    request.max_new_tokens as usize - taken_over(request.draft.len())
}

/// Token ids from a counter.
pub(super) fn ids(seed: usize, count: usize, vocabulary: u32) -> Vec<u32> {
    let spread = vocabulary.max(1) as usize;
    (0..count)
        .map(|i| ((i * 7919 + seed * 104_729) % spread) as u32)
        .collect()
}

/// Cases that share a slot count: prompts to continue, or windows to score.
#[derive(Clone)]
pub(super) struct Batch {
    pub slots: usize,
    pub generate: Vec<GenerateRequest>,
    pub score: Vec<ScoreRequest>,
}

impl Batch {
    /// The start of it: as many sequences as stand side by side, each with its first new tokens, or
    /// windows of a pass.
    fn start(&self, pass: usize) -> Batch {
        let sequences = self.generate.iter().take(self.slots);
        let generate = sequences.map(|request| GenerateRequest {
            max_new_tokens: request.max_new_tokens.min(WARM_TOKENS),
            draft: Vec::new(),
            ..request.clone()
        });
        let mut tokens = 0;
        let windows = self.score.iter().take_while(|window| {
            let is_wanted = tokens < pass;
            tokens += window.ids.len();
            is_wanted
        });
        Batch {
            slots: self.slots,
            generate: generate.collect(),
            score: windows.cloned().collect(),
        }
    }
}

/// Outcome of a batch.
pub(super) struct Ran {
    pub seconds: f64,
    /// Generated tokens of each case, in the order of the cases.
    pub answers: Vec<Vec<u32>>,
    /// Seconds and rows of every pass.
    passes: Vec<(f64, u64)>,
}

impl<B: Timed> Bench<B> {
    /// The first answer of a fresh worker.
    pub(super) fn first_answer(&mut self) -> Result<(), BenchError> {
        self.open_arm(&Recipe::native(), None, 1)?;
        let request = GenerateRequest {
            prompt_ids: ids(1, FIRST_PROMPT, self.vocabulary()),
            max_new_tokens: 1,
            draft: Vec::new(),
            messages: Vec::new(),
        };
        let mut count = Count::new();
        self.engine.generate(&[request], &mut count)?;
        count.check(Work::Start, 1)
    }

    /// Work under a recipe.
    pub(super) fn measure(
        &mut self,
        work: Work,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
    ) -> Result<Measured, BenchError> {
        let [short, long] = self.sizes.lengths;
        let prompts = self.sizes.prompts;
        match work {
            Work::Prefill1k => self.prefill(work, recipe, absmax, prompts, short),
            Work::Prefill8k => self.prefill(work, recipe, absmax, (prompts / 8).max(1), long),
            Work::Decode => self.decode(recipe, absmax),
            Work::Attention => {
                // Room for a cache of its own.
                self.engine.close_arm();
                self.attention(recipe, absmax)
            }
            Work::Math => self.panel(work, recipe, absmax, vec![self.math()]),
            Work::Verify => self.verify(recipe, absmax),
            Work::Nll => self.panel(work, recipe, absmax, self.nll()),
            Work::Retrieval => self.panel(work, recipe, absmax, self.retrieval()),
            Work::Arm => {
                let batches = [vec![self.math()], self.nll(), self.retrieval()].concat();
                self.panel(work, recipe, absmax, batches)
            }
            Work::Load | Work::Start => self.once(work),
        }
    }

    pub(super) fn open_arm(
        &mut self,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
        slots: usize,
    ) -> Result<(), EngineError> {
        let probe = ids(1, PROBE, self.vocabulary());
        self.engine.open_arm(&ArmSetup {
            recipe: recipe.clone(),
            absmax: absmax.map(<[_]>::to_vec),
            layout: BatchLayout {
                slots,
                prefill_chunk: self.sizes.prefill_chunk,
            },
            probe,
        })?;
        Ok(())
    }

    pub(super) fn run(&mut self, work: Work, batch: &Batch) -> Result<Ran, BenchError> {
        let mut count = Count::new();
        let start = Instant::now();
        if !batch.generate.is_empty() {
            self.engine.generate(&batch.generate, &mut count)?;
        }
        if !batch.score.is_empty() {
            self.engine.score(&batch.score, &mut count)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        count.check(work, batch.generate.len() + batch.score.len())?;
        Ok(Ran {
            seconds,
            answers: count.answers.into_values().collect(),
            passes: count.passes,
        })
    }

    /// A short part of what a batch does, whose time does not count: the first passes of a process wait
    /// for memory that is new to it.
    pub(super) fn warm_up(&mut self, work: Work, batch: &Batch) -> Result<(), BenchError> {
        self.run(work, &batch.start(self.sizes.prefill_chunk))?;
        Ok(())
    }

    /// Prompts with one target each.
    fn prefill(
        &mut self,
        work: Work,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
        prompts: usize,
        length: usize,
    ) -> Result<Measured, BenchError> {
        let slots = prompts.min(self.sizes.long_slots);
        self.open_arm(recipe, absmax, slots)?;
        let batch = Batch {
            slots,
            generate: Vec::new(),
            score: self.windows(prompts, length + 1, 1),
        };
        let mut times = Vec::new();
        for _ in 0..=self.sizes.repeats {
            times.push(self.run(work, &batch)?.seconds);
        }
        let seconds = median(times.split_off(1));
        let tokens = (prompts * length) as f64;
        Ok(Measured {
            work: work.name(),
            recipe: Some(recipe.name.clone()),
            what: format!("{prompts} prompts of {length} tokens"),
            seconds,
            figure: tokens / seconds,
            unit: "tok/s",
            floor: Some(self.floor(recipe, &batch)),
        })
    }

    /// The time of passes in which every sequence takes one step.
    fn decode(
        &mut self,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
    ) -> Result<Measured, BenchError> {
        let (slots, tokens) = self.sizes.step;
        self.open_arm(recipe, absmax, slots)?;
        // The first sequences step on while the last prompts are read; then all step together.
        let reading = (slots * tokens).div_ceil(self.sizes.prefill_chunk);
        let together = 4 * self.sizes.repeats;
        let prompt = tokens.saturating_sub((reading + together) / 2).max(1);
        let requests: Vec<GenerateRequest> = (0..slots)
            .map(|i| GenerateRequest {
                prompt_ids: ids(i, prompt, self.vocabulary()),
                max_new_tokens: (reading + together) as u32,
                draft: Vec::new(),
                messages: Vec::new(),
            })
            .collect();
        let batch = Batch {
            slots,
            generate: requests,
            score: Vec::new(),
        };
        let ran = self.run(Work::Decode, &batch)?;
        let steps = ran.passes.iter().filter(|(_, rows)| *rows == slots as u64);
        let times: Vec<f64> = steps.map(|(seconds, _)| *seconds).collect();
        if times.is_empty() {
            let what = format!("no pass had exactly the {slots} rows of a decode step");
            return Err(EngineError::Worker(what).into());
        }
        let seconds = median(times);
        let before = self.costs.sequence(recipe, tokens - 1, 0, 0).operations;
        let step = self.costs.sequence(recipe, tokens - 1, 0, 1);
        let cost = Cost {
            bytes: step.bytes * slots as f64 + self.costs.weights_read(slots),
            operations: (step.operations - before) * slots as f64,
        };
        Ok(Measured {
            work: Work::Decode.name(),
            recipe: Some(recipe.name.clone()),
            what: format!("a step of {slots} sequences of about {tokens} tokens"),
            seconds,
            figure: slots as f64 / seconds,
            unit: "tok/s",
            floor: Some(cost.floor(self.rates)),
        })
    }

    /// Whole panels, each batch on an arm of its own slots.
    fn panel(
        &mut self,
        work: Work,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
        batches: Vec<Batch>,
    ) -> Result<Measured, BenchError> {
        let (mut seconds, mut generated, mut read) = (0.0, 0, 0);
        let mut floor: Option<Floor> = None;
        let mut cases = 0;
        for batch in batches {
            self.open_arm(recipe, absmax, batch.slots)?;
            self.warm_up(work, &batch)?;
            let ran = self.run(work, &batch)?;
            seconds += ran.seconds;
            generated += ran.answers.iter().map(Vec::len).sum::<usize>();
            read += ran.passes.iter().map(|(_, rows)| rows).sum::<u64>();
            cases += batch.generate.len() + batch.score.len();
            let own = self.floor(recipe, &batch);
            floor = Some(match floor {
                None => own,
                Some(so_far) => Floor {
                    seconds: so_far.seconds + own.seconds,
                    // What bounds the larger part.
                    bound: if own.seconds > so_far.seconds {
                        own.bound
                    } else {
                        so_far.bound
                    },
                },
            });
        }
        Ok(Measured {
            work: work.name(),
            recipe: Some(recipe.name.clone()),
            what: format!("{cases} cases, {read} tokens read, {generated} new"),
            seconds,
            figure: seconds,
            unit: "s",
            floor,
        })
    }

    /// Floor of a batch: the operations and cache bytes of every sequence, and the weights once for
    /// every step that full slots cannot avoid. What a draft holds that can be taken over is read in one
    /// pass, as a prompt is.
    pub(super) fn floor(&self, recipe: &Recipe, batch: &Batch) -> Floor {
        let generate = batch.generate.iter().map(|request| {
            let taken = taken_over(request.draft.len());
            let (prompt, new) = (request.prompt_ids.len() + taken, generated(request));
            self.costs.sequence(recipe, prompt, 1 + taken, new - 1)
        });
        let score = batch.score.iter().map(|request| {
            let (tokens, targets) = (request.ids.len() - 1, request.targets as usize);
            self.costs.sequence(recipe, tokens, targets, 0)
        });
        let steps: usize = batch.generate.iter().map(generated).sum();
        let passes = steps.div_ceil(batch.slots).max(1);
        let weights = Cost {
            bytes: self.costs.weights_read(batch.slots) * passes as f64,
            operations: 0.0,
        };
        generate
            .chain(score)
            .fold(weights, Cost::plus)
            .floor(self.rates)
    }

    fn windows(&self, count: usize, length: usize, targets: usize) -> Vec<ScoreRequest> {
        (0..count)
            .map(|i| ScoreRequest {
                ids: ids(i, length, self.vocabulary()),
                targets: targets as u32,
            })
            .collect()
    }

    fn prompts(&self, lengths: impl Iterator<Item = usize>, new: usize) -> Vec<GenerateRequest> {
        let request = |(i, length)| GenerateRequest {
            prompt_ids: ids(i, length, self.vocabulary()),
            max_new_tokens: new as u32,
            draft: Vec::new(),
            messages: Vec::new(),
        };
        lengths.enumerate().map(request).collect()
    }

    pub(super) fn math(&self) -> Batch {
        let (count, new) = self.sizes.math;
        let spread = LONGEST_QUESTION - SHORTEST_QUESTION + 1;
        let lengths = (0..count).map(|i| SHORTEST_QUESTION + i * 37 % spread);
        Batch {
            slots: self.sizes.slots,
            generate: self.prompts(lengths, new),
            score: Vec::new(),
        }
    }

    fn nll(&self) -> Vec<Batch> {
        let (count, targets) = self.sizes.nll;
        let batch = |length| Batch {
            slots: self.sizes.long_slots,
            generate: Vec::new(),
            score: self.windows(count, length, targets),
        };
        self.sizes.lengths.map(batch).into()
    }

    fn retrieval(&self) -> Vec<Batch> {
        let (count, new) = self.sizes.retrieval;
        let batch = |length: usize| Batch {
            slots: self.sizes.long_slots,
            generate: self.prompts((0..count).map(|_| length - new), new),
            score: Vec::new(),
        };
        self.sizes.lengths.map(batch).into()
    }
}
