//! Rows of a pass and rotary tables on the device, copied once and found again by what they are.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::device::{Buffer, Device, Purpose};
use super::plan::{Blocks, Plan};
use super::tensor::int;
use crate::backend::{BackendError, CacheRow, RotaryTable};

/// A pass and its last layer have different rows; more are not needed at a time.
const KEPT: usize = 2;

/// Rows, with the plans of attention over them.
pub struct DeviceRows {
    rows: Vec<CacheRow>,
    /// Slot and position, `[rows][2]`.
    places: Buffer,
    /// One for every kind of layer.
    plans: RefCell<Vec<KeptPlan>>,
}

/// A plan with the blocks that it was made for.
type KeptPlan = (Blocks, Rc<DevicePlan>);

/// A plan on the device.
pub struct DevicePlan {
    /// On the host.
    pub plan: Plan,
    few: Buffer,
    many: Buffer,
    rows: Buffer,
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
        let places: Vec<[i32; 2]> = rows
            .iter()
            .map(|row| [int(row.slot), int(row.position)])
            .collect();
        Ok(DeviceRows {
            rows: rows.to_vec(),
            places: device.upload(&places, Purpose::Staging)?,
            plans: RefCell::default(),
        })
    }

    /// Slots and positions on the device.
    pub fn places(&self) -> u64 {
        self.places.pointer()
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
        let mut kept = self.plans.borrow_mut();
        if let Some((_, plan)) = kept.iter().find(|(key, _)| *key == blocks) {
            return Ok(Rc::clone(plan));
        }
        let plan = Rc::new(DevicePlan::new(device, Plan::new(&self.rows, blocks))?);
        kept.push((blocks, Rc::clone(&plan)));
        Ok(plan)
    }
}

impl DevicePlan {
    fn new(device: &Rc<Device>, plan: Plan) -> Result<Self, BackendError> {
        let rows = [&plan.members[..], &plan.long_rows].concat();
        Ok(DevicePlan {
            few: device.upload(&plan.few, Purpose::Staging)?,
            many: device.upload(&plan.many, Purpose::Staging)?,
            rows: device.upload(&rows, Purpose::Staging)?,
            plan,
        })
    }

    /// Where the parts lie.
    pub fn addresses(&self) -> PlanAddresses {
        let members = self.rows.pointer();
        PlanAddresses {
            few: self.few.pointer(),
            many: self.many.pointer(),
            members,
            long_rows: members + 4 * self.plan.members.len() as u64,
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
            &self.rows,
            |kept| kept.rows == rows,
            || DeviceRows::new(device, rows),
        )
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
        find_or_add(&self.tables, is_same, add)
    }
}

/// Finds an entry, or adds one in place of the oldest.
fn find_or_add<T>(
    kept: &RefCell<Vec<Rc<T>>>,
    is_same: impl Fn(&T) -> bool,
    add: impl FnOnce() -> Result<T, BackendError>,
) -> Result<Rc<T>, BackendError> {
    let mut kept = kept.borrow_mut();
    if let Some(found) = kept.iter().find(|entry| is_same(entry)) {
        return Ok(Rc::clone(found));
    }
    let added = Rc::new(add()?);
    if kept.len() == KEPT {
        kept.remove(0);
    }
    kept.push(Rc::clone(&added));
    Ok(added)
}
