//! Tango's score method for the difference of paired proportions.

use super::normal::{upper_quantile, upper_tail};
use super::{MAX_COUNT, PValue, Side, StatsError};

/// Matched pairs: discordant counts and the number of pairs, checked.
#[derive(Clone, Copy, Debug)]
struct Pairs {
    lost: f64,
    gained: f64,
    n: f64,
}

impl Pairs {
    fn new(lost: u64, gained: u64, n: u64) -> Result<Self, StatsError> {
        if n == 0 {
            return Err(StatsError::NoTrials);
        }
        if n > MAX_COUNT {
            return Err(StatsError::TooManyTrials { n });
        }
        if u128::from(lost) + u128::from(gained) > u128::from(n) {
            return Err(StatsError::DiscordantExceedPairs { lost, gained, n });
        }
        Ok(Pairs {
            lost: lost as f64,
            gained: gained as f64,
            n: n as f64,
        })
    }

    fn mirrored(self) -> Self {
        Pairs {
            lost: self.gained,
            gained: self.lost,
            n: self.n,
        }
    }

    fn estimate(self) -> f64 {
        (self.gained - self.lost) / self.n
    }

    /// Score `T(d)`, see [`tango_score`]. Falls in `d`.
    fn score(self, d: f64) -> f64 {
        let excess = self.gained - self.lost - self.n * d;
        if excess == 0.0 {
            return 0.0;
        }
        let variance = self.n * (2.0 * self.loss_rate(d) + d * (1.0 - d));
        excess / variance.max(0.0).sqrt()
    }

    /// Maximum-likelihood estimate of the loss probability where the difference is `d`: the larger
    /// root of `2n q^2 + B q + C = 0` with `B = (2n - gained + lost) d - (lost + gained)` and
    /// `C = -lost d (1 - d)`.
    fn loss_rate(self, d: f64) -> f64 {
        let a = 2.0 * self.n;
        let b = (2.0 * self.n - self.gained + self.lost) * d - (self.lost + self.gained);
        let c = -self.lost * d * (1.0 - d);
        let root = (b * b - 4.0 * a * c).max(0.0).sqrt();
        if b > 0.0 {
            // The same root without the difference of two almost equal numbers.
            -2.0 * c / (b + root)
        } else {
            (root - b) / (2.0 * a)
        }
    }

    /// The `d` at which the score is `z >= 0`.
    fn lower_bound(self, z: f64) -> f64 {
        if z == 0.0 {
            return self.estimate();
        }
        if self.lost == self.n {
            // The score never reaches z.
            return -1.0;
        }
        if self.lost == self.gained {
            let square = z * z;
            return -z * (2.0 * self.lost + square).sqrt() / (self.n + square);
        }
        self.bisect(z)
    }

    /// Bisection to the last bit: the closed form through a quartic loses everything in `f64` for
    /// large or one-sided tables, the score itself does not.
    fn bisect(self, z: f64) -> f64 {
        let (mut below, mut above) = (-1.0, self.estimate());
        loop {
            let middle = 0.5 * (below + above);
            if middle <= below || middle >= above || above - below < 1e-18 {
                return middle;
            }
            if self.score(middle) >= z {
                below = middle;
            } else {
                above = middle;
            }
        }
    }
}

/// How close score and quantile must be before the bound itself decides.
const NEAR_TIE: f64 = 1e-6;

/// Whether lower bounds of tables of `n` pairs are at least a limit: the same answer as
/// [`tango_bound`] gives, by one score instead of a bisection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowerBoundTest {
    n: u64,
    alpha: f64,
    z: f64,
    limit: f64,
}

impl LowerBoundTest {
    /// Tables of `1 <= n <= MAX_COUNT` pairs.
    ///
    /// # Errors
    /// Alpha outside (0, 1/2], a limit outside (-1, 1).
    pub(super) fn new(n: u64, alpha: f64, limit: f64) -> Result<Self, StatsError> {
        if !(alpha > 0.0 && alpha <= 0.5) {
            return Err(StatsError::AlphaAboveHalf { alpha });
        }
        if !(limit > -1.0 && limit < 1.0) {
            return Err(StatsError::Limit { limit });
        }
        Ok(LowerBoundTest {
            n,
            alpha,
            z: upper_quantile(alpha),
            limit,
        })
    }

    /// Whether the lower bound is at least the limit; false for tables that do not exist. The score
    /// falls in the difference, so that it exceeds `z` at the limit where the bound lies above it.
    pub(super) fn passes(self, lost: u64, gained: u64) -> bool {
        let Ok(pairs) = Pairs::new(lost, gained, self.n) else {
            return false;
        };
        let score = pairs.score(self.limit);
        if (score - self.z).abs() > NEAR_TIE {
            return score > self.z;
        }
        tango_bound(lost, gained, self.n, self.alpha, Side::Lower)
            .is_ok_and(|bound| bound >= self.limit)
    }
}

