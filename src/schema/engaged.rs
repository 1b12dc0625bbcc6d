//! What an arm's counters must say if its recipe is at work.
//!
//! Bytes and elements follow from recipe, shape and number of tokens, fixed scales from the
//! calibration: all of them must match exactly, layer by layer where layers are read back.

use crate::recipe::{ByteFormat, Component, Recipe, ScalePolicy, float8, vector_bytes};

use super::{
    ComponentTotals, Engagement, Geometry, KvTotals, LayerAbsmax, LayerEngagement, Record,
};

/// What a recipe stores on a model. Its methods return what counters lack, as one clause with what
/// was found and what was expected; `None` where they are as they must be.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedStorage<'a> {
    recipe: &'a Recipe,
    geometry: &'a Geometry,
    absmax: Absmax<'a>,
}

/// Where fixed scales come from.
#[derive(Clone, Copy, Debug)]
enum Absmax<'a> {
    /// The run's calibration, if it has one.
    Run(Option<&'a [LayerAbsmax]>),
    /// It is not at hand: of a fixed scale no more is known than that it does not vary.
    Unknown,
}

/// Keys or values.
#[derive(Clone, Copy)]
struct Side {
    /// Name of all of them, in messages.
    plural: &'static str,
    /// Name of one of them.
    singular: &'static str,
    component: fn((Component, Component)) -> Component,
    totals: fn(&KvTotals) -> &ComponentTotals,
    of_layer: fn(&LayerEngagement) -> &ComponentTotals,
    absmax: fn(&LayerAbsmax) -> f32,
}

const SIDES: [Side; 2] = [
    Side {
        plural: "keys",
        singular: "key",
        component: |(k, _)| k,
        totals: |totals| &totals.k,
        of_layer: |layer| &layer.k,
        absmax: |absmax| absmax.k,
    },
    Side {
        plural: "values",
        singular: "value",
        component: |(_, v)| v,
        totals: |totals| &totals.v,
        of_layer: |layer| &layer.v,
        absmax: |absmax| absmax.v,
    },
];

/// Scales that must be read back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scales {
    /// Native storage has none.
    None,
    /// One and the same number, whichever.
    Constant,
    /// From the smallest to the largest of the layers looked at.
    Fixed(f32, f32),
    /// Positive numbers, one per head vector.
    Dynamic(ByteFormat),
}

/// Counters that so many tokens must have.
struct Expected {
    bytes: u64,
    elements: u64,
    scales: Scales,
}

impl<'a> ExpectedStorage<'a> {
    /// The storage of `recipe` on a model of this shape; `absmax` is the run's calibration, which
    /// fixed scales need.
    pub fn new(
        recipe: &'a Recipe,
        geometry: &'a Geometry,
        absmax: Option<&'a [LayerAbsmax]>,
    ) -> Self {
        ExpectedStorage {
            recipe,
            geometry,
            absmax: Absmax::Run(absmax),
        }
    }

    /// As [`ExpectedStorage::new`] where the calibration is not at hand.
    pub fn without_calibration(recipe: &'a Recipe, geometry: &'a Geometry) -> Self {
        ExpectedStorage {
            recipe,
            geometry,
            absmax: Absmax::Unknown,
        }
    }

    /// Looks at what the probe stored: recipe, every layer, and the two summary flags.
    pub fn probe_lack(&self, engagement: &Engagement) -> Option<String> {
        let expected = self.recipe.spec();
        if engagement.recipe != expected {
            return Some(format!(
                "engaged {}, expected {expected}",
                engagement.recipe
            ));
        }
        if !self.recipe.is_native() && !engagement.differs_from_native {
            return Some("stored nothing that differs from native".to_owned());
        }
        self.layers_lack(engagement)
            .or_else(|| self.changes_lack(&sums(engagement)))
            .or_else(|| self.flags_lack(engagement))
    }

    /// Looks at what one case stored over all layers. A case that failed says nothing.
    pub fn record_lack(&self, record: &Record) -> Option<String> {
        if record.error.is_some() {
            return None;
        }
        let Some(kv) = &record.kv else {
            return Some("does not say what it stored".to_owned());
        };
        let tokens = stored_tokens(record);
        if tokens == 0 {
            let nothing = *kv == KvTotals::default();
            return (!nothing).then(|| "stored something of no token".to_owned());
        }
        SIDES.iter().find_map(|side| {
            let lack = match self.over_layers(side, tokens) {
                Ok(expected) => counters_lack(&expected, (side.totals)(kv)),
                Err(lack) => Some(lack),
            };
            lack.map(|lack| format!("{}: {lack}", side.plural))
        })
    }

