//! A run's outcomes, scored again.

use std::collections::BTreeMap;

use crate::certify::arms::Trial;
use crate::certify::compare::{PairValues, absence, arm_outcomes, pair_values, shortage};
use crate::certify::evidence::{Evidence, PanelGold};
use crate::certify::findings::Finding;
use crate::certify::outcomes::Outcome;
use crate::certify::{
    CertifyError, Reason, Rescore, aa, check, engagement, imported, order, regenerated,
};
use crate::schema::{ArmRole, ManifestArm, PanelPlan, Verdict};

use super::select::{ArmPair, find_arm};
use super::{GivenRun, Lack};

/// What a run gives to contrasts.
pub(super) struct Reading<'a> {
    evidence: &'a Evidence,
    /// By panel name; panels that the run does not have are absent.
    panels: BTreeMap<String, PanelReading>,
    /// What shows that the protocol may not have stood before the records: then nothing of the run is
    /// declared.
    pub post_hoc: Option<Finding>,
    /// Doubts about arms that leave their contrasts as they are.
    pub doubts: Vec<String>,
}

struct PanelReading {
    /// What the panel lacks in every arm.
    shortage: Vec<Finding>,
    arms: BTreeMap<String, ArmReading>,
}

struct ArmReading {
    /// In plan order.
    outcomes: Vec<Option<Outcome>>,
    /// What is wrong with the records.
    faults: Vec<Finding>,
}

/// Why a contrast cannot be computed on a panel.
#[derive(Debug)]
pub(super) struct Gap {
    /// Kind.
    pub lack: Lack,
    /// One clause for people.
    pub detail: String,
}

impl<'a> Reading<'a> {
    /// Reads what a run's certificates rest on, and refuses what they refuse.
    ///
    /// # Errors
    /// As [`certify`](crate::certify::certify).
    pub fn new(given: &GivenRun<'a>, scorer: &dyn Rescore) -> Result<Self, CertifyError> {
        let evidence = given.evidence;
        check::check(evidence)?;
        let trials = trials(evidence)?;
        let mut unsure = Vec::new();
        if let Some(trial) = trials.first() {
            let findings = aa::compare(trial, scorer)?.findings;
            unsure.extend(findings.into_iter().map(|finding| finding.detail));
        }
        for trial in &trials {
            let findings = regenerated::compare(trial)?.findings;
            unsure.extend(findings.into_iter().map(|finding| finding.detail));
        }
        let mut panels = BTreeMap::new();
        for plan in &evidence.manifest.protocol.panels {
            let name = plan.panel_name();
            if let Some(gold) = evidence.panels.get(&name) {
                panels.insert(name, PanelReading::new(evidence, plan, gold, scorer)?);
            }
        }
        let mut reading = Reading {
            evidence,
            panels,
            post_hoc: trials.iter().find_map(post_hoc),
            doubts: unsure,
        };
        // What concerns an arm beside all candidates is found with each of them.
        for doubt in reading.engagement_doubts(&trials) {
            if !reading.doubts.contains(&doubt) {
                reading.doubts.push(doubt);
            }
        }
        Ok(reading)
    }

    /// Paired outcomes of a contrast on a panel.
    pub fn pair(&self, plan: &PanelPlan, arms: &ArmPair) -> Result<PairValues, Gap> {
        let first = self.arm(&arms.first)?;
        let second = self.arm(&arms.second)?;
        let name = plan.panel_name();
        let gold = self.evidence.panels.get(&name);
        let Some((panel, gold)) = self.panels.get(&name).zip(gold) else {
            return Err(Gap::from(absence(self.evidence, &name)));
        };
        let (first, second) = (panel.arm(first), panel.arm(second));
        let readings = [first, second].into_iter().flatten();
        let faults = readings.flat_map(|arm| &arm.faults);
        let gap = Gap::over(panel.shortage.iter().chain(faults));
        match (gap, first, second) {
            (Some(gap), _, _) => Err(gap),
            (None, Some(first), Some(second)) => {
                Ok(pair_values(plan, gold, &first.outcomes, &second.outcomes))
            }
            (None, _, _) => Err(Gap {
                lack: Lack::Evidence(Reason::MissingRecords),
                detail: format!("panel {name} has no records of {}", arms.text),
            }),
        }
    }

