//! What is wrong with a safetensors file whose header does not fit it.

use ::safetensors::SafeTensorError;
use serde_json::Value;

use super::LENGTH_BYTES;
use crate::model::ModelError;

/// The error about a file of these `bytes`, which could not be read for `reason`: where its length
/// is the fault, the bytes that are there and those that the header asks for.
pub(super) fn damaged(path: &str, bytes: &[u8], reason: &SafeTensorError) -> ModelError {
    let length = bytes.len();
    let Some((start, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        let expected = format!("at least the {LENGTH_BYTES} that give the header's length");
        return ModelError::invalid(path, "length", format!("{length} bytes"), expected);
    };
    let header = u64::from_le_bytes(*start);
    let Some(text) = usize::try_from(header).ok().and_then(|end| rest.get(..end)) else {
        let found = format!("{header} bytes in a file of {length}");
        let expected = "a safetensors header that fits the file";
        return ModelError::invalid(path, "header's length", found, expected);
    };
    let whole = data_end(text).and_then(|end| end.checked_add(LENGTH_BYTES as u64 + header));
    match whole {
        Some(whole) if whole != length as u64 => {
            let (found, by) = match whole.checked_sub(length as u64) {
                Some(missing) => (missing, "too few"),
                None => (length as u64 - whole, "too many"),
            };
            let found = format!("{length} bytes, {found} {by}");
            let expected = format!("{whole} bytes, as its header says");
            ModelError::invalid(path, "length", found, expected)
        }
        _ => {
            let expected = "a safetensors header that fits the file";
            ModelError::invalid(path, "header", reason, expected)
        }
    }
}

/// Where the last tensor ends behind the header.
fn data_end(header: &[u8]) -> Option<u64> {
    let header: Value = serde_json::from_slice(header).ok()?;
    let tensors = header.as_object()?.iter();
    let tensors = tensors.filter(|(name, _)| *name != "__metadata__");
    let end = |(_, tensor): (_, &Value)| tensor.get("data_offsets")?.get(1)?.as_u64();
    tensors
        .map(end)
        .collect::<Option<Vec<u64>>>()?
        .into_iter()
        .max()
}
