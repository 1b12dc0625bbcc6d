//! Whether the evidence is about what its manifest says.

use crate::schema::{CaseTask, Manifest, PanelPlan, canonical_sha256};

use super::CertifyError;
use super::evidence::{Evidence, PanelGold};

/// Checks the protocol and the panels against the manifest.
///
/// # Errors
/// [`CertifyError::Protocol`], [`CertifyError::ProtocolDigest`], [`CertifyError::Panel`].
pub(super) fn check(evidence: &Evidence) -> Result<(), CertifyError> {
    let manifest = &evidence.manifest;
    check_protocol(manifest)?;
    for plan in &manifest.protocol.panels {
        if let Some(gold) = evidence.panels.get(&plan.panel_name()) {
            check_panel(plan, gold, evidence.is_imported())?;
        }
    }
    Ok(())
}

/// Checks the manifest's protocol against its digest.
///
/// # Errors
/// [`CertifyError::Protocol`], [`CertifyError::ProtocolDigest`].
pub fn check_protocol(manifest: &Manifest) -> Result<(), CertifyError> {
    manifest.protocol.validate()?;
    // A protocol that was read from JSON can be written as JSON.
    let expected = canonical_sha256(&manifest.protocol).unwrap_or_default();
    if manifest.protocol_sha256 != expected {
        return Err(CertifyError::ProtocolDigest {
            found: manifest.protocol_sha256.clone(),
            expected,
        });
    }
    Ok(())
}

fn check_panel(plan: &PanelPlan, gold: &PanelGold, imported: bool) -> Result<(), CertifyError> {
    let name = plan.panel_name();
    let most = plan.case_count() as usize;
    // An import brings what it has: too many cases are a finding there.
    if gold.cases.len() > most && !imported {
        return Err(CertifyError::Panel {
            place: format!("panel {name}"),
            found: format!("{} cases", gold.cases.len()),
            expected: format!("at most the {most} that the protocol names"),
        });
    }
    let strange = gold.cases.iter().find(|case| match imported {
        true => !fits_import(plan, &case.task),
        false => !fits(plan, &case.task),
    });
    match strange {
        None => Ok(()),
        Some(case) => Err(CertifyError::Panel {
            place: format!("panel {name}, case {}", case.case),
            found: format!("{:?}", case.task),
            expected: match imported {
                true => "an imported case of a panel with answers".to_owned(),
                false => format!("a case of {plan:?}"),
            },
        }),
    }
}

fn fits_import(plan: &PanelPlan, task: &CaseTask) -> bool {
    matches!(task, CaseTask::Imported { .. }) && !matches!(plan, PanelPlan::Nll { .. })
}

fn fits(plan: &PanelPlan, task: &CaseTask) -> bool {
    match (plan, task) {
        (
            PanelPlan::Math { max_new_tokens, .. },
            CaseTask::Math {
                max_new_tokens: found,
                ..
            },
        )
        | (
            PanelPlan::Retrieval { max_new_tokens, .. },
            CaseTask::Retrieval {
                max_new_tokens: found,
                ..
            },
        ) => max_new_tokens == found,
        (PanelPlan::Nll { targets, .. }, CaseTask::Nll { targets: found, .. }) => targets == found,
        _ => false,
    }
}
