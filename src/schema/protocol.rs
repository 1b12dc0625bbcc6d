//! The protocol: what was fixed before the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CalibrationSource, ResourceLimits};

/// Schema name of [`Protocol`] documents.
pub const PROTOCOL_SCHEMA: &str = "kvassay.protocol/1";

/// Name under which a protocol freezes the calibration documents, as of a panel.
pub const CALIBRATION_PANEL: &str = "calibration";

/// Everything that was frozen before the first record: models, recipes, controls, panels,
/// limits, alphas, contrasts and seeds. Identified by the digest of its canonical JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Always [`PROTOCOL_SCHEMA`].
    #[schemars(extend("const" = PROTOCOL_SCHEMA))]
    pub schema: String,
    /// Name, e.g. `reference`.
    pub name: String,
    /// One sentence for people.
    pub description: String,
    /// Probability with which the declared family may issue any false certificate of an objective.
    pub family_alpha: f64,
    /// Declared models. The name `*` stands for one model, whichever the run's manifest freezes.
    pub models: Vec<ProtocolModel>,
    /// Names of the native controls; a candidate must hold against each.
    pub controls: Vec<String>,
    /// Candidate recipes.
    pub candidates: Vec<ProtocolCandidate>,
    /// Objectives of the family.
    pub objectives: Vec<ObjectiveName>,
    /// The objective that a recipe named on the command line must hold.
    pub required: ObjectiveName,
    /// How fixed scales are calibrated.
    pub calibration: CalibrationPlan,
    /// Panels, in the order in which they are run.
    pub panels: Vec<PanelPlan>,
    /// Panels as materialised for known tokenizers: a run refuses one with another digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen_panels: Vec<FrozenPanel>,
    /// Limits and alpha divisors.
    pub rules: Rules,
    /// The control's least accuracy, below which an objective cannot pass.
    pub assay_sensitivity: AssaySensitivity,
    /// What every arm may take of the machine; nothing is limited where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<ResourceLimits>,
    /// Declared contrasts between candidates, as `FIRST-SECOND` (`AF-RF`).
    pub contrasts: Vec<String>,
    /// Seed of everything seeded that has no seed of its own (panel selection, regenerated cases).
    pub seed: u64,
}

/// A declared model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtocolModel {
    /// Model name, or `*` for any one model.
    pub name: String,
    /// Digest of the weights (see `ModelIdentity::weights_sha256`), where declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A declared candidate recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtocolCandidate {
    /// Short name, e.g. `AD`.
    pub name: String,
    /// Canonical recipe string, e.g. `k=native,v=e4m3:dynamic`.
    pub spec: String,
}

/// What a certificate can hold.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// `gross_loss`, every `nll` and every `retrieval` rule.
    Preservation,
    /// `net_change`, every `nll` and every `retrieval` rule.
    Aggregate,
}

/// How fixed scales are calibrated on the native arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalibrationPlan {
    /// Documents per length.
    pub documents: u32,
    /// Prompt lengths in tokens.
    pub lengths: Vec<u32>,
    /// Tokens generated after each document, end-of-sequence ignored.
    pub forced_tokens: u32,
    /// Where fixed scales come from; with the checkpoint's own there are no documents.
    #[serde(default, skip_serializing_if = "CalibrationSource::is_measured")]
    pub source: CalibrationSource,
}

/// One panel. Its reader stands in `protocol_panel.rs`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PanelPlan {
    /// GSM8K-like questions with exact numeric answers.
    Math {
        /// Task definition in `tasks/`, e.g. `gsm8k`.
        task: String,
        /// Number of questions, in file order.
        cases: u32,
        /// Most tokens generated for an answer.
        max_new_tokens: u32,
    },
    /// Negative log-likelihood of text.
    Nll {
        /// Task definition, e.g. `wikipedia-nll`.
        task: String,
        /// Tokens per document window.
        length: u32,
        /// Documents, one window per article.
        documents: u32,
        /// Scored targets at the end of each window.
        targets: u32,
    },
    /// Needle retrieval.
    Retrieval {
        /// Task definition, e.g. `needle`.
        task: String,
        /// Tokens of prompt plus answer allowance.
        length: u32,
        /// Cases, depth stratified.
        cases: u32,
        /// Most tokens generated for an answer.
        max_new_tokens: u32,
    },
}

/// A panel as materialised for one tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrozenPanel {
    /// Panel name, or `calibration`.
    pub panel: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: String,
    /// SHA-256 of the panel file.
    pub sha256: String,
}

impl PanelPlan {
    /// Panel name as used in file names and certificates: `math`, `nll-1k`, `retrieval-256`.
    pub fn panel_name(&self) -> String {
        match self {
            PanelPlan::Math { .. } => "math".to_owned(),
            PanelPlan::Nll { length, .. } => format!("nll-{}", length_label(*length)),
            PanelPlan::Retrieval { length, .. } => format!("retrieval-{}", length_label(*length)),
        }
    }

    /// Number of cases that the protocol names for this panel.
    pub fn case_count(&self) -> u32 {
        match self {
            PanelPlan::Math { cases, .. } | PanelPlan::Retrieval { cases, .. } => *cases,
            PanelPlan::Nll { documents, .. } => *documents,
        }
    }
}

/// `1k` for 1,024, `8k` for 8,192, the plain number where it is no multiple of 1,024.
pub fn length_label(length: u32) -> String {
    if length >= 1024 && length.is_multiple_of(1024) {
        format!("{}k", length / 1024)
    } else {
        length.to_string()
    }
}

/// Limits and alpha divisors of the four rules. A rule's alpha is `family_alpha / divisor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Upper bound of lost/pairs on math.
    pub gross_loss: ProportionRule,
    /// Lower bound of (gained - lost)/pairs on math; `limit` is negative.
    pub net_change: ProportionRule,
    /// Upper bound of mean(candidate)/mean(control) - 1, per length.
    pub nll: NllRule,
    /// Upper bound of lost/pairs, per length.
    pub retrieval: ProportionRule,
}

/// Limit and divisor of a rule on proportions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProportionRule {
    /// Limit of the bound, a proportion (0.02 is 2%, -0.01 is -1 pp).
    pub limit: f64,
    /// Divisor of the family alpha.
    pub divisor: u32,
}

/// Limit, divisor and resampling of the NLL rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NllRule {
    /// Limit of the relative increase (0.01 is +1%).
    pub limit: f64,
    /// Divisor of the family alpha.
    pub divisor: u32,
    /// Bootstrap resamples.
    pub resamples: u32,
    /// Seed of the counter-based generator.
    pub seed: u64,
}

/// Least accuracy of the control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssaySensitivity {
    /// Least proportion of math questions that the control answers.
    pub math: f64,
    /// Least proportion of retrieval cases that the control answers, at each length.
    pub retrieval: f64,
}
