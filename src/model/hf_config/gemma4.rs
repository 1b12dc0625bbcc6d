//! Heads of Gemma 4's layers, and what its configs ask for beyond what is applied.

use std::collections::BTreeMap;

use serde_json::Value;

use super::experts::MOST_EXPERTS;
use super::family::Defaults;
use super::layers::windows;
use crate::model::fields::{Fields, short};
use crate::model::{ExpertsConfig, Family, LayerConfig, ModelError};

/// Elements of the heads of layers without a window where the config names no width.
const GLOBAL_HEAD_DIM: usize = 512;

/// What the config may name of single layers.
const OF_A_LAYER: [&str; 2] = ["head_dim", "num_key_value_heads"];

/// Heads of one layer, as far as they differ from those of all.
#[derive(Clone, Copy, Default)]
struct Heads {
    head_dim: Option<usize>,
    kv_heads: Option<usize>,
}

/// The `count` layers: those with a window as `sliding` says, the others with heads of their own.
///
/// # Errors
/// Names the field that is wrong or asks for what is not applied.
pub(super) fn layers(
    fields: Fields<'_>,
    defaults: Defaults,
    sliding: LayerConfig,
    count: usize,
) -> Result<Vec<LayerConfig>, ModelError> {
    let mut windows = windows(fields, Family::Gemma4, defaults, count)?;
    // The library makes the last layer one that sees all tokens, whatever the list says.
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    let keys_are_values = fields.bool("attention_k_eq_v")?.unwrap_or(false);
    let named = named_layers(fields, count)?;
    let global = Heads {
        head_dim: Some(count_or(fields, "global_head_dim", GLOBAL_HEAD_DIM)?),
        // Only layers with one projection for both take this number.
        kv_heads: match keys_are_values {
            true => fields.usize("num_global_key_value_heads")?,
            false => None,
        },
    };
    let layer = |(index, window): (usize, Option<usize>)| {
        let own = match &named {
            Some(named) => named.get(&index).copied().unwrap_or_default(),
            None if window.is_none() => global,
            None => Heads::default(),
        };
        LayerConfig {
            window,
            head_dim: own.head_dim.unwrap_or(sliding.head_dim),
            kv_heads: own.kv_heads.unwrap_or(sliding.kv_heads),
            rope: usize::from(window.is_some()),
            // Norms of queries and keys take the place of a divisor.
            score_divisor: 1.0,
            keys_are_values: keys_are_values && window.is_none(),
            ..sliding
        }
    };
    Ok(windows.into_iter().enumerate().map(layer).collect())
}

/// Heads by layer, as the library's later releases store them; `None` where there is no list.
fn named_layers(
    fields: Fields<'_>,
    count: usize,
) -> Result<Option<BTreeMap<usize, Heads>>, ModelError> {
    let name = "per_layer_config";
    let Some(named) = fields.object(name)? else {
        return Ok(None);
    };
    let mut layers = BTreeMap::new();
    for key in named.names() {
        let index = key.parse().ok().filter(|&index: &usize| index < count);
        let index = index.ok_or_else(|| {
            fields.wrong(
                name,
                format!("layer `{key}`"),
                format!("0 to {}", count - 1),
            )
        })?;
        let wrong = |value: &Value| named.wrong(key, short(value), "settings of a layer");
        let own = match named.object(key) {
            Ok(own) => own,
            Err(_) => return Err(named.get(key).map_or_else(|| named.unsupported(key), wrong)),
        };
        let Some(own) = own else { continue };
        if let Some(other) = own.names().find(|other| !OF_A_LAYER.contains(other)) {
            return Err(own.unsupported_beside(other, OF_A_LAYER.join(", ")));
        }
        let [head_dim, kv_heads] = OF_A_LAYER.map(|name| match own.get(name) {
            Some(_) => own.required_usize(name).map(Some),
            None => Ok(None),
        });
        let heads = Heads {
            head_dim: head_dim?,
            kv_heads: kv_heads?,
        };
        layers.insert(index, heads);
    }
    Ok(Some(layers))
}

fn count_or(fields: Fields<'_>, name: &str, default: usize) -> Result<usize, ModelError> {
    match fields.get(name) {
        Some(_) => fields.required_usize(name),
        None => Ok(default),
    }
}

/// Gives the layers their experts, where there are any: beside the MLP of every layer.
///
/// # Errors
/// Names the field that is wrong.
pub(super) fn add_experts(
    fields: Fields<'_>,
    layers: &mut [LayerConfig],
) -> Result<(), ModelError> {
    if !fields.bool("enable_moe_block")?.unwrap_or(false) {
        return Ok(());
    }
    super::experts::refuse_unapplied(fields)?;
    let (count, chosen) = ("num_experts", "top_k_experts");
    let shape = ExpertsConfig {
        experts: fields.required_usize(count)?,
        chosen: fields.required_usize(chosen)?,
        intermediate_size: fields.required_usize("moe_intermediate_size")?,
        renormalised: true,
        beside_mlp: true,
    };
    if shape.experts > MOST_EXPERTS {
        let expected = format!("at most {MOST_EXPERTS}");
        return Err(fields.wrong(count, shape.experts, expected));
    }
    if shape.chosen > shape.experts {
        let expected = format!("at most the {} experts of a layer", shape.experts);
        return Err(fields.wrong(chosen, shape.chosen, expected));
    }
    for layer in layers {
        layer.experts = Some(shape);
    }
    Ok(())
}

/// Refuses what is not applied: inputs of every layer beside the residual stream, and text that
/// sees what follows it.
pub(super) fn refuse_unapplied(fields: Fields<'_>, defaults: Defaults) -> Result<(), ModelError> {
    let name = "hidden_size_per_layer_input";
    if fields.is_absent(name) && defaults.layer_input > 0 {
        let what = format!("{name} = {}, its default", defaults.layer_input);
        return Err(ModelError::unsupported(fields.path(), what));
    }
    if super::asks_for(fields.get(name)) {
        return Err(fields.unsupported(name));
    }
    // Images and sounds see what follows them; there are none in text.
    match fields.str("use_bidirectional_attention")? {
        None | Some("vision") => Ok(()),
        Some(_) => Err(fields.unsupported_beside("use_bidirectional_attention", "vision")),
    }
}
