//! What each layer of a cache stores, resolved once from recipe and calibration, and how workers
//! refuse what they cannot store.

use super::{BackendError, CacheLayer, CacheLayout};
use crate::recipe::{ByteFormat, Component, Format, GroupSize, NativeDtype, ScalePolicy, float8};

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
    /// 4-bit integers in groups.
    Grouped(GroupSize, NativeDtype),
}

impl Storage {
    /// The format of stored bytes.
    ///
    /// # Panics
    /// For storage that has none.
    pub fn byte_format(self) -> ByteFormat {
        match self {
            Storage::Fixed(format, ..) | Storage::Dynamic(format, _) => format,
            Storage::Native(_) | Storage::Grouped(..) => {
                unreachable!("{self:?} has no one-byte format")
            }
        }
    }

    /// Whether elements are 16-bit floats.
    pub fn is_native(self) -> bool {
        matches!(self, Storage::Native(_))
    }

    /// Stored bytes per token of `kv_heads` vectors of `head_dim` elements: elements, inline
    /// scales and what groups hold.
    pub fn token_bytes(self, kv_heads: usize, head_dim: usize) -> u64 {
        let bytes = match self {
            Storage::Native(_) => 2 * head_dim,
            Storage::Fixed(..) => head_dim,
            Storage::Dynamic(..) => head_dim + 4,
            Storage::Grouped(size, _) => size.stored_bytes(head_dim as u64) as usize,
        };
        (kv_heads * bytes) as u64
    }
}

/// Storage of keys and values of every layer.
///
/// # Errors
/// [`BackendError::Unsupported`] names the recipe and what it asks for that no worker stores or that
/// does not fit the model, or
/// the layer and component whose calibration is missing.
pub fn of_layers(layout: &CacheLayout) -> Result<Vec<[Storage; 2]>, BackendError> {
    let recipe = &layout.recipe;
    let of_layers = layout.layers.iter();
    let head_dims: Vec<usize> = of_layers.map(CacheLayer::stored_head_dim).collect();
    recipe
        .check(&head_dims)
        .map_err(|e| BackendError::Unsupported(format!("recipe {}: {e}", recipe.name)))?;
    (0..layout.layers.len())
        .map(|layer| of_layer(layout, layer))
        .collect()
}

/// Format of queries in every layer; `None` where they stay as they are.
pub fn queries_of_layers(layout: &CacheLayout) -> Vec<Option<ByteFormat>> {
    let layers = layout.layers.len();
    let format = |layer| layout.recipe.queries_at(layer, layers).byte_format();
    (0..layers).map(format).collect()
}

/// Passes a query head vector through a one-byte format under a scale of its own:
/// `x = decode(convert(x / scale)) * scale`, `scale = absmax / largest` (1 for a zero vector). A
/// vector with a number that is not finite stays as it is: what attention makes of it is noticed
/// in its logits.
pub fn round_query(format: ByteFormat, x: &mut [f32]) {
    if x.iter().any(|x| !x.is_finite()) {
        return;
    }
    let absmax = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let scale = float8::scale_from_absmax(format, absmax);
    for x in x {
        *x = float8::dequantise(format, float8::quantise(format, *x, scale), scale);
    }
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
        component_storage(layout, k, absmax.map(|a| a.k), || context(Side::Key))?,
        component_storage(layout, v, absmax.map(|a| a.v), || context(Side::Value))?,
    ])
}

fn component_storage(
    layout: &CacheLayout,
    component: Component,
    absmax: Option<f32>,
    context: impl Fn() -> String,
) -> Result<Storage, BackendError> {
    let refuse = |what: String| Err(BackendError::Unsupported(format!("{}: {what}", context())));
    let native = layout.native;
    let format = match component.format {
        Format::Native => return Ok(Storage::Native(native)),
        Format::Int4(size) => return Ok(Storage::Grouped(size, native)),
        Format::Block(_) => {
            return refuse(format!(
                "no built-in worker stores {}, which llama.cpp's server does",
                component.format
            ));
        }
        Format::E4m3 => ByteFormat::E4m3,
        Format::E5m2 => ByteFormat::E5m2,
        Format::Int8 => ByteFormat::Int8,
    };
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
