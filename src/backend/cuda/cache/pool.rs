//! Pages of 16 tokens from slabs that are allocated on demand.

use std::ops::Range;
use std::rc::Rc;

use crate::backend::BackendError;
use crate::backend::cuda::device::{Buffer, Device, Purpose};

/// Bytes of a slab, unless a page is larger or fewer pages can ever be used.
const SLAB_BYTES: usize = 256 << 20;

/// Where a page lies; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Stored elements and scales of the kind's layers.
    pub stored: u64,
    /// Their counters; 0 where none are kept.
    pub counts: u64,
}

/// Sizes of a page and most pages.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    /// Bytes of stored elements and scales.
    pub stored: usize,
    /// Bytes of counters.
    pub counts: usize,
    /// Pages that the slots can hold together.
    pub most: usize,
}

impl PoolShape {
    /// Pages of the next slab where `pages` exist: never more than can still be used, so that a
    /// full cache takes the bytes of its pages and not one more.
    fn slab_pages(&self, pages: usize) -> usize {
        let left = self.most.saturating_sub(pages);
        slab_pages(self.stored).min(left).max(1)
    }
}

/// All pages of one kind of layers.
pub struct Pool {
    device: Rc<Device>,
    shape: PoolShape,
    slabs: Vec<[Buffer; 2]>,
    free: Vec<Page>,
    pages: usize,
    /// Zeros under scales of 1.
    stand_in: Option<Buffer>,
}

/// Pages of a slab that is not cut short.
pub fn slab_pages(stored: usize) -> usize {
    (SLAB_BYTES / stored.max(1)).max(1)
}

impl Pool {
    /// A pool without pages; where some will be given back, with a page to stand in for them, whose
    /// scales lie in `scales`.
    ///
    /// # Errors
    /// [`BackendError::Device`] where memory is out.
    pub fn new(
        device: &Rc<Device>,
        shape: PoolShape,
        scales: Option<Vec<Range<usize>>>,
    ) -> Result<Self, BackendError> {
        let stand_in = scales.map(|scales| {
            let mut page = vec![0_u8; shape.stored];
            for range in scales {
                let (scales, _) = page[range].as_chunks_mut();
                scales.fill(1.0_f32.to_le_bytes());
            }
            device.upload(&page, Purpose::Staging)
        });
        Ok(Pool {
            device: Rc::clone(device),
            shape,
            slabs: Vec::new(),
            free: Vec::new(),
            pages: 0,
            stand_in: stand_in.transpose()?,
        })
    }

    /// What attention reads in the place of a page that was given back.
    pub fn stand_in(&self) -> Page {
        Page {
            stored: self.stand_in.as_ref().map_or(0, Buffer::pointer),
            counts: 0,
        }
    }

    /// A page, whose contents are unspecified.
    ///
    /// # Errors
    /// [`BackendError::Device`] where memory is out.
    pub fn take(&mut self) -> Result<Page, BackendError> {
        if self.free.is_empty() {
            self.grow()?;
        }
        self.free
            .pop()
            .ok_or_else(|| BackendError::Device("cuda: a pool without pages".to_owned()))
    }

    /// Takes a page back.
    pub fn give(&mut self, page: Page) {
        self.free.push(page);
    }

    fn grow(&mut self) -> Result<(), BackendError> {
        let PoolShape { stored, counts, .. } = self.shape;
        let pages = self.shape.slab_pages(self.pages);
        let slab = [
            self.device.allocate(pages * stored, Purpose::Cache)?,
            self.device.allocate(pages * counts, Purpose::Counters)?,
        ];
        // The lowest addresses are used first.
        self.free.extend((0..pages).rev().map(|page| Page {
            stored: slab[0].pointer() + (page * stored) as u64,
            counts: slab[1].pointer() + (page * counts) as u64,
        }));
        self.slabs.push(slab);
        self.pages += pages;
        Ok(())
    }

    /// The stored bytes of a page.
    #[cfg(test)]
    pub fn read(&self, page: Page) -> Result<Vec<u8>, BackendError> {
        let holds = |slab: &&[Buffer; 2]| {
            (slab[0].pointer()..slab[0].pointer() + slab[0].bytes() as u64).contains(&page.stored)
        };
        let slab = self.slabs.iter().find(holds).expect("a page of this pool");
        let first = (page.stored - slab[0].pointer()) as usize;
        let bytes: Vec<u8> = slab[0].read(first + self.shape.stored)?;
        Ok(bytes[first..].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Slabs of a pool that grows to its limit hold exactly its pages.
        #[test]
        fn slabs_add_up_to_the_pages(stored in 1usize..600 << 20, most in 1usize..4_000) {
            let shape = PoolShape { stored, counts: 0, most };
            let (mut pages, mut slabs) = (0, 0);
            while pages < most {
                let slab = shape.slab_pages(pages);
                prop_assert!(slab == 1 || slab * stored <= SLAB_BYTES);
                pages += slab;
                slabs += 1;
            }
            prop_assert_eq!(pages, most);
            prop_assert!(slabs <= most);
        }
    }
}
