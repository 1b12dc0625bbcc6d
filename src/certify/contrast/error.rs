//! Why runs cannot be compared at all.

use crate::certify::CertifyError;
use crate::stats::StatsError;

/// Why no contrast is computed. Evidence that is merely missing is no error: see
/// [`MissingContrast`](super::MissingContrast).
#[derive(Debug, thiserror::Error)]
pub enum ContrastError {
    /// No run was given.
    #[error("found no run, expected at least one")]
    NoRun,
    /// Runs of different protocols.
    #[error(
        "{first}/run.json: protocol {first_sha256}, {second}/run.json: protocol {second_sha256}: \
         expected the same protocol in every run"
    )]
    OtherProtocol {
        /// First run.
        first: String,
        /// Digest of its protocol.
        first_sha256: String,
        /// A run with another protocol.
        second: String,
        /// Digest of that.
        second_sha256: String,
    },
    /// Two runs of one model.
    #[error(
        "{first}/run.json, {second}/run.json: model {model} is given twice ({what}), expected one \
         run of each model"
    )]
    GivenTwice {
        /// First run.
        first: String,
        /// Second run.
        second: String,
        /// Model of the second run.
        model: String,
        /// What is the same: `same name` or `same weights`.
        what: &'static str,
    },
    /// Nothing was asked for and nothing is declared.
    #[error(
        "protocol {protocol} declares no contrasts: expected --contrast A-B with two of the arms \
         {arms}"
    )]
    NothingDeclared {
        /// Name of the protocol.
        protocol: String,
        /// Arms of the runs.
        arms: String,
    },
    /// A contrast that names no two arms.
    #[error(
        "--contrast: found `{found}`, expected FIRST-SECOND with two different arms of the runs: \
         {arms}"
    )]
    UnknownArm {
        /// What was asked for.
        found: String,
        /// Arms of the runs.
        arms: String,
    },
    /// A run from which no certificate could be issued either.
    #[error("{run}: {source}")]
    Certify {
        /// The run.
        run: String,
        /// Cause.
        source: Box<CertifyError>,
    },
    /// p-values that cannot be adjusted.
    #[error("endpoint {endpoint}: p-values cannot be adjusted")]
    Adjustment {
        /// Endpoint.
        endpoint: String,
        /// Cause.
        source: StatsError,
    },
}
