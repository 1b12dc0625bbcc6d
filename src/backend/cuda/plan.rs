//! Which query rows attention takes together. Pure: results do not depend on it, only speed does.

use crate::backend::CacheRow;

use super::attention::WARP_ROWS;

/// Tokens of a span; as in the kernel.
pub const SPAN: usize = 1024;

/// A block of rows of one slot and one of the spans that it runs over; layout as in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Slot.
    pub slot: i32,
    /// First of its members.
    pub first: i32,
    /// Members.
    pub members: i32,
    /// First of its long rows, or -1.
    pub long_row: i32,
    /// Largest position.
    pub last: i32,
    /// Span.
    pub span: i32,
    /// First position that any member sees.
    pub begin: i32,
    unused: i32,
}

impl Job {
    /// Tokens of its span that any member sees.
    fn tokens(&self) -> i32 {
        let span = self.span * SPAN as i32;
        (self.last + 1).min(span + SPAN as i32) - self.begin.max(span)
    }
}

impl Job {
    /// As the kernels read it.
    fn words(&self) -> [i32; size_of::<Job>() / 4] {
        // Named one by one, so that none is forgotten.
        let Job {
            slot,
            first,
            members,
            long_row,
            last,
            span,
            begin,
            unused,
        } = *self;
        [slot, first, members, long_row, last, span, begin, unused]
    }
}

/// How rows are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Query heads per key/value head.
    pub group: usize,
    /// Most query rows of a block.
    pub many: usize,
    /// Whether a larger block runs over all of its spans itself.
    pub whole: bool,
    /// Tokens that a row sees, its own included; `None` for all before it.
    pub window: Option<usize>,
}

impl Blocks {
    /// The first position that a row at `position` sees.
    fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Blocks of rows, and the spans that each has to run over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Rows of the tensor, block after block.
    pub members: Vec<i32>,
    /// Blocks of at most 16 query rows.
    pub few: Vec<Job>,
    /// Larger blocks.
    pub many: Vec<Job>,
    /// Rows of blocks that reach over several spans: these are merged.
    pub long_rows: Vec<i32>,
    /// Spans from the first token to the furthest row of a block of several.
    pub spans: usize,
}

/// What of a plan launches depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanSizes {
    /// Blocks of at most 16 query rows.
    pub few: usize,
    /// Larger blocks.
    pub many: usize,
    /// Rows.
    pub members: usize,
    /// Rows whose spans are merged.
    pub long_rows: usize,
    /// Most spans of a row.
    pub spans: usize,
}

impl Plan {
    /// What launches depend on.
    pub fn sizes(&self) -> PlanSizes {
        PlanSizes {
            few: self.few.len(),
            many: self.many.len(),
            members: self.members.len(),
            long_rows: self.long_rows.len(),
            spans: self.spans,
        }
    }

    /// Everything as the kernels read it: few, many, members, long rows.
    pub fn words(&self) -> Vec<i32> {
        let jobs = self.few.iter().chain(&self.many).flat_map(Job::words);
        let rows = self.members.iter().chain(&self.long_rows);
        jobs.chain(rows.copied()).collect()
    }

