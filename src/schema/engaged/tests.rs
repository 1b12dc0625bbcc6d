//! Honest counters of any recipe and shape are accepted, and any change of one of them is not.

use proptest::prelude::*;

use super::*;
use crate::schema::{ENGAGEMENT_SCHEMA, QueryEngagement};

const RECIPES: [&str; 8] = [
    "k=native,v=native",
    "AF",
    "RF",
    "SF",
    "AD",
    "SD",
    "k=int8:fixed,v=e5m2:dynamic",
    "k=e4m3:fixed,v=e4m3:dynamic,skip-layers=0,-1",
];

fn geometry(layers: u32, kv_heads: u32, head_dim: u32) -> Geometry {
    Geometry {
        layers,
        hidden_size: 64,
        heads: 8,
        kv_heads,
        head_dim,
        vocab_size: 100,
        context: 4096,
        native_dtype: "f16".to_owned(),
        recurrent_layers: Vec::new(),
        attention_layers: Vec::new(),
    }
}

fn absmax(layers: u32) -> Vec<LayerAbsmax> {
    (0..layers)
        .map(|layer| LayerAbsmax {
            k: 1.5 + layer as f32,
            v: 0.3 + 0.1 * layer as f32,
        })
        .collect()
}

/// Counters by the definitions of the design, spelled out.
fn counters(
    component: Component,
    geometry: &Geometry,
    absmax: f32,
    tokens: u64,
) -> ComponentTotals {
    let vectors = tokens * u64::from(geometry.kv_heads);
    let elements = vectors * u64::from(geometry.head_dim);
    let Some(format) = component.format.byte_format() else {
        return ComponentTotals {
            bytes: 2 * elements,
            elements,
            ..ComponentTotals::default()
        };
    };
    let fixed = component.scale == Some(ScalePolicy::Fixed);
    let scale = absmax / format.largest();
    ComponentTotals {
        bytes: elements + if fixed { 0 } else { 4 * vectors },
        elements,
        saturated: 0,
        changed: elements.min(3),
        scale_min: Some(if fixed { scale } else { 0.001 }),
        scale_max: Some(if fixed { scale } else { 0.75 }),
    }
}

fn honest(recipe: &Recipe, geometry: &Geometry, absmax: &[LayerAbsmax]) -> Engagement {
    let layers = geometry.layers as usize;
    Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: recipe.spec(),
        probe_tokens: 5,
        layers: (0u32..)
            .zip(absmax)
            .map(|(layer, absmax)| {
                let (k, v) = recipe.components_at(layer as usize, layers);
                LayerEngagement {
                    layer,
                    k: counters(k, geometry, absmax.k, 5),
                    v: counters(v, geometry, absmax.v, 5),
                }
            })
            .collect(),
        totals: None,
        unit_scales: false,
        differs_from_native: !recipe.is_native(),
        queries: None,
    }
}

/// Changes one counter; `false` where it does not have that counter.
fn spoil(totals: &mut ComponentTotals, is_fixed: bool, what: usize) -> bool {
    match (what, totals.scale_min) {
        (0, _) => totals.bytes += 1,
        (1, _) => totals.bytes -= 1,
        (2, _) => totals.elements += 1,
        (3, _) => totals.elements -= 1,
        (4, None) => totals.changed = 1,
        (5, None) => totals.scale_max = Some(0.5),
        (5, Some(_)) => totals.scale_max = None,
        (6, Some(_)) => totals.scale_min = Some(0.0),
        (7, Some(_)) => totals.scale_max = Some(f32::INFINITY),
        (8, Some(scale)) if is_fixed => totals.scale_min = Some(scale.next_down()),
        (9, Some(scale)) if is_fixed => {
            (totals.scale_min, totals.scale_max) = (Some(scale.next_up()), Some(scale.next_up()));
        }
        (9, Some(_)) => (totals.scale_min, totals.scale_max) = (Some(1.0), Some(1.0)),
        (10, _) => totals.saturated = totals.elements + 1,
        _ => return false,
    }
    true
}

