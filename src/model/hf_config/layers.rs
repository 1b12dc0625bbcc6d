//! Which layers see a window of tokens only.

use serde_json::Value;

use crate::model::fields::{Fields, short};
use crate::model::{Family, ModelError};

use super::family::Defaults;

/// First layer with a window where a Qwen config names none.
const MAX_WINDOW_LAYERS: usize = 28;

/// Every how many layers of Gemma one has no window, where the config names none.
const WINDOW_PATTERN: usize = 6;

/// The window of each of `count` layers; `None` for a layer that sees all tokens.
///
/// # Errors
/// Names the field that is wrong or asks for what is not applied.
pub(super) fn windows(
    fields: Fields<'_>,
    family: Family,
    defaults: Defaults,
    count: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = window(fields, family, defaults)?;
    let default = default_pattern(fields, family, window, count)?;
    let listed = listed(fields, count, |kind| match kind {
        "full_attention" => Some(None),
        "sliding_attention" if window.is_some() => Some(window),
        _ => None,
    })?;
    let Some(windows) = listed else {
        return Ok(default);
    };
    // The library takes one window for all layers of these, whatever the list says.
    let by_list = matches!(
        family,
        Family::Qwen2 | Family::Qwen3 | Family::Gemma3 | Family::Gemma4
    );
    if !by_list && windows != default {
        return Err(fields.unsupported("layer_types"));
    }
    Ok(windows)
}

/// What `layer_types` makes of `count` layers by `of`, which knows the kinds that the family has;
/// `None` where there is no list.
pub(super) fn listed<T>(
    fields: Fields<'_>,
    count: usize,
    of: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, ModelError> {
    let Some(types) = fields.get("layer_types") else {
        return Ok(None);
    };
    let wrong = || {
        let expected = format!("a list of {count} kinds of layers");
        fields.wrong("layer_types", short(types), expected)
    };
    let list = types
        .as_array()
        .filter(|list| list.len() == count)
        .ok_or_else(wrong)?;
    let kind = |kind: &Value| {
        let known = of(kind.as_str().ok_or_else(wrong)?);
        known.ok_or_else(|| fields.unsupported("layer_types"))
    };
    list.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

fn is_asked(fields: Fields<'_>, name: &str) -> bool {
    super::asks_for(fields.get(name))
}

/// The window of layers that have one.
fn window(
    fields: Fields<'_>,
    family: Family,
    defaults: Defaults,
) -> Result<Option<usize>, ModelError> {
    // A Qwen config keeps a `sliding_window` that `use_sliding_window` switches on; a Llama config
    // has neither.
    let switch = match family {
        Family::Llama => None,
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => {
            Some(fields.bool("use_sliding_window")?.unwrap_or(false))
        }
        _ => Some(true),
    };
    match switch {
        None if is_asked(fields, "sliding_window") => {
            return Err(fields.unsupported("sliding_window"));
        }
        None | Some(false) => return Ok(None),
        Some(true) => {}
    }
    let is_qwen = matches!(family, Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe);
    if !is_qwen && is_asked(fields, "use_sliding_window") {
        return Err(fields.unsupported("use_sliding_window"));
    }
    let default = Some(defaults.window).filter(|window| *window > 0);
    if fields.is_absent("sliding_window") {
        return Ok(default);
    }
    match fields.usize("sliding_window")? {
        Some(0) => Err(fields.wrong("sliding_window", 0, "a number above 0")),
        window => Ok(window),
    }
}

/// Windows of a config without `layer_types`.
fn default_pattern(
    fields: Fields<'_>,
    family: Family,
    window: Option<usize>,
    count: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let first = match family {
        Family::Gemma4 if is_asked(fields, "sliding_window_pattern") => {
            return Err(fields.unsupported("sliding_window_pattern"));
        }
        Family::Gemma3 | Family::Gemma4 => {
            let pattern = fields
                .usize("sliding_window_pattern")?
                .unwrap_or(WINDOW_PATTERN);
            if pattern == 0 {
                return Err(fields.wrong("sliding_window_pattern", 0, "a number above 0"));
            }
            let has_window = |layer: usize| !(layer + 1).is_multiple_of(pattern);
            let windows = (0..count).map(|layer| window.filter(|_| has_window(layer)));
            return Ok(windows.collect());
        }
        Family::Qwen2 | Family::Qwen3 => fields
            .usize("max_window_layers")?
            .unwrap_or(MAX_WINDOW_LAYERS),
        _ => 0,
    };
    let windows = (0..count).map(|layer| window.filter(|_| layer >= first));
    Ok(windows.collect())
}
