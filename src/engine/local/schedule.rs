//! Which tokens go into the next forward pass. Pure: knows sequences and slots, no backend.

use std::ops::Range;

use crate::backend::CacheRow;
use crate::engine::CaseError;

/// Most rows of prompts and drafts whose logits are wanted in one pass. At a vocabulary of 150,000
/// so many logits take 1.2 GB; products are as fast per row with as many rows as with more.
pub(super) const LOGIT_ROWS: usize = 2048;

/// A sequence as the scheduler sees it.
pub(super) trait Sequence {
    /// Tokens to store, in order. Grows while the sequence generates.
    fn feed(&self) -> &[u32];

    /// Positions whose logits are wanted.
    fn wanted(&self) -> Range<usize>;

    /// Most tokens that the sequence may store.
    fn capacity(&self) -> usize;

    /// Tokens at the end of the feed that come from a draft and may yet turn out wrong.
    fn speculative(&self) -> usize {
        0
    }

    /// Takes the speculative tokens out of the feed, and adds none any more.
    fn abandon(&mut self) {}
}

/// A sequence in its slot.
pub(super) struct Lane<S> {
    /// Request number.
    pub index: usize,
    /// Slot number.
    pub slot: usize,
    /// Tokens stored so far.
    pub stored: usize,
    /// Tokens that were stored before it began anew: logits up to there were read already.
    pub answered: usize,
    /// The slot holds tokens beyond `stored`, which are wrong.
    pub is_cut: bool,
    /// It fails at this position, if at none before.
    pub fails: Option<(usize, CaseError)>,
    /// The sequence.
    pub sequence: S,
}

impl<S: Sequence> Lane<S> {
    /// A sequence that begins in an empty slot.
    pub fn new(index: usize, slot: usize, sequence: S) -> Self {
        Lane {
            index,
            slot,
            stored: 0,
            answered: 0,
            is_cut: false,
            fails: None,
            sequence,
        }
    }

    fn pending(&self) -> usize {
        let fails = self.fails.as_ref();
        fails.map_or(self.sequence.feed().len(), |(position, _)| *position) - self.stored
    }

    /// Tokens of the feed that are the sequence's own beyond doubt.
    pub fn certain(&self) -> usize {
        self.sequence.feed().len() - self.sequence.speculative()
    }

    /// Only the first `tokens` stored tokens stand.
    pub fn cut(&mut self, tokens: usize) {
        if tokens < self.stored {
            self.stored = tokens;
            self.is_cut = true;
        }
    }

    /// Begins anew in an empty slot, where `before` tokens had been stored and what came after them
    /// was not read.
    pub fn restart(&mut self, before: usize) {
        self.answered = self.answered.max(before);
        self.cut(0);
    }

    /// Goes on without a draft.
    pub fn abandon(&mut self) {
        self.sequence.abandon();
        self.cut(self.sequence.feed().len());
    }

