//! Rotary settings: `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

use super::super::fields::Fields;
use super::super::{ModelError, Rope, RopeScaling};

/// Base where the config names none.
const THETA: f64 = 10_000.0;

/// Default of YaRN's `beta_fast`.
const BETA_FAST: f64 = 32.0;

/// Default of YaRN's `beta_slow`.
const BETA_SLOW: f64 = 1.0;

/// Reads the rotary settings of a model with `context` tokens.
pub(super) fn rope(fields: Fields<'_>, context: usize) -> Result<Rope, ModelError> {
    // A `rope_scaling` that is there wins over `rope_parameters`, as in the library that writes
    // these files.
    let parameters = match fields.object("rope_scaling")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_parameters")?,
    };
    refuse_partial(fields)?;
    let outer_theta = fields.positive("rope_theta")?.unwrap_or(THETA);
    let Some(parameters) = parameters else {
        return Ok(Rope::new(outer_theta, RopeScaling::Default));
    };
    refuse_partial(parameters)?;
    for layer_type in ["full_attention", "sliding_attention"] {
        if parameters.get(layer_type).is_some() {
            return Err(parameters.unsupported(layer_type));
        }
    }
    let theta = parameters.positive("rope_theta")?.unwrap_or(outer_theta);
    Ok(Rope::new(theta, scaling(fields, parameters, context)?))
}

fn refuse_partial(fields: Fields<'_>) -> Result<(), ModelError> {
    match fields.f64("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => Err(fields.unsupported("partial_rotary_factor")),
        _ => Ok(()),
    }
}

fn scaling(
    outer: Fields<'_>,
    parameters: Fields<'_>,
    context: usize,
) -> Result<RopeScaling, ModelError> {
    let (field, name) = match (parameters.str("rope_type")?, parameters.str("type")?) {
        (Some(name), _) => ("rope_type", name),
        (None, Some(name)) => ("type", name),
        (None, None) => ("rope_type", "default"),
    };
    match name {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear {
            factor: parameters.required_positive("factor")?,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: parameters.required_positive("factor")?,
            low_freq_factor: parameters.required_positive("low_freq_factor")?,
            high_freq_factor: parameters.required_positive("high_freq_factor")?,
            original_context: original_context(outer, parameters, context)?,
        }),
        "yarn" => yarn(outer, parameters, context),
        _ => Err(parameters.unsupported(field)),
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
        attention_factor: attention_factor(parameters, factor)?,
        truncate: parameters.bool("truncate")?.unwrap_or(true),
    })
}

fn attention_factor(parameters: Fields<'_>, factor: f64) -> Result<f64, ModelError> {
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
