//! KV-cache recipes: how keys and values are stored (number format and scale policy), and what
//! that costs in bytes.
//!
//! A recipe says nothing of devices; workers read it and either apply it or refuse it by name.

mod block;
mod bytes;
pub mod float8;
mod grammar;
pub mod int4;
mod state;

use std::collections::BTreeSet;
use std::fmt;

pub use block::{BlockFormat, format_of_server};
pub use bytes::{
    CacheShape, Capacity, PAGE_TOKENS, SCALE_BYTES, bytes_per_token, cache_bytes, capacity, saved,
    sink_bytes, vector_bytes,
};
pub use float8::ByteFormat;
pub use grammar::{MOST_SINK, NAMED, RecipeError};
pub use int4::GroupSize;
pub use state::{
    LayerState, SequenceBytes, growth_bytes, most_pages, paged_bytes, sequence_bytes,
    sink_bytes_of_layers, stored_bytes,
};

/// 16-bit format in which the native cache stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeDtype {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl NativeDtype {
    /// Name as in certificates.
    pub fn name(self) -> &'static str {
        match self {
            NativeDtype::F16 => "f16",
            NativeDtype::Bf16 => "bf16",
        }
    }

    /// The nearest number of the format, ties to even.
    #[inline]
    pub fn round(self, x: f32) -> f32 {
        match self {
            NativeDtype::F16 => half::f16::from_f32(x).to_f32(),
            NativeDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        }
    }
}

/// Number format of one stored cache component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// FP16 or BF16, as the checkpoint's `torch_dtype` says (F32 checkpoints and GGUF: FP16).
    Native,
    /// FP8 with 4 exponent and 3 mantissa bits (OCP E4M3, "fn": no infinities, largest 448).
    E4m3,
    /// FP8 with 5 exponent and 2 mantissa bits (largest finite 57,344).
    E5m2,
    /// Signed 8-bit integers, symmetric, largest 127.
    Int8,
    /// 4-bit integers in groups along the head vector, with an FP16 scale and minimum each; see
    /// [`int4`].
    Int4(GroupSize),
    /// A block format that servers alone store.
    Block(BlockFormat),
}

/// Where a quantised component's scale comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScalePolicy {
    /// One FP32 scale per layer and component, from calibration on the native arm.
    Fixed,
    /// One FP32 scale per token, KV head and component, stored inline in the page.
    Dynamic,
}

/// Storage of keys or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// Number format of the stored elements.
    pub format: Format,
    /// `None` exactly for [`Format::Native`], and for [`Format::Int4`] and [`Format::Block`], whose
    /// scales are part of what is stored.
    pub scale: Option<ScalePolicy>,
}

/// A complete recipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Short name (`AD`), or the canonical spec where the recipe has no name of its own.
    pub name: String,
    /// Storage of keys (after bias, QK-norm and rotary).
    pub k: Component,
    /// Storage of values.
    pub v: Component,
    /// Format of queries; native unless the recipe says `q=e4m3`.
    pub q: Format,
    /// So many first tokens of every sequence are stored natively.
    pub sink: u32,
    /// Layers that stay native; negative numbers count from the end (`-1` is the last layer).
    pub skip_layers: Vec<i32>,
}

impl Component {
    /// Native storage.
    pub const NATIVE: Component = Component {
        format: Format::Native,
        scale: None,
    };

    /// Whether the stored elements are not native.
    pub fn is_quantised(&self) -> bool {
        self.format != Format::Native
    }
}

impl Format {
    /// The one-byte format; `None` for native storage, for `int4` and for blocks.
    pub fn byte_format(self) -> Option<ByteFormat> {
        match self {
            Format::Native | Format::Int4(_) | Format::Block(_) => None,
            Format::E4m3 => Some(ByteFormat::E4m3),
            Format::E5m2 => Some(ByteFormat::E5m2),
            Format::Int8 => Some(ByteFormat::Int8),
        }
    }

    /// Stored bytes of so many elements; scales of groups and blocks are part of them.
    pub fn stored_bytes(self, elements: u64) -> u64 {
        match self {
            Format::Native => elements.saturating_mul(2),
            Format::E4m3 | Format::E5m2 | Format::Int8 => elements,
            Format::Int4(group) => group.stored_bytes(elements),
            Format::Block(block) => block.stored_bytes(elements),
        }
    }
}

impl Recipe {
    /// The native cache.
    pub fn native() -> Self {
        Recipe {
            name: "native".to_owned(),
            k: Component::NATIVE,
            v: Component::NATIVE,
            q: Format::Native,
            sink: 0,
            skip_layers: Vec::new(),
        }
    }

    /// Whether keys and values are both stored natively.
    pub fn is_native(&self) -> bool {
        !self.k.is_quantised() && !self.v.is_quantised()
    }

