//! Templated arithmetic word problems with step-by-step solutions.

use super::words::{PEOPLE, THINGS};
use super::{Draw, between, pick};

/// A word problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The question, one paragraph.
    pub question: String,
    /// One calculation per line, then `#### N`.
    pub solution: String,
    /// The answer.
    pub answer: u32,
}

/// Largest value on the way to an answer.
const LARGEST: u32 = 999;

/// Draws a problem of two to four steps.
pub fn problem(draw: &mut dyn Draw) -> Problem {
    let person = pick(draw, &PEOPLE);
    let things = pick(draw, &THINGS);
    let steps = between(draw, 2, 4);
    let mut value = between(draw, 3, 60);
    let mut question = format!("{person} has {value} {things}.");
    let mut solution = String::new();
    for step in 0..steps {
        let (sentence, line, next) = change(draw, value, things, step == 0);
        question.push_str(&sentence);
        solution.push_str(&line);
        value = next;
    }
    question.push_str(&format!(" How many {things} does {person} have now?"));
    solution.push_str(&format!("#### {value}"));
    Problem {
        question,
        solution,
        answer: value,
    }
}

/// One step: its sentence, its calculation and the new value.
fn change(draw: &mut dyn Draw, value: u32, things: &str, first: bool) -> (String, String, u32) {
    let then = if first { "" } else { " then" };
    match between(draw, 0, 4) {
        0 if value > 2 => {
            let less = between(draw, 1, value.min(60) - 1);
            let verb = pick(draw, &["gives away", "loses", "sells", "uses"]);
            (
                format!(" The owner{then} {verb} {less}."),
                format!("{value} - {less} = {}\n", value - less),
                value - less,
            )
        }
        1 if value * 4 <= LARGEST => {
            let factor = between(draw, 2, 4);
            let word = ["twice", "three times", "four times"][factor as usize - 2];
            (
                format!(" The number{then} grows to {word} as many."),
                format!("{value} * {factor} = {}\n", value * factor),
                value * factor,
            )
        }
        2 if value.is_multiple_of(2) && value > 2 => (
            format!(" Half of the {things}{then} break."),
            format!("{value} / 2 = {}\n", value / 2),
            value / 2,
        ),
        _ => {
            let more = between(draw, 2, 60);
            let verb = pick(draw, &["buys", "finds", "gets", "wins"]);
            (
                format!(" The owner{then} {verb} {more} more."),
                format!("{value} + {more} = {}\n", value + more),
                value + more,
            )
        }
    }
}
