//! A second opinion: this crate's own parsers on imported outputs. Recorded, never decisive.

use crate::schema::PanelPlan;
use crate::score::{self, Decimal, NEEDLE_SCORER, Parser};

/// What this crate reads in an imported output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    /// Parser with its version.
    pub parser: &'static str,
    /// Parsed answer (math).
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// Scores `output`; `None` where the gold answer is none that this crate reads.
pub(super) fn opinion(panel: &PanelPlan, output: &str, gold: &str) -> Option<Opinion> {
    match panel {
        PanelPlan::Math { .. } => {
            let gold = gold_number(gold)?;
            let parser = Parser::Gsm8k1;
            let answer = score::parse_answer(parser, output);
            Some(Opinion {
                parser: parser.name(),
                correct: score::math_correct(answer.as_ref(), &gold, false),
                answer: answer.map(|answer| answer.to_string()),
            })
        }
        PanelPlan::Retrieval { .. } => (!gold.is_empty()).then(|| Opinion {
            parser: NEEDLE_SCORER,
            answer: None,
            correct: score::retrieval_correct(output, gold, false),
        }),
        PanelPlan::Nll { .. } => None,
    }
}

/// The number after the last `####`, or the whole text.
fn gold_number(gold: &str) -> Option<Decimal> {
    Decimal::parse(gold.rsplit("####").next().unwrap_or(gold))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATH: PanelPlan = PanelPlan::Math {
        task: String::new(),
        cases: 1,
        max_new_tokens: 1,
    };

    #[test]
    fn numbers_are_read_and_other_answers_left_alone() {
        let right = opinion(&MATH, "So it is $18.00.", "9 + 9 = 18\n#### 18").unwrap();
        assert_eq!((right.parser, right.correct), ("gsm8k/1", true));
        let wrong = opinion(&MATH, "17", "18").unwrap();
        assert_eq!(wrong.answer.as_deref(), Some("17"));
        assert!(!wrong.correct);
        assert_eq!(opinion(&MATH, "B", "B"), None);
    }
}
