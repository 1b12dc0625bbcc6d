//! Records that must be the same: of native and native again, of verified and of plain answers.

use crate::certify::{record_difference, regenerated_name};
use crate::schema::{ManifestArm, Record};
use crate::store::{RunDir, first_of_each};

use super::{RunError, aa};

/// The A/A arm against the control: on a built-in worker any difference ends the run.
pub(super) fn native(dir: &RunDir, second: &ManifestArm) -> Result<(), RunError> {
    let manifest = dir.manifest();
    let control = manifest.first_control();
    let Some(first) = control.filter(|_| manifest.worker.kind != "http") else {
        return Ok(());
    };
    for panel in manifest.panels.iter().filter(|panel| panel.file.is_some()) {
        let name = &panel.panel;
        let (one, other) = (
            records(dir, &first.arm, name)?,
            records(dir, &second.arm, name)?,
        );
        if let Some((case, what)) = aa::first_difference(&one, &other) {
            return Err(RunError::AaDiffers {
                panel: name.clone(),
                case,
                what,
                first: first.arm.clone(),
                second: second.arm.clone(),
            });
        }
    }
    Ok(())
}

/// One record of each case: others are no difference, and make the evidence incomplete.
fn records(dir: &RunDir, arm: &str, panel: &str) -> Result<Vec<Record>, RunError> {
    let all = dir.records(arm, panel)?;
    let firsts = first_of_each(&all).into_iter();
    Ok(firsts.map(|at| all[at].clone()).collect())
}

/// What an arm verified against what it generated plainly as well.
pub(super) fn regenerated(dir: &RunDir, arm: &ManifestArm) -> Result<(), RunError> {
    let panels = dir.manifest().panels.iter();
    for panel in panels.filter(|panel| panel.file.is_some()) {
        let again = dir.records(&arm.arm, &regenerated_name(&panel.panel))?;
        if again.is_empty() {
            continue;
        }
        let records = dir.records(&arm.arm, &panel.panel)?;
        for second in &again {
            let same = |record: &&Record| record.case_sha256 == second.case_sha256;
            let first = records.iter().find(same);
            let what = first.map_or(Some("the record"), |first| record_difference(first, second));
            if let Some(what) = what {
                return Err(RunError::RegenerationDiffers {
                    arm: arm.arm.clone(),
                    panel: panel.panel.clone(),
                    case: second.case.clone(),
                    what,
                });
            }
        }
    }
    Ok(())
}