    /// Looks at whether all cases of an arm (or all layers of a probe) together changed what the
    /// recipe quantises and left alone what it does not.
    pub fn changes_lack(&self, totals: &KvTotals) -> Option<String> {
        SIDES.iter().find_map(|side| {
            let changed = (side.totals)(totals).changed;
            let quantised = (side.component)((self.recipe.k, self.recipe.v)).is_quantised();
            if quantised && changed == 0 {
                let one = side.singular;
                return Some(format!("stored no {one} that differs from native"));
            }
            (!quantised && changed > 0).then(|| {
                format!(
                    "{}: {changed} native elements differ from native",
                    side.plural
                )
            })
        })
    }

    fn layers(&self) -> usize {
        self.geometry.layers as usize
    }

    fn layers_lack(&self, engagement: &Engagement) -> Option<String> {
        let (found, expected) = (engagement.layers.len(), self.layers());
        if found != expected {
            return Some(format!(
                "read back {found} layers, the model has {expected}"
            ));
        }
        for (number, layer) in engagement.layers.iter().enumerate() {
            if layer.layer as usize != number {
                return Some(format!("read back layer {} as layer {number}", layer.layer));
            }
            for side in &SIDES {
                let lack = match self.in_layer(side, number, engagement.probe_tokens) {
                    Ok(expected) => counters_lack(&expected, (side.of_layer)(layer)),
                    Err(lack) => Some(lack),
                };
                if let Some(lack) = lack {
                    return Some(format!("layer {number}, {}: {lack}", side.plural));
                }
            }
        }
        None
    }

    /// The flags follow from the layers.
    fn flags_lack(&self, engagement: &Engagement) -> Option<String> {
        let differs = !self.recipe.is_native();
        let unit = all_unit_scales(&engagement.layers);
        let flags = [
            (
                "differs_from_native",
                engagement.differs_from_native,
                differs,
            ),
            ("unit_scales", engagement.unit_scales, unit),
        ];
        flags
            .into_iter()
            .find(|(_, found, expected)| found != expected)
            .map(|(name, found, expected)| {
                format!("{name}: found {found}, expected {expected} from its layers")
            })
    }

    /// What `tokens` tokens store in one layer.
    fn in_layer(&self, side: &Side, layer: usize, tokens: u64) -> Result<Expected, String> {
        let component = (side.component)(self.recipe.components_at(layer, self.layers()));
        let vectors = tokens.saturating_mul(u64::from(self.geometry.kv_heads));
        let head_dim = self.geometry.head_dim;
        Ok(Expected {
            bytes: vectors.saturating_mul(vector_bytes(component, head_dim)),
            elements: vectors.saturating_mul(u64::from(head_dim)),
            scales: self.scales(side, layer, component)?,
        })
    }

    /// What `tokens` tokens store in all layers together.
    fn over_layers(&self, side: &Side, tokens: u64) -> Result<Expected, String> {
        let mut sum = Expected {
            bytes: 0,
            elements: 0,
            scales: Scales::None,
        };
        for layer in 0..self.layers() {
            let one = self.in_layer(side, layer, tokens)?;
            sum.bytes = sum.bytes.saturating_add(one.bytes);
            sum.elements = sum.elements.saturating_add(one.elements);
            sum.scales = match (sum.scales, one.scales) {
                (Scales::Fixed(low, high), Scales::Fixed(a, b)) => {
                    Scales::Fixed(low.min(a), high.max(b))
                }
                (any, Scales::None) => any,
                (_, any) => any,
            };
        }
        Ok(sum)
    }

