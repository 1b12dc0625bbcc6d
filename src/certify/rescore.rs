//! Scoring again: what a certificate counts follows from outputs, not from stored verdicts.

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
