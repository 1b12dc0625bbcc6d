//! From protocol, panels and records to verdicts and certificates.
//!
//! [`load`] reads a run directory, [`certify`] is a pure function of what was read: records are
//! paired by the digest of their case, every answer is scored again from its output, rules are
//! evaluated against each control, and the verdict is the gravest finding (see [`Reason`]).

mod aa;
mod arms;
mod assemble;
mod attainable;
mod caveats;
mod check;
mod compare;
mod counts;
mod degradation;
mod engagement;
mod error;
mod evidence;
mod findings;
mod influence;
mod load;
mod measured;
mod outcomes;
mod outlook;
mod pairs;
mod plan;
mod rescore;
mod rules;

#[cfg(test)]
mod tests;

pub use assemble::{certify, certify_with};
pub use attainable::{Unattainable, unattainable};
pub use error::{AaDifference, CertifyError, Mismatch};
pub use evidence::{ArmEvidence, Evidence, GoldCase, PanelGold};
pub use findings::Reason;
pub use load::load;
pub use outlook::{POWERS, outlook};
pub use plan::{
    Assumptions, ObjectivePower, Probability, RulePower, objective_powers, rule_powers,
};
pub use rescore::{MathScore, Rescore};
