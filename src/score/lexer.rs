//! Finds the numbers of a normalised text, and whether each can be read in one way only.

use super::decimal::Decimal;
use super::normalise::{THIN_SPACE, UNREADABLE};

/// A number as it stands in a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    /// First character, sign and currency left out.
    pub start: usize,
    /// One past the last character, units left out.
    pub end: usize,
    /// Value; `None` where it can be read in two ways or not at all.
    pub value: Option<Decimal>,
}

/// Letters right after a number that may scale it or name a variable: `18k`, `2x`.
const AMBIGUOUS_SUFFIXES: [&str; 10] = ["k", "K", "M", "B", "T", "bn", "mn", "x", "X", "n"];
/// Words after a number that change its value.
const SCALE_WORDS: [&str; 10] = [
    "hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "half", "third",
    "quarter",
];

/// Whether a sign can stand before a number as its currency.
pub(super) fn is_currency(c: char) -> bool {
    matches!(c, '$' | '€' | '£' | '¥' | '₹' | '¢')
}

/// Every number of `chars`, in order.
pub(super) fn numbers(chars: &[char]) -> Vec<Number> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        if starts_number(chars, at) {
            let number = number_at(chars, at);
            at = number.end;
            found.push(number);
        } else {
            at += 1;
        }
    }
    found
}

fn digit(chars: &[char], at: usize) -> bool {
    chars.get(at).is_some_and(char::is_ascii_digit)
}

fn before(chars: &[char], at: usize) -> Option<char> {
    at.checked_sub(1).map(|at| chars[at])
}

fn is_space(c: char) -> bool {
    c == ' ' || c == '\t' || c == THIN_SPACE
}

/// Digits of other scripts, superscripts and vulgar fractions: numbers, but none that is read.
fn is_foreign(c: char) -> bool {
    c == UNREADABLE || (!c.is_ascii() && c.is_numeric())
}

fn starts_number(chars: &[char], at: usize) -> bool {
    let c = chars[at];
    // After two points or more a point is an ellipsis, not a decimal point.
    let decimal_point = c == '.' && digit(chars, at + 1) && before(chars, at) != Some('.');
    c.is_ascii_digit() || decimal_point || is_foreign(c)
}

fn number_at(chars: &[char], start: usize) -> Number {
    let body_end = body_end(chars, start);
    let body: String = chars[start..body_end].iter().collect();
    let (mut end, mut value) = match exponent_end(chars, &body, body_end) {
        Some(end) => {
            let exponent: String = chars[body_end + 1..end].iter().collect();
            (end, Decimal::scientific(&body, &exponent))
        }
        None => (body_end, body_value(&body)),
    };
    if let Some(after) = unreadable_tail(chars, end) {
        end = after;
        value = None;
    }
    if list_marker(chars, start, end) || changed_by_words(chars, end) {
        value = None;
    }
    let value = match sign(chars, start) {
        Sign::Plus => value,
        Sign::Minus => value.map(Decimal::negated),
        Sign::Unclear => None,
    };
    Number { start, end, value }
}

/// One past the last character that belongs to the number that starts at `start`: digits, and
/// separators with a digit on either side.
fn body_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        let c = chars[at];
        let inner = matches!(c, '.' | ',' | '\'' | '’' | '_' | ':' | '/' | '–') || c == THIN_SPACE;
        let joins = inner && digit(chars, at - 1) && digit(chars, at + 1);
        if c.is_ascii_digit() || is_foreign(c) || joins || spaced_group(chars, start, at) {
            at += 1;
        } else {
            break;
        }
    }
    at
}

/// `1 234`: a space between one to three digits and exactly three. One number or two?
fn spaced_group(chars: &[char], start: usize, at: usize) -> bool {
    let head = at - start;
    chars[at] == ' '
        && head <= 3
        && chars[start..at].iter().all(char::is_ascii_digit)
        && (1..=3).all(|step| digit(chars, at + step))
        && !digit(chars, at + 4)
}

/// One past an exponent (`e3`, `E-3`) after a plain decimal.
fn exponent_end(chars: &[char], body: &str, body_end: usize) -> Option<usize> {
    Decimal::from_digits(body)?;
    if !matches!(chars.get(body_end), Some('e' | 'E')) {
        return None;
    }
    let signed = matches!(chars.get(body_end + 1), Some('+' | '-'));
    let first = body_end + 1 + usize::from(signed);
    let digits = chars[first.min(chars.len())..]
        .iter()
        .take_while(|c| c.is_ascii_digit())
        .count();
    let end = first + digits;
    let ends_there = !chars.get(end).is_some_and(|c| c.is_alphanumeric());
    (digits > 0 && ends_there).then_some(end)
}

fn body_value(body: &str) -> Option<Decimal> {
    if let Some((numerator, denominator)) = body.split_once('/') {
        return Decimal::fraction(numerator, denominator);
    }
    let separator = body.chars().find(|c| matches!(c, ',' | '\u{2009}'));
    match separator {
        None => Decimal::from_digits(body),
        Some(separator) => grouped(body, separator),
    }
}

/// `1,234.50`: groups of exactly three digits after a first of one to three that is not zero.
fn grouped(body: &str, separator: char) -> Option<Decimal> {
    let (integer, fraction) = body.split_once('.').unwrap_or((body, ""));
    let mut groups = integer.split(separator);
    let first = groups.next()?;
    let regular = (1..=3).contains(&first.len())
        && !first.starts_with('0')
        && groups.all(|group| group.len() == 3);
    if !regular || body.ends_with('.') {
        return None;
    }
    let digits: String = integer.chars().filter(|c| *c != separator).collect();
    Decimal::from_digits(&format!("{digits}.{fraction}"))
}