/// Score statistic for the hypothesis that the paired difference `(gained - lost) / n` is `delta`.
///
/// `T(delta) = (gained - lost - n delta) / sqrt(n (2 q + delta (1 - delta)))` with `q` the
/// constrained maximum-likelihood estimate of the loss probability; 0/0 counts as 0. No continuity
/// correction and no factor `n / (n - 1)`. Infinite where the constrained variance is 0.
///
/// Literature: Tango 1998, Stat. Med. 17:891-908.
///
/// # Errors
/// `n = 0`, `n` above [`MAX_COUNT`], `lost + gained > n`, `delta` outside [-1, 1].
pub fn tango_score(lost: u64, gained: u64, n: u64, delta: f64) -> Result<f64, StatsError> {
    let pairs = Pairs::new(lost, gained, n)?;
    if !(-1.0..=1.0).contains(&delta) {
        return Err(StatsError::Margin { margin: delta });
    }
    Ok(pairs.score(delta))
}

/// One-sided Tango score bound of `(gained - lost) / n`, at confidence `1 - alpha`.
///
/// The lower bound solves `T(delta) = z`, the upper one `T(delta) = -z`, with
/// `z = Phi^-1(1 - alpha)`. `lost = n` gives lower bound -1, `gained = n` upper bound 1; equal
/// counts give `-+ z sqrt(2 lost + z^2) / (n + z^2)`, so that a table without discordant pairs
/// still has a bound away from 0. Upper bounds are minus the lower bounds of the mirrored table,
/// bit for bit. The method is approximate: docs/statistics.md gives its measured coverage.
///
/// Literature: Tango 1998, Stat. Med. 17:891-908; Fagerland, Lydersen & Laake 2014, Stat. Med.
/// 33:2850-2875.
///
/// # Errors
/// `n = 0`, `n` above [`MAX_COUNT`], `lost + gained > n`, alpha outside (0, 1/2].
pub fn tango_bound(
    lost: u64,
    gained: u64,
    n: u64,
    alpha: f64,
    side: Side,
) -> Result<f64, StatsError> {
    let pairs = Pairs::new(lost, gained, n)?;
    if !(alpha > 0.0 && alpha <= 0.5) {
        return Err(StatsError::AlphaAboveHalf { alpha });
    }
    Ok(bound_at(pairs, upper_quantile(alpha), side))
}

/// Two-sided Tango score interval of `(gained - lost) / n`: the one-sided bounds at half of
/// `1 - confidence` each.
///
/// Literature: as [`tango_bound`].
///
/// # Errors
/// `n = 0`, `n` above [`MAX_COUNT`], `lost + gained > n`, confidence outside (0, 1).
pub fn tango_interval(
    lost: u64,
    gained: u64,
    n: u64,
    confidence: f64,
) -> Result<(f64, f64), StatsError> {
    let pairs = Pairs::new(lost, gained, n)?;
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(StatsError::Confidence { confidence });
    }
    let z = upper_quantile(0.5 * (1.0 - confidence));
    Ok((
        bound_at(pairs, z, Side::Lower),
        bound_at(pairs, z, Side::Upper),
    ))
}

fn bound_at(pairs: Pairs, z: f64, side: Side) -> f64 {
    // Adding 0 turns -0 into 0.
    match side {
        Side::Lower => pairs.lower_bound(z) + 0.0,
        Side::Upper => -pairs.mirrored().lower_bound(z) + 0.0,
    }
}

/// Result of [`tango_noninferiority`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonInferiority {
    /// `T(-margin)`.
    pub z_lower: f64,
    /// Non-inferiority: p against "worse by `margin` or more".
    pub p_lower: PValue,
    /// `T(margin)`.
    pub z_upper: f64,
    /// p against "better by `margin` or more".
    pub p_upper: PValue,
    /// Equivalence by two one-sided tests: the larger of both.
    pub p_equivalence: PValue,
}

/// Score test of non-inferiority within `margin`, and of equivalence by two one-sided tests.
///
/// `p_lower = 1 - Phi(T(-margin))` is below alpha exactly where the lower [`tango_bound`] at alpha
/// exceeds `-margin`; `p_upper = Phi(T(margin))`.
///
/// Literature: Tango 1998, Stat. Med. 17:891-908; Schuirmann 1987, J. Pharmacokin. Biopharm.
/// 15:657-680.
///
/// # Errors
/// `n = 0`, `n` above [`MAX_COUNT`], `lost + gained > n`, margin outside [0, 1].
pub fn tango_noninferiority(
    lost: u64,
    gained: u64,
    n: u64,
    margin: f64,
) -> Result<NonInferiority, StatsError> {
    if !(0.0..=1.0).contains(&margin) {
        return Err(StatsError::Margin { margin });
    }
    let pairs = Pairs::new(lost, gained, n)?;
    let (z_lower, z_upper) = (pairs.score(-margin), pairs.score(margin));
    let (p_lower, p_upper) = (upper_tail(z_lower), upper_tail(-z_upper));
    let p_equivalence = if p_lower.log10_p >= p_upper.log10_p {
        p_lower
    } else {
        p_upper
    };
    Ok(NonInferiority {
        z_lower,
        p_lower,
        z_upper,
        p_upper,
        p_equivalence,
    })
}

#[cfg(test)]
mod tests;
