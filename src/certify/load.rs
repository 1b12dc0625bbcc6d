//! Evidence read from a run directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::recipe::Recipe;
use crate::schema::{
    ArmRole, CaseTask, FileDigest, ManifestArm, PANEL_SCHEMA, PanelCase, PanelHeader, sha256_hex,
};
use crate::store::{
    CALIBRATION_FILE, IMPORT_FILE, MANIFEST_FILE, RunDir, engagement_path, resources_path,
    start_path,
};

use super::CertifyError;
use super::check::check_calibration;
use super::evidence::{ArmEvidence, Evidence, GoldCase, PanelGold};
use super::regenerated::regenerated_name;

/// Reads everything that certificates of the run in `dir` rest on.
///
/// # Errors
/// [`CertifyError::Store`], [`CertifyError::Calibration`], or [`CertifyError::Panel`] for a panel
/// file that is not the one which the manifest names.
pub fn load(dir: &RunDir) -> Result<Evidence, CertifyError> {
    load_arms(dir, |_| true)
}

/// Reads what the certificate of `candidate` rests on, and nothing of other candidates: they may
/// still be running.
///
/// # Errors
/// As [`load`].
pub(super) fn load_trial(dir: &RunDir, candidate: &str) -> Result<Evidence, CertifyError> {
    load_arms(dir, |arm| {
        arm.role != ArmRole::Candidate || arm.arm == candidate
    })
}

fn load_arms(
    dir: &RunDir,
    is_wanted: impl Fn(&ManifestArm) -> bool,
) -> Result<Evidence, CertifyError> {
    let manifest = dir.manifest().clone();
    if let Some(shard) = manifest.shard {
        let path = dir.path().join(MANIFEST_FILE);
        return Err(CertifyError::Shard { path, shard });
    }
    let mut files = vec![dir.file_digest(MANIFEST_FILE)?];
    let is_calibrated = |arm: &ManifestArm| is_wanted(arm) && needs_calibration(arm);
    let calibration = match manifest.arms.iter().any(is_calibrated) {
        true => dir.calibration()?,
        false => None,
    };
    if let Some(calibration) = &calibration {
        check_calibration(calibration, &manifest)?;
        files.push(dir.file_digest(CALIBRATION_FILE)?);
    }
    let import = dir.import_report()?;
    if import.is_some() {
        files.push(dir.file_digest(IMPORT_FILE)?);
    }
    let mut panels = BTreeMap::new();
    for panel in &manifest.panels {
        if let Some(file) = &panel.file {
            panels.insert(panel.panel.clone(), load_panel(dir, &panel.panel, file)?);
            files.push(file.clone());
        }
    }
    let mut arms = BTreeMap::new();
    let supported = manifest.arms.iter().filter(|arm| arm.unsupported.is_none());
    for arm in supported.filter(|arm| is_wanted(arm)) {
        arms.insert(arm.arm.clone(), load_arm(dir, &arm.arm, panels.keys())?);
    }
    Ok(Evidence {
        manifest,
        panels,
        arms,
        import,
        calibration,
        files,
        judged_after: None,
    })
}

fn needs_calibration(arm: &ManifestArm) -> bool {
    // A recipe that does not parse is refused where its arm is certified.
    Recipe::parse(&arm.recipe).is_ok_and(|recipe| recipe.needs_calibration())
}

fn load_arm<'a>(
    dir: &RunDir,
    arm: &str,
    panels: impl Iterator<Item = &'a String>,
) -> Result<ArmEvidence, CertifyError> {
    let mut evidence = ArmEvidence::default();
    for panel in panels {
        if let Some(stored) = dir.stored_records(arm, panel)? {
            evidence.records.insert(panel.clone(), stored.records);
            evidence.files.push(stored.file);
        }
        if let Some(stored) = dir.stored_records(arm, &regenerated_name(panel))? {
            evidence.regenerated.insert(panel.clone(), stored.records);
            evidence.files.push(stored.file);
        }
    }
    evidence.start = dir.arm_start(arm)?;
    if evidence.start.is_some() {
        evidence.files.push(dir.file_digest(&start_path(arm))?);
    }
    evidence.engagement = dir.engagement(arm)?;
    if evidence.engagement.is_some() {
        evidence.files.push(dir.file_digest(&engagement_path(arm))?);
    }
    evidence.resources = dir.resources(arm)?;
    if evidence.resources.is_some() {
        evidence.files.push(dir.file_digest(&resources_path(arm))?);
    }
    Ok(evidence)
}

fn load_panel(dir: &RunDir, name: &str, file: &FileDigest) -> Result<PanelGold, CertifyError> {
    let (bytes, found) = dir.file_bytes(&file.path)?;
    if found.sha256 != file.sha256 {
        return Err(CertifyError::Panel {
            place: file.path.clone(),
            found: format!("SHA-256 {}", found.sha256),
            expected: format!("{} from run.json", file.sha256),
        });
    }
    parse_panel(name, &file.path, &bytes)
}

fn parse_panel(name: &str, path: &str, bytes: &[u8]) -> Result<PanelGold, CertifyError> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut lines = bytes.split(|&byte| byte == b'\n').enumerate();
    let wrong = |line: usize, found: String, expected: &str| CertifyError::Panel {
        place: format!("{path}:{}", line + 1),
        found,
        expected: expected.to_owned(),
    };
    let first = lines.next().map_or(&[][..], |(_, line)| line);
    let header: PanelHeader = serde_json::from_slice(first)
        .map_err(|error| wrong(0, error.to_string(), "a panel header"))?;
    if header.schema != PANEL_SCHEMA || header.panel != name {
        let found = format!("{} of panel {}", header.schema, header.panel);
        return Err(wrong(0, found, &format!("{PANEL_SCHEMA} of panel {name}")));
    }
    let mut names = BTreeSet::new();
    let mut contents = HashMap::new();
    let mut cases = Vec::new();
    for (at, line) in lines {
        let case: PanelCase =
            serde_json::from_slice(line).map_err(|error| wrong(at, error.to_string(), "a case"))?;
        if !names.insert(case.case.clone()) {
            return Err(wrong(
                at,
                format!("case {} again", case.case),
                "each case once",
            ));
        }
        let gold = GoldCase {
            case: case.case.clone(),
            case_sha256: sha256_hex(line),
            prompt_tokens: u32::try_from(case.prompt_ids.len()).unwrap_or(u32::MAX),
            task: case.task.clone(),
        };
        // Other harnesses keep what they asked to themselves.
        if let (false, Some(first)) = (
            matches!(gold.task, CaseTask::Imported { .. }),
            contents.insert(case.content(), case.case),
        ) {
            let found = format!("case {} with the content of case {first}", gold.case);
            return Err(wrong(at, found, "each content once"));
        }
        cases.push(gold);
    }
    if cases.len() != header.cases as usize {
        let expected = format!("{} from its header", header.cases);
        return Err(wrong(
            cases.len(),
            format!("{} cases", cases.len()),
            &expected,
        ));
    }
    Ok(PanelGold { header, cases })
}
