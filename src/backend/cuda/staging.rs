//! Copies of weights from the host: through page-locked memory, which the bus reads at its own
//! rate, while the next piece is being put there.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::result::{self, event};
use cudarc::driver::sys;
use rayon::prelude::*;

use super::device::{Buffer, Device, failed};
use crate::backend::BackendError;

/// Bytes of a piece, and pieces that take turns: one is being filled while others are under way.
const PIECE: usize = 16 << 20;
const PIECES: usize = 4;
/// Bytes that one thread copies at a time.
const CHUNK: usize = 256 << 10;

/// Page-locked memory of the host.
pub struct Pinned {
    device: Rc<Device>,
    pointer: *mut c_void,
    bytes: usize,
    /// Recorded behind the latest copy out of it.
    copied: sys::CUevent,
}

impl Pinned {
    /// Allocates.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(device: &Rc<Device>, bytes: usize) -> Result<Self, BackendError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let copied = event::create(flags).map_err(failed("an event"))?;
        // SAFETY: freed once, by `drop`.
        let pointer = unsafe { result::malloc_host(bytes.max(1), 0) };
        match pointer.map_err(failed("page-locked memory")) {
            Ok(pointer) => Ok(Pinned {
                device: Rc::clone(device),
                pointer,
                bytes,
                copied,
            }),
            Err(error) => {
                // SAFETY: created above, used nowhere. What fails leaks an event only.
                let _ = unsafe { event::destroy(copied) };
                Err(error)
            }
        }
    }

    /// Puts `data` at the start, once the latest copy out of it is done.
    fn fill(&mut self, data: &[u8]) -> Result<(), BackendError> {
        assert!(data.len() <= self.bytes, "bytes of page-locked memory");
        // SAFETY: the event is alive; one that was never recorded is reached.
        unsafe { event::synchronize(self.copied) }.map_err(failed("a copy to the device"))?;
        // SAFETY: the memory has at least as many bytes, belongs to this value alone, and nothing
        // reads it any more.
        let to = unsafe { std::slice::from_raw_parts_mut(self.pointer.cast::<u8>(), data.len()) };
        to.par_chunks_mut(CHUNK)
            .zip(data.par_chunks(CHUNK))
            .for_each(|(to, from)| to.copy_from_slice(from));
        Ok(())
    }

    /// Starts a copy of the first `bytes` bytes to an address on the device, which has to have
    /// room for them until the copy is done.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn copy_to(&self, to: u64, bytes: usize) -> Result<(), BackendError> {
        assert!(bytes <= self.bytes, "bytes of page-locked memory");
        let stream = self.device.stream.cu_stream();
        // SAFETY: the memory has that many bytes and outlives the copy: `fill` and `drop` wait.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, self.pointer, bytes, stream)
                .result()
                .and_then(|()| event::record(self.copied, stream))
        }
        .map_err(failed("a copy to the device"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated and created once; nothing reads the memory behind the event.
        let freed = unsafe {
            event::synchronize(self.copied)
                .and_then(|()| result::free_host(self.pointer))
                .and_then(|()| event::destroy(self.copied))
        };
        self.device.context.record_err(freed);
    }
}

/// Pieces of page-locked memory that take turns; allocated when first needed.
#[derive(Default)]
pub struct Staging {
    pieces: Vec<Pinned>,
    next: usize,
}

impl Staging {
    /// Fills a buffer from byte `first` on. The last pieces may be under way still; what is started
    /// later sees them.
    ///
    /// # Errors
    /// [`BackendError::Device`] where page-locked memory or a copy fails.
    ///
    /// # Panics
    /// Where the buffer is smaller.
    pub fn fill<T: Copy>(
        &mut self,
        buffer: &Buffer,
        first: usize,
        data: &[T],
    ) -> Result<(), BackendError> {
        assert!(
            first + size_of_val(data) <= buffer.bytes(),
            "bytes of a buffer"
        );
        while self.pieces.len() < PIECES {
            self.pieces.push(Pinned::new(buffer.device(), PIECE)?);
        }
        // SAFETY: the numbers that tensors are made of have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) };
        let mut to = buffer.pointer() + first as u64;
        for piece in <[u8]>::chunks(bytes, PIECE) {
            let pinned = &mut self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            pinned.fill(piece)?;
            pinned.copy_to(to, piece.len())?;
            to += piece.len() as u64;
        }
        Ok(())
    }
}
