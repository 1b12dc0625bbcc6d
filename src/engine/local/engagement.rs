//! Proof that a recipe was engaged, from what a probe sequence stored.

use crate::engine::EngineError;
use crate::recipe::{Component, Recipe};
use crate::schema::{
    ComponentTotals, ENGAGEMENT_SCHEMA, Engagement, KvTotals, LayerEngagement, QueryEngagement,
    all_unit_scales,
};

/// Builds the engagement of `recipe` from what the probe stored per layer, of which those count that
/// `keep` keys and values.
///
/// # Errors
/// [`EngineError::Worker`], by component, where a layer stored nothing or lacks its scales, where
/// a native layer differs from native, or where a quantised component is unchanged everywhere or
/// queries change nothing; [`EngineError::Unsupported`] where the sink holds the whole probe.
pub(super) fn engagement(
    recipe: &Recipe,
    probe_tokens: u64,
    layers: &[KvTotals],
    keep: &[bool],
    queries: Option<QueryEngagement>,
) -> Result<Engagement, EngineError> {
    if u64::from(recipe.sink) >= probe_tokens {
        return Err(EngineError::Unsupported(format!(
            "recipe {}: all {probe_tokens} tokens of the probe stay native, expected a longer probe",
            recipe.name
        )));
    }
    if let Some(QueryEngagement {
        format,
        probe_nll,
        native_probe_nll,
    }) = &queries
        && probe_nll == native_probe_nll
    {
        return Err(not_engaged(
            recipe,
            &format!("queries that pass through {format} change no likelihood of the probe"),
        ));
    }
    let mut differs = false;
    for (side, read) in SIDES {
        differs |= check_side(recipe, layers, keep, (side, read))?;
    }
    let layers: Vec<LayerEngagement> = (0u32..)
        .zip(layers)
        .map(|(layer, totals)| LayerEngagement {
            layer,
            k: totals.k.clone(),
            v: totals.v.clone(),
        })
        .collect();
    Ok(Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: recipe.spec(),
        probe_tokens,
        unit_scales: all_unit_scales(&layers),
        layers,
        totals: None,
        differs_from_native: differs,
        queries,
    })
}

type Read = fn(&KvTotals) -> &ComponentTotals;

const SIDES: [(&str, Read); 2] = [("k", |totals| &totals.k), ("v", |totals| &totals.v)];

/// Whether the component is quantised and differs from native somewhere.
fn check_side(
    recipe: &Recipe,
    layers: &[KvTotals],
    keep: &[bool],
    (side, read): (&str, Read),
) -> Result<bool, EngineError> {
    let component_at = |layer: usize| {
        let (k, v) = recipe.components_at(layer, layers.len());
        if side == "k" { k } else { v }
    };
    let mut changed = 0;
    let kept = |layer: &usize| keep[*layer];
    for layer in (0..layers.len()).filter(kept) {
        let totals = &layers[layer];
        let component = component_at(layer);
        check_layer(component, read(totals)).map_err(|what| {
            not_engaged(recipe, &format!("component {side}, layer {layer}: {what}"))
        })?;
        changed += read(totals).changed;
    }
    let mut kept = (0..layers.len()).filter(kept);
    let quantised = kept.any(|layer| component_at(layer).is_quantised());
    if quantised && changed == 0 {
        return Err(not_engaged(
            recipe,
            &format!(
                "component {side}: nothing that it stores differs from native, expected a \
                 difference in at least one layer"
            ),
        ));
    }
    Ok(quantised)
}

fn check_layer(component: Component, totals: &ComponentTotals) -> Result<(), String> {
    if totals.elements == 0 || totals.bytes == 0 {
        return Err(format!(
            "found {} stored elements in {} bytes, expected some",
            totals.elements, totals.bytes
        ));
    }
    if component.is_quantised() {
        return match (totals.scale_min, totals.scale_max) {
            (Some(low), Some(high)) if low > 0.0 && high.is_finite() => Ok(()),
            (low, high) => Err(format!(
                "found scales from {} to {}, expected positive numbers read back",
                shown(low),
                shown(high)
            )),
        };
    }
    if totals.changed > 0 {
        return Err(format!(
            "found {} elements that differ from native, expected native storage",
            totals.changed
        ));
    }
    Ok(())
}

fn shown(scale: Option<f32>) -> String {
    scale.map_or_else(|| "none".to_owned(), |scale| scale.to_string())
}