proptest! {
    #[test]
    fn honest_counters_are_accepted_and_changed_ones_are_not(
        at in 0..RECIPES.len(), layers in 3u32..6, kv_heads in 1u32..4, head_dim in 2u32..20,
        layer in 0u32..6, is_key in any::<bool>(), what in 0usize..11,
    ) {
        let recipe = Recipe::parse(RECIPES[at]).unwrap();
        let (geometry, absmax) = (geometry(layers, kv_heads, head_dim), absmax(layers));
        let storage = ExpectedStorage::new(&recipe, &geometry, Some(&absmax));
        let mut engagement = honest(&recipe, &geometry, &absmax);
        prop_assert_eq!(storage.probe_lack(&engagement), None);

        let kv = sums(&engagement);
        let record = Record {
            prompt_tokens: 3,
            output_tokens: Some(3),
            kv: Some(kv.clone()),
            ..Record::default()
        };
        prop_assert_eq!(storage.record_lack(&record), None);
        prop_assert_eq!(storage.changes_lack(&kv), None);

        let layer = (layer % layers) as usize;
        let (k, v) = recipe.components_at(layer, layers as usize);
        let fixed = (if is_key { k } else { v }).scale == Some(ScalePolicy::Fixed);
        let spoilt = &mut engagement.layers[layer];
        let totals = if is_key { &mut spoilt.k } else { &mut spoilt.v };
        let changed = spoil(totals, fixed, what);
        prop_assert_eq!(storage.probe_lack(&engagement).is_some(), changed);
        if let (true, Some(lack)) = (changed, storage.probe_lack(&engagement)) {
            let place = format!("layer {layer}, {}: ", if is_key { "keys" } else { "values" });
            prop_assert!(lack.starts_with(&place), "{}", lack);
        }
    }
}

/// Layer 1 has three heads of 4 elements and keeps 2 tokens; all 6 that were stored count.
#[test]
fn layers_that_differ_are_told_by_their_own_heads() {
    let recipe = Recipe::parse("AD").unwrap();
    let mut geometry = geometry(2, 2, 8);
    let kind = |layer, kv_heads, head_dim, window| crate::schema::AttentionLayers {
        layers: vec![layer],
        kv_heads,
        head_dim,
        window,
    };
    geometry.attention_layers = vec![kind(0, 2, 8, None), kind(1, 3, 4, Some(2))];
    let side = |bytes, elements, scale| ComponentTotals {
        bytes,
        elements,
        saturated: 0,
        changed: if scale { 1 } else { 0 },
        scale_min: scale.then_some(0.5),
        scale_max: scale.then_some(0.5),
    };
    let layer = |k, v| KvTotals { k, v };
    let layers = [
        layer(side(192, 96, false), side(6 * 2 * 12, 96, true)),
        layer(side(144, 72, false), side(6 * 3 * 8, 72, true)),
    ];
    let engaged = (0..)
        .zip(layers.clone())
        .map(|(layer, totals)| LayerEngagement {
            layer,
            k: totals.k,
            v: totals.v,
        });
    let engagement = Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: recipe.spec(),
        probe_tokens: 6,
        layers: engaged.collect(),
        totals: None,
        unit_scales: false,
        differs_from_native: true,
        queries: None,
    };
    let storage = ExpectedStorage::new(&recipe, &geometry, None);
    assert_eq!(storage.probe_lack(&engagement), None);
    let mut kv = layers[0].clone();
    kv.merge(&layers[1]);
    let mut record = Record {
        prompt_tokens: 4,
        output_tokens: Some(3),
        kv: Some(kv),
        ..Record::default()
    };
    assert_eq!(storage.record_lack(&record), None);
    // What is kept of six tokens is not what was stored.
    let kept = record.kv.as_mut().unwrap();
    (kept.k.bytes, kept.k.elements) = (192 + 48, 96 + 24);
    assert!(
        storage
            .record_lack(&record)
            .unwrap()
            .contains("expected 168")
    );
}

