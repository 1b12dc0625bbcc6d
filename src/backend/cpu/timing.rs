//! Timing on the clock of the processor: operations are complete when they return.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use super::CpuBackend;
use crate::backend::BackendError;
use crate::backend::timing::Timed;

/// Bytes that one thread copies at a time.
const CHUNK: usize = 1 << 20;
/// Copies of which the fastest counts; the first one also makes the memory exist.
const COPIES: usize = 4;

impl Timed for CpuBackend {
    fn seconds(
        &self,
        work: &mut dyn FnMut() -> Result<(), BackendError>,
    ) -> Result<f64, BackendError> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn copy_rate(&self, bytes: usize) -> Result<f64, BackendError> {
        let from = vec![1u8; bytes];
        let mut to = vec![0u8; bytes];
        let mut fastest = f64::INFINITY;
        for _ in 0..COPIES {
            let start = Instant::now();
            to.par_chunks_mut(CHUNK)
                .zip(from.par_chunks(CHUNK))
                .for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to);
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
        Ok(2.0 * bytes as f64 / fastest)
    }

    fn bus_rate(&self, _: usize) -> Result<Option<f64>, BackendError> {
        Ok(None)
    }

    fn wait(&self) -> Result<(), BackendError> {
        Ok(())
    }
}
