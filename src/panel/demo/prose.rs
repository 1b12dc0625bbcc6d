//! Encyclopedia-like articles about invented places. Each states a handful of facts early and
//! comes back to them, so that a model which attends to its context predicts them.

use super::words::{BUILDINGS, CODAS, DIRECTIONS, EVENTS, KINDS, ONSETS, TRADES};
use super::{Draw, between, pick};

/// An article.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Article {
    /// Name of the place; not unique.
    pub title: String,
    /// Text of one paragraph per section.
    pub text: String,
}

/// What an article says of its place.
struct Facts {
    name: String,
    region: String,
    river: String,
    rival: String,
    kind: &'static str,
    direction: &'static str,
    trade: &'static str,
    building: &'static str,
    people: u32,
    founded: u32,
}

/// Draws an article of about `sentences` sentences.
pub fn article(draw: &mut dyn Draw, sentences: usize) -> Article {
    let facts = facts(draw);
    let mut text = opening(&facts);
    for sentence in 0..sentences {
        text.push_str(if sentence % 7 == 6 { "\n" } else { " " });
        text.push_str(&detail(draw, &facts));
    }
    text.push('\n');
    Article {
        title: facts.name,
        text,
    }
}

fn place(draw: &mut dyn Draw) -> String {
    format!("{}{}", pick(draw, &ONSETS), pick(draw, &CODAS))
}

fn facts(draw: &mut dyn Draw) -> Facts {
    Facts {
        name: place(draw),
        region: place(draw),
        river: place(draw),
        rival: place(draw),
        kind: pick(draw, &KINDS),
        direction: pick(draw, &DIRECTIONS),
        trade: pick(draw, &TRADES),
        building: pick(draw, &BUILDINGS),
        people: 100 * between(draw, 5, 98),
        founded: between(draw, 1000, 1899),
    }
}

fn opening(facts: &Facts) -> String {
    let Facts {
        name,
        region,
        river,
        rival,
        kind,
        direction,
        trade,
        building,
        people,
        founded,
    } = facts;
    format!(
        "{name} is a {kind} in the {direction} of {region}. It lies on the river {river} and has \
         {people} people. It was founded in {founded} and is known for {trade} and for \
         {building}. Its old rival is {rival}."
    )
}

fn detail(draw: &mut dyn Draw, facts: &Facts) -> String {
    let Facts {
        name,
        region,
        river,
        rival,
        kind,
        direction,
        trade,
        building,
        people,
        founded,
    } = facts;
    match between(draw, 0, 13) {
        0 => format!("The {kind} of {name} was founded in {founded}."),
        1 => format!("The {people} people of {name} live mostly from {trade}."),
        2 => format!("The river {river} flows through {name} to the {direction}."),
        3 => format!(
            "In {} {name} saw {}.",
            between(draw, *founded, 1950),
            pick(draw, &EVENTS)
        ),
        4 => format!("{rival} and {name} fought over the {trade} for years."),
        5 => format!("Visitors come to see {building} in {name}."),
        6 => format!("The {direction} of {region} is the land of the river {river}."),
        7 => format!(
            "After {} the people of {rival} came to {name}.",
            pick(draw, &EVENTS)
        ),
        8 => format!(
            "In {} the {kind} built {}.",
            between(draw, *founded, 1950),
            pick(draw, &BUILDINGS)
        ),
        9 => format!("Today {name} has {people} people and lies in {region}."),
        10 => format!("Many in {region} still learn {trade} in {name}."),
        11 => format!("A road leads from {name} to {rival} along the river {river}."),
        12 => format!("Since {founded} the {kind} has kept {building}."),
        _ => format!(
            "The market of {name} sells {} of {region}.",
            pick(draw, &["bread", "cloth", "wool", "fish", "salt", "wine"])
        ),
    }
}
