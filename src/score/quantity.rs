//! Reads a short text that should state one number.

use super::decimal::Decimal;
use super::lexer::{Number, is_currency, numbers};
use super::normalise::normalise;

/// The text holds a number, but not one that can be read in one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

/// The one number that `text` states; `Ok(None)` where it holds none.
///
/// Where there is an `=`, what follows the last one counts. Several numbers are accepted only if
/// all are the same and no operator touches them. A number that is negated in words (`not 5`) is
/// ambiguous.
pub(super) fn read(text: &str) -> Result<Option<Decimal>, Ambiguous> {
    let text = normalise(text);
    let text = right_side(&text)?;
    let trimmed = text.trim();
    // A lone dash before the number: a bullet or a sign?
    if trimmed.starts_with("- ") && trimmed.contains(|c: char| c.is_ascii_digit()) {
        return Err(Ambiguous);
    }
    let chars: Vec<char> = trimmed.chars().collect();
    let found = numbers(&chars);
    let Some(first) = found.first() else {
        return Ok(None);
    };
    if negated_in_words(&chars[..first.start]) {
        return Err(Ambiguous);
    }
    let clear = found
        .iter()
        .all(|number| number.value == first.value && !touches_operator(&chars, number));
    match (&first.value, clear) {
        (Some(value), true) => Ok(Some(value.clone())),
        _ => Err(Ambiguous),
    }
}

/// What follows the last `=` or `≈`, unless what stands before lists several equations.
fn right_side(text: &str) -> Result<&str, Ambiguous> {
    let Some(at) = text.rfind(['=', '≈']) else {
        return Ok(text);
    };
    let (left, right) = text.split_at(at);
    let several = left.contains(['=', '≈'])
        && [", ", ";", " and ", " or "]
            .iter()
            .any(|mark| left.contains(mark));
    let right = right.trim_start_matches(['=', '≈', '>']);
    let holds_number = right.contains(|c: char| c.is_numeric());
    match (several, holds_number) {
        (true, _) => Err(Ambiguous),
        (false, true) => Ok(right),
        (false, false) => Ok(left),
    }
}

fn negated_in_words(chars: &[char]) -> bool {
    let text: String = chars.iter().collect::<String>().to_lowercase();
    text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’')
        .any(|word| matches!(word, "not" | "no" | "never") || word.ends_with("n't"))
        || text.contains("n’t")
}

/// Whether the number is a part of a formula: an operator beside it, on its line, with something
/// on its other side.
pub(super) fn touches_operator(chars: &[char], number: &Number) -> bool {
    let before = neighbours(chars[..number.start].iter().rev());
    let left = match before[..] {
        // `Total - 18`: after a word it is a dash.
        ['-' | '–', a, b] if a.is_alphabetic() && b.is_alphabetic() => false,
        [operator, operand, ..] => is_operator(operator) && is_operand(operand),
        _ => false,
    };
    let after = neighbours(chars[number.end..].iter());
    let attached = chars.get(number.end) == after.first();
    let right = match after[..] {
        // `5/day` and `3-year-old` have units, not operators.
        ['/' | '-', operand, ..] if attached => !operand.is_alphabetic(),
        // `18 - that is all`: a dash.
        ['-' | '–', a, b] if a.is_alphabetic() && b.is_alphabetic() => false,
        [operator, operand, ..] => is_operator(operator) && (is_operand(operand) || operand == '.'),
        _ => false,
    };
    left || right
}

/// The nearest three characters on the line, spaces and currency left out.
fn neighbours<'a>(chars: impl Iterator<Item = &'a char>) -> Vec<char> {
    chars
        .take_while(|c| **c != '\n')
        .filter(|c| !c.is_whitespace() && !is_currency(**c))
        .take(3)
        .copied()
        .collect()
}

fn is_operator(c: char) -> bool {
    matches!(c, '+' | '-' | '*' | '×' | '÷' | '/' | '^' | '±' | '–')
}

fn is_operand(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, ')' | '(' | '%' | '-')
}
