//! `needle/1`: the value of a needle, exactly.

use super::decimal::Decimal;
use super::lexer::numbers;
use super::normalise::normalise;

/// Name and version of [`retrieval_correct`]'s rule, as stored in panel headers.
pub const NEEDLE_SCORER: &str = "needle/1";

/// Fewest digits of a number that can be a needle's value; shorter ones (`the 2nd code`) are text.
const LEAST_DIGITS: usize = 5;

/// Whether an output names the needle's value and no other.
///
/// The numbers of the output that have at least five digits are value-like. The output is right if
/// there is at least one, each is exactly the gold value (`1,234,567` is `1234567`), and it was
/// not truncated: a cut answer may have been cut within a number. An output that names a
/// distractor's value beside the right one has not found the needle.
///
/// Where the gold value is no number of at least five digits, the whole output, without the
/// white space around it, must equal it.
pub fn retrieval_correct(output: &str, gold: &str, truncated: bool) -> bool {
    if truncated {
        return false;
    }
    let digits = |text: &str| text.chars().filter(|c| c.is_numeric()).count();
    let Some(value) = Decimal::from_digits(gold).filter(|_| digits(gold) >= LEAST_DIGITS) else {
        return output.trim() == gold;
    };
    let chars: Vec<char> = normalise(output).chars().collect();
    let mut found = numbers(&chars);
    found.retain(|number| {
        chars[number.start..number.end]
            .iter()
            .filter(|c| c.is_numeric())
            .count()
            >= LEAST_DIGITS
    });
    !found.is_empty()
        && found
            .iter()
            .all(|number| number.value.as_ref() == Some(&value))
}
