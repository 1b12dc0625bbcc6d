//! Text from models, certificates and servers, made fit to be shown: nothing in it acts on what
//! stands around it.

use std::borrow::Cow;

/// Where the runner of GitHub Actions sees a command anywhere in a line.
const COMMAND: &str = "##[";

/// Text in which nothing acts on what stands around it: characters that do not show, or that turn
/// the direction of writing, stand as their code points.
pub fn visible(text: &str) -> Cow<'_, str> {
    shown(text, is_unseen)
}

/// [`visible`] text on one line, in which no word is a workflow command: line feeds and tabulators
/// stand as their code points as well.
pub fn one_line(text: &str) -> String {
    let text = shown(text, |char| matches!(char, '\n' | '\t') || is_unseen(char));
    let mut out = text.replace(COMMAND, &format!("#{}[", code_point('#')));
    // A runner skips blanks before a command, and a sentence may break before any word.
    let starts: Vec<usize> = out
        .match_indices("::")
        .map(|(at, _)| at)
        .filter(|&at| {
            out[..at]
                .chars()
                .next_back()
                .is_none_or(char::is_whitespace)
        })
        .collect();
    for at in starts.into_iter().rev() {
        out.replace_range(at..=at, &code_point(':'));
    }
    out
}

fn shown(text: &str, is_unseen: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_unseen(char) {
            true => out.push_str(&code_point(char)),
            false => out.push(char),
        }
    }
    Cow::Owned(out)
}

fn code_point(char: char) -> String {
    format!("\u{27e8}U+{:04X}\u{27e9}", u32::from(char))
}

/// Controls but line feed and tabulator, format characters, and what no text should hold. The
/// joiners U+200C and U+200D stay: scripts and emoji need them.
fn is_unseen(char: char) -> bool {
    match char {
        '\n' | '\t' | '\u{200c}' | '\u{200d}' => false,
        '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        _ => char.is_control() || u32::from(char) & 0xfffe == 0xfffe,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_unseen_stays() {
        assert_eq!(visible("a\nb\tc"), "a\nb\tc");
        assert_eq!(visible("a\u{0}b"), "a\u{27e8}U+0000\u{27e9}b");
        assert_eq!(visible("\u{202e}x"), "\u{27e8}U+202E\u{27e9}x");
        assert_eq!(visible("\r"), "\u{27e8}U+000D\u{27e9}");
        assert_eq!(
            visible("\u{feff}\u{fffe}\u{1ffff}").matches("U+").count(),
            3
        );
        for whole in ["قال", "\u{1f469}\u{200d}\u{1f4bb}", "naïve", "日本"] {
            assert_eq!(visible(whole), whole);
        }
    }

    #[test]
    fn a_line_stays_one_and_commands_none() {
        for (text, expected) in [
            ("a\nb\tc", "a\u{27e8}U+000A\u{27e9}b\u{27e8}U+0009\u{27e9}c"),
            ("\u{1b}[31m", "\u{27e8}U+001B\u{27e9}[31m"),
            ("::error::x", "\u{27e8}U+003A\u{27e9}:error::x"),
            ("a ::error::x", "a \u{27e8}U+003A\u{27e9}:error::x"),
            ("a##[error]x", "a#\u{27e8}U+0023\u{27e9}[error]x"),
            ("http://[::1]:80 a::b", "http://[::1]:80 a::b"),
        ] {
            assert_eq!(one_line(text), expected);
        }
    }

    proptest! {
        #[test]
        fn visible_text_is_stable(text in any::<String>()) {
            let once = visible(&text).into_owned();
            prop_assert!(!once.chars().any(is_unseen));
            prop_assert_eq!(visible(&once).into_owned(), once.clone());
        }

        #[test]
        fn lines_hold_no_command(text in "[:#\\[ \\n\\ta\u{1b}]{0,40}") {
            let line = one_line(&text);
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert!(!line.contains(COMMAND));
            prop_assert!(!line.split(' ').any(|word| word.starts_with("::")), "{}", line);
            prop_assert_eq!(one_line(&line), line.clone());
        }
    }
}
