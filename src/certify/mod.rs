//! From protocol, panels and records to verdicts and certificates.
//!
//! [`load`] reads a run directory, [`certify`] is a pure function of what was read: records are
//! paired by the digest of their case, every answer is scored again from its output, rules are
//! evaluated against each control, and the verdict is the gravest finding (see [`Reason`]).

mod aa;
mod arms;
mod assemble;
mod attainable;
mod baseline;
mod cases;
mod caveats;
mod check;
mod compare;
mod contrast;
mod counts;
mod degradation;
mod engagement;
mod error;
mod evidence;
mod findings;
mod imported;
mod influence;
mod load;
mod measured;
mod order;
mod outcomes;
mod outlook;
mod pairs;
mod plan;
mod regenerated;
mod rescore;
mod resources;
mod rules;
mod server;
pub mod verify;

#[cfg(test)]
mod tests;

pub use assemble::{certify, certify_with};
pub use attainable::{Attainable, Unattainable, attainable, unattainable};
pub use baseline::{
    BaselineComparison, Incomparable, ObjectiveChange, RuleChange, against_baseline, comparable,
};
pub use cases::{
    DepthCounts, PairedCase, PairedOutcome, PairedPanel, by_depth, paired_cases, questions,
};
pub use caveats::FEW_DOCUMENTS;
pub use check::check;
pub use contrast::{
    CONFIDENCE, ComparedRun, Comparison, Contrast, ContrastCounts, ContrastError, ContrastMethod,
    Direction, EndpointFamily, GivenRun, Lack, MissingContrast, check_models, contrasts,
    contrasts_with,
};
pub use error::{AaDifference, CertifyError, Mismatch, RegenerationDifference};
pub use evidence::{ArmEvidence, Evidence, GoldCase, PanelGold};
pub use findings::Reason;
pub use load::load;
pub use order::judge_under;
pub use outlook::{POWERS, least_pairs, outlook};
pub use plan::{
    Assumptions, ObjectivePower, Probability, RulePower, objective_powers, rule_powers,
};
pub use regenerated::{REGENERATED_CASES, record_difference, regenerated_cases, regenerated_name};
pub use rescore::{MathScore, Rescore};
