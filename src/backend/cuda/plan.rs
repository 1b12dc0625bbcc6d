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
    unused: [i32; 2],
}

impl Job {
    fn words(&self) -> [i32; size_of::<Job>() / 4] {
        [
            self.slot,
            self.first,
            self.members,
            self.long_row,
            self.last,
            self.span,
            0,
            0,
        ]
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
    /// Rows of blocks that reach beyond the first span: their spans are merged.
    pub long_rows: Vec<i32>,
    /// Most spans of a row.
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
        let of_span =
            |job: &Job| std::cmp::Reverse((job.last + 1 - job.span * SPAN as i32).min(SPAN as i32));
        plan.few.sort_by_key(of_span);
        if blocks.whole {
            plan.many.sort_by_key(|job| std::cmp::Reverse(job.last));
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
        let spans = if blocks.whole && !is_few {
            1
        } else {
            last / SPAN + 1
        };
        let job = Job {
            slot: rows[first].slot as i32,
            first: self.members.len() as i32,
            members: members.len() as i32,
            long_row: if spans > 1 {
                self.long_rows.len() as i32
            } else {
                -1
            },
            last: last as i32,
            ..Job::default()
        };
        let members = members.iter().map(|&row| row as i32);
        if spans > 1 {
            self.long_rows.extend(members.clone());
        }
        self.members.extend(members);
        self.spans = self.spans.max(spans);
        let jobs = if is_few {
            &mut self.few
        } else {
            &mut self.many
        };
        jobs.extend((0..spans as i32).map(|span| Job { span, ..job }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every row stands in one block of its own slot; every span of it is run once.
        #[test]
        fn every_row_is_planned_once(
            places in proptest::collection::btree_set((0usize..5, 0usize..5000), 1..200),
            group in 1usize..9,
            seed in 0usize..1000,
            whole: bool,
        ) {
            let mut rows: Vec<CacheRow> = places
                .into_iter()
                .map(|(slot, position)| CacheRow { slot, position })
                .collect();
            rows.sort_by_key(|row| (row.position * 7919 + row.slot * 31 + seed) % 1009);
            let plan = Plan::new(&rows, Blocks { group, many: 64, whole });
            let mut seen = vec![0; rows.len()];
            let jobs: Vec<&Job> = plan.few.iter().chain(&plan.many).collect();
            for block in jobs.iter().filter(|job| job.span == 0) {
                let members = &plan.members[block.first as usize..][..block.members as usize];
                let spans = jobs.iter().filter(|job| job.first == block.first);
                let spans: Vec<i32> = spans.map(|job| job.span).collect();
                let is_few = members.len() * group <= WARP_ROWS;
                prop_assert_eq!(is_few, plan.few.contains(block));
                if whole && !is_few {
                    prop_assert_eq!((&spans[..], block.long_row), (&[0][..], -1));
                }
                for (index, &member) in members.iter().enumerate() {
                    let row = rows[member as usize];
                    seen[member as usize] += 1;
                    prop_assert_eq!(row.slot as i32, block.slot);
                    prop_assert!(row.position as i32 <= block.last);
                    if whole && !is_few {
                        continue;
                    }
                    for span in 0..=row.position / SPAN {
                        prop_assert_eq!(spans.iter().filter(|&&s| s == span as i32).count(), 1);
                        prop_assert!(span < plan.spans);
                    }
                    if row.position >= SPAN {
                        let long = plan.long_rows[block.long_row as usize + index];
                        prop_assert_eq!(long, member);
                    }
                }
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
        };
        let plan = Plan::new(&rows, blocks);
        let jobs: Vec<_> = plan.few.iter().map(|job| (job.slot, job.span)).collect();
        assert_eq!(jobs, [(1, 0), (1, 1), (1, 2), (2, 0), (0, 0)]);
        assert_eq!((plan.spans, plan.long_rows), (3, vec![1]));
    }
}
