//! What the arms took of the machine, against the protocol's limits.

use std::collections::BTreeMap;

use crate::schema::{Crossed, ManifestArm, ResourceSummary};

use super::Reason;
use super::arms::Trial;
use super::findings::Finding;

/// What the candidate, its controls and the A/A arm took, by arm; arms that left no such evidence
/// are absent.
pub(super) fn summaries(trial: &Trial<'_>) -> BTreeMap<String, ResourceSummary> {
    let arms = involved(trial);
    arms.filter_map(|arm| Some((arm.arm.clone(), summary(trial, arm)?)))
        .collect()
}

/// Every arm of the trial that does not keep the protocol's limits, or says nothing about them.
pub(super) fn findings(trial: &Trial<'_>) -> Vec<Finding> {
    let Some(limits) = &trial.evidence.manifest.protocol.resource_limits else {
        return Vec::new();
    };
    let finding = |arm: &ManifestArm| {
        let (reason, what) = match limits.crossed(summary(trial, arm).as_ref())? {
            Crossed::Limit(what) => (Reason::ResourceLimit, what),
            Crossed::Unknown(what) => (Reason::ResourcesUnknown, what),
        };
        let detail = format!("arm {} {what}", arm.arm);
        Some(Finding::new(reason, detail))
    };
    involved(trial).filter_map(finding).collect()
}

fn summary(trial: &Trial<'_>, arm: &ManifestArm) -> Option<ResourceSummary> {
    trial.evidence_of(&arm.arm)?.resources.as_ref()?.summary()
}

/// Arms that the certificate rests on and that could run, in the order of the manifest.
fn involved<'a>(trial: &'a Trial<'_>) -> impl Iterator<Item = &'a ManifestArm> {
    let arms = trial.evidence.manifest.arms.iter();
    arms.filter(|arm| arm.unsupported.is_none() && trial.involves(&arm.arm))
}