    fn scales(&self, side: &Side, layer: usize, component: Component) -> Result<Scales, String> {
        let Some(format) = component.format.byte_format() else {
            return Ok(Scales::None);
        };
        if component.scale == Some(ScalePolicy::Dynamic) {
            return Ok(Scales::Dynamic(format));
        }
        let Absmax::Run(absmax) = self.absmax else {
            return Ok(Scales::Constant);
        };
        let Some(absmax) = absmax.and_then(|layers| layers.get(layer)) else {
            return Err("fixed scales without a calibration of this layer".to_owned());
        };
        let scale = float8::scale_from_absmax(format, (side.absmax)(absmax));
        Ok(Scales::Fixed(scale, scale))
    }
}

/// Tokens that the cache holds at the end of a case: the last generated token and the last target
/// of a window are never stored.
fn stored_tokens(record: &Record) -> u64 {
    let prompt = u64::from(record.prompt_tokens);
    match (record.nll_sum, record.output_tokens) {
        (Some(_), _) => prompt.saturating_sub(1),
        (None, Some(0) | None) => 0,
        (None, Some(output)) => prompt + u64::from(output) - 1,
    }
}

fn sums(engagement: &Engagement) -> KvTotals {
    let mut sums = KvTotals::default();
    for layer in &engagement.layers {
        sums.k.merge(&layer.k);
        sums.v.merge(&layer.v);
    }
    sums
}

/// Every scale that was read back is exactly 1.0, and there is one.
pub fn all_unit_scales(layers: &[LayerEngagement]) -> bool {
    let mut scales = layers
        .iter()
        .flat_map(|layer| [&layer.k, &layer.v])
        .flat_map(|totals| [totals.scale_min, totals.scale_max])
        .flatten()
        .peekable();
    scales.peek().is_some() && scales.all(|scale| scale == 1.0)
}

fn counters_lack(expected: &Expected, found: &ComponentTotals) -> Option<String> {
    let &ComponentTotals {
        bytes,
        elements,
        saturated,
        changed,
        ..
    } = found;
    if elements == 0 {
        return Some("nothing was read back".to_owned());
    }
    if elements != expected.elements {
        return Some(format!(
            "found {elements} elements, expected {}",
            expected.elements
        ));
    }
    if bytes != expected.bytes {
        return Some(format!(
            "found {bytes} bytes for {elements} elements, expected {}",
            expected.bytes
        ));
    }
    if expected.scales == Scales::None && changed > 0 {
        return Some(format!("{changed} native elements differ from native"));
    }
    if changed > elements || saturated > elements {
        return Some(format!(
            "found {changed} changed and {saturated} saturated of {elements} elements"
        ));
    }
    scales_lack(expected.scales, found.scale_min, found.scale_max)
}

fn scales_lack(expected: Scales, low: Option<f32>, high: Option<f32>) -> Option<String> {
    let (low, high) = match (expected, low, high) {
        (Scales::None, None, None) => return None,
        (Scales::None, low, high) => {
            let found = low.or(high).map_or_else(String::new, shown);
            return Some(format!("found scale {found}, native storage has none"));
        }
        (_, Some(low), Some(high)) => (low, high),
        _ => return Some("no scale was read back".to_owned()),
    };
    let found = if low.to_bits() == high.to_bits() {
        format!("found scale {}", shown(low))
    } else {
        format!("found scales from {} to {}", shown(low), shown(high))
    };
    if !(low > 0.0 && low <= high && high.is_finite()) {
        return Some(format!("{found}, expected positive numbers"));
    }
    match expected {
        Scales::Fixed(a, b) if low.to_bits() == a.to_bits() && high.to_bits() == b.to_bits() => {
            None
        }
        Scales::Fixed(a, b) if a.to_bits() == b.to_bits() => {
            Some(format!("{found}, expected {a} from the calibration"))
        }
        Scales::Fixed(a, b) => Some(format!("{found}, expected {a} to {b} from the calibration")),
        Scales::Dynamic(format) if low == 1.0 && high == 1.0 => Some(format!(
            "{found} alone, expected absmax / {} of every head vector",
            format.largest()
        )),
        Scales::Constant if low.to_bits() != high.to_bits() => {
            Some(format!("{found}, expected one fixed scale"))
        }
        Scales::Constant | Scales::Dynamic(_) | Scales::None => None,
    }
}

fn shown(scale: f32) -> String {
    let unit = if scale == 1.0 { " (unit scale)" } else { "" };
    format!("{scale}{unit}")
}

#[cfg(test)]
mod tests;
