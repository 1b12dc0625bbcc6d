//! Which tokens go into the next forward pass. Pure: knows sequences and slots, no backend.

use std::ops::Range;

use crate::backend::CacheRow;

/// A sequence as the scheduler sees it.
pub(super) trait Sequence {
    /// Tokens to store, in order. Grows while the sequence generates.
    fn feed(&self) -> &[u32];

    /// Positions whose logits are wanted.
    fn wanted(&self) -> Range<usize>;

    /// Most tokens that the sequence may store.
    fn capacity(&self) -> usize;
}

/// A sequence in its slot.
pub(super) struct Lane<S> {
    /// Request number.
    pub index: usize,
    /// Slot number.
    pub slot: usize,
    /// Tokens stored so far.
    pub stored: usize,
    /// The sequence.
    pub sequence: S,
}

impl<S: Sequence> Lane<S> {
    fn pending(&self) -> usize {
        self.sequence.feed().len() - self.stored
    }

    /// Nothing is left to store.
    pub fn is_finished(&self) -> bool {
        self.pending() == 0
    }
}

/// One row whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    /// Index into the lanes.
    pub lane: usize,
    /// Position in the sequence.
    pub position: usize,
}

/// One forward pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Where each token belongs.
    pub rows: Vec<CacheRow>,
    /// Tokens.
    pub ids: Vec<u32>,
    /// Indices of the rows whose logits are wanted, ascending.
    pub wanted: Vec<usize>,
    /// What each wanted row is.
    pub picks: Vec<Pick>,
}

impl Pass {
    fn take<S: Sequence>(&mut self, lane_index: usize, lane: &mut Lane<S>, count: usize) {
        let wanted = lane.sequence.wanted();
        for position in lane.stored..lane.stored + count {
            if wanted.contains(&position) {
                self.wanted.push(self.rows.len());
                self.picks.push(Pick {
                    lane: lane_index,
                    position,
                });
            }
            self.rows.push(CacheRow {
                slot: lane.slot,
                position,
            });
            self.ids.push(lane.sequence.feed()[position]);
        }
        lane.stored += count;
    }

    /// Takes a slot's rows out.
    pub fn remove_slot(&mut self, slot: usize) {
        let old = std::mem::take(self);
        let mut wanted = old.wanted.into_iter().zip(old.picks).peekable();
        for (index, (row, id)) in old.rows.into_iter().zip(old.ids).enumerate() {
            let pick = wanted.next_if(|(wanted, _)| *wanted == index);
            if row.slot == slot {
                continue;
            }
            if let Some((_, pick)) = pick {
                self.wanted.push(self.rows.len());
                self.picks.push(pick);
            }
            self.rows.push(row);
            self.ids.push(id);
        }
    }
}

/// Plans the next pass and marks its tokens as stored: every lane that waits for one token (those
/// that generate) gets its row, then prompts share `prefill_chunk` rows in the order of `lanes`.
///
/// Prompts ride along with generating rows because a weight is read once per pass, whatever the
/// number of rows.
pub(super) fn plan<S: Sequence>(lanes: &mut [Lane<S>], prefill_chunk: usize) -> Pass {
    let mut pass = Pass::default();
    let mut budget = prefill_chunk;
    for (index, lane) in lanes.iter_mut().enumerate() {
        let count = match lane.pending() {
            1 => 1,
            pending => {
                let count = pending.min(budget);
                budget -= count;
                count
            }
        };
        pass.take(index, lane, count);
    }
    pass
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Fixed {
        feed: Vec<u32>,
        wanted: Range<usize>,
    }

    impl Sequence for Fixed {
        fn feed(&self) -> &[u32] {
            &self.feed
        }

        fn wanted(&self) -> Range<usize> {
            self.wanted.clone()
        }

        fn capacity(&self) -> usize {
            self.feed.len()
        }
    }

    fn lane(slot: usize, len: usize, wanted: Range<usize>) -> Lane<Fixed> {
        Lane {
            index: slot,
            slot,
            stored: 0,
            sequence: Fixed {
                feed: (0..len as u32).map(|id| id + 100 * slot as u32).collect(),
                wanted,
            },
        }
    }

    #[test]
    fn prompts_share_the_chunk_and_single_rows_ride_along() {
        let mut lanes = [lane(3, 5, 4..5), lane(1, 9, 8..9), lane(0, 1, 0..1)];
        let first = plan(&mut lanes, 7);
        assert_eq!(first.ids, [300, 301, 302, 303, 304, 100, 101, 0]);
        assert_eq!(first.wanted, [4, 7]);
        let picks: Vec<_> = first.picks.iter().map(|p| (p.lane, p.position)).collect();
        assert_eq!(picks, [(0, 4), (2, 0)]);
        let second = plan(&mut lanes, 7);
        assert_eq!(second.ids, [102, 103, 104, 105, 106, 107, 108]);
        assert!(lanes.iter().all(Lane::is_finished));
        assert_eq!(plan(&mut lanes, 7), Pass::default());
    }

    #[test]
    fn a_slot_can_be_taken_out() {
        let mut lanes = [lane(2, 4, 1..4), lane(0, 3, 2..3)];
        let mut pass = plan(&mut lanes, 100);
        let mut alone = [lane(0, 3, 2..3)];
        let expected = plan(&mut alone, 100);
        pass.remove_slot(2);
        assert_eq!((&pass.rows, &pass.ids), (&expected.rows, &expected.ids));
        assert_eq!(pass.wanted, expected.wanted);
        // Picks go on to name lanes of the whole list.
        assert_eq!(
            pass.picks,
            [Pick {
                lane: 1,
                position: 2
            }]
        );
        pass.remove_slot(0);
        assert_eq!(pass, Pass::default());
    }

    proptest! {
        /// Whatever the chunk, every token is stored once, in order, and wanted once where wanted.
        #[test]
        fn every_token_is_planned_once(
            lengths in proptest::collection::vec(1usize..40, 1..6),
            chunk in 1usize..20,
        ) {
            let mut lanes: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(slot, &len)| lane(slot, len, len / 2..len))
                .collect();
            let mut seen = vec![Vec::new(); lanes.len()];
            let mut wanted = vec![Vec::new(); lanes.len()];
            while !lanes.iter().all(Lane::is_finished) {
                let pass = plan(&mut lanes, chunk);
                prop_assert!(!pass.rows.is_empty());
                prop_assert!(pass.rows.len() <= chunk + lanes.len());
                for (row, id) in pass.rows.iter().zip(&pass.ids) {
                    prop_assert_eq!(*id, (100 * row.slot + row.position) as u32);
                    seen[row.slot].push(row.position);
                }
                for (&row, pick) in pass.wanted.iter().zip(&pass.picks) {
                    prop_assert_eq!(pass.rows[row].position, pick.position);
                    wanted[pick.lane].push(pick.position);
                }
            }
            for (slot, &len) in lengths.iter().enumerate() {
                prop_assert_eq!(&seen[slot], &(0..len).collect::<Vec<_>>());
                prop_assert_eq!(&wanted[slot], &(len / 2..len).collect::<Vec<_>>());
            }
        }
    }
}
