//! Timing by events of the stream, and plain copies.

use cudarc::driver::result::event;
use cudarc::driver::{result, sys};

use super::CudaBackend;
use super::device::{Device, Purpose, failed};
use super::library::{self, Needed};
use super::staging::Pinned;
use crate::backend::BackendError;
use crate::backend::timing::Timed;

/// Copies of which the fastest counts.
const COPIES: usize = 4;

/// A mark in the order of a stream, destroyed at the end.
struct Mark(sys::CUevent);

impl Mark {
    /// Behind everything that was started.
    fn now(device: &Device) -> Result<Self, BackendError> {
        let created = event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let mark = Mark(created.map_err(failed("an event"))?);
        // SAFETY: event and stream are alive and of the context that is current here.
        unsafe { event::record(mark.0, device.stream.cu_stream()) }.map_err(failed("an event"))?;
        Ok(mark)
    }

    /// Seconds from here to `end`, once that was reached.
    fn until(&self, end: &Mark) -> Result<f64, BackendError> {
        // SAFETY: both were recorded on one stream and are alive.
        let elapsed =
            unsafe { event::synchronize(end.0).and_then(|()| event::elapsed(self.0, end.0)) };
        Ok(f64::from(elapsed.map_err(failed("an event"))?) / 1e3)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once. What fails leaks an event only.
        let _ = unsafe { event::destroy(self.0) };
    }
}

impl CudaBackend {
    fn fastest(
        &self,
        mut copy: impl FnMut() -> Result<(), BackendError>,
    ) -> Result<f64, BackendError> {
        let mut fastest = f64::INFINITY;
        for _ in 0..COPIES {
            fastest = fastest.min(self.seconds(&mut copy)?);
        }
        Ok(fastest)
    }
}

impl Timed for CudaBackend {
    fn seconds(
        &self,
        work: &mut dyn FnMut() -> Result<(), BackendError>,
    ) -> Result<f64, BackendError> {
        library::open(Needed::Timing)?;
        let device = &self.kernels.device;
        let start = Mark::now(device)?;
        work()?;
        let end = Mark::now(device)?;
        let seconds = start.until(&end)?;
        device.synchronize()?;
        Ok(seconds)
    }

    fn copy_rate(&self, bytes: usize) -> Result<f64, BackendError> {
        let device = &self.kernels.device;
        let mut from = device.allocate(bytes, Purpose::Staging)?;
        let to = device.allocate(bytes, Purpose::Staging)?;
        from.fill(1)?;
        let stream = device.stream.cu_stream();
        let fastest = self.fastest(|| {
            // SAFETY: both buffers have `bytes` bytes and outlive the copy, which is waited for.
            unsafe { result::memcpy_dtod_async(to.pointer(), from.pointer(), bytes, stream) }
                .map_err(failed("a copy"))
        })?;
        Ok(2.0 * bytes as f64 / fastest)
    }

    fn bus_rate(&self, bytes: usize) -> Result<Option<f64>, BackendError> {
        let device = &self.kernels.device;
        let from = Pinned::new(device, bytes)?;
        let to = device.allocate(bytes, Purpose::Staging)?;
        let fastest = self.fastest(|| from.copy_to(to.pointer(), bytes))?;
        Ok(Some(bytes as f64 / fastest))
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.kernels.device.synchronize()
    }
}
