//! Scoring again: what a certificate counts follows from outputs, not from stored verdicts.

use crate::score::{self, Decimal, Parser};

/// Scores stored outputs with the frozen parsers.
pub trait Rescore {
    /// Parses and scores the answer to a math question.
    ///
    /// # Errors
    /// What is wrong with the panel: an unknown parser, a gold answer that is no decimal.
    fn math(
        &self,
        parser: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<MathScore, String>;

    /// Scores the answer of a retrieval case.
    ///
    /// # Errors
    /// What is wrong with the panel: an unknown parser.
    fn retrieval(
        &self,
        parser: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<bool, String>;
}

/// A scored math answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MathScore {
    /// Parsed answer as an exact decimal; `None` where nothing could be parsed.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// The parsers of `score`, named with their versions by panel headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrozenParsers;

impl Rescore for FrozenParsers {
    fn math(
        &self,
        parser: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<MathScore, String> {
        let parser = Parser::from_name(parser).ok_or_else(|| format!("parser `{parser}`"))?;
        let gold = Decimal::parse(gold).ok_or_else(|| format!("gold answer `{gold}`"))?;
        let answer = score::parse_answer(parser, output);
        Ok(MathScore {
            correct: score::math_correct(answer.as_ref(), &gold, truncated),
            answer: answer.map(|answer| answer.to_string()),
        })
    }

    fn retrieval(
        &self,
        parser: &str,
        output: &str,
        gold: &str,
        truncated: bool,
    ) -> Result<bool, String> {
        if parser != score::NEEDLE_SCORER {
            return Err(format!("parser `{parser}`"));
        }
        Ok(score::retrieval_correct(output, gold, truncated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_scored_by_the_named_parser() {
        let score = |output, truncated| FrozenParsers.math("gsm8k/1", output, "29", truncated);
        let right = MathScore {
            answer: Some("29".to_owned()),
            correct: true,
        };
        assert_eq!(score("It is $29.00.\n#### 29.00", false), Ok(right.clone()));
        let cut = MathScore {
            correct: false,
            ..right
        };
        assert_eq!(score("#### 29", true), Ok(cut));
        assert_eq!(score("no idea", false).map(|score| score.answer), Ok(None));
        let needle = |output| FrozenParsers.retrieval("needle/1", output, "1234567", false);
        assert_eq!(needle("The code is 1234567."), Ok(true));
        assert_eq!(needle("The code is 7654321."), Ok(false));
    }

    #[test]
    fn unknown_parsers_and_strange_gold_answers_are_named() {
        let unknown = FrozenParsers.math("gsm8k/2", "#### 1", "1", false);
        assert_eq!(unknown, Err("parser `gsm8k/2`".to_owned()));
        let strange = FrozenParsers.math("gsm8k/1", "#### 1", "one", false);
        assert_eq!(strange, Err("gold answer `one`".to_owned()));
        let unknown = FrozenParsers.retrieval("gsm8k/1", "1", "1", false);
        assert_eq!(unknown, Err("parser `gsm8k/1`".to_owned()));
    }
}
