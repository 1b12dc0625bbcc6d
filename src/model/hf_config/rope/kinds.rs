//! Rotary settings that differ between layers without and with a window.

use serde_json::{Map, Value};

use super::{LAYER_TYPES, Reader, THETA};
use crate::model::fields::Fields;
use crate::model::{ModelError, Rope, RopeScaling};

/// Base of layers without a window where the config names none.
const GLOBAL_THETA: f64 = 1_000_000.0;

/// Part of the pairs that turn in such layers of Gemma 4, likewise.
const GLOBAL_PART: f64 = 0.25;

/// Settings of Gemma 3: those of both kinds, or those of layers without a window in `scaling` and
/// the bases beside.
pub(super) fn gemma3(
    reader: &Reader<'_>,
    parameters: Option<Fields<'_>>,
    scaling: Option<Fields<'_>>,
) -> Result<Vec<Rope>, ModelError> {
    let fields = reader.outer;
    let [full, sliding] = of_kinds(fields, parameters)?;
    let global = fields.positive("rope_theta")?.unwrap_or(GLOBAL_THETA);
    let local = fields.positive("rope_local_base_freq")?.unwrap_or(THETA);
    // Here `rope_scaling` adds to the settings of layers without a window.
    let merged = merged([full, scaling]);
    let full = merged.as_ref().map(|map| Fields::new(fields.path(), map));
    Ok(vec![
        reader.rope(full, global)?,
        reader.rope(sliding, local)?,
    ])
}

/// Settings of Gemma 4: those of both kinds or the family's own.
pub(super) fn gemma4(
    reader: &Reader<'_>,
    parameters: Option<Fields<'_>>,
    scaling: Option<Fields<'_>>,
) -> Result<Vec<Rope>, ModelError> {
    let fields = reader.outer;
    if scaling.is_some() {
        return Err(fields.unsupported("rope_scaling"));
    }
    if fields.get("rope_theta").is_some() {
        return Err(fields.unsupported("rope_theta"));
    }
    if parameters.is_none() {
        let scaling = RopeScaling::Proportional {
            factor: 1.0,
            part: GLOBAL_PART,
        };
        return Ok(vec![
            Rope::new(GLOBAL_THETA, scaling),
            Rope::new(THETA, RopeScaling::Default),
        ]);
    }
    let kinds = of_kinds(fields, parameters)?;
    let named = LAYER_TYPES.into_iter().zip(kinds);
    let ropes = named.map(|(kind, settings)| {
        let missing = || {
            let expected = "settings of `full_attention` and `sliding_attention`";
            fields.wrong("rope_parameters", format!("no `{kind}`"), expected)
        };
        let settings = settings.ok_or_else(missing)?;
        let theta = settings.required_positive("rope_theta")?;
        let named = settings.str("rope_type")?.or(settings.str("type")?);
        match named {
            Some("proportional") => Ok(Rope::new(theta, proportional(settings)?)),
            _ => reader.rope(Some(settings), theta),
        }
    });
    ropes.collect()
}

/// Settings of layers without and with a window.
fn of_kinds<'a>(
    fields: Fields<'a>,
    parameters: Option<Fields<'a>>,
) -> Result<[Option<Fields<'a>>; 2], ModelError> {
    let Some(parameters) = parameters else {
        return Ok([None, None]);
    };
    if LAYER_TYPES
        .iter()
        .all(|kind| parameters.get(kind).is_none())
    {
        let expected = "settings of `full_attention` and `sliding_attention`";
        return Err(fields.wrong("rope_parameters", "neither", expected));
    }
    let [full, sliding] = LAYER_TYPES.map(|kind| parameters.object(kind));
    Ok([full?, sliding?])
}

/// The fields of both objects, those of the second one before those of the first.
fn merged(parts: [Option<Fields<'_>>; 2]) -> Option<Map<String, Value>> {
    let mut merged: Option<Map<String, Value>> = None;
    for part in parts.into_iter().flatten() {
        let map = merged.get_or_insert_default();
        for name in part.names() {
            let value = part.get(name).cloned().unwrap_or(Value::Null);
            map.insert(name.to_owned(), value);
        }
    }
    merged
}

/// Proportional rotary embeddings, which pair whole vectors whatever part of the pairs turns.
fn proportional(settings: Fields<'_>) -> Result<RopeScaling, ModelError> {
    let name = "partial_rotary_factor";
    let part = settings.positive(name)?.unwrap_or(1.0);
    if part > 1.0 {
        return Err(settings.wrong(name, part, "a part up to 1"));
    }
    let factor = settings.positive("factor")?.unwrap_or(1.0);
    Ok(RopeScaling::Proportional { factor, part })
}
