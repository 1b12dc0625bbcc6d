//! What a checkpoint stores otherwise than as plain numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recipe::{ByteFormat, float8};

use super::{LayerAbsmax, ModelIdentity};

/// Weights stored as codes, and scales that a checkpoint brings along for its cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuantisedCheckpoint {
    /// How weights are stored; absent where they are plain numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<QuantisedWeights>,
    /// The config declares a cache in E4M3, which servers of it would take over.
    #[serde(default, skip_serializing_if = "is_false")]
    pub declares_cache: bool,
    /// Scales of the cache, one entry per layer (unit scales for layers that keep no keys and values); empty
    /// where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_scales: Vec<LayerScales>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// How a checkpoint stores its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuantisedWeights {
    /// `quant_method` of the config, such as `awq`.
    pub method: String,
    /// Forms of its matrices, in plain words.
    pub forms: Vec<String>,
    /// Type of the numbers that codes become at load: `f16`, `bf16` or `f32`.
    pub numbers: String,
    /// How servers of this checkpoint would store activations, which the built-in workers keep
    /// native; absent where they would not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<String>,
}

/// Scales of one layer's keys and values, as a checkpoint holds them: `x / scale` is stored in
/// E4M3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerScales {
    /// Scale of keys.
    pub k: f32,
    /// Scale of values.
    pub v: f32,
}

impl LayerScales {
    /// The largest absolute values that E4M3 holds under these scales: fixed scales that follow
    /// from them are these scales.
    ///
    /// Of a scale that is no quotient `absmax / 448` in 32-bit floats, the nearest such quotient is
    /// taken, one unit in its last place away. Scales of 16-bit types and those that were computed
    /// as such a quotient are exact.
    pub fn absmax(&self) -> LayerAbsmax {
        LayerAbsmax {
            k: absmax_of(self.k),
            v: absmax_of(self.v),
        }
    }
}

fn absmax_of(scale: f32) -> f32 {
    let guess = scale * ByteFormat::E4m3.largest();
    let distance = |absmax: &f32| {
        let found = float8::scale_from_absmax(ByteFormat::E4m3, *absmax);
        (f64::from(found) - f64::from(scale)).abs()
    };
    let candidates = [guess, guess.next_down(), guess.next_up()];
    let finite = candidates.into_iter().filter(|absmax| absmax.is_finite());
    finite
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap_or(f32::MAX)
}

impl ModelIdentity {
    /// Scales that the checkpoint brings along for its cache; none for most.
    pub fn cache_scales(&self) -> &[LayerScales] {
        let quantised = self.quantised.as_ref();
        quantised.map_or(&[], |quantised| &quantised.cache_scales)
    }

    /// What fixed scales follow from, where they are the checkpoint's own.
    pub fn checkpoint_absmax(&self) -> Option<Vec<LayerAbsmax>> {
        let scales = self.cache_scales();
        (!scales.is_empty()).then(|| scales.iter().map(LayerScales::absmax).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn back(scale: f32) -> f32 {
        float8::scale_from_absmax(ByteFormat::E4m3, absmax_of(scale))
    }

    proptest! {
        #[test]
        fn quotients_and_sixteen_bit_scales_come_back_exactly(absmax in 1e-30f32..1e30) {
            let quotient = absmax / 448.0;
            prop_assert_eq!(back(quotient), quotient);
            let rounded = half::bf16::from_f32(absmax).to_f32();
            prop_assert_eq!(back(rounded), rounded);
        }

        #[test]
        fn any_scale_comes_back_to_its_last_place(scale in 1e-30f32..1e30) {
            let found = back(scale);
            prop_assert!(
                found == scale || found == scale.next_up() || found == scale.next_down(),
                "{scale:e} {found:e}"
            );
        }
    }

    #[test]
    fn unit_scales_stay_unit_scales() {
        let unit = LayerScales { k: 1.0, v: 1.0 };
        assert_eq!(unit.absmax(), LayerAbsmax { k: 448.0, v: 448.0 });
    }
}
