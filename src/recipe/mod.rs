//! KV-cache recipes: how keys and values are stored (number format and scale policy), and what
//! that costs in bytes.
//!
//! A recipe says nothing of devices; workers read it and either apply it or refuse it by name.

use std::fmt;

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
    /// `None` exactly for [`Format::Native`].
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
    /// Layers that stay native; negative numbers count from the end (`-1` is the last layer).
    pub skip_layers: Vec<i32>,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Native => "native",
            Format::E4m3 => "e4m3",
            Format::E5m2 => "e5m2",
            Format::Int8 => "int8",
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