#[test]
fn tokens_of_a_case() {
    let tokens = |nll_sum, output_tokens| {
        stored_tokens(&Record {
            prompt_tokens: 10,
            nll_sum,
            output_tokens,
            ..Record::default()
        })
    };
    assert_eq!(tokens(Some(1.0), None), 9);
    assert_eq!(tokens(None, Some(1)), 10);
    assert_eq!(tokens(None, Some(4)), 13);
    // With no token allowed, nothing is run.
    assert_eq!(tokens(None, Some(0)), 0);
}

#[test]
fn cases_that_say_nothing_and_cases_that_failed() {
    let (recipe, geometry) = (Recipe::native(), geometry(2, 1, 4));
    let storage = ExpectedStorage::new(&recipe, &geometry, None);
    let silent = Record {
        prompt_tokens: 3,
        output_tokens: Some(1),
        ..Record::default()
    };
    assert!(storage.record_lack(&silent).is_some());
    let failed = Record {
        error: Some("beyond the context".to_owned()),
        ..silent.clone()
    };
    assert_eq!(storage.record_lack(&failed), None);
    let empty = Record {
        output_tokens: Some(0),
        kv: Some(KvTotals::default()),
        ..silent
    };
    assert_eq!(storage.record_lack(&empty), None);
}

#[test]
fn fixed_scales_need_a_calibration() {
    let (recipe, geometry) = (Recipe::parse("SF").unwrap(), geometry(2, 1, 4));
    let absmax = absmax(2);
    let engagement = honest(&recipe, &geometry, &absmax);
    for calibration in [None, Some(&absmax[..1])] {
        let lack = ExpectedStorage::new(&recipe, &geometry, calibration).probe_lack(&engagement);
        let text = lack.unwrap();
        assert!(
            text.contains("without a calibration of this layer"),
            "{text}"
        );
    }
}

/// Five tokens of one head of 64 elements, two of them native: 128 bytes each, then 40 and 68.
#[test]
fn groups_first_tokens_and_queries_are_told() {
    let recipe = Recipe::parse("k=int4,v=e4m3,q=e4m3,sink=2").unwrap();
    let geometry = geometry(1, 1, 64);
    let side = |bytes| ComponentTotals {
        bytes,
        elements: 320,
        saturated: 0,
        changed: 100,
        scale_min: Some(0.001),
        scale_max: Some(0.75),
    };
    let engagement = Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: recipe.spec(),
        probe_tokens: 5,
        layers: vec![LayerEngagement {
            layer: 0,
            k: side(2 * 128 + 3 * 40),
            v: side(2 * 128 + 3 * 68),
        }],
        totals: None,
        unit_scales: false,
        differs_from_native: true,
        queries: Some(QueryEngagement {
            format: "e4m3".to_owned(),
            probe_nll: 3.25,
            native_probe_nll: 3.5,
        }),
    };
    let storage = ExpectedStorage::new(&recipe, &geometry, None);
    assert_eq!(storage.probe_lack(&engagement), None);
    let lack = |spoil: fn(&mut Engagement)| {
        let mut engagement = engagement.clone();
        spoil(&mut engagement);
        storage.probe_lack(&engagement).unwrap()
    };
    let as_without_sink = lack(|e| e.layers[0].v.bytes = 5 * 68);
    assert!(
        as_without_sink.contains("expected 460"),
        "{as_without_sink}"
    );
    let without_scale = lack(|e| e.layers[0].k.scale_min = None);
    assert!(without_scale.contains("no scale was read back"));
    let unshown = lack(|e| e.queries = None);
    assert!(unshown.contains("does not show that queries pass through e4m3"));
    let same = lack(|e| e.queries.as_mut().unwrap().probe_nll = 3.5);
    assert!(same.contains("leave the probe's likelihood as it is"));
    let other = lack(|e| e.queries.as_mut().unwrap().format = "e5m2".to_owned());
    assert!(other.contains("found queries that pass through e5m2"));
}
