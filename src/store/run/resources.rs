//! What arms took of the machine.

use super::{RunDir, check_name};
use crate::schema::{RESOURCES_SCHEMA, Resources};
use crate::store::StoreError;

/// Name of the document inside an arm's folder.
const RESOURCES_FILE: &str = "resources.json";

impl RunDir {
    /// Writes what an arm took.
    ///
    /// # Errors
    /// As [`RunDir::write_engagement`].
    pub fn write_resources(&self, arm: &str, resources: &Resources) -> Result<(), StoreError> {
        check_name(arm)?;
        self.write(&["arms", arm], RESOURCES_FILE, RESOURCES_SCHEMA, resources)
    }

    /// What an arm took, where it is written down.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn resources(&self, arm: &str) -> Result<Option<Resources>, StoreError> {
        check_name(arm)?;
        self.read(&resources_path(arm), RESOURCES_SCHEMA)
    }
}

/// Path of what `arm` took, below the run directory.
pub fn resources_path(arm: &str) -> String {
    format!("arms/{arm}/{RESOURCES_FILE}")
}
