//! Answers verified in place of generated: drafts are the arm's own answers with one token replaced.

use crate::backend::timing::Timed;
use crate::engine::GenerateRequest;
use crate::recipe::Recipe;
use crate::schema::LayerAbsmax;

use super::panel::Batch;
use super::{Bench, BenchError, Measured, Work};

/// Part of an answer before the replaced token, in tenths.
const REPLACED_AT: usize = 7;

/// Tokens of a draft of so many that can be taken over.
pub(super) fn taken_over(draft: usize) -> usize {
    draft * REPLACED_AT / 10
}

/// An answer with one token replaced.
fn draft(answer: &[u32], vocabulary: u32) -> Vec<u32> {
    let mut draft = answer.to_vec();
    if let Some(id) = draft.get_mut(taken_over(answer.len())) {
        *id = (*id + 1) % vocabulary.max(1);
    }
    draft
}

impl<B: Timed> Bench<B> {
    /// Math generated plainly, then verified; the answers have to be the same.
    pub(super) fn verify(
        &mut self,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
    ) -> Result<Measured, BenchError> {
        let plain = self.math();
        self.open_arm(recipe, absmax, plain.slots)?;
        self.warm_up(Work::Verify, &plain)?;
        let generated = self.run(Work::Verify, &plain)?;
        let vocabulary = self.vocabulary();
        let with_draft = |(request, answer): (&GenerateRequest, &Vec<u32>)| GenerateRequest {
            draft: draft(answer, vocabulary),
            ..request.clone()
        };
        let answers = &generated.answers;
        let drafted = Batch {
            generate: plain.generate.iter().zip(answers).map(with_draft).collect(),
            ..plain.clone()
        };
        self.open_arm(recipe, absmax, drafted.slots)?;
        let verified = self.run(Work::Verify, &drafted)?;
        let differing = answers
            .iter()
            .zip(&verified.answers)
            .filter(|(a, b)| a != b);
        let differing = differing.count();
        if differing > 0 {
            return Err(BenchError::Differs {
                differing,
                cases: answers.len(),
            });
        }
        Ok(Measured {
            work: Work::Verify.name(),
            recipe: Some(recipe.name.clone()),
            what: format!(
                "{} answers, one token in each draft replaced; generated plainly in {:.2} s, ratio {:.3}",
                answers.len(),
                generated.seconds,
                verified.seconds / generated.seconds
            ),
            seconds: verified.seconds,
            figure: verified.seconds,
            unit: "s",
            floor: Some(self.floor(recipe, &drafted)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_differs_in_one_token_at_seven_tenths() {
        let answer: Vec<u32> = (0..256).map(|i| i % 9).collect();
        let draft = draft(&answer, 9);
        let differing: Vec<usize> = (0..256).filter(|&i| draft[i] != answer[i]).collect();
        assert_eq!(differing, [179]);
        assert!(draft.iter().all(|&id| id < 9));
        assert!(super::draft(&[], 9).is_empty());
    }
}
