//! What follows from how a checkpoint stores its weights, and from scales and settings that it brings along.

use crate::schema::{CalibrationSource, Manifest, QuantisedWeights};

use super::super::arms::Trial;

/// Caveats about the checkpoint.
pub(super) fn caveats(trial: &Trial<'_>) -> Vec<String> {
    let manifest = &trial.evidence.manifest;
    let quantised = manifest.model.quantised.as_ref();
    let weights = quantised.and_then(|quantised| quantised.weights.as_ref());
    let mut list: Vec<String> = weights.map(stored_weights).into_iter().collect();
    let is_fixed = |recipe: &crate::recipe::Recipe| recipe.needs_calibration();
    if trial.evidence.is_built_in() && trial.recipe.as_ref().is_some_and(is_fixed) {
        list.extend(fixed_scales(manifest));
    }
    list.extend(left_out(&manifest.model.penalties));
    list
}

fn stored_weights(weights: &QuantisedWeights) -> String {
    let QuantisedWeights {
        method,
        forms,
        numbers,
        activations,
    } = weights;
    let forms = match forms.as_slice() {
        [] => "no matrix".to_owned(),
        forms => forms.join("; "),
    };
    let kept = match activations {
        None => String::new(),
        Some(activations) => format!(
            " The checkpoint asks for activations of {activations}; here they stayed native: \
             servers that convert them compute other numbers."
        ),
    };
    format!(
        "Weights are stored as codes ({method}: {forms}) and were turned into {numbers} numbers at \
         load, the same in every arm.{kept}"
    )
}

fn left_out(penalties: &[String]) -> Option<String> {
    (!penalties.is_empty()).then(|| {
        format!(
            "The checkpoint asks for {} (generation_config.json); answers are greedy without: programs \
             that apply the file generate other answers.",
            penalties.join(", ")
        )
    })
}

fn fixed_scales(manifest: &Manifest) -> Option<String> {
    match manifest.protocol.calibration.source {
        CalibrationSource::Checkpoint => Some(
            "Fixed scales are those that the checkpoint brings along, not measured by this run."
                .to_owned(),
        ),
        CalibrationSource::Measured if manifest.model.cache_scales().is_empty() => None,
        CalibrationSource::Measured => Some(
            "The checkpoint brings scales of its own for the cache; fixed scales of this run were \
             measured, as the protocol says: servers that take the checkpoint's store other bytes."
                .to_owned(),
        ),
    }
}
