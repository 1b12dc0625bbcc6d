//! Checks of single fields.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::{AA_ARM, PanelPlan, ProtocolError};
use crate::recipe::Recipe;

/// Longest name that becomes part of a file name.
const LONGEST_NAME: usize = 100;

/// An error about `field` unless `holds`.
pub(in crate::schema) fn require(
    holds: bool,
    field: &str,
    found: impl Display,
    expected: impl Display,
) -> Result<(), ProtocolError> {
    if holds {
        return Ok(());
    }
    Err(ProtocolError::Field {
        field: field.to_owned(),
        found: found.to_string(),
        expected: expected.to_string(),
    })
}

/// Refuses a value that stands twice in a list.
pub(super) fn unique<'a>(
    field: &str,
    values: impl Iterator<Item = &'a str>,
) -> Result<(), ProtocolError> {
    let mut seen = BTreeSet::new();
    for value in values {
        let found = format!("`{value}` twice");
        require(seen.insert(value), field, found, "each once")?;
    }
    Ok(())
}

/// A name that can stand in file names on every system.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), ProtocolError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=,:+".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    require(
        starts_well && name.len() <= LONGEST_NAME && name.chars().all(allowed),
        field,
        format!("`{name}`"),
        format!(
            "a letter or digit, then letters, digits and -_.=,:+ up to {LONGEST_NAME} characters"
        ),
    )
}

/// A control's name: no candidate arm and no other control's arm can have it.
pub(super) fn check_control(field: &str, control: &str) -> Result<(), ProtocolError> {
    check_name(field, control)?;
    let found = format!("`{control}`");
    let expected = "a name other than that of the second native run";
    require(control != AA_ARM, field, &found, expected)?;
    // With several controls, an arm is named `control-` and its control.
    let prefixed = control.starts_with("control-");
    require(!prefixed, field, &found, "a name without `control-`")?;
    let recipe = Recipe::parse(control).is_ok_and(|recipe| !recipe.is_native());
    require(!recipe, field, &found, "a name that is no recipe's")
}

/// Arms are folders: some file systems take `a` and `A` for the same.
pub(super) fn check_arm_names<'a>(
    names: impl Iterator<Item = &'a String>,
) -> Result<(), ProtocolError> {
    let mut seen = BTreeSet::from([AA_ARM.to_owned()]);
    for name in names {
        require(
            seen.insert(name.to_ascii_lowercase()),
            "controls, candidates",
            format!("`{name}` beside a name that differs in case only"),
            "names that differ in more than case",
        )?;
    }
    Ok(())
}

/// Zero with a sign equals zero and yet is another number in JSON, hence in the digest.
pub(super) fn is_negative_zero(number: f64) -> bool {
    number == 0.0 && number.is_sign_negative()
}

/// A proportion from 0 to 1.
pub(super) fn check_proportion(field: &str, found: f64) -> Result<(), ProtocolError> {
    require(
        (0.0..=1.0).contains(&found) && !is_negative_zero(found),
        field,
        found,
        "a proportion from 0 to 1",
    )
}

/// A text of one line that is not blank.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), ProtocolError> {
    require(
        !text.trim().is_empty() && !text.chars().any(char::is_control),
        field,
        format!("{text:?}"),
        "one line that is not blank",
    )
}

/// Sizes of one panel.
pub(super) fn check_panel(name: &str, panel: &PanelPlan) -> Result<(), ProtocolError> {
    let field = |what: &str| format!("panels.{name}.{what}");
    let positive = |what: &str, found: u32| require(found > 0, &field(what), found, "at least 1");
    let below = |what: &str, found: u32, length: u32| {
        let expected = format!("less than the length of {length}");
        require(found < length, &field(what), found, expected)
    };
    match panel {
        PanelPlan::Math {
            task,
            cases,
            max_new_tokens,
        } => {
            check_text(&field("task"), task)?;
            positive("cases", *cases)?;
            positive("max_new_tokens", *max_new_tokens)
        }
        PanelPlan::Nll {
            task,
            length,
            documents,
            targets,
        } => {
            check_text(&field("task"), task)?;
            positive("documents", *documents)?;
            positive("targets", *targets)?;
            below("targets", *targets, *length)
        }
        PanelPlan::Retrieval {
            task,
            length,
            cases,
            max_new_tokens,
        } => {
            check_text(&field("task"), task)?;
            positive("cases", *cases)?;
            positive("max_new_tokens", *max_new_tokens)?;
            below("max_new_tokens", *max_new_tokens, *length)
        }
    }
}
