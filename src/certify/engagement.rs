//! Whether the stored bytes show the recipe at work.

use crate::recipe::{Component, Recipe, vector_bytes};
use crate::schema::{ComponentTotals, Engagement, Geometry, KvTotals};

use super::Reason;
use super::arms::Trial;
use super::findings::Finding;

/// What the proof of engagement lacks, if anything. Only complete arms have totals.
pub(super) fn finding(trial: &Trial<'_>, is_complete: bool) -> Option<Finding> {
    let arm = &trial.arm.arm;
    let evidence = trial.evidence_of(arm);
    let geometry = &trial.evidence.manifest.model.geometry;
    let lacks = match evidence.and_then(|found| found.engagement.as_ref()) {
        None => Some("has no proof that its recipe was engaged".to_owned()),
        Some(engagement) => match &trial.recipe {
            Some(recipe) => lack(recipe, &trial.arm.recipe, geometry, engagement),
            None => Some("names no recipe whose bytes could be checked".to_owned()),
        }
        .or_else(|| totals_lack(trial, engagement, is_complete)),
    };
    lacks.map(|lack| Finding::new(Reason::EngagementUnproved, format!("arm {arm} {lack}")))
}

/// What a proof of engagement lacks, whatever the records hold.
pub(super) fn lack(
    recipe: &Recipe,
    spec: &str,
    geometry: &Geometry,
    engagement: &Engagement,
) -> Option<String> {
    recipe_lack(spec, engagement)
        .or_else(|| layers_lack(recipe, geometry, engagement))
        .or_else(|| scales_lack(engagement))
}

fn recipe_lack(spec: &str, engagement: &Engagement) -> Option<String> {
    if engagement.recipe != spec {
        return Some(format!("engaged {}, expected {spec}", engagement.recipe));
    }
    (!engagement.differs_from_native).then(|| "stored nothing that differs from native".to_owned())
}

/// Layer by layer, the stored bytes must be those of the recipe; over all layers, each quantised
/// component must differ from native storage and a native one must not.
fn layers_lack(recipe: &Recipe, geometry: &Geometry, engagement: &Engagement) -> Option<String> {
    let layers = geometry.layers as usize;
    if engagement.layers.len() != layers {
        let found = engagement.layers.len();
        return Some(format!("read back {found} layers, the model has {layers}"));
    }
    let (mut k_changed, mut v_changed) = (0u64, 0u64);
    for (number, layer) in engagement.layers.iter().enumerate() {
        let (k, v) = recipe.components_at(number, layers);
        for (side, component, totals) in [("keys", k, &layer.k), ("values", v, &layer.v)] {
            if let Some(lack) = bytes_lack(component, totals, geometry.head_dim) {
                return Some(format!("layer {number}, {side}: {lack}"));
            }
        }
        k_changed = k_changed.saturating_add(layer.k.changed);
        v_changed = v_changed.saturating_add(layer.v.changed);
    }
    let (k, v) = (&recipe.k, &recipe.v);
    let unchanged = |component: &Component, changed| component.is_quantised() && changed == 0;
    if unchanged(k, k_changed) {
        Some("stored no key that differs from native".to_owned())
    } else if unchanged(v, v_changed) {
        Some("stored no value that differs from native".to_owned())
    } else {
        None
    }
}

/// Unit scales must be called so: a certificate warns of them.
fn scales_lack(engagement: &Engagement) -> Option<String> {
    let totals = engagement
        .layers
        .iter()
        .flat_map(|layer| [&layer.k, &layer.v]);
    let scales: Vec<f32> = totals
        .flat_map(|side| [side.scale_min, side.scale_max])
        .flatten()
        .collect();
    let all_one = !scales.is_empty() && scales.iter().all(|&scale| scale == 1.0);
    let unsaid = all_one && !engagement.unit_scales;
    unsaid.then(|| "has scales that are all exactly 1.0 and does not say so".to_owned())
}

fn bytes_lack(component: Component, totals: &ComponentTotals, head_dim: u32) -> Option<String> {
    if totals.elements == 0 {
        return Some("nothing was read back".to_owned());
    }
    let vectors = totals.elements / u64::from(head_dim).max(1);
    let expected = vectors.saturating_mul(vector_bytes(component, head_dim));
    if totals.bytes != expected {
        return Some(format!(
            "found {} bytes for {} elements, expected {expected}",
            totals.bytes, totals.elements
        ));
    }
    let leaks = !component.is_quantised() && totals.changed > 0;
    leaks.then(|| format!("{} native elements differ from native", totals.changed))
}

/// The totals must be the sum over the arm's records.
fn totals_lack(trial: &Trial<'_>, engagement: &Engagement, is_complete: bool) -> Option<String> {
    let records = trial
        .evidence_of(&trial.arm.arm)?
        .records
        .values()
        .flatten();
    let mut sum: Option<KvTotals> = None;
    for kv in records.filter_map(|record| record.kv.as_ref()) {
        sum.get_or_insert_default().merge(kv);
    }
    let differs = is_complete && engagement.totals != sum;
    differs.then(|| "has engagement totals that are not the sum over its records".to_owned())
}
