//! Device memory that knows its size and purpose and frees itself.

use std::cell::Cell;
use std::rc::Rc;

use cudarc::driver::result;

use super::device::{Device, Purpose, failed};
use crate::backend::BackendError;

/// Device memory.
pub struct Buffer {
    device: Rc<Device>,
    pointer: u64,
    bytes: usize,
    purpose: Purpose,
    /// A recording holds the address.
    recorded: Cell<bool>,
}

impl Buffer {
    /// Takes over `bytes` bytes that the device allocated for `purpose`.
    pub(super) fn new(device: Rc<Device>, pointer: u64, bytes: usize, purpose: Purpose) -> Self {
        Buffer {
            device,
            pointer,
            bytes,
            purpose,
            recorded: Cell::new(false),
        }
    }

    /// Address on the device.
    pub fn pointer(&self) -> u64 {
        if self.device.recordings.is_active() {
            self.recorded.set(true);
        }
        self.pointer
    }

    /// Size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies.
    pub fn device(&self) -> &Rc<Device> {
        &self.device
    }

    /// Makes room for `bytes`; contents are lost where it grows.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn reserve(&mut self, bytes: usize) -> Result<(), BackendError> {
        if bytes > self.bytes {
            *self = self.device.allocate(bytes, self.purpose)?;
        }
        Ok(())
    }

    /// Copies to the start of the buffer, which grows where it is too small.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn write<T: Copy>(&mut self, data: &[T]) -> Result<(), BackendError> {
        self.reserve(size_of_val(data))?;
        self.write_at(0, data)
    }

    /// Copies to byte `first` and on.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the buffer ends before.
    pub fn write_at<T: Copy>(&mut self, first: usize, data: &[T]) -> Result<(), BackendError> {
        assert!(first + size_of_val(data) <= self.bytes, "bytes of a buffer");
        if data.is_empty() {
            return Ok(());
        }
        self.device.recordings.refuse("a copy to the device")?;
        let stream = self.device.stream.cu_stream();
        // SAFETY: the range lies within the buffer; pageable memory may be reused on return.
        unsafe { result::memcpy_htod_async(self.pointer + first as u64, data, stream) }
            .map_err(failed("a copy to the device"))
    }

    /// Copies `bytes` bytes from another address on the device to byte `first` and on.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the buffer ends before.
    ///
    /// # Safety
    /// `from` is the address of `bytes` bytes that are there until the copy is done.
    pub unsafe fn copy_at(
        &mut self,
        first: usize,
        from: u64,
        bytes: usize,
    ) -> Result<(), BackendError> {
        assert!(first + bytes <= self.bytes, "bytes of a buffer");
        self.device.recordings.refuse("a copy on the device")?;
        let stream = self.device.stream.cu_stream();
        // SAFETY: the range lies within the buffer; what is read, the caller promises.
        unsafe { result::memcpy_dtod_async(self.pointer + first as u64, from, bytes, stream) }
            .map_err(failed("a copy on the device"))
    }

    /// Copies `count` elements from the start of the buffer, once everything before is done.
    ///
    /// # Errors
    /// [`BackendError::Device`]: also where an earlier kernel failed.
    ///
    /// # Panics
    /// Where the buffer is smaller.
    pub fn read<T: Copy + Default>(&self, count: usize) -> Result<Vec<T>, BackendError> {
        let mut data = vec![T::default(); count];
        assert!(size_of_val(&data[..]) <= self.bytes, "bytes of a buffer");
        self.device.recordings.refuse("a copy from the device")?;
        if count > 0 {
            let stream = self.device.stream.cu_stream();
            // SAFETY: the buffer is large enough, and the copy ends before `data` is used.
            unsafe { result::memcpy_dtoh_async(&mut data, self.pointer, stream) }
                .map_err(failed("a copy from the device"))?;
        }
        self.device.synchronize()?;
        Ok(data)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn fill(&mut self, byte: u8) -> Result<(), BackendError> {
        self.device.recordings.refuse("filling memory")?;
        let stream = self.device.stream.cu_stream();
        // SAFETY: the range is the buffer's own.
        unsafe { result::memset_d8_async(self.pointer, byte, self.bytes, stream) }
            .map_err(failed("filling memory"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.recorded.get() {
            self.device.recordings.outdate();
        }
        self.device.ledger.remove(self.purpose, self.bytes as u64);
        // SAFETY: allocated by `allocate` in the same way and freed once, after kernels that use it.
        let freed = unsafe {
            if self.device.in_stream_order(self.purpose) {
                result::free_async(self.pointer, self.device.stream.cu_stream())
            } else {
                result::stream::synchronize(self.device.stream.cu_stream())
                    .and_then(|()| result::free_sync(self.pointer))
            }
        };
        self.device.context.record_err(freed);
    }
}
