//! Rows of a pass and rotary tables on the device, copied once and found again by what they are.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::device::{Buffer, Device, Purpose};
use super::plan::{Blocks, Job, Plan, PlanSizes};
use super::tensor::int;
use crate::backend::{BackendError, CacheRow, RotaryTable};

/// A pass and its last layer have different rows; more are not needed at a time.
const KEPT_ROWS: usize = 2;
/// Rotary tables: those of queries and of keys, of every kind of layer.
const KEPT_TABLES: usize = 8;

/// Rows, with the plans of attention over them.
pub struct DeviceRows {
    rows: RefCell<Vec<CacheRow>>,
    /// Slot and position, `[rows][2]`.
    places: RefCell<Buffer>,
    /// One for every kind of layer.
    plans: RefCell<Vec<(Blocks, Rc<DevicePlan>)>>,
}

/// A plan on the device.
pub struct DevicePlan {
    /// On the host.
    pub plan: Plan,
    /// Its parts, one after another.
    words: Rc<RefCell<Buffer>>,
}

/// Addresses of a plan's parts.
#[derive(Clone, Copy)]
pub struct PlanAddresses {
    /// `[few]`.
    pub few: u64,
    /// `[many]`.
    pub many: u64,
    /// `[members]`.
    pub members: u64,
    /// `[long rows]`.
    pub long_rows: u64,
}

impl DeviceRows {
    fn new(device: &Rc<Device>, rows: &[CacheRow]) -> Result<Self, BackendError> {
        let places = device.upload(&places(rows), Purpose::Staging)?;
        Ok(DeviceRows {
            rows: RefCell::new(rows.to_vec()),
            places: RefCell::new(places),
            plans: RefCell::default(),
        })
    }

    /// Slots and positions on the device.
    pub fn places(&self) -> u64 {
        self.places.borrow().pointer()
    }

    /// The plan for blocks of these sizes.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn plan(
        &self,
        device: &Rc<Device>,
        blocks: Blocks,
    ) -> Result<Rc<DevicePlan>, BackendError> {
        let mut plans = self.plans.borrow_mut();
        if let Some((_, plan)) = plans.iter().find(|(known, _)| *known == blocks) {
            return Ok(Rc::clone(plan));
        }
        let plan = Plan::new(&self.rows.borrow(), blocks);
        let words = device.upload(&plan.words(), Purpose::Staging)?;
        let plan = Rc::new(DevicePlan {
            plan,
            words: Rc::new(RefCell::new(words)),
        });
        plans.push((blocks, Rc::clone(&plan)));
        Ok(plan)
    }

    /// Blocks that were planned for, with the sizes of their plans.
    pub fn sizes(&self) -> Vec<(Blocks, PlanSizes)> {
        let plans = self.plans.borrow();
        let sizes = |(blocks, plan): &(Blocks, Rc<DevicePlan>)| (*blocks, plan.plan.sizes());
        plans.iter().map(sizes).collect()
    }

    /// Puts as many other rows in the place of these, on the device too, so that addresses stay;
    /// `false`, with nothing changed, where their plans have other sizes.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn replace(&self, rows: &[CacheRow]) -> Result<bool, BackendError> {
        let mut plans = self.plans.borrow_mut();
        let fresh: Vec<Plan> = plans
            .iter()
            .map(|(blocks, _)| Plan::new(rows, *blocks))
            .collect();
        let fits =
            |((_, old), new): (&(Blocks, Rc<DevicePlan>), &Plan)| old.plan.sizes() == new.sizes();
        if rows.len() != self.rows.borrow().len() || !plans.iter().zip(&fresh).all(fits) {
            return Ok(false);
        }
        self.places.borrow_mut().write(&places(rows))?;
        for ((_, kept), plan) in plans.iter_mut().zip(fresh) {
            let words = Rc::clone(&kept.words);
            words.borrow_mut().write(&plan.words())?;
            *kept = Rc::new(DevicePlan { plan, words });
        }
        *self.rows.borrow_mut() = rows.to_vec();
        Ok(true)
    }
}

