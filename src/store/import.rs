//! What an import leaves in a run directory.

use crate::schema::{IMPORT_SCHEMA, ImportReport, Record};

use super::StoreError;
use super::record::push_line;
use super::run::{RunDir, record_path};

/// The import report's file name.
pub const IMPORT_FILE: &str = "import.json";

impl RunDir {
    /// Writes the report of an import.
    ///
    /// # Errors
    /// As [`RunDir::write_engagement`].
    pub fn write_import_report(&self, report: &ImportReport) -> Result<(), StoreError> {
        self.write(&[], IMPORT_FILE, IMPORT_SCHEMA, report)
    }

    /// The report of an import; absent in runs of this tool.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn import_report(&self) -> Result<Option<ImportReport>, StoreError> {
        self.read(IMPORT_FILE, IMPORT_SCHEMA)
    }

    /// Writes all records of one arm on one panel in one step, as another harness has left them:
    /// cases may be missing or doubled, which a certificate then says. A run of this tool appends
    /// to a [`super::RecordLog`] instead.
    ///
    /// # Errors
    /// [`StoreError::NotFinite`], [`StoreError::Name`], [`StoreError::Locked`],
    /// [`StoreError::Io`].
    pub fn write_records(
        &self,
        arm: &str,
        panel: &str,
        records: &[Record],
    ) -> Result<(), StoreError> {
        let path = self.path().join(record_path(arm, panel)?);
        let mut bytes = Vec::new();
        for record in records {
            push_line(&path, record, &mut bytes)?;
        }
        self.write_bytes(&["arms", arm], &format!("{panel}.jsonl"), &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::samples;
    use super::super::samples as manifests;
    use super::*;

    #[test]
    fn records_are_written_whole_doubled_ones_too() {
        let root = tempfile::tempdir().unwrap();
        let manifest = manifests::manifest(manifests::protocol());
        let run = RunDir::create(&root.path().join("run"), &manifest).unwrap();
        let mut records = samples::records(&samples::plan(3));
        records.push(records[0].clone());
        run.write_records("AD", "math", &records).unwrap();
        assert_eq!(run.records("AD", "math").unwrap(), records);
        run.write_records("AD", "math", &records[1..2]).unwrap();
        assert_eq!(run.records("AD", "math").unwrap(), records[1..2]);
        let error = run.write_records("../AD", "math", &records).unwrap_err();
        assert!(matches!(error, StoreError::Name { .. }), "{error}");
        assert_eq!(run.import_report().unwrap(), None);
    }
}