    fn arm(&self, name: &str) -> Result<&ManifestArm, Gap> {
        let manifest = &self.evidence.manifest;
        let Some(arm) = find_arm(&manifest.protocol, manifest, name) else {
            return Err(Gap {
                lack: Lack::ArmAbsent,
                detail: format!("the run has no arm {name}"),
            });
        };
        match &arm.unsupported {
            Some(why) => Err(Gap {
                lack: Lack::Evidence(Reason::ArmUnsupported),
                detail: format!("arm {}: {why}", arm.arm),
            }),
            None => Ok(arm),
        }
    }

    fn engagement_doubts(&self, trials: &[Trial<'_>]) -> Vec<String> {
        let supported = trials
            .iter()
            .filter(|trial| trial.arm.unsupported.is_none());
        supported
            .flat_map(|trial| engagement::findings(trial, self.is_complete(&trial.arm.arm)))
            .map(|finding| finding.detail)
            .collect()
    }

    fn is_complete(&self, arm: &str) -> bool {
        let whole = |panel: &PanelReading| {
            let reading = panel.arms.get(arm);
            panel.shortage.is_empty() && reading.is_some_and(|arm| arm.faults.is_empty())
        };
        self.panels.values().all(whole)
    }
}

fn trials(evidence: &Evidence) -> Result<Vec<Trial<'_>>, CertifyError> {
    let arms = evidence.manifest.arms.iter();
    arms.filter(|arm| arm.role == ArmRole::Candidate)
        .map(|arm| Trial::new(&arm.arm, evidence))
        .collect()
}

/// What shows that the protocol may not have stood before the records.
fn post_hoc(trial: &Trial<'_>) -> Option<Finding> {
    let imported = || imported::findings(trial).into_iter();
    order::findings(trial)
        .or_else(|| imported().find(|finding| finding.reason.verdict() == Verdict::Descriptive))
}

impl PanelReading {
    fn new(
        evidence: &Evidence,
        plan: &PanelPlan,
        gold: &PanelGold,
        scorer: &dyn Rescore,
    ) -> Result<Self, CertifyError> {
        let panel = plan.panel_name();
        let compared = |arm: &&ManifestArm| arm.role != ArmRole::Aa && arm.unsupported.is_none();
        let mut arms = BTreeMap::new();
        for arm in evidence.manifest.arms.iter().filter(compared) {
            let place = evidence.place(&arm.arm, &panel);
            let (outcomes, faults) = arm_outcomes(evidence, place, gold, scorer)?;
            arms.insert(arm.arm.clone(), ArmReading { outcomes, faults });
        }
        Ok(PanelReading {
            shortage: shortage(evidence, plan, gold),
            arms,
        })
    }

    fn arm(&self, arm: &ManifestArm) -> Option<&ArmReading> {
        self.arms.get(&arm.arm)
    }
}

impl Gap {
    /// The gravest of the findings, with the details of all.
    fn over<'f>(findings: impl Iterator<Item = &'f Finding>) -> Option<Gap> {
        let mut sorted: Vec<&Finding> = findings.collect();
        sorted.sort_by_key(|finding| finding.reason);
        let gravest = sorted.first()?.reason;
        let details: Vec<&str> = sorted.iter().map(|found| found.detail.as_str()).collect();
        Some(Gap {
            lack: Lack::Evidence(gravest),
            detail: details.join("; "),
        })
    }
}

impl From<Finding> for Gap {
    fn from(finding: Finding) -> Self {
        Gap {
            lack: Lack::Evidence(finding.reason),
            detail: finding.detail,
        }
    }
}
