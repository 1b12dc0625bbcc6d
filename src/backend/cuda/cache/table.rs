//! Where every page of every slot lies, on both sides.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::{PAGE, Page};
use crate::backend::cuda::device::{Buffer, Device, Purpose};
use crate::backend::{BackendError, CacheLayout};

/// Bytes that are copied in about the time that it takes to start a copy.
const WORTH_A_COPY: usize = 40_000;
/// So few parts are copied one by one however small the table is.
const FEW_COPIES: usize = 4;

/// Pages of all slots, `[kinds][slots][pages per slot]`.
pub struct Table {
    pages: Pages,
    device: Buffer,
}

/// The table on the host, and what the device does not know of it.
struct Pages {
    all: Vec<Page>,
    slots: usize,
    per_slot: usize,
    /// Changed entries by row of the table.
    changed: BTreeMap<usize, Range<usize>>,
}

impl Pages {
    fn new(kinds: usize, layout: &CacheLayout) -> Self {
        let per_slot = layout.slot_tokens.div_ceil(PAGE);
        Pages {
            all: vec![Page::default(); kinds * layout.slots * per_slot],
            slots: layout.slots,
            per_slot,
            changed: BTreeMap::new(),
        }
    }

    fn put(&mut self, (kind, slot, number): (usize, usize, usize), page: Page) {
        let row = kind * self.slots + slot;
        let at = row * self.per_slot + number;
        self.all[at] = page;
        let changed = self.changed.entry(row).or_insert(at..at + 1);
        *changed = changed.start.min(at)..changed.end.max(at + 1);
    }

    /// Parts that are to be copied, after which the device knows everything.
    fn take_changed(&mut self) -> Vec<Range<usize>> {
        let changed = std::mem::take(&mut self.changed);
        if changed.len() > self.most_copies() {
            return std::iter::once(0..self.all.len()).collect();
        }
        changed.into_values().collect()
    }

    /// Most parts that are copied one by one: with more, the whole table takes less time.
    fn most_copies(&self) -> usize {
        FEW_COPIES + size_of_val(&self.all[..]) / WORTH_A_COPY
    }
}

impl Table {
    /// A table without pages.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(
        device: &Rc<Device>,
        kinds: usize,
        layout: &CacheLayout,
    ) -> Result<Self, BackendError> {
        let pages = Pages::new(kinds, layout);
        Ok(Table {
            device: device.upload(&pages.all, Purpose::Staging)?,
            pages,
        })
    }

    /// Puts a page where kind, slot and number say.
    pub fn put(&mut self, place: (usize, usize, usize), page: Page) {
        self.pages.put(place, page);
    }

    /// Lets the device know of every change.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn write(&mut self) -> Result<(), BackendError> {
        for part in self.pages.take_changed() {
            let first = part.start * size_of::<Page>();
            self.device.write_at(first, &self.pages.all[part])?;
        }
        Ok(())
    }

    /// Pages per slot.
    pub fn per_slot(&self) -> usize {
        self.pages.per_slot
    }

    /// Pages of all slots of a kind.
    pub fn per_kind(&self) -> usize {
        self.pages.slots * self.pages.per_slot
    }

    /// Address of a slot's pages of a kind.
    pub fn address(&self, kind: usize, slot: usize) -> u64 {
        let first = kind * self.per_kind() + slot * self.pages.per_slot;
        self.device.pointer() + (first * size_of::<Page>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::conformance::Shape;
    use crate::recipe::NativeDtype;

    proptest! {
        /// A device that gets the changed parts knows the whole table.
        #[test]
        fn what_changed_is_copied(
            slots in 1usize..300,
            passes in proptest::collection::vec(
                proptest::collection::vec((0usize..2, 0usize..300, 0usize..40, 1u64..1000), 0..400),
                1..4,
            ),
        ) {
            let shape = Shape { layers: 1, heads: 1, kv_heads: 1, head_dim: 8 };
            let layout = CacheLayout {
                slots,
                slot_tokens: 40 * PAGE,
                ..shape.layout("native", NativeDtype::F16)
            };
            let mut pages = Pages::new(2, &layout);
            let mut device = pages.all.clone();
            for puts in passes {
                for (kind, slot, number, stored) in puts {
                    let page = Page { stored, counts: 0 };
                    pages.put((kind, slot % slots, number), page);
                }
                let parts = pages.take_changed();
                prop_assert!(parts.len() <= pages.most_copies());
                for part in parts {
                    device[part.clone()].copy_from_slice(&pages.all[part]);
                }
                prop_assert_eq!(&device, &pages.all);
                prop_assert!(pages.take_changed().is_empty());
            }
        }
    }
}
