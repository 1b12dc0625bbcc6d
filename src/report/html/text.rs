//! Text from models, panels and servers, made fit to be read on a page.

use serde::Serialize;

pub(super) use crate::report::visible::visible;

/// Most characters shown of the part that two answers share.
const SHARED_SHOWN: usize = 600;
/// Most characters shown behind the first difference.
const REST_SHOWN: usize = 900;
/// Most characters that are marked as the first difference.
const MARKED: usize = 40;

/// A part of a text, and how much of it is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Excerpt {
    /// The part.
    pub text: String,
    /// Characters left out behind it.
    pub left_out: usize,
}

/// The first `most` characters of a text.
pub(super) fn excerpt(text: &str, most: usize) -> Excerpt {
    let end = text
        .char_indices()
        .nth(most)
        .map_or(text.len(), |(at, _)| at);
    Excerpt {
        text: text[..end].to_owned(),
        left_out: text[end..].chars().count(),
    }
}

/// One of two texts, cut where it first differs from the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Side {
    /// Characters left out before `shared`.
    pub left_out_before: usize,
    /// What both have, up to the word that differs.
    pub shared: String,
    /// The word with the first difference; empty where this text has ended.
    pub marked: String,
    /// Whether this text ends where the other one goes on.
    pub ends: bool,
    /// What follows.
    pub rest: String,
    /// Characters left out behind `rest`.
    pub left_out_after: usize,
}

/// Two texts with the word in which they first differ marked in both.
pub(super) fn side_by_side(one: &str, other: &str) -> (Side, Side) {
    let pairs = one.char_indices().zip(other.chars());
    let common = pairs
        .take_while(|((_, a), b)| a == b)
        .last()
        .map_or(0, |((at, char), _)| at + char.len_utf8());
    let start = word_start(&one[..common]);
    (side(one, common, start), side(other, common, start))
}

/// Where the word that `text` ends in begins; not further back than a mark is long.
fn word_start(text: &str) -> usize {
    let word = text.rfind(char::is_whitespace).map_or(0, |at| {
        at + text[at..].chars().next().map_or(0, char::len_utf8)
    });
    let furthest = text.char_indices().rev().take(MARKED / 2).last();
    word.max(furthest.map_or(text.len(), |(at, _)| at))
}

fn side(text: &str, common: usize, start: usize) -> Side {
    let shared = &text[..start];
    let shown = shared.char_indices().rev().take(SHARED_SHOWN).last();
    let from = shown.map_or(start, |(at, _)| at);
    if common == text.len() {
        return Side {
            left_out_before: shared[..from].chars().count(),
            shared: text[from..].to_owned(),
            ends: true,
            ..Side::default()
        };
    }
    let differs = text[common..].chars().next().map_or(0, char::len_utf8);
    let word = text[common + differs..].find(char::is_whitespace);
    // A blank that differs is a difference by itself: the next word is not.
    let blank = text[common..].starts_with(char::is_whitespace);
    let word_end = match word {
        Some(at) if !blank => common + differs + at,
        None if !blank => text.len(),
        _ => common + differs,
    };
    let furthest = text[start..].char_indices().nth(MARKED);
    let end = word_end.min(furthest.map_or(text.len(), |(at, _)| start + at));
    let rest = excerpt(&text[end..], REST_SHOWN);
    Side {
        left_out_before: shared[..from].chars().count(),
        shared: shared[from..].to_owned(),
        marked: shown_blank(&text[start..end]),
        ends: false,
        rest: rest.text,
        left_out_after: rest.left_out,
    }
}

/// A blank at the end of a mark is what differs: it must be seen.
fn shown_blank(mark: &str) -> String {
    for (blank, sign) in [
        ('\n', "\u{21b5}\n"),
        (' ', "\u{2423}"),
        ('\t', "\u{21e5}\t"),
    ] {
        if let Some(rest) = mark.strip_suffix(blank) {
            return format!("{rest}{sign}");
        }
    }
    mark.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marks(one: &str, other: &str) -> (String, String) {
        let (one, other) = side_by_side(one, other);
        (one.marked, other.marked)
    }

    #[test]
    fn the_word_that_differs_is_marked() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(marks("is 1200 now", "is 1250 now"), pair("1200", "1250"));
        assert_eq!(marks("a b", "c b"), pair("a", "c"));
        assert_eq!(marks("a b", "a\nb"), pair("a\u{2423}", "a\u{21b5}\n"));
        assert_eq!(marks("日本", "日光"), pair("日本", "日光"));
        let (short, long) = side_by_side("so 12", "so 120");
        assert!(short.ends && short.shared == "so 12", "{short:?}");
        assert_eq!((long.marked.as_str(), long.ends), ("120", false));
        let (same, again) = side_by_side("same", "same");
        assert!(same.ends && again.ends);
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        let shared = "x".repeat(100_000);
        let (one, other) = side_by_side(&format!("{shared}a{shared}"), &format!("{shared}b"));
        assert_eq!(one.left_out_before, other.left_out_before);
        assert_eq!(one.left_out_before, 100_000 - MARKED / 2 - SHARED_SHOWN);
        let shown = one.shared.len() + one.marked.len() + one.rest.len();
        assert_eq!(
            one.left_out_before + shown + one.left_out_after,
            2 * shared.len() + 1
        );
        assert!(other.marked.ends_with('b') && other.left_out_after == 0);
        let cut = excerpt("日本語", 2);
        assert_eq!((cut.text.as_str(), cut.left_out), ("日本", 1));
        assert_eq!(excerpt("ab", 2).left_out, 0);
    }

    proptest! {
        #[test]
        fn no_text_is_lost(one in "[ab \\n日]{0,80}", other in "[ab \\n日]{0,80}") {
            let (left, right) = side_by_side(&one, &other);
            for (side, text) in [(left, &one), (right, &other)] {
                let mark = side.marked.replace("\u{21b5}", "").replace('\u{2423}', " ");
                prop_assert_eq!(format!("{}{mark}{}", side.shared, side.rest), text.clone());
            }
        }

        #[test]
        fn any_two_texts_have_sides(one in "\\PC{0,2000}", other in "\\PC{0,2000}") {
            let (left, right) = side_by_side(&one, &other);
            prop_assert_eq!(left.left_out_before, right.left_out_before);
            prop_assert_eq!(left.ends && right.ends, one == other);
        }
    }
}
