//! Which of several algorithms is taken for a range: the library's order, and the clock.

use std::time::{Duration, Instant};

use super::super::lt::{Algorithm, Operands};
use super::super::{RANGES, STEP_ROWS};
use super::{COMPARED, Trial};
use crate::backend::BackendError;

/// How algorithms of a range are timed.
#[derive(Clone, Copy)]
struct Clock {
    /// Products that are timed together.
    products: usize,
    /// Part of the time of an algorithm that one which the library ranks behind it has to stay below.
    worth: f64,
}
/// Most rows of ranges that this clock decides about.
const FEW_ROWS: usize = 128;
const FEW: Clock = Clock {
    products: 8,
    worth: 0.95,
};
/// With more rows, products are bound by the power that a device may draw: of two that are as fast for
/// some milliseconds, one took 14% longer over a third of a second (H200, 512 rows), and the library
/// mostly ranks first those that keep their speed. Not always: of one shape its first took twice as
/// long as others (256 rows of Qwen2.5-7B).
const MORE: Clock = Clock {
    products: 2,
    worth: 0.8,
};
/// A product that alone takes so many times as long as the best one is not timed further, unless it is over
/// sooner than the clock can tell.
const HOPELESS: f64 = 1.5;
/// See [`HOPELESS`].
const UNCLEAR: Duration = Duration::from_micros(50);

impl Trial<'_> {
    /// The best of some algorithms for a range, among those that give the reference's bits: the first,
    /// or where rows may be those of a step of decoding one that is clearly faster. `known` is as for
    /// [`Trial::agrees`].
    pub(super) fn best(
        &mut self,
        algorithms: &[Algorithm],
        own: usize,
        known: &mut Vec<(Algorithm, bool)>,
    ) -> Result<Option<Algorithm>, BackendError> {
        let rows = RANGES[own];
        let timed = self.operands(rows).filter(|_| rows <= STEP_ROWS);
        let clock = if rows > FEW_ROWS { MORE } else { FEW };
        let mut best: Option<(Duration, Algorithm)> = None;
        let mut tried: Vec<Algorithm> = Vec::new();
        for &algorithm in algorithms {
            if tried.contains(&algorithm) {
                continue;
            }
            tried.push(algorithm);
            let Some(operands) = timed else {
                if self.agrees(own, &algorithm, known)? {
                    return Ok(Some(algorithm));
                }
                continue;
            };
            if !self.library.accepts(self.shape, rows, &algorithm)? {
                continue;
            }
            // What would not be chosen need not agree.
            let bound = best.map(|(least, _)| least.mul_f64(clock.worth));
            let taken = self.time((rows, operands), &algorithm, clock, bound)?;
            if let Some(taken) = taken
                && self.agrees(own, &algorithm, known)?
            {
                best = Some((taken, algorithm));
            }
        }
        Ok(best.map(|(_, algorithm)| algorithm))
    }

    /// The shorter of two times of a product of `rows`; `None` where it is not below `bound`.
    fn time(
        &self,
        (rows, operands): (usize, Operands),
        algorithm: &Algorithm,
        clock: Clock,
        bound: Option<Duration>,
    ) -> Result<Option<Duration>, BackendError> {
        let device = &self.products.kernels.device;
        let of = |products: usize| -> Result<Duration, BackendError> {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..products {
                self.run(operands, rows, algorithm)?;
            }
            device.synchronize()?;
            Ok(start.elapsed() / products as u32)
        };
        // The first one loads the kernel.
        of(1)?;
        if let Some(bound) = bound {
            let alone = of(1)?;
            if alone > bound.mul_f64(HOPELESS) + UNCLEAR {
                return Ok(None);
            }
        }
        let least = of(clock.products)?.min(of(clock.products)?);
        Ok(bound.is_none_or(|bound| least < bound).then_some(least))
    }

    /// Room for a product of `rows`: in a short pass, or a long one where there is one as long.
    fn operands(&self, rows: usize) -> Option<Operands> {
        if rows <= COMPARED[COMPARED.len() - 1] {
            return Some(self.of_piece(0, self.found.pointer()));
        }
        let long = self.long.as_ref().filter(|long| rows <= long.rows)?;
        Some(long.operands(self.weight))
    }
}
