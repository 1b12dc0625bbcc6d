//! Which came first: the protocol or the records.

use crate::schema::{CertificateProtocol, PanelPlan, Protocol, canonical_sha256};

use super::arms::Trial;
use super::check::is_frozen_otherwise;
use super::evidence::{ArmEvidence, Evidence};
use super::findings::Finding;
use super::{CertifyError, Reason};

/// The evidence judged under `protocol` in place of the run's own: descriptive, whatever it shows.
/// Panels that the two protocols do not share have no records under `protocol`.
///
/// # Errors
/// [`CertifyError::Protocol`] for a protocol that is not valid.
pub fn judge_under(mut evidence: Evidence, protocol: Protocol) -> Result<Evidence, CertifyError> {
    protocol.validate()?;
    let manifest = &mut evidence.manifest;
    let shared = |name: &str| {
        let of = |protocol: &Protocol| {
            let mut panels = protocol.panels.iter();
            panels.find(|plan| plan.panel_name() == name).cloned()
        };
        of(&manifest.protocol)
            .zip(of(&protocol))
            .is_some_and(|(run, other)| is_same(&run, &other))
    };
    evidence.panels.retain(|name, gold| {
        let named = protocol
            .panels
            .iter()
            .find(|plan| plan.panel_name() == *name);
        shared(name)
            && !is_frozen_otherwise(&protocol, manifest, name)
            && named.is_some_and(|plan| gold.cases.len() <= plan.case_count() as usize)
    });
    evidence.judged_after = Some(CertificateProtocol {
        name: manifest.protocol.name.clone(),
        sha256: manifest.protocol_sha256.clone(),
    });
    // A valid protocol has finite numbers, which JSON can hold.
    manifest.protocol_sha256 = canonical_sha256(&protocol).unwrap_or_default();
    manifest.protocol = protocol;
    Ok(evidence)
}

/// Whether two plans ask the same of each case; the number of cases may differ.
fn is_same(run: &PanelPlan, other: &PanelPlan) -> bool {
    let mut run = run.clone();
    match (&mut run, other) {
        (PanelPlan::Math { cases, .. }, PanelPlan::Math { cases: named, .. })
        | (PanelPlan::Retrieval { cases, .. }, PanelPlan::Retrieval { cases: named, .. }) => {
            *cases = *named;
        }
        (
            PanelPlan::Nll { documents, .. },
            PanelPlan::Nll {
                documents: named, ..
            },
        ) => *documents = *named,
        _ => {}
    }
    run == *other
}

/// What stands against a protocol that may not have stood before the first record.
pub(super) fn findings(trial: &Trial<'_>) -> Option<Finding> {
    let evidence = trial.evidence;
    let manifest = &evidence.manifest;
    let stands = &manifest.protocol_sha256;
    if let Some(own) = &evidence.judged_after {
        let detail = format!(
            "the records stand under protocol {} {}, and are judged under {} {stands}, given after them",
            own.name, own.sha256, manifest.protocol.name
        );
        return Some(Finding::new(Reason::ProtocolAfterRecords, detail));
    }
    if evidence.is_imported() {
        // Its records tell by themselves which protocol they carry.
        return None;
    }
    let involved = || {
        evidence
            .arms
            .iter()
            .filter(|(name, _)| trial.involves(name))
    };
    let changed = involved().find_map(|(name, arm)| {
        let began = arm.start.as_ref()?;
        (began.protocol_sha256 != *stands).then(|| {
            format!(
                "arm {name} began under protocol {} {}, run.json holds {} {stands}",
                began.protocol, began.protocol_sha256, manifest.protocol.name
            )
        })
    });
    if let Some(detail) = changed {
        return Some(Finding::new(Reason::ProtocolChanged, detail));
    }
    let unproved = |arm: &ArmEvidence| {
        arm.start.is_none() && arm.records.values().any(|records| !records.is_empty())
    };
    let (name, _) = involved().find(|(_, arm)| unproved(arm))?;
    let detail =
        format!("nothing shows which protocol stood before the first record of arm {name}");
    Some(Finding::new(Reason::ProtocolUnproved, detail))
}
