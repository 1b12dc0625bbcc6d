//! Which sequences may run side by side: those whose pages all fit, come what may.

use crate::recipe::PAGE_TOKENS;

/// Pages that running sequences may come to need, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// Most pages; `None` where memory sets no limit.
    limit: Option<usize>,
    /// Pages that the running sequences may need together.
    promised: usize,
}

/// Pages that so many tokens of one sequence take.
fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS as usize)
}

impl Admission {
    /// Room for `tokens` tokens in whole pages; `None` where memory sets no limit.
    pub fn new(tokens: Option<usize>) -> Self {
        Admission {
            limit: tokens.map(|tokens| tokens / PAGE_TOKENS as usize),
            promised: 0,
        }
    }

    /// Tokens that have room.
    pub fn tokens(&self) -> Option<usize> {
        self.limit.map(|limit| limit * PAGE_TOKENS as usize)
    }

    /// Whether a sequence of at most `capacity` tokens has room where nothing else runs.
    pub fn has_room(&self, capacity: usize) -> bool {
        self.limit.is_none_or(|limit| pages(capacity) <= limit)
    }

    /// Admits a sequence of at most `capacity` tokens if it has room beside those that run.
    pub fn admit(&mut self, capacity: usize) -> bool {
        let promised = self.promised + pages(capacity);
        let fits = self.limit.is_none_or(|limit| promised <= limit);
        if fits {
            self.promised = promised;
        }
        fits
    }

    /// A sequence that was admitted with this capacity has ended.
    pub fn release(&mut self, capacity: usize) {
        self.promised -= pages(capacity);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn room_is_counted_in_whole_pages() {
        let mut admission = Admission::new(Some(47));
        assert_eq!(admission.tokens(), Some(32));
        assert!(admission.has_room(32) && !admission.has_room(33));
        assert!(admission.admit(1) && admission.admit(16));
        assert!(!admission.admit(1), "both pages are promised");
        admission.release(1);
        assert!(!admission.admit(17) && admission.admit(16));
    }

    #[test]
    fn without_a_limit_everything_is_admitted() {
        let mut admission = Admission::new(None);
        assert!((0..1000).all(|_| admission.admit(usize::MAX / 2000)));
        assert!(admission.has_room(usize::MAX));
        assert_eq!(admission.tokens(), None);
    }

    proptest! {
        /// Sequences come in order and end in any order: what all of them may need never exceeds
        /// the limit, nobody who has room waits, and everybody gets a turn.
        #[test]
        fn promises_never_exceed_the_limit_and_the_queue_ends(
            capacities in proptest::collection::vec(1usize..400, 1..40),
            extra in 0usize..600,
            ends in proptest::collection::vec(0usize..1000, 80),
        ) {
            let largest = capacities.iter().copied().max().unwrap_or(1);
            let limit = pages(largest) * 16 + extra;
            let mut admission = Admission::new(Some(limit));
            let mut queue = capacities.iter().copied().peekable();
            let mut running: Vec<usize> = Vec::new();
            let (mut turns, mut ends) = (0, ends.into_iter().cycle());
            let held = |running: &[usize]| running.iter().map(|&tokens| pages(tokens) * 16).sum::<usize>();
            while turns < capacities.len() {
                while let Some(&next) = queue.peek() {
                    let fits = held(&running) + pages(next) * 16 <= limit / 16 * 16;
                    prop_assert_eq!(admission.admit(next), fits);
                    if !fits {
                        break;
                    }
                    running.push(next);
                    queue.next();
                }
                prop_assert!(held(&running) <= limit);
                prop_assert!(!running.is_empty());
                let ended = running.swap_remove(ends.next().unwrap_or(0) % running.len());
                admission.release(ended);
                turns += 1;
            }
            prop_assert!(queue.next().is_none() && running.is_empty());
        }
    }
}
