//! Rotary settings: `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

mod kinds;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::super::fields::{Fields, short};
use super::super::rotary::{attention_factor, inverse_frequencies, query_factor};
use super::super::{Family, ModelConfig, ModelError, QueryGrowth, Rope, RopeScaling};

/// Kinds of layers, the one without a window first.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Base where the config names none.
const THETA: f64 = 10_000.0;

/// Default of YaRN's `beta_fast`.
const BETA_FAST: f64 = 32.0;

/// Default of YaRN's `beta_slow`.
const BETA_SLOW: f64 = 1.0;

/// Original context of Phi-3 where the config names none.
const PHI3_CONTEXT: usize = 4096;

/// Part of Qwen3.5's head vectors that is rotated where the config names none.
const QWEN35_PARTIAL: f64 = 0.25;

/// Settings of one kind of layers.
struct Reader<'a> {
    /// Fields beside the settings.
    outer: Fields<'a>,
    family: Family,
    context: usize,
    head_dim: usize,
}

/// Reads the rotary settings of a model with `context` tokens: of all layers, or of those without
/// and those with a window.
pub(super) fn ropes(
    fields: Fields<'_>,
    family: Family,
    context: usize,
    head_dim: usize,
) -> Result<Vec<Rope>, ModelError> {
    let reader = Reader {
        outer: fields,
        family,
        context,
        head_dim,
    };
    let parameters = fields.object("rope_parameters")?;
    // A `rope_scaling` that says something wins over `rope_parameters`, as in the library that
    // writes these files.
    let scaling = fields.object("rope_scaling")?;
    let scaling = scaling.filter(|scaling| !scaling.is_empty());
    match family {
        Family::Gemma3 => return kinds::gemma3(&reader, parameters, scaling),
        Family::Gemma4 => return kinds::gemma4(&reader, parameters, scaling),
        _ => {}
    }
    let ministral = ministral3_parameters();
    let default = (family == Family::Ministral3).then(|| Fields::new(fields.path(), &ministral));
    let parameters = scaling.or(parameters).or(default);
    if let Some(parameters) = parameters {
        for layer_type in LAYER_TYPES {
            if parameters.get(layer_type).is_some() {
                return Err(parameters.unsupported(layer_type));
            }
        }
    }
    let theta = fields.positive("rope_theta")?.unwrap_or(THETA);
    Ok(vec![reader.rope(parameters, theta)?])
}

/// Settings of Ministral 3 where the config names none.
fn ministral3_parameters() -> Map<String, Value> {
    let parameters = [
        ("rope_type", json!("yarn")),
        ("rope_theta", json!(1_000_000.0)),
        ("factor", json!(16.0)),
        ("original_max_position_embeddings", json!(16_384)),
        ("mscale", json!(1.0)),
        ("mscale_all_dim", json!(1.0)),
        ("llama_4_scaling_beta", json!(0.1)),
    ];
    let named = parameters.map(|(name, value)| (name.to_owned(), value));
    named.into_iter().collect()
}

