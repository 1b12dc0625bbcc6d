//! Which layers see a window of tokens only.

use serde_json::Value;

use crate::model::fields::{Fields, short};
use crate::model::{Family, ModelError};

use super::family::Defaults;

/// What the library calls layers that see all tokens.
pub(super) const FULL: &str = "full_attention";

/// What it calls layers with a window.
const SLIDING: &str = "sliding_attention";

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
    let listed = listed(fields, count, |entry| match entry.kind {
        FULL => Ok(None),
        SLIDING if window.is_some() => Ok(window),
        // A family with windows, and nothing that switches them off.
        SLIDING if family != Family::Llama && !is_switched_off(fields, family) => {
            let expected = format!("the window of the layers that layer_types calls {SLIDING}");
            Err(fields.missing("sliding_window", expected))
        }
        SLIDING => Err(entry.unsupported(FULL)),
        _ => Err(entry.unsupported(format!("{FULL}, {SLIDING}"))),
    })?;
    let Some(windows) = listed else {
        let is_gemma = matches!(family, Family::Gemma3 | Family::Gemma4);
        if is_gemma && window.is_none() {
            let some = default_pattern(fields, family, Some(1), count)?;
            if some.iter().any(Option::is_some) {
                let expected = "the window of the layers that have one in this family";
                return Err(fields.missing("sliding_window", expected));
            }
        }
        return Ok(default);
    };
    // The library takes one window for all layers of these, whatever the list says.
    let by_list = matches!(
        family,
        Family::Qwen2 | Family::Qwen3 | Family::Gemma3 | Family::Gemma4
    );
    let differs = |index: &usize| windows[*index] != default[*index];
    match (0..count).find(differs) {
        Some(index) if !by_list => {
            let name = |window: Option<usize>| window.map_or(FULL, |_| SLIDING);
            let entry = Entry {
                fields,
                index,
                kind: name(windows[index]),
            };
            let supported = format!(
                "{}, as every layer of this family has it here",
                name(default[index])
            );
            Err(entry.unsupported(supported))
        }
        _ => Ok(windows),
    }
}

/// Whether a config says that no layer has a window.
fn is_switched_off(fields: Fields<'_>, family: Family) -> bool {
    let is_qwen = matches!(family, Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe);
    is_qwen && !is_asked(fields, "use_sliding_window")
}

/// One entry of `layer_types`.
pub(super) struct Entry<'a> {
    fields: Fields<'a>,
    /// Number of the layer.
    index: usize,
    /// Its kind.
    pub kind: &'a str,
}

impl Entry<'_> {
    /// Error about a kind that the family has not, with those that it has.
    pub(super) fn unsupported(&self, supported: impl std::fmt::Display) -> ModelError {
        let Entry { index, kind, .. } = self;
        let what = format!("layer_types[{index}] = \"{kind}\" (supported: {supported})");
        ModelError::unsupported(self.fields.path(), what)
    }
}

/// What `layer_types` makes of `count` layers by `of`, which knows the kinds that the family has;
/// `None` where there is no list.
pub(super) fn listed<T>(
    fields: Fields<'_>,
    count: usize,
    of: impl Fn(&Entry<'_>) -> Result<T, ModelError>,
) -> Result<Option<Vec<T>>, ModelError> {
    let name = "layer_types";
    let Some(types) = fields.get(name) else {
        return Ok(None);
    };
    let expected = format!("a list of {count} kinds of layers");
    let list = match types.as_array() {
        Some(list) if list.len() == count => list,
        Some(list) => return Err(fields.wrong(name, format!("{} kinds", list.len()), expected)),
        None => return Err(fields.wrong(name, short(types), expected)),
    };
    let kind = |(index, kind): (usize, &Value)| match kind.as_str() {
        Some(kind) => of(&Entry {
            fields,
            index,
            kind,
        }),
        None => Err(fields.wrong(&format!("{name}[{index}]"), short(kind), "a string")),
    };
    let layers = list.iter().enumerate().map(kind);
    layers.collect::<Result<_, _>>().map(Some)
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
