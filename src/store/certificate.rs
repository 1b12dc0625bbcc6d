//! Certificates of a run directory.

use crate::schema::{CERTIFICATE_SCHEMA, Certificate};

use super::document;
use super::run::check_name;
use super::{RunDir, StoreError};

impl RunDir {
    /// Writes the certificate of the recipe `name`.
    ///
    /// # Errors
    /// As [`RunDir::write_engagement`].
    pub fn write_certificate(
        &self,
        name: &str,
        certificate: &Certificate,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        let file = format!("{name}.json");
        self.write(&["certificates"], &file, CERTIFICATE_SCHEMA, certificate)
    }

    /// Refuses what [`RunDir::write_certificate`] would not replace, and touches nothing.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for what a newer version wrote; [`StoreError::Name`].
    pub fn check_certificate(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        let path = self.path().join(format!("certificates/{name}.json"));
        document::check_overwrite(&path, CERTIFICATE_SCHEMA)
    }

    /// The certificate of the recipe `name`, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn certificate(&self, name: &str) -> Result<Option<Certificate>, StoreError> {
        check_name(name)?;
        self.read(&format!("certificates/{name}.json"), CERTIFICATE_SCHEMA)
    }
}
