//! Whether an arm stores what its recipe says, looked at before anything is stored of it.

use crate::recipe::Recipe;
use crate::schema::{
    Engagement, ExpectedStorage, KvTotals, LayerAbsmax, Manifest, ManifestArm, Record,
};

use super::RunError;

/// An open arm and what its recipe stores.
pub(super) struct Engaged<'a> {
    /// The arm as the manifest names it.
    pub arm: &'a ManifestArm,
    /// Its recipe.
    pub recipe: Recipe,
    /// The run's manifest.
    pub manifest: &'a Manifest,
    /// Largest absolute values per layer, where the recipe has fixed scales.
    pub absmax: Option<Vec<LayerAbsmax>>,
}

impl Engaged<'_> {
    /// Checks what was read back of the probe, and that it is what an interrupted run read back.
    ///
    /// # Errors
    /// [`RunError::NotEngaged`].
    pub fn check_probe(
        &self,
        found: &Engagement,
        stored: Option<Engagement>,
    ) -> Result<(), RunError> {
        self.refuse(|storage| storage.probe_lack(found))?;
        let stored = stored.map(|stored| Engagement {
            totals: None,
            ..stored
        });
        match stored {
            Some(stored) if stored != *found => self.refuse(|_| {
                Some(
                    "the probe stores something else than engagement.json says from before the \
                     run was interrupted"
                        .to_owned(),
                )
            }),
            _ => Ok(()),
        }
    }

    /// Checks what one case stored.
    ///
    /// # Errors
    /// [`RunError::NotEngaged`].
    pub fn check_record(&self, panel: &str, record: &Record) -> Result<(), RunError> {
        self.refuse(|storage| {
            let lack = storage.record_lack(record)?;
            Some(format!("panel {panel}, case {}: {lack}", record.case))
        })
    }

    /// Checks what all cases stored together; nothing can be said where every one of them failed.
    ///
    /// # Errors
    /// [`RunError::NotEngaged`].
    pub fn check_totals(&self, totals: Option<&KvTotals>) -> Result<(), RunError> {
        self.refuse(|storage| {
            let lack = storage.changes_lack(totals?)?;
            Some(format!("in all its cases {lack}"))
        })
    }

    /// Servers read nothing back, so nothing is refused there.
    fn refuse(
        &self,
        lack: impl FnOnce(&ExpectedStorage<'_>) -> Option<String>,
    ) -> Result<(), RunError> {
        if self.manifest.worker.kind == "http" {
            return Ok(());
        }
        let geometry = &self.manifest.model.geometry;
        let storage = ExpectedStorage::new(&self.recipe, geometry, self.absmax.as_deref());
        match lack(&storage) {
            None => Ok(()),
            Some(what) => Err(RunError::NotEngaged {
                arm: self.arm.arm.clone(),
                recipe: self.arm.recipe.clone(),
                what,
            }),
        }
    }
}
