//! Everything that a certificate is computed from.

use std::collections::BTreeMap;

use crate::schema::{
    ArmStart, Calibration, CaseTask, CertificateProtocol, Engagement, FileDigest, HTTP_WORKER,
    IMPORT_WORKER, ImportReport, Manifest, PanelHeader, Record, Resources,
};

use super::outcomes::{Bounds, Place};

/// The evidence of one run.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The run's manifest, which holds the protocol.
    pub manifest: Manifest,
    /// Panels by name; unsupported ones are absent.
    pub panels: BTreeMap<String, PanelGold>,
    /// Arms by name; unsupported ones are absent.
    pub arms: BTreeMap<String, ArmEvidence>,
    /// What an import found; absent for runs of this tool.
    pub import: Option<ImportReport>,
    /// Calibration, where the run has one.
    pub calibration: Option<Calibration>,
    /// Files that every certificate of the run rests on: manifest, panels, calibration.
    pub files: Vec<FileDigest>,
    /// Where the records are judged under a protocol that is not their run's: the run's own one.
    pub judged_after: Option<CertificateProtocol>,
}

/// A panel as far as it decides outcomes.
#[derive(Clone, Debug)]
pub struct PanelGold {
    /// First line of the panel file.
    pub header: PanelHeader,
    /// Cases in plan order.
    pub cases: Vec<GoldCase>,
}

/// A case and what decides its outcome.
#[derive(Clone, Debug)]
pub struct GoldCase {
    /// Case name.
    pub case: String,
    /// SHA-256 of the case's line in the panel file.
    pub case_sha256: String,
    /// Tokens of the prompt, as built-in workers are asked it.
    pub prompt_tokens: u32,
    /// Gold answer or number of targets.
    pub task: CaseTask,
}

/// What one arm left behind.
#[derive(Clone, Debug, Default)]
pub struct ArmEvidence {
    /// Records by panel name, as they are stored.
    pub records: BTreeMap<String, Vec<Record>>,
    /// Records of verified cases that were generated plainly as well, by panel name.
    pub regenerated: BTreeMap<String, Vec<Record>>,
    /// What stood before the first record; absent where nothing was written down.
    pub start: Option<ArmStart>,
    /// Proof of engagement.
    pub engagement: Option<Engagement>,
    /// What it took of the machine; absent where nothing was written down.
    pub resources: Option<Resources>,
    /// Record, start, engagement and resource files.
    pub files: Vec<FileDigest>,
}

impl ArmEvidence {
    /// Records on one panel; none where it has no file.
    pub(super) fn on(&self, panel: &str) -> &[Record] {
        self.records.get(panel).map_or(&[], Vec::as_slice)
    }
}

impl Evidence {
    /// Whether the worker is a built-in one, which promises the same bits every time.
    pub(super) fn is_built_in(&self) -> bool {
        self.manifest.worker.kind != HTTP_WORKER && !self.is_imported()
    }

    /// Whether another harness has asked and scored the cases.
    pub(super) fn is_imported(&self) -> bool {
        self.manifest.worker.kind == IMPORT_WORKER
    }

    /// The records of an arm on a panel, and what bounds their tokens: servers and other harnesses
    /// count in ways of their own.
    pub(super) fn place<'a>(&self, arm: &'a str, panel: &'a str) -> Place<'a> {
        let geometry = &self.manifest.model.geometry;
        Place {
            arm,
            panel,
            bounds: self.is_built_in().then_some(Bounds {
                vocabulary: geometry.vocab_size,
                context: geometry.context,
            }),
        }
    }

    /// Cases of `panel` that every arm was to run.
    pub(super) fn planned(&self, gold: &PanelGold) -> usize {
        let limit = self
            .manifest
            .limit
            .map_or(usize::MAX, |limit| limit as usize);
        gold.cases.len().min(limit)
    }
}