/// The field that holds the rotary settings, for messages.
pub(super) fn settings_field(fields: Fields<'_>) -> &'static str {
    let says = |name: &str| super::asks_for(fields.get(name));
    let field = ["rope_scaling", "rope_parameters"];
    field
        .into_iter()
        .find(|name| says(name))
        .unwrap_or("rope_theta")
}

/// Checks that the numbers by which `config`'s heads are rotated are finite and above 0; `what`
/// names the settings in the file.
///
/// # Errors
/// [`ModelError::Invalid`] for settings out of every range.
pub(crate) fn check_ropes(path: &str, what: &str, config: &ModelConfig) -> Result<(), ModelError> {
    let is_sound = |number: f32| number.is_finite() && number > 0.0;
    let head_dims = config
        .layers
        .iter()
        .filter(|layer| layer.recurrent.is_none())
        .map(|layer| (layer.rope, layer.head_dim));
    for (at, head_dim) in head_dims.collect::<std::collections::BTreeSet<_>>() {
        let rope = &config.ropes[at];
        let wrong = |what: &str, found: String, expected: &str| {
            Err(ModelError::invalid(path, what, found, expected))
        };
        let bands = match rope.scaling {
            RopeScaling::Yarn { .. } if rope.theta <= 1.0 => {
                let found = format!("base {} with YaRN", rope.theta);
                return wrong(what, found, "a base above 1");
            }
            RopeScaling::Llama3 {
                low_freq_factor,
                high_freq_factor,
                ..
            } => Some((low_freq_factor, high_freq_factor)),
            _ => None,
        };
        if let Some((low, high)) = bands.filter(|(low, high)| low >= high) {
            let found = format!("low_freq_factor {low} and high_freq_factor {high}");
            return wrong(what, found, "a high_freq_factor above the low one");
        }
        let turned = rope.turned_pairs(head_dim);
        if turned == 0 || turned > head_dim / 2 {
            let found = format!("{turned} pairs of a head vector of {head_dim} that turn");
            return wrong(what, found, "at least one, and at most all");
        }
        let mut frequencies = inverse_frequencies(rope, head_dim).into_iter().take(turned);
        if let Some(bad) = frequencies.find(|number| !is_sound(*number)) {
            let found = format!("inverse frequency {bad} of base {}", rope.theta);
            return wrong(what, found, "finite frequencies above 0");
        }
        let factor = attention_factor(rope);
        if !is_sound(factor) {
            let found = format!("multiplier {factor} of cosines and sines");
            return wrong(what, found, "a finite number above 0");
        }
        let last = config.context.saturating_sub(1);
        let growth = rope.query_growth.map(|growth| query_factor(growth, last));
        if let Some(factor) = growth.filter(|factor| !is_sound(*factor)) {
            let found = format!("multiplier {factor} of queries at position {last}");
            return wrong(what, found, "a finite number above 0");
        }
    }
    Ok(())
}

impl Reader<'_> {
    fn rope(&self, parameters: Option<Fields<'_>>, theta: f64) -> Result<Rope, ModelError> {
        let partial = self.partial(parameters)?;
        let Some(parameters) = parameters else {
            return Ok(Rope {
                partial,
                ..Rope::new(theta, RopeScaling::Default)
            });
        };
        let theta = parameters.positive("rope_theta")?.unwrap_or(theta);
        let rotated = Rope {
            partial,
            ..Rope::new(theta, RopeScaling::Default)
        };
        Ok(Rope {
            scaling: self.scaling(parameters, rotated.rotated(self.head_dim))?,
            query_growth: self.query_growth(parameters)?,
            ..rotated
        })
    }

    /// The part of head vectors that is rotated.
    fn partial(&self, parameters: Option<Fields<'_>>) -> Result<f64, ModelError> {
        let name = "partial_rotary_factor";
        let rotates_parts = matches!(self.family, Family::Phi3 | Family::Qwen35);
        let default = match self.family {
            Family::Qwen35 => QWEN35_PARTIAL,
            _ => 1.0,
        };
        let mut found = (self.outer, default);
        for fields in parameters.into_iter().chain([self.outer]) {
            if let Some(factor) = fields.f64(name)? {
                found = (fields, factor);
                break;
            }
        }
        let (fields, factor) = found;
        if factor == 1.0 {
            return Ok(1.0);
        }
        if !rotates_parts {
            return Err(fields.unsupported_beside(name, 1));
        }
        let rotated = (self.head_dim as f64 * factor) as usize;
        let fits = factor > 0.0 && factor < 1.0 && rotated > 0;
        if !fits || !rotated.is_multiple_of(2) {
            let expected = format!(
                "a part of head_dim = {} that is an even number of elements",
                self.head_dim
            );
            return Err(fields.wrong(name, factor, expected));
        }
        Ok(factor)
    }

    fn query_growth(&self, parameters: Fields<'_>) -> Result<Option<QueryGrowth>, ModelError> {
        let name = "llama_4_scaling_beta";
        let Some(beta) = parameters.f64(name)?.filter(|beta| *beta != 0.0) else {
            return Ok(None);
        };
        if self.family != Family::Ministral3 {
            return Err(parameters.unsupported(name));
        }
        Ok(Some(QueryGrowth {
            beta,
            period: original_context(self.outer, parameters, self.context)?,
        }))
    }

    fn scaling(&self, parameters: Fields<'_>, rotated: usize) -> Result<RopeScaling, ModelError> {
        let (outer, context) = (self.outer, self.context);
        let (field, name) = match (parameters.str("rope_type")?, parameters.str("type")?) {
            (Some(name), Some(other)) if name != other => {
                let expected = format!("{name}, as `rope_type` says");
                return Err(parameters.wrong("type", other, expected));
            }
            (Some(name), _) => ("rope_type", name),
            (None, Some(name)) => ("type", name),
            (None, None) => ("rope_type", "default"),
        };
        match (name, self.family) {
            ("default", _) => Ok(RopeScaling::Default),
            // Earlier names of it in this family.
            ("longrope" | "su" | "yarn", Family::Phi3) => self.long_rope(parameters, rotated),
            (_, Family::Phi3) => {
                Err(parameters.unsupported_beside(field, "default, longrope, su, yarn"))
            }
            ("linear", _) => Ok(RopeScaling::Linear {
                factor: parameters.required_positive("factor")?,
            }),
            ("llama3", _) => Ok(RopeScaling::Llama3 {
                factor: parameters.required_positive("factor")?,
                low_freq_factor: parameters.required_positive("low_freq_factor")?,
                high_freq_factor: parameters.required_positive("high_freq_factor")?,
                original_context: original_context(outer, parameters, context)?,
            }),
            ("yarn", _) => yarn(outer, parameters, context),
            _ => Err(parameters.unsupported_beside(field, "default, linear, llama3, yarn")),
        }
    }

    /// LongRoPE (Ding et al. 2024); the multiplier of cos and sin is
    /// `sqrt(1 + ln(factor) / ln(original context))`.
    fn long_rope(&self, parameters: Fields<'_>, rotated: usize) -> Result<RopeScaling, ModelError> {
        for name in ["short_mscale", "long_mscale"] {
            if parameters.get(name).is_some() {
                return Err(parameters.unsupported(name));
            }
        }
        // The field beside the settings has a default, which wins over one within.
        let name = "original_max_position_embeddings";
        let original = match self.outer.get(name) {
            Some(_) => self.outer.required_usize(name)?,
            None => PHI3_CONTEXT,
        };
        let (context, original_f64) = (self.context as f64, original as f64);
        let factor = parameters
            .positive("factor")?
            .unwrap_or(context / original_f64);
        let default = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + factor.ln() / original_f64.ln()).sqrt()
        };
        let [short, long] =
            ["short_factor", "long_factor"].map(|name| factors(parameters, name, rotated / 2));
        let (short, long) = (short?, long?);
        Ok(RopeScaling::LongRope {
            factors: if self.context > original { long } else { short },
            attention_factor: parameters.positive("attention_factor")?.unwrap_or(default),
        })
    }
}

