//! Effect, interval and p of one contrast.

use crate::certify::compare::PairValues;
use crate::certify::pairs::{AnswerPairs, NllPairs, mean};
use crate::schema::NllRule;
use crate::stats::{
    BootstrapPlan, PValue, StatsError, bootstrap_difference_interval, bootstrap_difference_test,
    mcnemar_exact, tango_interval,
};

use super::{CONFIDENCE, ContrastCounts, Direction};

/// A test that could be computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tested {
    /// What was counted.
    pub counts: ContrastCounts,
    /// Difference first - second: of accuracies, or of mean NLL in nats.
    pub effect: f64,
    /// Two-sided interval of the effect.
    pub interval: [f64; 2],
    /// Two-sided, unadjusted.
    pub p: PValue,
    /// The arm that the effect favours.
    pub direction: Direction,
}

/// Tests the difference between the first arm, in the place of the control, and the second.
///
/// # Errors
/// No pairs; fewer than two documents.
pub(super) fn test(pairs: &PairValues, rule: &NllRule) -> Result<Tested, StatsError> {
    match pairs {
        PairValues::Answers(counts) => on_answers(counts),
        PairValues::Nll(values) => on_nll(values, rule),
    }
}

fn on_answers(counts: &AnswerPairs) -> Result<Tested, StatsError> {
    let (first_only, second_only) = (counts.lost, counts.gained);
    let interval = tango_interval(second_only, first_only, counts.pairs, CONFIDENCE)?;
    Ok(Tested {
        counts: ContrastCounts::Answers {
            pairs: counts.pairs,
            first_correct: counts.control_correct,
            second_correct: counts.candidate_correct,
            first_only,
            second_only,
        },
        effect: (first_only as f64 - second_only as f64) / counts.pairs as f64,
        interval: interval.into(),
        p: mcnemar_exact(first_only, second_only),
        direction: Direction::larger(first_only, second_only),
    })
}

fn on_nll(values: &NllPairs, rule: &NllRule) -> Result<Tested, StatsError> {
    let (first, second) = (&values.control, &values.candidate);
    let plan = BootstrapPlan {
        resamples: rule.resamples,
        seed: rule.seed,
    };
    // Both functions take the second of their lists minus the first.
    let test = bootstrap_difference_test(second, first, plan)?;
    let interval = bootstrap_difference_interval(second, first, CONFIDENCE, plan)?;
    // Adding 0 turns -0 into 0.
    let effect = test.mean_difference + 0.0;
    Ok(Tested {
        counts: ContrastCounts::Nll {
            documents: first.len() as u64,
            first_mean: mean(first),
            second_mean: mean(second),
            exceeding: test.exceeding,
        },
        effect,
        interval: [interval.lower + 0.0, interval.upper + 0.0],
        p: test.p,
        direction: Direction::larger(0.0, effect),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(pairs: u64, both: u64, first_only: u64, second_only: u64) -> Tested {
        let counts = AnswerPairs {
            pairs,
            control_correct: both + first_only,
            candidate_correct: both + second_only,
            lost: first_only,
            gained: second_only,
        };
        on_answers(&counts).unwrap()
    }

    fn nll(first: &[f64], second: &[f64]) -> Tested {
        let pairs = NllPairs {
            cases: vec!["document".to_owned(); first.len()],
            control: first.to_vec(),
            candidate: second.to_vec(),
        };
        let rule = NllRule {
            limit: 0.01,
            divisor: 1,
            resamples: 2_000,
            seed: 3,
        };
        on_nll(&pairs, &rule).unwrap()
    }

    #[test]
    fn published_ruin_has_a_finite_logarithm() {
        let found = answers(1319, 0, 1199, 0);
        assert_eq!(found.p.p, 0.0);
        assert!((found.p.log10_p + 360.634).abs() < 1e-3, "{:?}", found.p);
        assert_eq!(found.direction, Direction::First);
        assert_eq!(found.effect, 1199.0 / 1319.0);
        assert!(found.interval[0] < found.effect && found.effect < found.interval[1]);
    }

    #[test]
    fn answers_have_the_sign_of_first_minus_second() {
        let (there, back) = (answers(100, 40, 3, 20), answers(100, 40, 20, 3));
        assert_eq!(there.direction, Direction::Second);
        assert_eq!(back.direction, Direction::First);
        assert_eq!(there.effect, -0.17);
        assert_eq!(there.p, back.p);
        assert_eq!(there.interval, [-back.interval[1], -back.interval[0]]);
    }

    #[test]
    fn no_discordant_pair_is_no_direction() {
        for found in [answers(50, 50, 0, 0), answers(50, 10, 4, 4)] {
            assert_eq!((found.effect, found.p), (0.0, PValue::ONE));
            assert_eq!(found.direction, Direction::None);
            assert!(found.interval[0] < 0.0 && found.interval[1] > 0.0);
        }
    }

    #[test]
    fn the_lower_likelihood_loss_is_favoured() {
        let (low, high) = ([2.0, 2.5, 3.0, 2.2], [2.1, 2.7, 3.1, 2.3]);
        let found = nll(&low, &high);
        assert_eq!(found.direction, Direction::First);
        assert!((found.effect + 0.125).abs() < 1e-12);
        assert!(found.interval[1] < 0.0 && found.interval[0] < found.effect);
        assert_eq!(nll(&high, &low).direction, Direction::Second);
    }

    #[test]
    fn equal_likelihoods_are_a_tie() {
        let values = [2.0, 2.5, 3.0];
        let found = nll(&values, &values);
        assert_eq!((found.effect, found.p.p, found.p.log10_p), (0.0, 1.0, 0.0));
        assert_eq!(found.interval, [0.0, 0.0]);
        assert!(found.effect.is_sign_positive());
        assert_eq!(found.direction, Direction::None);
    }
}