    /// Plans `rows`.
    ///
    /// # Panics
    /// Where a row alone is larger than a block.
    pub fn new(rows: &[CacheRow], blocks: Blocks) -> Self {
        assert!(
            blocks.group <= blocks.many,
            "query heads of a row in a block"
        );
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&row| (rows[row].slot, rows[row].position));
        let mut plan = Plan {
            spans: 1,
            ..Plan::default()
        };
        for slot in order.chunk_by(|&a, &b| rows[a].slot == rows[b].slot) {
            for members in slot.chunks(blocks.many / blocks.group) {
                plan.add_block(rows, members, blocks);
            }
        }
        // The longest first: blocks finish together.
        let of_span = |job: &Job| std::cmp::Reverse(job.tokens());
        plan.few.sort_by_key(of_span);
        if blocks.whole {
            plan.many
                .sort_by_key(|job| std::cmp::Reverse(job.last - job.begin));
        } else {
            plan.many.sort_by_key(of_span);
        }
        plan
    }

    fn add_block(&mut self, rows: &[CacheRow], members: &[usize], blocks: Blocks) {
        let (Some(&first), Some(&last)) = (members.first(), members.last()) else {
            return;
        };
        let is_few = members.len() * blocks.group <= WARP_ROWS;
        let last = rows[last].position;
        let begin = blocks.first_visible(rows[first].position);
        let spans = if blocks.whole && !is_few {
            0..1
        } else {
            begin / SPAN..last / SPAN + 1
        };
        let is_long = spans.len() > 1;
        let job = Job {
            slot: rows[first].slot as i32,
            first: self.members.len() as i32,
            members: members.len() as i32,
            long_row: if is_long {
                self.long_rows.len() as i32
            } else {
                -1
            },
            last: last as i32,
            begin: begin as i32,
            ..Job::default()
        };
        let members = members.iter().map(|&row| row as i32);
        if is_long {
            self.long_rows.extend(members.clone());
            self.spans = self.spans.max(spans.end);
        }
        self.members.extend(members);
        let jobs = if is_few {
            &mut self.few
        } else {
            &mut self.many
        };
        jobs.extend(spans.map(|span| Job {
            span: span as i32,
            ..job
        }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every row stands in one block of its own slot; every span that it sees is run once.
        #[test]
        fn every_row_is_planned_once(
            places in proptest::collection::btree_set((0usize..5, 0usize..5000), 1..200),
            group in 1usize..9,
            seed in 0usize..1000,
            whole: bool,
            window in proptest::option::of(1usize..4000),
        ) {
            let mut rows: Vec<CacheRow> = places
                .into_iter()
                .map(|(slot, position)| CacheRow { slot, position })
                .collect();
            rows.sort_by_key(|row| (row.position * 7919 + row.slot * 31 + seed) % 1009);
            let blocks = Blocks { group, many: 64, whole, window };
            let plan = Plan::new(&rows, blocks);
            let mut seen = vec![0; rows.len()];
            let jobs: Vec<&Job> = plan.few.iter().chain(&plan.many).collect();
            let firsts: std::collections::BTreeSet<i32> = jobs.iter().map(|job| job.first).collect();
            for first in firsts {
                let of_block: Vec<&&Job> = jobs.iter().filter(|job| job.first == first).collect();
                let block = of_block[0];
                let members = &plan.members[block.first as usize..][..block.members as usize];
                let spans: Vec<i32> = of_block.iter().map(|job| job.span).collect();
                let is_few = members.len() * group <= WARP_ROWS;
                prop_assert_eq!(is_few, plan.few.contains(block));
                if whole && !is_few {
                    prop_assert_eq!((&spans[..], block.long_row), (&[0][..], -1));
                }
                prop_assert!(spans.len() == 1 || block.long_row >= 0);
                for (index, &member) in members.iter().enumerate() {
                    let row = rows[member as usize];
                    seen[member as usize] += 1;
                    let begin = window.map_or(0, |window| (row.position + 1).saturating_sub(window));
                    prop_assert_eq!(row.slot as i32, block.slot);
                    prop_assert!(row.position as i32 <= block.last);
                    prop_assert!(block.begin <= begin as i32);
                    if whole && !is_few {
                        continue;
                    }
                    for span in begin / SPAN..=row.position / SPAN {
                        prop_assert_eq!(spans.iter().filter(|&&s| s == span as i32).count(), 1);
                        prop_assert!(spans.len() == 1 || span < plan.spans);
                    }
                    if spans.len() > 1 {
                        let long = plan.long_rows[block.long_row as usize + index];
                        prop_assert_eq!(long, member);
                    }
                }
                prop_assert!(whole && !is_few || of_block.iter().all(|job| job.tokens() > 0));
                prop_assert!(members.len() * group <= 64);
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }

    #[test]
    fn the_longest_jobs_come_first() {
        let rows: Vec<CacheRow> = [(0, 10), (1, 3000), (2, 900)]
            .map(|(slot, position)| CacheRow { slot, position })
            .to_vec();
        let blocks = Blocks {
            group: 4,
            many: 64,
            whole: false,
            window: None,
        };
        let plan = Plan::new(&rows, blocks);
        let jobs: Vec<_> = plan.few.iter().map(|job| (job.slot, job.span)).collect();
        assert_eq!(jobs, [(1, 0), (1, 1), (1, 2), (2, 0), (0, 0)]);
        assert_eq!((plan.spans, plan.long_rows), (3, vec![1]));
        // Within one span there is nothing to merge, wherever it lies.
        let windowed = Blocks {
            window: Some(900),
            ..blocks
        };
        let plan = Plan::new(&rows, windowed);
        let jobs: Vec<_> = plan.few.iter().map(|job| (job.slot, job.span)).collect();
        assert_eq!(jobs, [(1, 2), (2, 0), (0, 0)]);
        assert_eq!((plan.spans, plan.long_rows), (1, vec![]));
    }
}