fn not_engaged(recipe: &Recipe, what: &str) -> EngineError {
    EngineError::Worker(format!("recipe {} is not engaged: {what}", recipe.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(changed: u64, scale: Option<f32>) -> ComponentTotals {
        ComponentTotals {
            bytes: 64,
            elements: 64,
            saturated: 0,
            changed,
            scale_min: scale,
            scale_max: scale,
        }
    }

    fn layer(k: ComponentTotals, v: ComponentTotals) -> KvTotals {
        KvTotals { k, v }
    }

    fn parse(text: &str) -> Recipe {
        Recipe::parse(text).unwrap()
    }

    fn refusal(recipe: &str, layers: &[KvTotals]) -> String {
        engagement(&parse(recipe), 1, layers, &vec![true; layers.len()], None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn native_differs_nowhere() {
        let layers = [layer(side(0, None), side(0, None))];
        let found = engagement(&Recipe::native(), 4, &layers, &[true], None).unwrap();
        assert!(!found.differs_from_native);
        assert!(!found.unit_scales);
        assert_eq!(found.probe_tokens, 4);
    }

    #[test]
    fn quantised_values_differ_and_keys_may_not() {
        let layers = [
            layer(side(0, None), side(0, Some(0.5))),
            layer(side(0, None), side(9, Some(0.25))),
        ];
        let found = engagement(&parse("AD"), 4, &layers, &[true; 2], None).unwrap();
        assert!(found.differs_from_native);
        assert_eq!(found.recipe, "k=native,v=e4m3:dynamic");
        assert_eq!(found.layers[1].layer, 1);
        assert_eq!(found.layers[1].v.changed, 9);
    }

    #[test]
    fn a_component_that_stays_native_is_named() {
        let layers = [layer(side(0, Some(0.5)), side(9, Some(0.5)))];
        let message = refusal("SD", &layers);
        assert!(
            message.contains("recipe SD") && message.contains("component k"),
            "{message}"
        );
        let layers = [layer(side(9, Some(0.5)), side(0, Some(0.5)))];
        assert!(refusal("SD", &layers).contains("component v"));
    }

    #[test]
    fn missing_scales_and_empty_layers_are_named() {
        let sound = layer(side(0, None), side(9, Some(0.5)));
        let bare = layer(side(0, None), side(9, None));
        let message = refusal("AF", &[sound.clone(), bare]);
        assert!(message.contains("component v, layer 1"), "{message}");
        let empty = layer(ComponentTotals::default(), side(9, Some(0.5)));
        assert!(refusal("AF", &[sound, empty]).contains("component k, layer 1"));
    }

    #[test]
    fn a_native_component_that_changed_is_an_error() {
        let layers = [layer(side(1, None), side(9, Some(0.5)))];
        assert!(refusal("AD", &layers).contains("expected native storage"));
        // Skipped layers are native.
        let layers = [
            layer(side(0, None), side(2, Some(0.5))),
            layer(side(0, None), side(9, Some(0.5))),
        ];
        let message = refusal("k=native,v=e4m3,skip-layers=0", &layers);
        assert!(message.contains("component v, layer 0"), "{message}");
    }

    #[test]
    fn layers_that_keep_nothing_are_left_out() {
        let nothing = KvTotals::default();
        let layers = [nothing.clone(), layer(side(0, None), side(9, Some(0.5)))];
        let found = engagement(&parse("AD"), 4, &layers, &[false, true], None).unwrap();
        assert!(found.differs_from_native && found.layers.len() == 2);
        let bare = [nothing, layer(side(0, None), side(0, Some(0.5)))];
        assert!(engagement(&parse("AD"), 4, &bare, &[false, true], None).is_err());
    }

    #[test]
    fn a_probe_within_the_sink_proves_nothing() {
        let layers = [layer(side(0, None), side(9, Some(0.5)))];
        let sink = |tokens| parse(&format!("k=native,v=e4m3,sink={tokens}"));
        assert!(engagement(&sink(3), 4, &layers, &[true], None).is_ok());
        let message = engagement(&sink(4), 4, &layers, &[true], None).unwrap_err();
        assert!(message.to_string().contains("all 4 tokens of the probe"));
    }

    #[test]
    fn queries_show_in_a_likelihood() {
        let layers = [layer(side(0, None), side(9, Some(0.5)))];
        let with = |probe_nll| {
            let queries = QueryEngagement {
                format: "e4m3".to_owned(),
                probe_nll,
                native_probe_nll: 2.5,
            };
            engagement(
                &parse("k=native,v=e4m3,q=e4m3"),
                4,
                &layers,
                &[true],
                Some(queries),
            )
        };
        let found = with(2.75).unwrap().queries.unwrap();
        assert_eq!((found.probe_nll, found.native_probe_nll), (2.75, 2.5));
        let message = with(2.5).unwrap_err().to_string();
        assert!(
            message.contains("queries that pass through e4m3"),
            "{message}"
        );
    }

    #[test]
    fn unit_scales_are_seen() {
        let layers = [layer(side(0, None), side(9, Some(1.0)))];
        assert!(
            engagement(&parse("AF"), 1, &layers, &[true], None)
                .unwrap()
                .unit_scales
        );
    }
}
