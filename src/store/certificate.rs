//! Certificates of a run directory.

use std::fs;

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

    /// Writes the badge beside the certificate of the recipe `name`, atomically.
    ///
    /// # Errors
    /// As [`RunDir::write_panel`].
    pub fn write_badge(&self, name: &str, svg: &[u8]) -> Result<(), StoreError> {
        check_name(name)?;
        self.write_bytes(&["certificates"], &format!("{name}.svg"), svg)
    }

    /// Refuses what [`RunDir::write_certificate`] would not replace, and touches nothing.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for what a newer version wrote; [`StoreError::Name`].
    pub fn check_certificate(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        let path = self.path().join(certificate_path(name));
        document::check_overwrite(&path, CERTIFICATE_SCHEMA)
    }

    /// Removes the certificate of the recipe `name`; whether there was one. A file in its place that
    /// is no certificate of this version stays.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Name`], [`StoreError::Locked`].
    pub fn remove_certificate(&self, name: &str) -> Result<bool, StoreError> {
        check_name(name)?;
        let path = self.path().join(certificate_path(name));
        let is_ours = document::read_tree(&path)
            .is_ok_and(|tree| tree["schema"].as_str() == Some(CERTIFICATE_SCHEMA));
        if is_ours {
            self.lock_for_writing()?;
            fs::remove_file(&path).map_err(StoreError::io(&path, "remove"))?;
        }
        Ok(is_ours)
    }

    /// The certificate of the recipe `name`, where there is one.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn certificate(&self, name: &str) -> Result<Option<Certificate>, StoreError> {
        check_name(name)?;
        self.read(&certificate_path(name), CERTIFICATE_SCHEMA)
    }
}

/// The certificate of the recipe `name`, by its path in the run directory.
fn certificate_path(name: &str) -> String {
    format!("certificates/{name}.json")
}
