//! The element type of a checkpoint.

use crate::model::ModelError;
use crate::model::fields::{Fields, short};
use crate::model::quantised::NumberType;
use crate::recipe::NativeDtype;

/// Fields that name it, the newer one first.
const FIELDS: [&str; 2] = ["dtype", "torch_dtype"];

/// Checkpoints in 32-bit floats have no 16-bit format of their own: their native cache is the more
/// precise of the two.
pub(super) fn native(dtype: NumberType) -> NativeDtype {
    match dtype {
        NumberType::F32 | NumberType::F16 => NativeDtype::F16,
        NumberType::Bf16 => NativeDtype::Bf16,
    }
}

/// A constant as the library rounds it to its compute type.
pub(super) fn round(dtype: NumberType, x: f32) -> f32 {
    match dtype {
        NumberType::F32 => x,
        NumberType::F16 => half::f16::from_f32(x).to_f32(),
        NumberType::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

/// Element type of a checkpoint, which is also what its library computes in, as the first of
/// `parts` names it that does; the decoder's own fields come first.
///
/// # Errors
/// Names a field with another type, and one that contradicts the other.
pub(crate) fn dtype(parts: &[Fields<'_>]) -> Result<NumberType, ModelError> {
    for part in parts {
        let [newer, older] = FIELDS.map(|field| named(*part, field));
        match (newer?, older?) {
            (Some(newer), Some(older)) if newer != older => {
                let [newer, older] = FIELDS;
                let name = |field| part.get(field).map_or_else(String::new, short);
                let expected = format!("{}, as `{newer}` says", name(newer));
                return Err(part.wrong(older, name(older), expected));
            }
            (Some(found), _) | (None, Some(found)) => return Ok(found),
            (None, None) => {}
        }
    }
    let expected = "`float16`, `bfloat16` or `float32` (also as `dtype`)";
    let outer = parts[parts.len() - 1];
    Err(outer.missing("torch_dtype", expected))
}

/// The type that one field names.
fn named(part: Fields<'_>, field: &str) -> Result<Option<NumberType>, ModelError> {
    Ok(match part.str(field)? {
        None => None,
        Some("float32") => Some(NumberType::F32),
        Some("float16") => Some(NumberType::F16),
        Some("bfloat16") => Some(NumberType::Bf16),
        Some(_) => return Err(part.unsupported_beside(field, "float32, float16, bfloat16")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(text: Value, outer: Value) -> Result<NumberType, String> {
        let [text, outer] = [&text, &outer].map(|value| value.as_object().unwrap());
        let parts = [text, outer].map(|map| Fields::new("config.json", map));
        dtype(&parts).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused_by_name() {
        let both = |dtype: &str, torch_dtype: &str| {
            read(
                json!({"dtype": dtype, "torch_dtype": torch_dtype}),
                json!({}),
            )
        };
        assert_eq!(both("bfloat16", "bfloat16"), Ok(NumberType::Bf16));
        let expected = "config.json: field `torch_dtype`: found \"bfloat16\", expected \"float32\", \
                        as `dtype` says";
        assert_eq!(both("float32", "bfloat16").unwrap_err(), expected);
    }

    #[test]
    fn another_type_is_refused_with_those_that_are_read() {
        let expected = "config.json: unsupported: dtype = \"bf16\" (supported: float32, float16, \
                        bfloat16)";
        assert_eq!(
            read(json!({"dtype": "bf16"}), json!({})).unwrap_err(),
            expected
        );
    }
}
