//! Scales of the cache that a checkpoint brings along.
//!
//! A stored key or value is `x / scale` in E4M3. The names are those of llm-compressor
//! (`self_attn.k_scale`, before it `k_proj.output_scale`), ModelOpt (`k_proj.k_scale`) and AutoFP8
//! (`self_attn.kv_scale`, for keys and values alike).

use std::collections::BTreeMap;

use super::super::ModelError;
use super::super::tensors::{DRAFT_LAYERS, is_other_part};
use super::dequantise::floats;
use super::find::{Lookup, Stored};
use crate::schema::LayerScales;

/// What a scale stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Key,
    Value,
    Both,
    /// Queries or probabilities, which these workers keep native.
    Unused,
}

/// Names behind `self_attn.`, of one project after another.
const NAMES: [(&str, Role); 17] = [
    ("k_scale", Role::Key),
    ("v_scale", Role::Value),
    ("attn.k_scale", Role::Key),
    ("attn.v_scale", Role::Value),
    ("k_proj.k_scale", Role::Key),
    ("v_proj.v_scale", Role::Value),
    ("qkv_proj.k_scale", Role::Key),
    ("qkv_proj.v_scale", Role::Value),
    ("k_proj.output_scale", Role::Key),
    ("v_proj.output_scale", Role::Value),
    ("kv_scale", Role::Both),
    ("attn.kv_scale", Role::Both),
    ("q_scale", Role::Unused),
    ("attn.q_scale", Role::Unused),
    ("q_proj.q_scale", Role::Unused),
    ("q_proj.output_scale", Role::Unused),
    ("prob_scale", Role::Unused),
];

/// Scales of a checkpoint's cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CacheScales {
    /// Key and value scale by layer.
    pub layers: BTreeMap<usize, [Option<f32>; 2]>,
    /// Every stored tensor that holds one.
    pub parts: Vec<String>,
}

impl CacheScales {
    /// Checks that every layer of the model that attends (`attends`, by layer) has both scales, or none
    /// has any.
    ///
    /// # Errors
    /// Names the first layer that lacks one.
    pub(crate) fn check(&self, folder: &str, attends: &[bool]) -> Result<(), ModelError> {
        if self.layers.is_empty() {
            return Ok(());
        }
        let has_cache = |layer: usize| attends.get(layer) == Some(&true);
        let has_both = |layer: &usize| matches!(self.layers.get(layer), Some([Some(_), Some(_)]));
        let mut layers = (0..attends.len()).filter(|&layer| has_cache(layer));
        let stray = self.layers.keys().find(|layer| !has_cache(**layer));
        let lacking = layers.find(|layer| !has_both(layer));
        match lacking.or(stray.copied()) {
            None => Ok(()),
            Some(layer) => Err(ModelError::invalid(
                folder,
                format!("scales of the cache of layer {layer}"),
                found(self.layers.get(&layer).copied().unwrap_or_default()),
                format!(
                    "one for keys and one for values in each of {} layers with attention",
                    attends.iter().filter(|attends| **attends).count()
                ),
            )),
        }
    }

    /// The scales of every layer up to the last that has some; they were checked. Layers without a cache
    /// stand with unit scales, which nothing is stored under.
    pub(crate) fn of_layers(&self) -> Vec<LayerScales> {
        let Some((&last, _)) = self.layers.last_key_value() else {
            return Vec::new();
        };
        let of_layer = |layer| match self.layers.get(&layer) {
            Some(&[Some(k), Some(v)]) => LayerScales { k, v },
            _ => LayerScales { k: 1.0, v: 1.0 },
        };
        (0..=last).map(of_layer).collect()
    }
}

/// What a layer has, in words.
fn found(sides: [Option<f32>; 2]) -> &'static str {
    match sides {
        [None, None] => "none",
        [Some(_), None] => "one for keys and none for values",
        [None, Some(_)] => "none for keys and one for values",
        [Some(_), Some(_)] => "one for keys and one for values",
    }
}

/// Finds the scales among tensors of these `names`.
///
/// # Errors
/// Names a scale that is not one positive number, or that a layer has twice.
pub(crate) fn find_cache_scales<'n>(
    names: impl Iterator<Item = &'n str>,
    lookup: &Lookup<'_>,
) -> Result<CacheScales, ModelError> {
    let mut found = CacheScales::default();
    for name in names {
        let Some((layer, role)) = role_of(name) else {
            continue;
        };
        let Some(stored) = lookup(name) else { continue };
        let scale = scalar(&stored, name)?;
        found.parts.push(name.to_owned());
        let sides: &[usize] = match role {
            Role::Key => &[0],
            Role::Value => &[1],
            Role::Both => &[0, 1],
            Role::Unused => &[],
        };
        for &side in sides {
            let own = &mut found.layers.entry(layer).or_default()[side];
            if own.replace(scale).is_some() {
                let what = format!("tensor `{name}`");
                let expected = "one scale per layer and side";
                return Err(ModelError::invalid(
                    stored.path,
                    what,
                    "a second scale",
                    expected,
                ));
            }
        }
    }
    Ok(found)
}

/// Layer and role of a scale of attention.
fn role_of(name: &str) -> Option<(usize, Role)> {
    // Neither draft layers nor towers beside the text are ever run.
    if is_other_part(name) || name.starts_with(DRAFT_LAYERS) {
        return None;
    }
    let (front, part) = name.split_once(".self_attn.")?;
    let (_, layer) = front.rsplit_once("layers.")?;
    let layer = layer.parse().ok()?;
    let (_, role) = NAMES.iter().find(|(own, _)| *own == part)?;
    Some((layer, *role))
}

fn scalar(stored: &Stored<'_>, name: &str) -> Result<f32, ModelError> {
    let what = format!("tensor `{name}`");
    if stored.shape.iter().any(|&side| side != 1) {
        let shape = stored.shape;
        let what = format!("{what} of shape {shape:?} (one scale per layer is applied)");
        return Err(ModelError::unsupported(stored.path, what));
    }
    match floats(stored, name)?.as_slice() {
        &[scale] if scale.is_finite() && scale > 0.0 => Ok(scale),
        other => {
            let found = match other {
                [number] => number.to_string(),
                numbers => format!("{} numbers", numbers.len()),
            };
            Err(ModelError::invalid(
                stored.path,
                what,
                found,
                "one positive number",
            ))
        }
    }
}
