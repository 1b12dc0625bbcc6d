//! The plan of a run: its manifest, and the panel files that the manifest names.

use crate::engine::{Engine, EngineError};
use crate::panel::{BuiltPanels, Outcome, Panel};
use crate::recipe::Recipe;
use crate::schema::{
    ArmRole, CalibrationSource, Extent, FileDigest, MANIFEST_SCHEMA, Manifest, ManifestArm,
    ManifestPanel, Protocol, ToolIdentity,
};
use crate::store::{PANELS_DIR, RunDir};

use super::RunError;

/// Why a recipe with fixed scales cannot be run without calibration documents.
const NO_CALIBRATION: &str = "fixed scales need calibration documents: the protocol has none, or they \
                              do not fit the model's context";

/// Why a recipe with the checkpoint's own scales cannot be run.
const NO_SCALES: &str = "the protocol takes fixed scales from the checkpoint, which brings none along \
                         (`k_scale`, `v_scale` and other names in use)";

/// The manifest of a run of `candidates` on `engine`: native first, then native again, then the
/// candidates in the given order. A recipe that the engine cannot run is named with the reason.
///
/// # Errors
/// [`EngineError::Worker`] where the engine cannot even say what it supports.
pub fn manifest(
    protocol: &Protocol,
    protocol_sha256: String,
    panels: &BuiltPanels,
    candidates: &[Recipe],
    extent: Extent,
    engine: &dyn Engine,
) -> Result<Manifest, EngineError> {
    let native = Recipe::native();
    let mut arms = vec![
        arm("native", ArmRole::Control, &native, engine)?,
        arm("native-aa", ArmRole::Aa, &native, engine)?,
    ];
    for recipe in candidates {
        let mut candidate = arm(&recipe.name, ArmRole::Candidate, recipe, engine)?;
        let lack = match protocol.calibration.source {
            CalibrationSource::Measured if panels.calibration.is_none() => Some(NO_CALIBRATION),
            CalibrationSource::Checkpoint if engine.model().cache_scales().is_empty() => {
                Some(NO_SCALES)
            }
            CalibrationSource::Measured | CalibrationSource::Checkpoint => None,
        };
        if let (true, Some(lack)) = (recipe.needs_calibration(), lack) {
            candidate.unsupported.get_or_insert(lack.to_owned());
        }
        arms.push(candidate);
    }
    Ok(assemble(
        protocol,
        protocol_sha256,
        panels,
        arms,
        extent,
        engine,
    ))
}

/// A manifest with these arms.
pub(super) fn assemble(
    protocol: &Protocol,
    protocol_sha256: String,
    panels: &BuiltPanels,
    arms: Vec<ManifestArm>,
    extent: Extent,
    engine: &dyn Engine,
) -> Manifest {
    Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        tool: ToolIdentity::current(),
        protocol: protocol.clone(),
        protocol_sha256,
        model: engine.model().clone(),
        worker: engine.worker().clone(),
        panels: panels
            .panels
            .iter()
            .map(|built| manifest_panel(&built.name, &built.outcome))
            .collect(),
        arms,
        limit: extent.limit,
        shard: extent.shard,
        servers: None,
    }
}

pub(super) fn arm(
    name: &str,
    role: ArmRole,
    recipe: &Recipe,
    engine: &dyn Engine,
) -> Result<ManifestArm, EngineError> {
    let unsupported = match engine.supports(recipe) {
        Ok(()) => None,
        Err(EngineError::Unsupported(reason)) => Some(reason),
        Err(error) => return Err(error),
    };
    Ok(ManifestArm {
        arm: name.to_owned(),
        role,
        recipe: recipe.spec(),
        unsupported,
    })
}

fn manifest_panel(name: &str, outcome: &Outcome) -> ManifestPanel {
    let (file, cases, unsupported) = match outcome {
        Outcome::Built(panel) => (Some(file_digest(name, panel)), panel.header.cases, None),
        Outcome::Unsupported(reason) => (None, 0, Some(reason.clone())),
    };
    ManifestPanel {
        panel: name.to_owned(),
        file,
        cases,
        unsupported,
    }
}

fn file_digest(name: &str, panel: &Panel) -> FileDigest {
    FileDigest {
        path: format!("{PANELS_DIR}/{name}.jsonl"),
        sha256: panel.sha256.clone(),
    }
}

/// Writes the panel files that are not there yet, and refuses those that differ from the manifest.
///
/// # Errors
/// [`RunError::Panel`], naming the file and both digests; [`RunError::Store`].
pub fn store_panels(dir: &RunDir, panels: &BuiltPanels) -> Result<(), RunError> {
    for (name, panel) in panels.supported() {
        let path = dir.path().join(PANELS_DIR).join(format!("{name}.jsonl"));
        if path.exists() {
            crate::panel::read_panel(&path, &panel.sha256)?;
        } else {
            dir.write_panel(name, &panel.bytes()?)?;
        }
    }
    Ok(())
}
