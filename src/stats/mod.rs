//! Statistics: exact binomial bounds and tests, matched-pair score bounds, Holm, paired bootstrap
//! and the counter-based generator behind it.
//!
//! Pure functions: no I/O, no clock, no global state. In every table `lost` counts pairs where the
//! control is right and the candidate wrong, `gained` the reverse; a difference is
//! `(gained - lost) / n`, so negative is worse. `docs/statistics.md` gives formulas, literature and
//! measured coverage.

mod binomial;
mod bootstrap;
mod clopper_pearson;
mod error;
mod exact;
mod holm;
mod normal;
mod power;
mod resample;
mod rng;
mod tango;

pub use binomial::{ln_binomial_cdf, ln_binomial_pmf, ln_binomial_sf};
pub use bootstrap::{
    BootstrapBound, BootstrapInterval, BootstrapPlan, BootstrapTest, bootstrap_difference_interval,
    bootstrap_difference_test, bootstrap_ratio_bound, bootstrap_ratio_bounds, is_proportional,
    least_resamples,
};
pub use clopper_pearson::{clopper_pearson_lower, clopper_pearson_upper};
pub use error::{MAX_COUNT, MAX_RESAMPLES, StatsError};
pub use exact::{PValue, SignTest, mcnemar_exact, sign_test, sign_test_differences};
pub use holm::{holm, holm_log10};
pub use power::{
    AssumedIncrease, Criterion, MAX_PAIRS_SOUGHT, Needed, PassProbability, Rates, SimulatedPower,
    Simulation, documents_for_increase, largest_passing_lost, largest_passing_net_loss,
    least_passing_gained, loss_pass_probability, net_pass_probability, pairs_for_loss,
    pairs_for_net_change, simulate_increase,
};
pub use rng::CounterRng;
pub use tango::{NonInferiority, tango_bound, tango_interval, tango_noninferiority, tango_score};

/// Which side of the estimate a one-sided bound lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Lower bound: the parameter lies above it with confidence `1 - alpha`.
    Lower,
    /// Upper bound: the parameter lies below it with confidence `1 - alpha`.
    Upper,
}
