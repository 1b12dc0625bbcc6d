//! Outputs compared word by word on the device.

use super::super::Products;
use crate::backend::BackendError;
use crate::backend::cuda::device::{Buffer, Purpose, launch};

/// Counts words that differ.
pub struct Differing<'a> {
    products: &'a Products,
    count: Buffer,
}

impl<'a> Differing<'a> {
    /// None yet.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(products: &'a Products) -> Result<Self, BackendError> {
        let count = products.kernels.device.upload(&[0_u32], Purpose::Staging)?;
        Ok(Differing { products, count })
    }

    /// Compares `words` words at two addresses.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn count(&self, a: u64, b: u64, words: i64) -> Result<(), BackendError> {
        let kernels = &self.products.kernels;
        let (function, to) = (kernels.get("compare")?, self.count.pointer());
        // SAFETY: both outputs hold at least `words` words.
        unsafe { launch!(kernels.device, function, (1024, 1, 1), 256, 0; a, b, words, to) }
    }

    /// Whether none differed.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn is_none(&self) -> Result<bool, BackendError> {
        Ok(self.count.read::<u32>(1)? == [0])
    }
}
