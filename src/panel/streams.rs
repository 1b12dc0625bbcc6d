//! Which stream of the seeded generator serves which choice.
//!
//! Numbers are a function of (seed, stream, place), so choices made for one case never depend on
//! those made for another.

use crate::stats::CounterRng;

/// The order in which articles are considered.
pub(super) fn articles(seed: u64) -> CounterRng {
    CounterRng::new(seed, 1)
}

/// The order of depths over the cases of a retrieval panel.
pub(super) fn depths(seed: u64, length: u32) -> CounterRng {
    CounterRng::new(seed, 2 << 56 | u64::from(length))
}

/// Everything seeded within one retrieval case.
pub(super) fn retrieval_case(seed: u64, length: u32, case: u32) -> CounterRng {
    // Lengths stay below 2^24 tokens, so streams do not meet.
    CounterRng::new(seed, 3 << 56 | u64::from(length) << 32 | u64::from(case))
}
