//! What a layer stores, resolved once from recipe and calibration.

use super::{PlaneShape, Side};
use crate::backend::{BackendError, CacheLayout};
use crate::recipe::{ByteFormat, Component, NativeDtype, ScalePolicy, float8};

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

    /// Stored bytes per token: elements and inline scales.
    pub fn token_bytes(self, shape: PlaneShape) -> u64 {
        let bytes = match self {
            Storage::Native(_) => 2 * shape.width(),
            Storage::Fixed(..) => shape.width(),
            Storage::Dynamic(..) => shape.width() + 4 * shape.kv_heads,
        };
        bytes as u64
    }
}

/// Storage of keys and values of one layer.
///
/// # Errors
/// [`BackendError::Unsupported`] names the recipe, layer and component, and what is missing.
pub fn of_layer(layout: &CacheLayout, layer: usize) -> Result<[Storage; 2], BackendError> {
    let (k, v) = layout.recipe.components_at(layer, layout.layers);
    let absmax = match &layout.absmax {
        None => None,
        Some(layers) if layers.len() == layout.layers => Some(layers[layer]),
        Some(layers) => {
            return Err(BackendError::Unsupported(format!(
                "calibration of {} layers, expected {}",
                layers.len(),
                layout.layers
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
