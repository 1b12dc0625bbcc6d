//! Tokens that a checkpoint declares as never to be generated.

use super::{asks_for, token_ids};
use crate::model::ModelError;
use crate::model::fields::{Fields, parse_object, short};
use crate::model::tokenizer::ids_below;

/// Masks of some positions only, which are not applied.
const CONDITIONAL_MASKS: [&str; 2] = ["begin_suppress_tokens", "bad_words_ids"];

/// Tokens that a checkpoint declares as never to be generated: `suppress_tokens` of
/// `generation_config.json`, else of `config.json` (path and text of each, where there is one).
///
/// # Errors
/// Names an id that is none or lies outside the vocabulary; [`ModelError::Unsupported`] for masks
/// that depend on what was generated before.
pub(crate) fn suppressed(
    files: [(&str, Option<&[u8]>); 2],
    vocab_size: usize,
) -> Result<Vec<u32>, ModelError> {
    let mut suppressed = None;
    for (path, text) in files {
        let Some(text) = text else { continue };
        let map = parse_object(path, text)?;
        let outer = Fields::new(path, &map);
        let parts = [Some(outer), outer.object("text_config")?];
        for fields in parts.into_iter().flatten() {
            let own = suppressed_by(fields, vocab_size)?;
            suppressed = suppressed.or(own);
        }
    }
    Ok(suppressed.unwrap_or_default())
}

/// What one object suppresses; `None` where it says nothing.
fn suppressed_by(fields: Fields<'_>, vocab_size: usize) -> Result<Option<Vec<u32>>, ModelError> {
    let mut masks = CONDITIONAL_MASKS.iter();
    if let Some(name) = masks.find(|name| asks_for(fields.get(name))) {
        return Err(fields.unsupported(name));
    }
    let Some(value) = fields.get("suppress_tokens") else {
        return Ok(None);
    };
    let expected = || ids_below(vocab_size);
    let wrong = || {
        let expected = format!("token {}", expected());
        fields.wrong("suppress_tokens", short(value), expected)
    };
    let mut ids = token_ids(value).ok_or_else(wrong)?;
    if let Some(&foreign) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(fields.wrong("suppress_tokens", foreign, expected()));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}
