//! Documents that read well and have other bytes than were written: a lost line feed at the end,
//! say. A resumed run has to end with the bytes of an uninterrupted one.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::schema::{
    ARM_START_SCHEMA, ArmStart, CALIBRATION_SCHEMA, Calibration, ENGAGEMENT_SCHEMA, Engagement,
    MANIFEST_SCHEMA, Manifest, RESOURCES_SCHEMA, Resources,
};

use super::super::{StoreError, atomic, document};
use super::{CALIBRATION_FILE, MANIFEST_FILE, RunDir, resources_path, start_path};

impl RunDir {
    /// Writes manifest, calibration, engagements, starts and resources again where their bytes are not those that
    /// this version writes.
    pub(super) fn repair(&self) -> Result<(), StoreError> {
        self.repair_one::<Manifest>(MANIFEST_FILE, MANIFEST_SCHEMA)?;
        self.repair_one::<Calibration>(CALIBRATION_FILE, CALIBRATION_SCHEMA)?;
        for arm in &self.manifest.arms {
            super::check_name(&arm.arm)?;
            let file = format!("arms/{}/engagement.json", arm.arm);
            self.repair_one::<Engagement>(&file, ENGAGEMENT_SCHEMA)?;
            self.repair_one::<ArmStart>(&start_path(&arm.arm), ARM_START_SCHEMA)?;
            self.repair_one::<Resources>(&resources_path(&arm.arm), RESOURCES_SCHEMA)?;
        }
        Ok(())
    }

    fn repair_one<T>(&self, relative: &str, schema: &'static str) -> Result<(), StoreError>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        let path = self.path.join(relative);
        let Some((value, found)) = document::read::<T>(&path, schema)? else {
            return Ok(());
        };
        let expected = atomic::document(&path, &value)?;
        if found == expected {
            return Ok(());
        }
        atomic::replace(self.disk.as_ref(), &path, &expected)
    }
}
