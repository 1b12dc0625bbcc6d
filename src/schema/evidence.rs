//! What a worker shows about its cache: calibration scales and proof of engagement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Schema name of [`Calibration`] documents.
pub const CALIBRATION_SCHEMA: &str = "kvassay.calibration/1";
/// Schema name of [`Engagement`] documents.
pub const ENGAGEMENT_SCHEMA: &str = "kvassay.engagement/1";

/// Largest absolute values seen on the native arm, from which fixed scales follow
/// (`scale = absmax / largest finite value of the format`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Always [`CALIBRATION_SCHEMA`].
    #[schemars(extend("const" = CALIBRATION_SCHEMA))]
    pub schema: String,
    /// Model name.
    pub model: String,
    /// SHA-256 of the model's weights.
    pub weights_sha256: String,
    /// SHA-256 of the calibration panel file; empty where no document is used.
    pub documents_sha256: String,
    /// Documents used.
    pub documents: u32,
    /// Tokens stored while calibrating, forced tokens included.
    pub tokens: u64,
    /// Where the values come from.
    #[serde(default, skip_serializing_if = "CalibrationSource::is_measured")]
    pub source: CalibrationSource,
    /// One entry per layer, in order.
    pub layers: Vec<LayerAbsmax>,
}

/// Where fixed scales come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationSource {
    /// Measured on the native arm.
    #[default]
    Measured,
    /// Scales that the checkpoint brings along (`k_scale`, `v_scale` and other names in use): the
    /// largest absolute value is what E4M3 holds under the scale. No document is used.
    Checkpoint,
}

impl CalibrationSource {
    /// Whether nothing need be written down, as before there was another source.
    pub fn is_measured(&self) -> bool {
        *self == CalibrationSource::Measured
    }

    /// Name as in files.
    pub fn name(self) -> &'static str {
        match self {
            CalibrationSource::Measured => "measured",
            CalibrationSource::Checkpoint => "checkpoint",
        }
    }
}

/// Largest absolute key and value of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerAbsmax {
    /// Largest absolute key element, as natively stored.
    pub k: f32,
    /// Largest absolute value element, as natively stored.
    pub v: f32,
}

/// Proof that an arm's recipe was engaged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engagement {
    /// Always [`ENGAGEMENT_SCHEMA`].
    #[schemars(extend("const" = ENGAGEMENT_SCHEMA))]
    pub schema: String,
    /// Canonical recipe string.
    pub recipe: String,
    /// Tokens of the probe sequence from which `layers` was read back.
    pub probe_tokens: u64,
    /// Read back from the stored bytes of the probe sequence, layer by layer.
    pub layers: Vec<LayerEngagement>,
    /// Sums over every record of the arm; absent until the arm is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<KvTotals>,
    /// Every scale of a quantised component is exactly 1.0.
    pub unit_scales: bool,
    /// At least one stored element of a quantised component differs from native storage.
    pub differs_from_native: bool,
    /// What shows that queries pass through a format; absent where they are native.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries: Option<QueryEngagement>,
}

/// Proof that queries pass through a format: nothing of them is stored, so it is what the model makes
/// of them that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryEngagement {
    /// Format of queries.
    pub format: String,
    /// Negative log-likelihood of the probe's last tokens, in nats.
    pub probe_nll: f64,
    /// The same with native queries beside the same keys and values; another number.
    pub native_probe_nll: f64,
}

/// Engagement of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerEngagement {
    /// Layer number from 0.
    pub layer: u32,
    /// Keys.
    pub k: ComponentTotals,
    /// Values.
    pub v: ComponentTotals,
}

/// Counters of stored keys and values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvTotals {
    /// Keys.
    pub k: ComponentTotals,
    /// Values.
    pub v: ComponentTotals,
}

/// Counters of one stored component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComponentTotals {
    /// Stored bytes: elements and inline scales of every token that was stored, those that a window no
    /// longer keeps included; page padding left out.
    pub bytes: u64,
    /// Stored elements.
    pub elements: u64,
    /// Elements that, after scaling, overflowed the format: rounded, they would exceed its largest
    /// finite value (`recipe::float8::saturates`).
    pub saturated: u64,
    /// Elements whose stored value differs from what native storage would hold.
    pub changed: u64,
    /// Smallest scale read back; absent for native storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_min: Option<f32>,
    /// Largest scale read back; absent for native storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_max: Option<f32>,
}

impl ComponentTotals {
    /// Adds another set of counters: sums of counts, which saturate, and extremes of scales.
    pub fn merge(&mut self, other: &ComponentTotals) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.elements = self.elements.saturating_add(other.elements);
        self.saturated = self.saturated.saturating_add(other.saturated);
        self.changed = self.changed.saturating_add(other.changed);
        self.scale_min = extreme(self.scale_min, other.scale_min, f32::min);
        self.scale_max = extreme(self.scale_max, other.scale_max, f32::max);
    }
}

impl KvTotals {
    /// Adds another set of counters to both components.
    pub fn merge(&mut self, other: &KvTotals) {
        self.k.merge(&other.k);
        self.v.merge(&other.v);
    }
}

fn extreme(a: Option<f32>, b: Option<f32>, pick: fn(f32, f32) -> f32) -> Option<f32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    }
}
