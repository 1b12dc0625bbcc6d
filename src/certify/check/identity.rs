//! Model, worker, arms and servers of a manifest against each other.

use std::collections::BTreeSet;

use crate::schema::{IdentityFault, Manifest};

use super::super::CertifyError;

/// Checks what a manifest says twice.
///
/// # Errors
/// [`CertifyError::Contradiction`].
pub(super) fn check(manifest: &Manifest) -> Result<(), CertifyError> {
    let worker = &manifest.worker;
    let kind = worker.known_kind().map_err(refusal)?;
    let fault = worker
        .fault(manifest.servers.is_some())
        .or_else(|| manifest.model.fault(kind));
    if let Some(fault) = fault {
        return Err(refusal(fault));
    }
    let arms = manifest.arms.iter().map(|arm| arm.arm.as_str());
    check_once("arms", arms)?;
    let panels = manifest.panels.iter().map(|panel| panel.panel.as_str());
    check_once("panels", panels)
}

fn refusal(fault: IdentityFault) -> CertifyError {
    CertifyError::Contradiction {
        place: format!("run.json: {}", fault.field),
        found: fault.found,
        expected: fault.expected,
    }
}

/// No name stands in the list a second time.
fn check_once<'a>(field: &str, names: impl Iterator<Item = &'a str>) -> Result<(), CertifyError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(CertifyError::Contradiction {
                place: format!("run.json: {field}"),
                found: format!("{name} twice"),
                expected: "each once".to_owned(),
            });
        }
    }
    Ok(())
}
