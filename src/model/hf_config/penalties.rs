//! Settings of generation by which other programs change greedy answers.

use serde_json::Value;

use crate::model::ModelError;
use crate::model::fields::{Fields, parse_object, short};

/// Settings that apply to greedy answers too, each with the value that changes nothing.
const PENALTIES: [(&str, f64); 6] = [
    ("repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

/// What `generation_config.json` asks for, as `name = value`.
///
/// # Errors
/// When the file holds no object.
pub(crate) fn penalties(path: &str, text: Option<&[u8]>) -> Result<Vec<String>, ModelError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    let map = parse_object(path, text)?;
    let fields = Fields::new(path, &map);
    let asked = PENALTIES.iter().filter_map(|(name, neutral)| {
        let value = fields.get(name)?;
        let changes = value.as_f64() != Some(*neutral);
        changes.then(|| said(name, value))
    });
    let bias = fields.get("sequence_bias");
    Ok(asked
        .chain(bias.map(|value| said("sequence_bias", value)))
        .collect())
}

fn said(name: &str, value: &Value) -> String {
    format!("{name} = {}", short(value))
}
