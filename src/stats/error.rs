//! Why a statistic cannot be computed.

/// Largest number of pairs or trials that bounds accept, 2^40. Beyond it the tail sums, whose
/// length grows with the square root of the count, take longer than a caller would wait.
pub const MAX_COUNT: u64 = 1 << 40;

/// Largest number of bootstrap resamples, 10 million: each is one stored `f64`.
pub const MAX_RESAMPLES: u32 = 10_000_000;

/// An input outside the domain of a method.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// No pairs or trials.
    #[error("n is 0, expected at least 1")]
    NoTrials,
    /// More trials than [`MAX_COUNT`].
    #[error("n is {n}, expected at most {MAX_COUNT}")]
    TooManyTrials {
        /// Trials given.
        n: u64,
    },
    /// More successes than trials.
    #[error("k is {k}, expected at most n = {n}")]
    SuccessesExceedTrials {
        /// Successes given.
        k: u64,
        /// Trials given.
        n: u64,
    },
    /// More discordant pairs than pairs.
    #[error("lost + gained is {lost} + {gained}, expected at most n = {n}")]
    DiscordantExceedPairs {
        /// Pairs lost.
        lost: u64,
        /// Pairs gained.
        gained: u64,
        /// Pairs.
        n: u64,
    },
    /// Alpha outside its open interval.
    #[error("alpha is {alpha}, expected 0 < alpha < 1")]
    Alpha {
        /// Alpha given.
        alpha: f64,
    },
    /// A one-sided score bound at more than one half would lie on the wrong side of the estimate.
    #[error("alpha is {alpha}, expected 0 < alpha <= 0.5 for a one-sided score bound")]
    AlphaAboveHalf {
        /// Alpha given.
        alpha: f64,
    },
    /// Confidence outside its open interval.
    #[error("confidence is {confidence}, expected 0 < confidence < 1")]
    Confidence {
        /// Confidence given.
        confidence: f64,
    },
    /// A probability outside [0, 1] or not a number.
    #[error("p is {p}, expected 0 <= p <= 1")]
    Probability {
        /// Probability given.
        p: f64,
    },
    /// A p-value of a list outside [0, 1].
    #[error("p-value {p} at index {index}, expected 0 <= p <= 1 or NaN")]
    PValue {
        /// Position in the list, from 0.
        index: usize,
        /// Value found.
        p: f64,
    },
    /// A log10 p-value above 0.
    #[error("log10 p-value {log10_p} at index {index}, expected at most 0, or NaN")]
    Log10PValue {
        /// Position in the list, from 0.
        index: usize,
        /// Value found.
        log10_p: f64,
    },
    /// A margin outside [0, 1].
    #[error("margin is {margin}, expected 0 <= margin <= 1")]
    Margin {
        /// Margin given.
        margin: f64,
    },
    /// A limit outside the open interval of differences.
    #[error("limit is {limit}, expected -1 < limit < 1")]
    Limit {
        /// Limit given.
        limit: f64,
    },
    /// Rates that are no probabilities of three outcomes.
    #[error(
        "loss and gain rates are {loss} and {gain}, expected two rates from 0 to 1 that add up to \
         at most 1"
    )]
    Rates {
        /// Loss rate given.
        loss: f64,
        /// Gain rate given.
        gain: f64,
    },
    /// A power outside its open interval.
    #[error("power is {power}, expected 0 < power < 1")]
    Power {
        /// Power given.
        power: f64,
    },
    /// A mean or standard deviation that no document can have.
    #[error("mean is {mean} and sd {sd}, expected finite numbers and sd at least 0")]
    Spread {
        /// Mean given.
        mean: f64,
        /// Standard deviation given.
        sd: f64,
    },
    /// Paired lists of different lengths.
    #[error("{native} native values and {candidate} candidate values, expected as many of each")]
    LengthMismatch {
        /// Native values.
        native: usize,
        /// Candidate values.
        candidate: usize,
    },
    /// Too few documents to resample, or more than an index can name.
    #[error("{n} documents, expected 2 to 4294967295 for a bootstrap")]
    DocumentCount {
        /// Documents given.
        n: usize,
    },
    /// A value that is not finite.
    #[error("{list} value at index {index} is {value}, expected a finite number")]
    NonFinite {
        /// Which list: `native`, `candidate` or `difference`.
        list: &'static str,
        /// Position in the list, from 0.
        index: usize,
        /// Value found.
        value: f64,
    },
    /// Sums of the values leave the range of `f64`.
    #[error("the sum of {n} {list} values overflows, expected a finite mean")]
    Overflow {
        /// Which list: `native` or `candidate`.
        list: &'static str,
        /// Values in the list.
        n: usize,
    },
    /// A ratio to a mean that is not positive says nothing.
    #[error("mean of the native values is {mean}, expected more than 0")]
    NativeMean {
        /// Mean found.
        mean: f64,
    },
    /// A resample whose native mean is not positive: the ratio has no distribution to bound.
    #[error(
        "resample {resample} has native sum {sum}, expected more than 0 (zero or negative native \
         values leave the ratio undefined)"
    )]
    ResampledNativeSum {
        /// Resample, from 0.
        resample: u32,
        /// Sum of its native values.
        sum: f64,
    },
    /// The resamples cannot reach into the tail that alpha asks for.
    #[error("{resamples} resamples, expected {needed} to {MAX_RESAMPLES} at alpha = {alpha}")]
    Resamples {
        /// Resamples given.
        resamples: u32,
        /// Least number, `ceil(1 / alpha)`.
        needed: u64,
        /// Alpha given.
        alpha: f64,
    },
}