    /// Rows of the next pass, taken from what it has left.
    fn share(&self, left: &mut Budget) -> usize {
        let speculative = self.sequence.speculative();
        if self.pending() - speculative == 1 {
            let riding = speculative.min(left.rows).min(left.logits);
            left.rows -= riding;
            left.logits -= riding;
            return 1 + riding;
        }
        let plain = self.sequence.wanted().start.saturating_sub(self.stored);
        let count = self.pending().min(left.rows).min(plain + left.logits);
        left.rows -= count;
        left.logits -= count.saturating_sub(plain);
        count
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
            if wanted.contains(&position) && position >= lane.answered {
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

    /// The first position of a slot; `None` where it has no row.
    pub fn first(&self, slot: usize) -> Option<usize> {
        let mut rows = self.rows.iter();
        Some(rows.find(|row| row.slot == slot)?.position)
    }

    /// Takes a slot's rows from position `from` on out.
    pub fn remove(&mut self, slot: usize, from: usize) {
        let old = std::mem::take(self);
        let mut wanted = old.wanted.into_iter().zip(old.picks).peekable();
        for (index, (row, id)) in old.rows.into_iter().zip(old.ids).enumerate() {
            let pick = wanted.next_if(|(wanted, _)| *wanted == index);
            if row.slot == slot && row.position >= from {
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

/// What is left of a pass beside its riding rows.
struct Budget {
    /// Rows.
    rows: usize,
    /// Rows whose logits are wanted.
    logits: usize,
}

/// Plans the next pass and marks its tokens as stored: every lane that waits for one certain token
/// (those that generate) gets its row, then prompts and drafts share `prefill_chunk` rows in the
/// order of `lanes`, at most [`LOGIT_ROWS`] of them with logits.
///
/// Prompts ride along with generating rows because a weight is read once per pass, whatever the
/// number of rows.
pub(super) fn plan<S: Sequence>(lanes: &mut [Lane<S>], prefill_chunk: usize) -> Pass {
    let mut pass = Pass::default();
    let mut left = Budget {
        rows: prefill_chunk,
        logits: LOGIT_ROWS,
    };
    for (index, lane) in lanes.iter_mut().enumerate() {
        let count = lane.share(&mut left);
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
        speculative: usize,
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

        fn speculative(&self) -> usize {
            self.speculative
        }

        fn abandon(&mut self) {
            self.feed.truncate(self.feed.len() - self.speculative);
            self.speculative = 0;
        }
    }

    fn lane(slot: usize, len: usize, wanted: Range<usize>) -> Lane<Fixed> {
        let feed = (0..len as u32).map(|id| id + 100 * slot as u32).collect();
        Lane::new(
            slot,
            slot,
            Fixed {
                feed,
                wanted,
                speculative: 0,
            },
        )
    }

    /// A lane with a draft of `speculative` tokens, of which `stored` tokens are stored.
    fn drafting(slot: usize, len: usize, speculative: usize, stored: usize) -> Lane<Fixed> {
        let mut lane = lane(slot, len, 2..usize::MAX);
        lane.sequence.speculative = speculative;
        lane.stored = stored;
        lane
    }

    #[test]
    fn drafts_ride_along_with_their_certain_row_as_far_as_rows_are_left() {
        let mut lanes = [drafting(0, 9, 5, 3), drafting(1, 9, 5, 3), lane(2, 4, 3..4)];
        let pass = plan(&mut lanes, 6);
        assert_eq!(
            pass.ids,
            [3, 4, 5, 6, 7, 8, 103, 104],
            "one certain row each, five and one speculative ones, and nothing of the prompt"
        );
        assert_eq!(pass.wanted.len(), 8);
        lanes[0].cut(5);
        lanes[0].cut(7);
        assert_eq!((lanes[0].stored, lanes[0].is_cut), (5, true));
        lanes[1].abandon();
        assert_eq!((lanes[1].stored, lanes[1].is_cut), (4, true));
        assert!(lanes[1].is_finished());
        assert_eq!(lanes[1].certain(), 4);
    }

    #[test]
    fn logits_are_limited_and_rows_without_them_are_not() {
        let long = LOGIT_ROWS + 300;
        let mut lanes = [lane(0, long, 200..long), lane(1, 50, 40..50)];
        let pass = plan(&mut lanes, 8192);
        assert_eq!(pass.wanted.len(), LOGIT_ROWS);
        assert_eq!((lanes[0].stored, lanes[1].stored), (200 + LOGIT_ROWS, 40));
        let pass = plan(&mut lanes, 8192);
        assert_eq!((pass.rows.len(), pass.wanted.len()), (110, 110));
        assert!(lanes.iter().all(Lane::is_finished));
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
        pass.remove(2, 0);
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
        let whole = pass.rows.len();
        pass.remove(0, 2);
        assert_eq!((pass.rows.len(), pass.wanted.len()), (whole - 1, 0));
        pass.remove(0, 0);
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
