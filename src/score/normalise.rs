//! Markup that stands around numbers, taken away: calculator notes, LaTeX, emphasis, odd spaces.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Stands for something that holds a number which cannot be read (a root, a fraction of formulas).
pub(super) const UNREADABLE: char = '\u{FFFC}';
/// Every space that may separate thousands inside one number.
pub(super) const THIN_SPACE: char = '\u{2009}';

#[expect(clippy::unwrap_used, reason = "constant patterns, each used by a test")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

static NOTE: LazyLock<Regex> = LazyLock::new(|| pattern(r"<<([^<>\n]*)>>([$€£]?[-+−]?[0-9])?"));
static EMPHASIS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(^|[^\w*\\])\*([^*\s](?:[^*\n]*[^*\s])?)\*($|[^\w*])"));

/// The text with markup around numbers taken away. Line feeds stay where they are.
pub(super) fn normalise(text: &str) -> String {
    let plain: String = text.chars().filter_map(plain_char).collect();
    let noted = NOTE.replace_all(&plain, note_result);
    let emphasised = strong_emphasis(&latex(&noted));
    EMPHASIS.replace_all(&emphasised, "$1 $2 $3").into_owned()
}

fn plain_char(c: char) -> Option<char> {
    match c {
        '\u{2212}' | '\u{FE63}' | '\u{FF0D}' => Some('-'),
        '\u{00A0}' | '\u{2007}' | '\u{2008}' | '\u{200A}' | '\u{202F}' => Some(THIN_SPACE),
        '\u{200B}' | '\u{200C}' | '\u{200D}' | '\u{2060}' | '\u{FEFF}' | '\r' => None,
        _ => Some(c),
    }
}

/// `<<9*2=18>>18` is 18: the note repeats the number that follows. Where none follows, what the
/// note says after its last `=` stands in the text.
fn note_result(captures: &Captures<'_>) -> String {
    match captures.get(2) {
        Some(following) => format!(" {}", following.as_str()),
        None => {
            let note = captures.get(1).map_or("", |note| note.as_str());
            format!(" {} ", note.rsplit('=').next().unwrap_or(note))
        }
    }
}

/// Drops `**`, backticks and `~~`; `**` between digits is a power and becomes `^`.
fn strong_emphasis(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let pair = chars.get(i + 1) == Some(&chars[i]);
        match chars[i] {
            '*' | '~' if pair => {
                let digit = |at: Option<usize>| {
                    at.and_then(|at| chars.get(at))
                        .is_some_and(char::is_ascii_digit)
                };
                let power = chars[i] == '*' && digit(i.checked_sub(1)) && digit(Some(i + 2));
                out.push(if power { '^' } else { ' ' });
                i += 2;
            }
            '`' => {
                out.push(' ');
                i += 1;
            }
            c => {
                out.push(c);
                i += 1;
            }
        }
    }
    out
}

fn latex(text: &str) -> String {
    if !text.contains(['\\', '{', '}']) {
        return text.to_owned();
    }
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        at = match chars[at] {
            '\\' => command(&chars, at, &mut out),
            '{' => open_brace(&chars, at, &mut out),
            '}' => {
                out.push(' ');
                at + 1
            }
            c => {
                out.push(c);
                at + 1
            }
        };
    }
    out
}

/// `{,}` is a comma; a brace after `^` or `_` belongs to the exponent or index.
fn open_brace(chars: &[char], at: usize, out: &mut String) -> usize {
    if chars.get(at + 1) == Some(&',') && chars.get(at + 2) == Some(&'}') {
        out.push(',');
        return at + 3;
    }
    if !out.ends_with(['^', '_']) {
        out.push(' ');
    }
    at + 1
}

/// Handles the command at `chars[at] == '\\'` and returns where the text goes on.
fn command(chars: &[char], at: usize, out: &mut String) -> usize {
    let name: String = chars[at + 1..]
        .iter()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect();
    let end = at + 1 + name.len();
    if name.is_empty() {
        return symbol(chars, at, out);
    }
    let replacement = match name.as_str() {
        "frac" | "dfrac" | "tfrac" | "cfrac" => return fraction(chars, end, out),
        "sqrt" | "binom" | "log" | "ln" | "pi" | "infty" | "sum" | "prod" => UNREADABLE,
        "times" | "cdot" => '×',
        "div" => '÷',
        "pm" | "mp" => '±',
        "approx" | "sim" | "simeq" => '≈',
        "dots" | "ldots" | "cdots" => '…',
        _ => ' ',
    };
    out.push(replacement);
    end
}

/// `\$`, `\,` and other commands of one sign.
fn symbol(chars: &[char], at: usize, out: &mut String) -> usize {
    let Some(&sign) = chars.get(at + 1) else {
        return at + 1;
    };
    match sign {
        '$' | '%' | '#' | '&' | '_' => out.push(sign),
        ',' | ':' | ';' => out.push(THIN_SPACE),
        '!' => {}
        _ => out.push(' '),
    }
    at + 2
}

/// `\frac{1}{2}` is `1/2`, kept apart from what stands before it; other fractions are unreadable.
fn fraction(chars: &[char], at: usize, out: &mut String) -> usize {
    let argument = |start: usize| -> Option<(String, usize)> {
        let digits: String = chars
            .get(start + 1..)?
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .collect();
        let end = start + 1 + digits.len();
        let whole = chars.get(start) == Some(&'{') && chars.get(end) == Some(&'}');
        (whole && !digits.is_empty()).then_some((digits, end + 1))
    };
    let parts = argument(at).and_then(|(top, next)| {
        let (bottom, end) = argument(next)?;
        Some((top, bottom, end))
    });
    match parts {
        Some((top, bottom, end)) => {
            // A sign belongs to the fraction; a digit makes it a mixed number.
            let apart = if out.ends_with('-') { "" } else { " " };
            out.push_str(&format!("{apart}{top}/{bottom}"));
            end
        }
        None => {
            out.push(UNREADABLE);
            at
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_goes_and_numbers_stay() {
        for (given, expected) in [
            ("9 * 2 = $<<9*2=18>>18", "9 * 2 = $ 18"),
            ("so <<9*2=18>> dollars", "so  18  dollars"),
            ("\\$18\\%", "$18%"),
            ("1{,}234", "1,234"),
            ("1,\\!234", "1,234"),
            ("1\\,234", "1\u{2009}234"),
            ("\\frac{1}{2}", " 1/2"),
            ("1\\frac{1}{2}", "1 1/2"),
            ("-\\frac{1}{2}", "-1/2"),
            ("\\frac{x}{2}", "\u{FFFC} x  2 "),
            ("2**3", "2^3"),
            ("**18**", " 18 "),
            ("*18* eggs", " 18  eggs"),
            ("9 * 2 * 3", "9 * 2 * 3"),
            ("9*2*3", "9*2*3"),
            ("x^{3}", "x^3 "),
            ("\u{2212}5", "-5"),
            ("a\\", "a"),
        ] {
            assert_eq!(normalise(given), expected, "{given}");
        }
    }
}