/// A list of `count` numbers above 0.
fn factors(fields: Fields<'_>, name: &str, count: usize) -> Result<Vec<f32>, ModelError> {
    let expected = format!("a list of {count} numbers above 0");
    let value = fields
        .get(name)
        .ok_or_else(|| fields.missing(name, &expected))?;
    let read = |value: &Value| {
        let list = value.as_array()?.iter();
        list.map(|number| number.as_f64().map(|x| x as f32).filter(|x| *x > 0.0))
            .collect::<Option<Vec<f32>>>()
    };
    match read(value) {
        Some(list) if list.len() == count => Ok(list),
        Some(list) => Err(fields.wrong(name, format!("{} numbers", list.len()), expected)),
        None => Err(fields.wrong(name, short(value), expected)),
    }
}

/// The context before scaling: the outer field wins, and the model's context stands in for it.
fn original_context(
    outer: Fields<'_>,
    parameters: Fields<'_>,
    context: usize,
) -> Result<usize, ModelError> {
    let name = "original_max_position_embeddings";
    for fields in [outer, parameters] {
        if fields.get(name).is_some() {
            return fields.required_usize(name);
        }
    }
    Ok(context)
}

fn yarn(
    outer: Fields<'_>,
    parameters: Fields<'_>,
    context: usize,
) -> Result<RopeScaling, ModelError> {
    let original_context = original_context(outer, parameters, context)?;
    let factor = match parameters.positive("factor")? {
        Some(factor) => factor,
        None => context as f64 / original_context as f64,
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: nonzero(parameters, "beta_fast")?.unwrap_or(BETA_FAST),
        beta_slow: nonzero(parameters, "beta_slow")?.unwrap_or(BETA_SLOW),
        original_context,
        attention_factor: yarn_attention_factor(parameters, factor)?,
        truncate: parameters.bool("truncate")?.unwrap_or(true),
    })
}

fn yarn_attention_factor(parameters: Fields<'_>, factor: f64) -> Result<f64, ModelError> {
    if let Some(given) = parameters.positive("attention_factor")? {
        return Ok(given);
    }
    let mscale = nonzero(parameters, "mscale")?;
    let all_dim = nonzero(parameters, "mscale_all_dim")?;
    Ok(match (mscale, all_dim) {
        (Some(mscale), Some(all_dim)) => yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim),
        _ => yarn_mscale(factor, 1.0),
    })
}

/// A number that counts as absent when it is 0.
fn nonzero(fields: Fields<'_>, name: &str) -> Result<Option<f64>, ModelError> {
    Ok(fields.f64(name)?.filter(|number| *number != 0.0))
}

/// YaRN's multiplier of cos and sin: `0.1 * mscale * ln(factor) + 1` for factors above 1
/// (Peng et al. 2023, "YaRN", section 3.4).
pub(crate) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}