fn places(rows: &[CacheRow]) -> Vec<[i32; 2]> {
    let place = |row: &CacheRow| [int(row.slot), int(row.position)];
    rows.iter().map(place).collect()
}

impl DevicePlan {
    /// Where the parts lie.
    pub fn addresses(&self) -> PlanAddresses {
        let PlanSizes {
            few, many, members, ..
        } = self.plan.sizes();
        let first = self.words.borrow().pointer();
        let jobs = size_of::<Job>() as u64;
        let many_at = first + few as u64 * jobs;
        let members_at = many_at + many as u64 * jobs;
        PlanAddresses {
            few: first,
            many: many_at,
            members: members_at,
            long_rows: members_at + 4 * members as u64,
        }
    }
}

/// A rotary table on the device.
pub struct DeviceTable {
    cos: Arc<[f32]>,
    sin: Arc<[f32]>,
    device: [Buffer; 2],
}

impl DeviceTable {
    /// Cosines and sines on the device.
    pub fn addresses(&self) -> [u64; 2] {
        [self.device[0].pointer(), self.device[1].pointer()]
    }
}

/// What was used last.
#[derive(Default)]
pub struct Kept {
    rows: RefCell<Vec<Rc<DeviceRows>>>,
    tables: RefCell<Vec<Rc<DeviceTable>>>,
}

impl Kept {
    /// The rows on the device.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn rows(
        &self,
        device: &Rc<Device>,
        rows: &[CacheRow],
    ) -> Result<Rc<DeviceRows>, BackendError> {
        find_or_add(
            (&self.rows, KEPT_ROWS),
            |kept| *kept.rows.borrow() == rows,
            || DeviceRows::new(device, rows),
        )
    }

    /// The rows on the device at addresses of their own, with plans for `blocks`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn planned(
        &self,
        device: &Rc<Device>,
        rows: &[CacheRow],
        blocks: impl Iterator<Item = Blocks>,
    ) -> Result<Rc<DeviceRows>, BackendError> {
        let added = || {
            let rows = DeviceRows::new(device, rows)?;
            for blocks in blocks {
                rows.plan(device, blocks)?;
            }
            Ok(rows)
        };
        find_or_add((&self.rows, KEPT_ROWS), |_| false, added)
    }

    /// The table on the device. Tables are told apart by identity: what is kept here keeps its
    /// numbers alive, so no other table can take their place.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn table(
        &self,
        device: &Rc<Device>,
        table: &RotaryTable,
    ) -> Result<Rc<DeviceTable>, BackendError> {
        let is_same = |kept: &DeviceTable| {
            Arc::ptr_eq(&kept.cos, &table.cos) && Arc::ptr_eq(&kept.sin, &table.sin)
        };
        let add = || {
            Ok(DeviceTable {
                cos: Arc::clone(&table.cos),
                sin: Arc::clone(&table.sin),
                device: [
                    device.upload(&table.cos, Purpose::Staging)?,
                    device.upload(&table.sin, Purpose::Staging)?,
                ],
            })
        };
        find_or_add((&self.tables, KEPT_TABLES), is_same, add)
    }
}

/// Finds an entry, or adds one in place of the oldest.
fn find_or_add<T>(
    (kept, most): (&RefCell<Vec<Rc<T>>>, usize),
    is_same: impl Fn(&T) -> bool,
    add: impl FnOnce() -> Result<T, BackendError>,
) -> Result<Rc<T>, BackendError> {
    let mut kept = kept.borrow_mut();
    if let Some(found) = kept.iter().rev().find(|entry| is_same(entry)) {
        return Ok(Rc::clone(found));
    }
    let added = Rc::new(add()?);
    if kept.len() == most {
        kept.remove(0);
    }
    kept.push(Rc::clone(&added));
    Ok(added)
}
