//! Which sequences may run side by side: those whose pages all fit, come what may. Layers with a window
//! have room for so many sequences, whatever their length; the others for so many tokens.

use crate::backend::CacheLimit;
use crate::recipe::PAGE_TOKENS;

/// Pages that running sequences may come to need, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// Most pages and sequences; `None` where memory sets no limit.
    limit: Option<Limit>,
    /// Pages that the running sequences may need together.
    promised: usize,
    /// Running sequences.
    running: usize,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    pages: usize,
    sequences: usize,
}

/// Pages that so many tokens of one sequence take.
fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS as usize)
}

impl Admission {
    /// Room for so much, tokens in whole pages; `None` where memory sets no limit.
    pub fn new(limit: Option<CacheLimit>) -> Self {
        Admission {
            limit: limit.map(|CacheLimit { tokens, sequences }| Limit {
                pages: tokens / PAGE_TOKENS as usize,
                sequences,
            }),
            promised: 0,
            running: 0,
        }
    }

    /// Tokens that have room where nothing else runs; none where not even windows have.
    pub fn tokens(&self) -> Option<usize> {
        let limit = self.limit?;
        let pages = if limit.sequences > 0 { limit.pages } else { 0 };
        Some(pages * PAGE_TOKENS as usize)
    }

    /// Whether a sequence of at most `capacity` tokens has room where nothing else runs.
    pub fn has_room(&self, capacity: usize) -> bool {
        self.fits(pages(capacity), 1)
    }

    /// Admits a sequence of at most `capacity` tokens if it has room beside those that run.
    pub fn admit(&mut self, capacity: usize) -> bool {
        let (promised, running) = (self.promised + pages(capacity), self.running + 1);
        let fits = self.fits(promised, running);
        if fits {
            (self.promised, self.running) = (promised, running);
        }
        fits
    }

    /// A sequence that was admitted with this capacity has ended.
    pub fn release(&mut self, capacity: usize) {
        self.promised -= pages(capacity);
        self.running -= 1;
    }

    fn fits(&self, pages: usize, sequences: usize) -> bool {
        let within = |limit: Limit| pages <= limit.pages && sequences <= limit.sequences;
        self.limit.is_none_or(within)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(tokens: usize) -> Admission {
        let sequences = usize::MAX;
        Admission::new(Some(CacheLimit { tokens, sequences }))
    }

    #[test]
    fn room_is_counted_in_whole_pages() {
        let mut admission = tokens(47);
        assert_eq!(admission.tokens(), Some(32));
        assert!(admission.has_room(32) && !admission.has_room(33));
        assert!(admission.admit(1) && admission.admit(16));
        assert!(!admission.admit(1), "both pages are promised");
        admission.release(1);
        assert!(!admission.admit(17) && admission.admit(16));
    }

    #[test]
    fn windows_count_sequences() {
        let limit = |tokens, sequences| Admission::new(Some(CacheLimit { tokens, sequences }));
        let mut admission = limit(1000, 2);
        assert!(admission.has_room(900) && !admission.has_room(2000));
        assert!(admission.admit(10) && admission.admit(20) && !admission.admit(10));
        admission.release(10);
        assert!(!admission.admit(990) && admission.admit(900));
        let none = limit(1000, 0);
        assert!(!none.has_room(1));
        assert_eq!(none.tokens(), Some(0));
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
            let mut admission = tokens(limit);
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
