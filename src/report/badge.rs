//! A badge per certificate: recipe and objective to the left, the verdict to the right.

use std::io::{self, Write};

use crate::schema::{Certificate, ObjectiveName, Verdict};

use super::figure::verdict_words;
use super::xml::Document;

/// Height of a badge, and the baseline of its text, in pixels.
const HEIGHT: f64 = 20.0;
const BASELINE: &str = "14";
/// Blank on both sides of a text, in pixels.
const PADDING: f64 = 6.0;
/// Most characters of a recipe name.
const MOST_CHARACTERS: usize = 40;
/// Fonts that readers have; widths are for the first and held by `textLength` with any other.
const FONTS: &str = "Verdana,Geneva,DejaVu Sans,sans-serif";
const LABEL_COLOUR: &str = "#4a4f55";

/// Writes the badge of one objective as SVG: nothing but a pass is green.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_badge(
    certificate: &Certificate,
    objective: ObjectiveName,
    out: &mut dyn Write,
) -> io::Result<()> {
    let result = certificate.objectives.get(objective);
    let verdict = verdict_words(result.verdict);
    let recipe = &certificate.recipe.name;
    let label = format!("{} {}", shortened(recipe), objective.name());
    let title = format!(
        "kvassay: {recipe} on {}, {}: {verdict}",
        certificate.model.name,
        objective.name()
    );
    write(&title, &label, verdict, colour(result.verdict), out)
}

/// White text on each has a contrast of 4.5 or more.
fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "#2e7d32",
        Verdict::NotEstablished => "#a65300",
        Verdict::Incomplete | Verdict::Unsupported => "#6b7075",
        Verdict::Descriptive => "#3b6ea5",
    }
}

fn write(
    title: &str,
    label: &str,
    verdict: &str,
    colour: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let [left, right] = [label, verdict].map(|text| text_width(text) + 2.0 * PADDING);
    let number = |value: f64| format!("{value:.0}");
    let (width, height) = (number(left + right), number(HEIGHT));
    let mut svg = Document::fragment(out);
    svg.open(
        "svg",
        &[
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("width", &width),
            ("height", &height),
            ("viewBox", &format!("0 0 {width} {height}")),
            ("role", "img"),
            ("aria-label", title),
        ],
    )?;
    svg.text("title", &[], title)?;
    let halves = [
        (0.0, left, LABEL_COLOUR, label),
        (left, right, colour, verdict),
    ];
    for (x, width, fill, _) in halves {
        let (x, width) = (number(x), number(width));
        svg.empty(
            "rect",
            &[
                ("x", &x),
                ("width", &width),
                ("height", &height),
                ("fill", fill),
            ],
        )?;
    }
    svg.open(
        "g",
        &[
            ("fill", "#fff"),
            ("font-family", FONTS),
            ("font-size", "11"),
        ],
    )?;
    for (x, width, _, text) in halves {
        let (x, length) = (number(x + PADDING), number(width - 2.0 * PADDING));
        let attributes = [("x", &*x), ("y", BASELINE), ("textLength", &*length)];
        svg.text("text", &attributes, text)?;
    }
    svg.close("g")?;
    svg.close("svg")?;
    svg.finish()
}

/// The start of a long name.
fn shortened(name: &str) -> String {
    if name.chars().count() <= MOST_CHARACTERS {
        return name.to_owned();
    }
    let start: String = name.chars().take(MOST_CHARACTERS - 1).collect();
    start + "…"
}

/// Width of a text at 11 pixels, rounded up.
fn text_width(text: &str) -> f64 {
    text.chars().map(character_width).sum::<f64>().ceil()
}

/// About the widths of Verdana.
fn character_width(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' => 4.0,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '-' | '/' => 5.0,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '=' | '…' => 10.0,
        'A'..='Z' => 8.0,
        c if c.is_ascii() => 6.9,
        // Wide scripts.
        _ => 11.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERDICTS: [Verdict; 5] = [
        Verdict::Pass,
        Verdict::NotEstablished,
        Verdict::Incomplete,
        Verdict::Unsupported,
        Verdict::Descriptive,
    ];

    /// Red, green and blue from 0 to 255.
    fn channels(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()))
    }

    /// WCAG 2 contrast of white against a colour.
    fn contrast(colour: &str) -> f64 {
        let [r, g, b] = channels(colour).map(|value| {
            let share = value / 255.0;
            if share <= 0.040_45 {
                share / 12.92
            } else {
                ((share + 0.055) / 1.055).powf(2.4)
            }
        });
        1.05 / (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05)
    }

    #[test]
    fn only_a_pass_is_green_and_every_text_is_legible() {
        for verdict in VERDICTS {
            let [red, green, blue] = channels(colour(verdict));
            let is_green = green > 1.3 * red && green > 1.3 * blue;
            assert_eq!(is_green, verdict == Verdict::Pass, "{verdict:?}");
            assert!(contrast(colour(verdict)) >= 4.5, "{verdict:?}");
        }
        assert!(contrast(LABEL_COLOUR) >= 4.5);
    }

    #[test]
    fn a_badge() {
        let mut out = Vec::new();
        write(
            "a <b>",
            "AD preservation",
            "not established",
            "#a65300",
            &mut out,
        )
        .unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }

    #[test]
    fn long_names_are_shortened() {
        let name = "k=native,v=e4m3:dynamic,skip-layers=0,1,2,3,4,-1";
        assert_eq!(shortened(name).chars().count(), MOST_CHARACTERS);
        assert_eq!(shortened("AD"), "AD");
    }
}
