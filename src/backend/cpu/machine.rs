//! Threads and vector instructions of this machine.

use pulp::Arch;

use crate::backend::BackendError;

/// Makes the calling thread, which is to run the model, one of the threads that share the work.
///
/// A step of a small model is a few hundred operations of some ten microseconds. From a thread
/// outside the pool each of them begins and ends with a switch between threads, which costs as
/// much again; from a thread of the pool it does not. To be called once, before anything else
/// runs in parallel, by a thread that lives as long as the process: a thread that ends no longer
/// does its share. Results are the same with and without.
///
/// # Errors
/// [`BackendError::Device`] where the pool exists already.
pub fn claim_thread() -> Result<(), BackendError> {
    rayon::ThreadPoolBuilder::new()
        .use_current_thread()
        .build_global()
        .map_err(|e| BackendError::Device(format!("thread pool: {e}")))
}

/// The widest vector instructions, in words.
pub(super) fn instructions(arch: Arch) -> &'static str {
    struct Lanes;
    impl pulp::WithSimd for Lanes {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    match arch.dispatch(Lanes) {
        1 => "scalar",
        4 => "128-bit",
        8 => "256-bit",
        _ => "512-bit",
    }
}
