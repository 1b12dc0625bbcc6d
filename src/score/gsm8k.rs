//! The rules of `gsm8k/1` and `gsm8k-last-number/1` (see [`super::Parser`]).

use std::sync::LazyLock;

use regex::Regex;

use super::decimal::Decimal;
use super::lexer::numbers;
use super::normalise::normalise;
use super::quantity;

#[expect(clippy::unwrap_used, reason = "constant patterns, each used by a test")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// A line that begins another question or another turn.
static BOUNDARY: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?m)^[ \t>*#_]*(?:(?:Question|Problem|Q)(?:[ ]\d+)?[ \t*_]*:|(?:User|Human)[ \t*_]*:|<\|(?:im_start|user|start_header_id|eot_id|im_end)\|?>)",
    )
});
/// What announces an answer in words.
static PHRASE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)\banswer\b[*_]*\s*(\bis\b|:|=)\s*:?[\s*_:]*"));
/// The end of a sentence: not a decimal point, not an ellipsis before a digit.
static SENTENCE_END: LazyLock<Regex> = LazyLock::new(|| pattern(r"[.!?]+(?:[ \t*_)\]]|$)|\n"));
/// An item's number at the start of a heading: `2. Add`, `2) Add`, `2: Add`.
static ITEM: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[\s*_]*\d+[.):][\s*_]+[[:alpha:]]"));
/// What may stand between `####` and the number itself.
static BEFORE_NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)^(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is|:|=)?|\\boxed|\\text|[a-z]\s*=|[\s*_`$€£¥({<\[:~≈=+\\\-−–])*(?:\.?\d|[^\x00-\x7F\p{L}\s]*\p{N})",
    )
});

/// Rule by rule; the first that finds its mark decides.
pub(super) fn answer(output: &str) -> Option<Decimal> {
    let text = own_answer(output);
    if let Some(found) = last_marked(text) {
        return found;
    }
    if let Some(content) = last_boxed(text) {
        return quantity::read(content).ok().flatten();
    }
    if let Some(found) = last_phrase(text) {
        return found;
    }
    last_number_in(text)
}

/// The last number of the model's own answer.
pub(super) fn last_number(output: &str) -> Option<Decimal> {
    last_number_in(own_answer(output))
}

fn last_number_in(text: &str) -> Option<Decimal> {
    let chars: Vec<char> = normalise(text).chars().collect();
    let last = numbers(&chars).pop()?;
    // The last operand of a formula whose result is not there is not the answer.
    if quantity::touches_operator(&chars, &last) {
        return None;
    }
    last.value
}

/// What follows the model's thoughts, up to the next question or turn. A boundary counts only
/// after a digit: a model that begins by repeating the question has not answered yet.
fn own_answer(output: &str) -> &str {
    let text = output.rsplit("</think>").next().unwrap_or(output);
    let cut = BOUNDARY
        .find_iter(text)
        .map(|found| found.start())
        .find(|&at| text[..at].contains(|c: char| c.is_ascii_digit()));
    &text[..cut.unwrap_or(text.len())]
}

/// Rule 1: `Some` where there is a `####` that a number follows.
fn last_marked(text: &str) -> Option<Option<Decimal>> {
    let mut end = text.len();
    while let Some(at) = text[..end].rfind("####") {
        // Longer runs of `#` are one mark.
        let start = text[..at].trim_end_matches('#').len();
        if let Some(found) = marked(&text[at + 4..end], text[end..].trim().is_empty()) {
            return Some(found);
        }
        end = start;
    }
    None
}

/// What a mark says, from the text up to the next mark: the rest of its line, or the first line below
/// that is not blank where that is. `None` for headings.
fn marked(text: &str, is_last: bool) -> Option<Option<Decimal>> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace());
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    if !BEFORE_NUMBER.is_match(line) {
        return None;
    }
    if ITEM.is_match(line) {
        // With text below it is a heading; alone at the end it may be the answer.
        let heading = !(is_last && rest.trim().is_empty());
        return if heading { None } else { Some(None) };
    }
    Some(quantity::read(line).ok().flatten())
}

/// Rule 2: the content of the last `\boxed{…}`, braces balanced.
fn last_boxed(text: &str) -> Option<&str> {
    const MARK: &str = "\\boxed{";
    let start = text.rfind(MARK)? + MARK.len();
    let mut depth = 1_u32;
    for (at, c) in text[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[start..start + at]);
        }
    }
    // Never closed: the output ends inside.
    Some(&text[start..])
}

/// Rule 3: the last announcement in whose sentence a number follows.
fn last_phrase(text: &str) -> Option<Option<Decimal>> {
    let marks: Vec<_> = PHRASE.captures_iter(text).collect();
    marks.iter().rev().find_map(|mark| {
        let rest = &text[mark.get_match().end()..];
        let end = SENTENCE_END
            .find(rest)
            .map_or(rest.len(), |end| end.start());
        let in_words = mark[1].eq_ignore_ascii_case("is");
        if !in_words && !heads_only_a_number(rest, end) {
            return None;
        }
        match quantity::read(&rest[..end]) {
            Ok(None) => None,
            Ok(found) => Some(found),
            Err(quantity::Ambiguous) => Some(None),
        }
    })
}

/// `Answer:` may also head the whole solution: it announces a number only where the number comes
/// first, is no result of a formula, and its sentence is all of the line.
fn heads_only_a_number(rest: &str, sentence_end: usize) -> bool {
    let line = rest.lines().next().unwrap_or(rest);
    let after = line.get(sentence_end..).unwrap_or("");
    BEFORE_NUMBER.is_match(line)
        && !line.contains('=')
        && !after.contains(|c: char| c.is_alphanumeric())
}