/// Something after a number that makes it unreadable: a power, a mixed number, a letter that may
/// scale it. Returns where it ends.
fn unreadable_tail(chars: &[char], end: usize) -> Option<usize> {
    let spaces = chars[end..].iter().take_while(|c| is_space(**c)).count();
    let next = end + spaces;
    if chars.get(next) == Some(&'^') {
        let signed = matches!(chars.get(next + 1), Some('-' | '+'));
        let first = next + 1 + usize::from(signed);
        return Some(digits_end(chars, first));
    }
    if spaces > 0 && digit(chars, next) {
        let slash = digits_end(chars, next);
        if chars.get(slash) == Some(&'/') && digit(chars, slash + 1) {
            return Some(digits_end(chars, slash + 1));
        }
        // A thin space joins digits only inside regular groups.
        if chars[end] == THIN_SPACE {
            return Some(digits_end(chars, next));
        }
    }
    let suffix: String = chars[end..]
        .iter()
        .take_while(|c| c.is_alphabetic())
        .collect();
    AMBIGUOUS_SUFFIXES.contains(&suffix.as_str()).then_some(end)
}

fn digits_end(chars: &[char], start: usize) -> usize {
    let start = start.min(chars.len());
    start
        + chars[start..]
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .count()
}

/// `2. Add the eggs` at the start of a line: an item's number or the answer?
fn list_marker(chars: &[char], start: usize, end: usize) -> bool {
    let line_start = chars[..start]
        .iter()
        .rev()
        .take_while(|c| **c != '\n')
        .all(|c| is_space(*c));
    line_start
        && matches!(chars.get(end), Some('.' | ')'))
        && chars.get(end + 1).is_some_and(|c| is_space(*c))
        && chars[end + 1..]
            .iter()
            .find(|c| !is_space(**c))
            .is_some_and(|c| c.is_alphabetic())
}

/// `2 million`, `two and a half` in figures: `2 and a half`.
fn changed_by_words(chars: &[char], end: usize) -> bool {
    let line: String = chars[end..]
        .iter()
        .take(32)
        .take_while(|c| **c != '\n')
        .map(|c| if *c == '-' || is_space(*c) { ' ' } else { *c })
        .collect();
    let mut words = line
        .split(' ')
        .filter(|word| !word.is_empty())
        .map(|word| word.trim_end_matches(|c: char| !c.is_alphabetic()));
    let is_scale = |word: &str| {
        let word = word.to_lowercase();
        let singular = word.strip_suffix('s').unwrap_or(&word);
        SCALE_WORDS.contains(&singular)
    };
    match (words.next(), words.next(), words.next()) {
        (Some("and"), Some("a" | "one"), Some(part)) => is_scale(part),
        (Some(word), _, _) => is_scale(word),
        _ => false,
    }
}

enum Sign {
    Plus,
    Minus,
    Unclear,
}

/// The sign of the number that starts at `start`, from what stands before it.
fn sign(chars: &[char], start: usize) -> Sign {
    let money = skip_currency(chars, start);
    match before(chars, money) {
        Some('-') => unary(chars, money - 1, Sign::Minus),
        Some('+') => unary(chars, money - 1, Sign::Plus),
        Some('±' | '–' | '^') => Sign::Unclear,
        Some(c) if c.is_alphabetic() && money == start => Sign::Unclear,
        Some('_') if before(chars, money - 1).is_some_and(char::is_alphanumeric) => Sign::Unclear,
        Some(c) if is_space(c) => spaced_sign(chars, money),
        _ => Sign::Plus,
    }
}

/// Steps back over currency signs and the spaces between them and the number.
fn skip_currency(chars: &[char], mut at: usize) -> usize {
    loop {
        let gap = before(chars, at).is_some_and(is_space);
        let sign = at - usize::from(gap);
        if before(chars, sign).is_some_and(is_currency) {
            at = sign - 1;
        } else {
            return at;
        }
    }
}

/// A `-` or `+` at `at`, right before a number: a sign, an operator, or unclear.
fn unary(chars: &[char], at: usize, sign: Sign) -> Sign {
    let outer = skip_currency(chars, at);
    match before(chars, outer) {
        None | Some('\n' | '(' | '[' | '{' | '<' | '=' | ':' | '|' | '>' | ',' | ';' | '"') => sign,
        Some('≈' | '~' | '*' | '×' | '÷' | '/' | '“' | '\'') => sign,
        // An operator: the number itself has no sign.
        Some(c) if c.is_ascii_digit() || c == ')' => Sign::Plus,
        // `10 -5` may be a difference or two numbers.
        Some(c) if is_space(c) => match operand_before(chars, outer) {
            Some(c) if c.is_ascii_digit() || c == ')' => Sign::Unclear,
            _ => sign,
        },
        Some(_) => Sign::Unclear,
    }
}

/// A number after a space: `= - 5` is unclear, a list's `- 5` and a difference are not.
fn spaced_sign(chars: &[char], at: usize) -> Sign {
    let dash = chars[..at]
        .iter()
        .rposition(|c| !is_space(*c))
        .filter(|dash| chars[*dash] == '-');
    match dash.map(|dash| operand_before(chars, dash)) {
        Some(Some('=' | ':' | '(' | '[' | '+' | '-' | '*' | '×' | '÷' | '/')) => Sign::Unclear,
        _ => Sign::Plus,
    }
}

/// The last character before `at` on the same line that is no space.
fn operand_before(chars: &[char], at: usize) -> Option<char> {
    chars[..at]
        .iter()
        .rev()
        .take_while(|c| **c != '\n')
        .copied()
        .find(|c| !is_space(*c))
}
