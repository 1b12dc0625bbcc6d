//! Whether the evidence is about what its manifest says.

use serde::Serialize;

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
            found: in_words(&case.task),
            expected: match imported {
                true => "an imported case of a panel with answers".to_owned(),
                false => format!("a case of {}", in_words(plan)),
            },
        }),
    }
}

/// A stored value as its file has it.
fn in_words(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_of_another_panel_is_said_as_files_have_both() {
        let plan = PanelPlan::Math {
            task: "gsm8k".to_owned(),
            cases: 1,
            max_new_tokens: 8,
        };
        let plan = in_words(&plan);
        let expected = r#"{"kind":"math","task":"gsm8k","cases":1,"max_new_tokens":8}"#;
        assert_eq!(plan, expected);
        let task = CaseTask::Imported {
            gold: None,
            content_sha256: None,
        };
        assert_eq!(in_words(&task), r#"{"kind":"imported"}"#);
    }
}
