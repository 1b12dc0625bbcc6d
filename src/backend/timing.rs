//! What a bench asks of a backend beside its operations: the time that they take, and the copies
//! whose rates bound them.

use super::{Backend, BackendError};

/// A backend whose work can be timed on its own clock.
pub trait Timed: Backend {
    /// Seconds from the start of the first operation that `work` starts to the end of the last.
    ///
    /// # Errors
    /// What `work` or the clock reports.
    fn seconds(
        &self,
        work: &mut dyn FnMut() -> Result<(), BackendError>,
    ) -> Result<f64, BackendError>;

    /// Bytes per second, read and written ones together, of a copy of `bytes` bytes within the
    /// memory that operations work on.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn copy_rate(&self, bytes: usize) -> Result<f64, BackendError>;

    /// Bytes per second of a copy of `bytes` bytes from the host to where weights live, from
    /// memory that the bus reads without help; `None` where weights stay in the host's memory.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn bus_rate(&self, bytes: usize) -> Result<Option<f64>, BackendError>;

    /// Waits for what was started.
    ///
    /// # Errors
    /// [`BackendError::Device`]: also what failed since the last wait.
    fn wait(&self) -> Result<(), BackendError>;
}
