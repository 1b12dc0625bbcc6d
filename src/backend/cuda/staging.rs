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

    /// Puts `parts` at the start, one after another, once the latest copy out of it is done; returns
    /// their bytes, and whether all of what was put there is right, as far as pieces tell: of parts that are
    /// whole numbers of 1, 2, 4 or 8 bytes none is cut within a number.
    fn fill(
        &mut self,
        parts: &[&[u8]],
        is_right: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<(usize, bool), BackendError> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        assert!(bytes <= self.bytes, "bytes of page-locked memory");
        // SAFETY: the event is alive; one that was never recorded is reached.
        unsafe { event::synchronize(self.copied) }.map_err(failed("a copy to the device"))?;
        // SAFETY: the memory has at least as many bytes, belongs to this value alone, and nothing
        // reads it any more.
        let mut left = unsafe { std::slice::from_raw_parts_mut(self.pointer.cast::<u8>(), bytes) };
        let mut pairs = Vec::with_capacity(bytes.div_ceil(CHUNK) + parts.len());
        for from in parts.iter().flat_map(|part| part.chunks(CHUNK)) {
            let (to, rest) = left.split_at_mut(from.len());
            left = rest;
            pairs.push((to, from));
        }
        // What was just copied is near still.
        let copy = |(to, from): (&mut [u8], &[u8])| {
            to.copy_from_slice(from);
            is_right(to)
        };
        let pieces = pairs.into_par_iter().map(copy);
        Ok((bytes, pieces.reduce(|| true, |all, own| all & own)))
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
    /// Fills a buffer with `parts`, one after another. The last pieces may be under way still; what is
    /// started later sees them.
    ///
    /// # Errors
    /// [`BackendError::Device`] where page-locked memory or a copy fails.
    ///
    /// # Panics
    /// Where the buffer is smaller.
    pub fn fill(&mut self, buffer: &Buffer, parts: &[&[u8]]) -> Result<(), BackendError> {
        self.fill_checked(buffer, parts, |_| true).map(|_| ())
    }

    /// The same, and whether all of what was copied is right, as far as pieces tell: of parts that are whole
    /// numbers of 1, 2, 4 or 8 bytes none is cut within a number. Where one is not, the rest is left out.
    ///
    /// # Errors
    /// As [`Staging::fill`].
    ///
    /// # Panics
    /// As [`Staging::fill`].
    pub fn fill_checked(
        &mut self,
        buffer: &Buffer,
        parts: &[&[u8]],
        is_right: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<bool, BackendError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert!(bytes <= buffer.bytes(), "bytes of a buffer");
        while self.pieces.len() < PIECES {
            self.pieces.push(Pinned::new(buffer.device(), PIECE)?);
        }
        let mut to = buffer.pointer();
        for piece in pieces(parts, PIECE) {
            let pinned = &mut self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            let (bytes, all_right) = pinned.fill(&piece, &is_right)?;
            if !all_right {
                return Ok(false);
            }
            pinned.copy_to(to, bytes)?;
            to += bytes as u64;
        }
        Ok(true)
    }
}

/// Parts of `most` bytes each, and of the rest, of what `parts` are one after another: weights of experts
/// are many small parts, each of which would take longer to start than to copy.
fn pieces<'a>(parts: &[&'a [u8]], most: usize) -> Vec<Vec<&'a [u8]>> {
    let mut pieces = Vec::new();
    let (mut piece, mut room) = (Vec::new(), most);
    for part in parts {
        let mut left = *part;
        while !left.is_empty() {
            let (own, rest) = left.split_at(left.len().min(room));
            piece.push(own);
            (left, room) = (rest, room - own.len());
            if room == 0 {
                pieces.push(std::mem::take(&mut piece));
                room = most;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every byte comes once and in order, in as few pieces as hold them.
        #[test]
        fn pieces_are_full_and_leave_nothing_out(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..12),
            most in 1usize..60,
        ) {
            let borrowed: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let found: Vec<Vec<u8>> = pieces(&borrowed, most).iter().map(|piece| piece.concat()).collect();
            let all = parts.concat();
            let expected: Vec<&[u8]> = all.chunks(most).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
