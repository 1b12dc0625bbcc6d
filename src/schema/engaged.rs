//! What an arm's counters must say if its recipe is at work.
//!
//! Bytes and elements follow from recipe, shape and number of stored tokens, whatever is kept of them;
//! fixed scales follow from the calibration. All of them must match exactly, layer by layer where
//! layers are read back.

mod scales;

use crate::recipe::{Component, Format, Recipe, ScalePolicy, float8, vector_bytes};

use super::{
    ComponentTotals, Engagement, Geometry, KvTotals, LayerAbsmax, LayerEngagement, Record,
};
use scales::Scales;

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
            .or_else(|| self.queries_lack(engagement))
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

    /// A layer without keys and values.
    fn is_recurrent(&self, layer: usize) -> bool {
        let numbers = &self.geometry.recurrent_layers;
        numbers.iter().any(|number| *number as usize == layer)
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

    /// Queries leave nothing behind that could be read back: what shows them is a likelihood.
    fn queries_lack(&self, engagement: &Engagement) -> Option<String> {
        let expected = self.recipe.q;
        match &engagement.queries {
            None if expected == Format::Native => None,
            None => Some(format!(
                "does not show that queries pass through {expected}"
            )),
            Some(found) if found.format != expected.to_string() => Some(format!(
                "found queries that pass through {}, expected {expected}",
                found.format
            )),
            Some(found) if !(found.probe_nll.is_finite() && found.native_probe_nll.is_finite()) => {
                Some("found a likelihood of the probe that is not finite".to_owned())
            }
            Some(found) => (found.probe_nll == found.native_probe_nll).then(|| {
                format!(
                    "queries that pass through {expected} leave the probe's likelihood as it is"
                )
            }),
        }
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

    /// What `tokens` tokens store in one layer. The first ones may be native.
    fn in_layer(&self, side: &Side, layer: usize, tokens: u64) -> Result<Expected, String> {
        if self.is_recurrent(layer) {
            return Ok(Expected {
                bytes: 0,
                elements: 0,
                scales: Scales::None,
            });
        }
        let component = (side.component)(self.recipe.components_at(layer, self.layers()));
        let (kv_heads, head_dim) = self.geometry.heads_of(layer as u32);
        let vectors = |tokens: u64| tokens.saturating_mul(u64::from(kv_heads));
        let bytes =
            |tokens, component| vectors(tokens).saturating_mul(vector_bytes(component, head_dim));
        let native = tokens.min(u64::from(self.recipe.sink));
        Ok(Expected {
            bytes: bytes(native, Component::NATIVE)
                .saturating_add(bytes(tokens - native, component)),
            elements: vectors(tokens).saturating_mul(u64::from(head_dim)),
            scales: match tokens == native {
                true => Scales::None,
                false => self.scales(side, layer, component)?,
            },
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
            let grouped = matches!(component.format, Format::Int4(_));
            return Ok(if grouped {
                Scales::Grouped
            } else {
                Scales::None
            });
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

/// Tokens that a case stored, whatever layers with a window kept of them. The last generated token is
/// never stored, nor is the last target of a text.
pub fn stored_tokens(record: &Record) -> u64 {
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
    if expected.scales == Scales::None && saturated > 0 {
        return Some(format!("{saturated} native elements are saturated"));
    }
    if changed > elements || saturated > elements {
        return Some(format!(
            "found {changed} changed and {saturated} saturated of {elements} elements"
        ));
    }
    scales::lack(expected.scales, found.scale_min, found.scale_max)
}

#[cfg(test)]
mod tests;
