//! What each layer of a cache stores, resolved once from recipe and calibration, and how workers
//! refuse what they cannot store.

use super::{BackendError, CacheLayout};
use crate::recipe::{ByteFormat, Component, Format, NativeDtype, ScalePolicy, float8};

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Key = 0,
    /// Values.
    Value = 1,
}

impl Side {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Side::Key => "key",
            Side::Value => "value",
        }
    }
}

/// How one component of one layer is stored.
#[derive(Clone, Copy, Debug)]
pub enum Storage {
    /// 16-bit floats.
    Native(NativeDtype),
    /// One byte per element under this scale; the native format is what changes are told against.
    Fixed(ByteFormat, NativeDtype, f32),
    /// One byte per element, a scale per head vector.
    Dynamic(ByteFormat, NativeDtype),
}

impl Storage {
    /// The format of stored bytes.
    ///
    /// # Panics
    /// For native storage, which has none.
    pub fn byte_format(self) -> ByteFormat {
        match self {
            Storage::Fixed(format, ..) | Storage::Dynamic(format, _) => format,
            Storage::Native(_) => unreachable!("native storage has no bytes"),
        }
    }

    /// Stored bytes per token of `kv_heads` vectors of `head_dim` elements: elements and inline
    /// scales.
    pub fn token_bytes(self, kv_heads: usize, head_dim: usize) -> u64 {
        let bytes = match self {
            Storage::Native(_) => 2 * head_dim,
            Storage::Fixed(..) => head_dim,
            Storage::Dynamic(..) => head_dim + 4,
        };
        (kv_heads * bytes) as u64
    }
}

/// Storage of keys and values of every layer.
///
/// # Errors
/// [`BackendError::Unsupported`] names the recipe and what it asks for that `worker` lacks, or the
/// layer and component whose calibration is missing.
pub fn of_layers(layout: &CacheLayout, worker: &str) -> Result<Vec<[Storage; 2]>, BackendError> {
    let recipe = &layout.recipe;
    if recipe.q != Format::Native {
        let (q, name) = (recipe.q, &recipe.name);
        return Err(BackendError::Unsupported(format!(
            "recipe {name}: q={q}: the {worker} worker keeps queries native"
        )));
    }
    recipe
        .check_layers(layout.layers.len())
        .map_err(|e| BackendError::Unsupported(format!("recipe {}: {e}", recipe.name)))?;
    (0..layout.layers.len())
        .map(|layer| of_layer(layout, layer))
        .collect()
}

/// The error about an element that its storage cannot hold.
pub fn not_finite(row: usize, layer: usize, side: Side, x: f32, element: usize) -> BackendError {
    BackendError::NotFinite {
        row,
        what: format!(
            "layer {layer}: {} element {element} is {x:e}, expected a number that its storage \
             can hold",
            side.name()
        ),
    }
}

fn of_layer(layout: &CacheLayout, layer: usize) -> Result<[Storage; 2], BackendError> {
    let (k, v) = layout.recipe.components_at(layer, layout.layers.len());
    let absmax = match &layout.absmax {
        None => None,
        Some(layers) if layers.len() == layout.layers.len() => Some(layers[layer]),
        Some(layers) => {
            return Err(BackendError::Unsupported(format!(
                "calibration of {} layers, expected {}",
                layers.len(),
                layout.layers.len()
            )));
        }
    };
    let context = |side: Side| {
        let (name, side) = (&layout.recipe.name, side.name());
        format!("recipe {name}: layer {layer}: {side}")
    };
    Ok([
        component_storage(layout.native, k, absmax.map(|a| a.k), || context(Side::Key))?,
        component_storage(layout.native, v, absmax.map(|a| a.v), || {
            context(Side::Value)
        })?,
    ])
}

fn component_storage(
    native: NativeDtype,
    component: Component,
    absmax: Option<f32>,
    context: impl Fn() -> String,
) -> Result<Storage, BackendError> {
    if let Format::Block(_) = component.format {
        let (format, context) = (component.format, context());
        return Err(BackendError::Unsupported(format!(
            "{context}: no built-in worker stores {format}, which llama.cpp's server does"
        )));
    }
    let Some(format) = component.format.byte_format() else {
        return Ok(Storage::Native(native));
    };
    let refuse = |what: String| Err(BackendError::Unsupported(format!("{}: {what}", context())));
    match (component.scale, absmax) {
        (Some(ScalePolicy::Dynamic), _) => Ok(Storage::Dynamic(format, native)),
        (Some(ScalePolicy::Fixed), Some(x)) if x.is_finite() && x >= 0.0 => Ok(Storage::Fixed(
            format,
            native,
            float8::scale_from_absmax(format, x),
        )),
        (Some(ScalePolicy::Fixed), Some(x)) => refuse(format!(
            "calibrated absmax {x}, expected a finite number from 0"
        )),
        (Some(ScalePolicy::Fixed), None) => refuse("fixed scales without a calibration".into()),
        (None, _) => refuse(format!(
            "format {} without a scale policy",
            component.format
        )),
    }
}
