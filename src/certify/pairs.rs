//! Paired outcomes of a candidate and a control.

use super::evidence::GoldCase;
use super::outcomes::Outcome;

/// Paired answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerPairs {
    /// Pairs.
    pub pairs: u64,
    /// Pairs that the control answered right.
    pub control_correct: u64,
    /// Pairs that the candidate answered right.
    pub candidate_correct: u64,
    /// Control right, candidate wrong.
    pub lost: u64,
    /// Control wrong, candidate right.
    pub gained: u64,
}

impl AnswerPairs {
    /// Counts the pairs in which both arms have an answer.
    pub fn count(control: &[Option<Outcome>], candidate: &[Option<Outcome>]) -> Self {
        let mut counts = AnswerPairs::default();
        for pair in control.iter().zip(candidate) {
            if let (Some(Outcome::Answer(control)), Some(Outcome::Answer(candidate))) = pair {
                counts.pairs += 1;
                counts.control_correct += u64::from(*control);
                counts.candidate_correct += u64::from(*candidate);
                counts.lost += u64::from(*control && !candidate);
                counts.gained += u64::from(!control && *candidate);
            }
        }
        counts
    }

    /// `lost / pairs`; `pairs` must not be 0.
    pub fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.pairs as f64
    }

    /// `(gained - lost) / pairs`; `pairs` must not be 0.
    pub fn net_change(&self) -> f64 {
        (self.gained as f64 - self.lost as f64) / self.pairs as f64
    }

    /// Proportion that the control answered right; `pairs` must not be 0.
    pub fn control_accuracy(&self) -> f64 {
        self.control_correct as f64 / self.pairs as f64
    }
}

/// Paired mean NLL per target, in nats, in plan order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NllPairs {
    /// Case of each document.
    pub cases: Vec<String>,
    /// Control, per document.
    pub control: Vec<f64>,
    /// Candidate, per document.
    pub candidate: Vec<f64>,
}

impl NllPairs {
    /// Collects the documents that both arms have scored.
    pub fn collect(
        cases: &[GoldCase],
        control: &[Option<Outcome>],
        candidate: &[Option<Outcome>],
    ) -> Self {
        let mut pairs = NllPairs::default();
        for (case, pair) in cases.iter().zip(control.iter().zip(candidate)) {
            if let (Some(Outcome::MeanNll(control)), Some(Outcome::MeanNll(candidate))) = pair {
                pairs.cases.push(case.case.clone());
                pairs.control.push(*control);
                pairs.candidate.push(*candidate);
            }
        }
        pairs
    }

    /// `candidate - control` per document.
    pub fn differences(&self) -> Vec<f64> {
        let pairs = self.control.iter().zip(&self.candidate);
        pairs
            .map(|(control, candidate)| candidate - control)
            .collect()
    }

    /// Standard deviation over documents of the part of a difference that does not follow the
    /// control's value, relative to the control's mean: `increase` is the relative increase of the
    /// mean. Two documents at least.
    pub fn relative_sd(&self, increase: f64) -> f64 {
        let residuals = self.differences().into_iter().zip(&self.control);
        let squares: f64 = residuals
            .map(|(difference, control)| (difference - increase * control).powi(2))
            .sum();
        (squares / (self.control.len() as f64 - 1.0)).sqrt() / mean(&self.control)
    }

    /// All documents but one.
    pub fn without(&self, at: usize) -> Self {
        let mut rest = self.clone();
        rest.cases.remove(at);
        rest.control.remove(at);
        rest.candidate.remove(at);
        rest
    }
}

/// Mean of a list that is not empty.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
