//! Frozen, versioned answer parsers and exact-match scoring. Pure.
//!
//! A parser's name carries its version (`gsm8k/1`). What a version reads from a text never
//! changes: another reading is another version, so that stored records can be scored again.
//!
//! The first principle of every parser here: never silently another number. A text whose number
//! can be read in two ways gives no answer, and no answer is wrong.

mod decimal;
mod gsm8k;
mod lexer;
mod needle;
mod normalise;
mod quantity;
#[cfg(test)]
mod tests;

pub use decimal::Decimal;
pub use needle::{NEEDLE_SCORER, retrieval_correct};

/// A parser of numeric answers, with its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parser {
    /// `gsm8k/1`, decisive. Reads the model's own answer: what follows the last `</think>`, up to
    /// the first line that begins another question or another turn. In it the first of these
    /// rules that finds its mark decides, even where what it finds cannot be read:
    ///
    /// 1. the last `#### number`, the form that the task asks for (a heading such as
    ///    `#### Step 2` or `#### 2. Add up` is no mark);
    /// 2. the last `\boxed{…}`;
    /// 3. the last `answer is …` or `Answer: …` that a number follows in the same sentence;
    /// 4. the last number of the text.
    Gsm8k1,
    /// `gsm8k-last-number/1`, secondary: rule 4 alone, on the same text.
    Gsm8kLastNumber1,
}

impl Parser {
    /// Every parser, decisive ones first.
    pub const ALL: [Parser; 2] = [Parser::Gsm8k1, Parser::Gsm8kLastNumber1];

    /// Name with version, as stored in panel headers and records.
    pub fn name(self) -> &'static str {
        match self {
            Parser::Gsm8k1 => "gsm8k/1",
            Parser::Gsm8kLastNumber1 => "gsm8k-last-number/1",
        }
    }

    /// The parser of this name, if this version of the tool has it.
    pub fn from_name(name: &str) -> Option<Parser> {
        Parser::ALL.into_iter().find(|parser| parser.name() == name)
    }

    /// Parsers whose scores are recorded beside the decisive one and never decide.
    pub fn secondary() -> &'static [Parser] {
        &[Parser::Gsm8kLastNumber1]
    }
}

/// The answer that `parser` reads from a model's output; `None` where there is none or where it
/// cannot be read as one exact number.
pub fn parse_answer(parser: Parser, output: &str) -> Option<Decimal> {
    match parser {
        Parser::Gsm8k1 => gsm8k::answer(output),
        Parser::Gsm8kLastNumber1 => gsm8k::last_number(output),
    }
}

/// Whether an answer is right: read, not truncated, and exactly the gold number (`29.00` is `29`).
pub fn math_correct(answer: Option<&Decimal>, gold: &Decimal, truncated: bool) -> bool {
    !truncated && answer == Some(gold)
}
