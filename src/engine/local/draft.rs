//! A draft: tokens that a sequence probably generates, compared with those that it does.

use crate::engine::DraftUse;

/// Draft tokens fed at once; with the certain token before them they make 32 rows, two full blocks
/// of attention at four or more query heads per key/value head. A rejection wastes half a piece on
/// average; smaller pieces take more passes.
const PIECE: usize = 31;

/// Tokens that must agree after a first rejection before the draft is fed again. Answers that
/// differ in one number agree again at once; those that took another way agree by chance only.
const REALIGNED: usize = 2;

/// The draft of one sequence, compared at the same offsets throughout.
pub(super) struct Draft {
    ids: Vec<u32>,
    /// Tokens in a row on which sequence and draft agree.
    agreed: usize,
    /// Tokens on which they must agree before more is fed: doubled by each rejection, so that a
    /// draft which fits no more soon costs nothing.
    needed: usize,
    offered: bool,
    taken: u64,
    fed: u64,
}

impl Draft {
    /// The tokens of `ids` up to the first that is not `usable`, at most `most`.
    pub fn new(ids: &[u32], most: usize, usable: impl Fn(u32) -> bool) -> Self {
        let ids = ids.iter().copied().take_while(|&id| usable(id));
        let ids: Vec<u32> = ids.take(most).collect();
        Draft {
            offered: !ids.is_empty(),
            ids,
            agreed: 0,
            needed: 0,
            taken: 0,
            fed: 0,
        }
    }

    /// Compares the sequence's token number `at`, in whose place the draft's `was_fed` or not.
    pub fn compare(&mut self, at: usize, id: u32, was_fed: bool) {
        let Some(&expected) = self.ids.get(at) else {
            return;
        };
        if expected == id {
            self.agreed += 1;
            self.taken += u64::from(was_fed);
            return;
        }
        if self.agreed >= self.needed {
            self.needed = (2 * self.needed).max(REALIGNED);
        }
        self.agreed = 0;
    }

    /// The tokens to feed after `at` tokens of the sequence; none where it has left the draft.
    pub fn piece(&mut self, at: usize) -> &[u32] {
        if self.agreed < self.needed || at >= self.ids.len() {
            return &[];
        }
        let piece = &self.ids[at..self.ids.len().min(at + PIECE)];
        self.fed += piece.len() as u64;
        piece
    }

    /// Feeds nothing more.
    pub fn give_up(&mut self) {
        self.ids.clear();
    }

    /// What became of it; `None` where there was nothing to feed.
    pub fn usage(&self) -> Option<DraftUse> {
        self.offered.then_some(DraftUse {
            fed: self.fed,
            taken: self.taken,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(count: u32) -> Draft {
        let ids: Vec<u32> = (0..count).collect();
        Draft::new(&ids, 1000, |_| true)
    }

    #[test]
    fn it_ends_before_what_cannot_be_fed() {
        let ids = [4, 5, 6, 7];
        assert_eq!(Draft::new(&ids, 9, |id| id != 6).piece(0), [4, 5]);
        assert_eq!(Draft::new(&ids, 3, |_| true).piece(0), [4, 5, 6]);
        let mut nothing = Draft::new(&ids, 0, |_| true);
        assert!(nothing.piece(0).is_empty());
        assert_eq!(nothing.usage(), None);
    }

    #[test]
    fn it_is_fed_piece_by_piece_while_it_agrees() {
        let mut draft = draft(40);
        assert_eq!(draft.piece(0).len(), PIECE);
        for at in 0..PIECE {
            draft.compare(at, at as u32, true);
        }
        draft.compare(PIECE, PIECE as u32, false);
        assert_eq!(draft.piece(PIECE + 1).first(), Some(&(PIECE as u32 + 1)));
        let expected = DraftUse {
            fed: 39,
            taken: PIECE as u64,
        };
        assert_eq!(draft.usage(), Some(expected));
    }

    #[test]
    fn it_is_taken_up_again_after_two_tokens_then_four() {
        let mut draft = draft(200);
        draft.compare(0, 77, true);
        assert!(draft.piece(1).is_empty());
        draft.compare(1, 1, false);
        draft.compare(2, 99, false);
        draft.compare(3, 3, false);
        assert!(draft.piece(4).is_empty(), "one token in a row is too few");
        draft.compare(4, 4, false);
        assert_eq!(draft.piece(5).first(), Some(&5));
        draft.compare(5, 88, true);
        for at in 6..10 {
            assert!(draft.piece(at).is_empty());
            draft.compare(at, at as u32, false);
        }
        assert_eq!(draft.piece(10).first(), Some(&10));
    }

    #[test]
    fn a_difference_behind_a_piece_counts_as_a_rejection() {
        let mut draft = draft(200);
        for at in 0..PIECE {
            draft.compare(at, at as u32, true);
        }
        draft.compare(PIECE, 999, false);
        assert!(draft.piece(PIECE + 1).is_empty());
    }

    #[test]
    fn what_was_given_up_is_fed_no_more() {
        let mut draft = draft(9);
        draft.give_up();
        assert!(draft.piece(0).is_empty());
        assert_eq!(draft.usage(), Some(DraftUse::default()));
    }
}