    /// Whether a component has fixed scales, which come from a calibration.
    pub fn needs_calibration(&self) -> bool {
        [self.k, self.v]
            .iter()
            .any(|component| component.scale == Some(ScalePolicy::Fixed))
    }

    /// Whether layer `layer` (from 0) of a model with `layers` layers is stored as the recipe says;
    /// the layers that it skips stay native.
    pub fn applies_to_layer(&self, layer: usize, layers: usize) -> bool {
        !self
            .skip_layers
            .iter()
            .any(|&skipped| resolve_layer(skipped, layers) == Some(layer))
    }

    /// Storage of keys and of values in one layer.
    pub fn components_at(&self, layer: usize, layers: usize) -> (Component, Component) {
        if self.applies_to_layer(layer, layers) {
            (self.k, self.v)
        } else {
            (Component::NATIVE, Component::NATIVE)
        }
    }

    /// Format of queries in one layer.
    pub fn queries_at(&self, layer: usize, layers: usize) -> Format {
        if self.applies_to_layer(layer, layers) {
            self.q
        } else {
            Format::Native
        }
    }

    /// Checks the skipped layers against a model's depth.
    ///
    /// # Errors
    /// [`RecipeError::LayerOutOfRange`] for a skipped layer that the model does not have,
    /// [`RecipeError::LayerTwice`] where two numbers mean the same layer, and
    /// [`RecipeError::EveryLayerSkipped`] where nothing is left to quantise.
    pub fn check_layers(&self, layers: usize) -> Result<(), RecipeError> {
        let mut seen = BTreeSet::new();
        for &layer in &self.skip_layers {
            let index = resolve_layer(layer, layers)
                .ok_or(RecipeError::LayerOutOfRange { layer, layers })?;
            if !seen.insert(index) {
                return Err(RecipeError::LayerTwice { layer });
            }
        }
        if !self.skip_layers.is_empty() && seen.len() == layers {
            return Err(RecipeError::EveryLayerSkipped { layers });
        }
        Ok(())
    }

    /// [`Recipe::check_layers`] and [`Recipe::check_heads`].
    ///
    /// # Errors
    /// Theirs.
    pub fn check(&self, head_dims: &[usize]) -> Result<(), RecipeError> {
        self.check_layers(head_dims.len())?;
        self.check_heads(head_dims)
    }

    /// Checks whether skipped layers store anything, and others too, and whether the head vectors of
    /// every layer that is quantised are whole groups; `head_dims` are their elements, layer by layer, 0
    /// for a layer without any.
    ///
    /// # Errors
    /// [`RecipeError::LayerWithoutHeads`] for a skipped layer that stores no keys and values,
    /// [`RecipeError::EveryLayerSkipped`] where nothing is left to quantise, and
    /// [`RecipeError::Groups`] names the format whose groups do not fit.
    pub fn check_heads(&self, head_dims: &[usize]) -> Result<(), RecipeError> {
        let layers = head_dims.len();
        let stores = |layer: &usize| head_dims[*layer] > 0;
        for &layer in &self.skip_layers {
            if resolve_layer(layer, layers).is_some_and(|index| !stores(&index)) {
                return Err(RecipeError::LayerWithoutHeads { layer });
            }
        }
        let skipped = self.skipped_layers(layers).len();
        if skipped > 0 && skipped == (0..layers).filter(stores).count() {
            return Err(RecipeError::EveryLayerSkipped { layers: skipped });
        }
        for (layer, &head_dim) in head_dims.iter().enumerate() {
            let (k, v) = self.components_at(layer, head_dims.len());
            for format in [k.format, v.format] {
                if let Format::Int4(size) = format
                    && !head_dim.is_multiple_of(size.elements())
                {
                    return Err(RecipeError::Groups {
                        format,
                        head_dim,
                        elements: size.elements(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The layers of a model with `layers` layers that stay native.
    pub fn skipped_layers(&self, layers: usize) -> BTreeSet<usize> {
        let skipped = self.skip_layers.iter();
        skipped
            .filter_map(|&layer| resolve_layer(layer, layers))
            .collect()
    }
}

/// The layer that a possibly negative number means; `None` outside the model.
fn resolve_layer(layer: i32, layers: usize) -> Option<usize> {
    let distance = usize::try_from(layer.unsigned_abs()).ok()?;
    let index = if layer < 0 {
        layers.checked_sub(distance)?
    } else {
        distance
    };
    (index < layers).then_some(index)
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Native => "native",
            Format::E4m3 => "e4m3",
            Format::E5m2 => "e5m2",
            Format::Int8 => "int8",
            Format::Int4(GroupSize::Of32) => "int4",
            Format::Int4(GroupSize::Of64) => "int4-64",
            Format::Block(block) => block.name(),
        })
    }
}

impl fmt::Display for ScalePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScalePolicy::Fixed => "fixed",
            ScalePolicy::Dynamic => "dynamic",
        })
    }
}
