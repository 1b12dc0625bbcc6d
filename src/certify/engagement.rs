//! Whether the stored bytes show the recipes at work: the candidate's, and native storage in every
//! arm that it is compared with.

use crate::recipe::Recipe;
use crate::schema::{
    ArmRole, Calibration, Engagement, ExpectedStorage, KvTotals, LayerAbsmax, ManifestArm, Record,
};
use crate::store::{CALIBRATION_FILE, engagement_path};

use super::Reason;
use super::arms::Trial;
use super::evidence::ArmEvidence;
use super::findings::Finding;

/// What the proofs of engagement lack. Only complete arms have totals.
pub(super) fn findings(trial: &Trial<'_>, is_complete: bool) -> Vec<Finding> {
    let read_back = arms(trial).into_iter();
    let lacks = read_back.filter_map(|arm| {
        if arm.unsupported.is_some() || !absent_files(trial, arm).is_empty() {
            return None;
        }
        let lack = arm_lack(trial, arm, is_complete)?;
        let detail = format!("arm {} {lack}", arm.arm);
        Some(Finding::new(Reason::EngagementUnproved, detail))
    });
    lacks.chain(missing_files(trial)).collect()
}

/// Files that were taken away from the arms that the certificate rests on.
pub(super) fn missing_files(trial: &Trial<'_>) -> Vec<Finding> {
    let involved = trial.evidence.manifest.arms.iter();
    let involved = involved.filter(|arm| trial.involves(&arm.arm));
    let missing = |arm: &ManifestArm| {
        let finding = |file: String| {
            let detail = format!("arm {} has records, and {file} is absent", arm.arm);
            Finding::new(Reason::MissingFiles, detail)
        };
        absent_files(trial, arm)
            .into_iter()
            .map(finding)
            .collect::<Vec<_>>()
    };
    involved.flat_map(missing).collect()
}

/// Files that a run writes before an arm's first record, and that are not there beside its records.
/// Another harness writes none.
fn absent_files(trial: &Trial<'_>, arm: &ManifestArm) -> Vec<String> {
    let evidence = trial.evidence;
    let has_records = |found: &&ArmEvidence| found.records.values().any(|list| !list.is_empty());
    let found = trial.evidence_of(&arm.arm).filter(has_records);
    let Some(found) = found.filter(|_| !evidence.is_imported()) else {
        return Vec::new();
    };
    let is_fixed = trial.recipe.as_ref().is_some_and(Recipe::needs_calibration);
    let is_calibrated = arm.arm == trial.arm.arm && is_fixed && evidence.manifest.servers.is_none();
    let mut absent = Vec::new();
    if found.engagement.is_none() {
        absent.push(engagement_path(&arm.arm));
    }
    if is_calibrated && evidence.calibration.is_none() {
        absent.push(CALIBRATION_FILE.to_owned());
    }
    absent
}

/// The candidate and, on a built-in worker, which reads its bytes back, the native arms beside it.
fn arms<'a>(trial: &Trial<'a>) -> Vec<&'a ManifestArm> {
    let mut arms = vec![trial.arm];
    if trial.evidence.is_built_in() {
        arms.extend(trial.controls.iter().filter_map(|control| control.arm));
        let manifest = &trial.evidence.manifest;
        arms.extend(manifest.arms.iter().filter(|arm| arm.role == ArmRole::Aa));
    }
    arms
}

fn arm_lack(trial: &Trial<'_>, arm: &ManifestArm, is_complete: bool) -> Option<String> {
    let evidence = trial.evidence_of(&arm.arm);
    let proof = evidence.and_then(|found| found.engagement.as_ref().map(|proof| (found, proof)));
    let Some((found, proof)) = proof else {
        return Some("has no proof that its recipe was engaged".to_owned());
    };
    let recipe = match recipe(trial, arm) {
        Ok(recipe) => recipe,
        Err(lack) => return Some(lack),
    };
    let absmax = match absmax(trial, &recipe) {
        Ok(absmax) => absmax,
        Err(lack) => return Some(lack),
    };
    let storage = ExpectedStorage::new(&recipe, &trial.evidence.manifest.model.geometry, absmax);
    storage
        .probe_lack(proof)
        .or_else(|| records_lack(trial, &storage, found))
        .or_else(|| totals_lack(&storage, found, proof, is_complete))
}

/// The recipe that the arm must show: its own, or native storage where it is no candidate.
fn recipe(trial: &Trial<'_>, arm: &ManifestArm) -> Result<Recipe, String> {
    if arm.role == ArmRole::Candidate {
        return match &trial.recipe {
            None => Err("names no recipe whose bytes could be checked".to_owned()),
            Some(recipe) if recipe.is_native() => {
                Err("stored nothing that differs from native".to_owned())
            }
            Some(recipe) => Ok(recipe.clone()),
        };
    }
    match Recipe::parse(&arm.recipe) {
        Ok(recipe) if recipe.is_native() => Ok(recipe),
        _ => Err(format!("ran {}, expected native storage", arm.recipe)),
    }
}

/// The calibration of this model, where the recipe has fixed scales.
fn absmax<'a>(trial: &Trial<'a>, recipe: &Recipe) -> Result<Option<&'a [LayerAbsmax]>, String> {
    if !recipe.needs_calibration() {
        return Ok(None);
    }
    let Some(calibration) = &trial.evidence.calibration else {
        return Err("has fixed scales, and the run has no calibration.json".to_owned());
    };
    let Calibration {
        weights_sha256,
        layers,
        ..
    } = calibration;
    let model = &trial.evidence.manifest.model;
    if *weights_sha256 != model.weights_sha256 {
        return Err(format!(
            "has fixed scales, and calibration.json is of weights {weights_sha256}, expected {}",
            model.weights_sha256
        ));
    }
    if layers.len() != model.geometry.layers as usize {
        return Err(format!(
            "has fixed scales, and calibration.json has {} layers, expected {}",
            layers.len(),
            model.geometry.layers
        ));
    }
    Ok(Some(layers))
}

/// What every record must have stored. Servers do not say.
fn records_lack(
    trial: &Trial<'_>,
    storage: &ExpectedStorage<'_>,
    evidence: &ArmEvidence,
) -> Option<String> {
    if !trial.evidence.is_built_in() {
        return None;
    }
    let on_panel = |(panel, records): (&String, &Vec<Record>)| {
        records.iter().find_map(|record| {
            let lack = storage.record_lack(record)?;
            Some(format!("panel {panel}, case {}: {lack}", record.case))
        })
    };
    evidence.records.iter().find_map(on_panel)
}

/// The totals must be the sum over the arm's records, and show the recipe as the probe does.
fn totals_lack(
    storage: &ExpectedStorage<'_>,
    evidence: &ArmEvidence,
    proof: &Engagement,
    is_complete: bool,
) -> Option<String> {
    let records = evidence.records.values().flatten();
    let mut sum: Option<KvTotals> = None;
    for kv in records.filter_map(|record| record.kv.as_ref()) {
        sum.get_or_insert_default().merge(kv);
    }
    if !is_complete {
        return None;
    }
    if proof.totals != sum {
        return Some("has engagement totals that are not the sum over its records".to_owned());
    }
    let lack = sum.and_then(|sum| storage.changes_lack(&sum))?;
    Some(format!("in all its cases {lack}"))
}
