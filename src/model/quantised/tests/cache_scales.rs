//! Scales that a checkpoint brings along for its cache.

use super::*;

#[test]
fn cache_scales_are_found_under_every_name() {
    let scale = |value: f32| (Dtype::F32, vec![1], value.to_le_bytes().to_vec());
    let find =
        |tensors: &Tensors| find_cache_scales(tensors.keys().map(String::as_str), &lookup(tensors));
    for (k, v) in [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ] {
        let name = |part: &str| format!("language_model.model.layers.7.self_attn.{part}");
        let mut tensors = Tensors::from([(name(k), scale(0.5)), (name(v), scale(0.25))]);
        tensors.insert(name("q_scale"), scale(3.0));
        let found = find(&tensors).unwrap();
        assert_eq!(found.layers[&7], [Some(0.5), Some(0.25)], "{k}");
        assert_eq!(found.parts.len(), 3);
        tensors.insert(name("kv_scale"), scale(0.5));
        let message = find(&tensors).unwrap_err().to_string();
        assert!(
            message.contains("expected one scale per layer and side"),
            "{message}"
        );
    }
    let name = "model.layers.0.self_attn.kv_scale".to_owned();
    let both = Tensors::from([(name.clone(), scale(0.125))]);
    assert_eq!(find(&both).unwrap().layers[&0], [Some(0.125); 2]);
    for value in [-1.0, 0.0, f32::NAN, f32::INFINITY] {
        let message = find(&Tensors::from([(name.clone(), scale(value))])).unwrap_err();
        assert!(
            message.to_string().contains("expected one positive number"),
            "{message}"
        );
    }
    let heads = (Dtype::F32, vec![2], vec![0; 8]);
    let message = find(&Tensors::from([(name, heads)]))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("of shape [2] (one scale per layer is applied)"),
        "{message}"
    );
}

/// A layer that lacks a scale is said with the side that it lacks.
#[test]
fn the_side_without_a_scale_is_named() {
    for (sides, found) in [
        ([Some(0.1), None], "one for keys and none for values"),
        ([None, Some(0.1)], "none for keys and one for values"),
        ([None, None], "none"),
    ] {
        let scales = CacheScales {
            layers: [(0, [Some(0.1); 2]), (1, sides)].into(),
            parts: Vec::new(),
        };
        let message = scales.check("m", &[true, true]).unwrap_err().to_string();
        let expected = format!(
            "m: scales of the cache of layer 1: found {found}, expected one for keys and one for \
             values in each of 2 layers with attention"
        );
        assert_eq!(message, expected);
    }
}

/// Layers without a cache have no scales, and keep their places; draft layers are never run.
#[test]
fn recurrent_and_draft_layers_bring_no_scales() {
    let scales = CacheScales {
        layers: [(1, [Some(0.5); 2]), (3, [Some(0.25); 2])].into(),
        parts: Vec::new(),
    };
    let attends = [false, true, false, true];
    scales.check("m", &attends).unwrap();
    let found: Vec<f32> = scales.of_layers().iter().map(|layer| layer.k).collect();
    assert_eq!(found, [1.0, 0.5, 1.0, 0.25]);
    let stray = scales.check("m", &[true, true, false, false]).unwrap_err();
    assert!(stray.to_string().contains("layer 0: found none"), "{stray}");
    let stray = scales.check("m", &[false, true, false]).unwrap_err();
    assert!(
        stray.to_string().contains("layer 3: found one for keys"),
        "{stray}"
    );

    let mut tensors = Tensors::new();
    for name in ["model.layers.1", "mtp.layers.1", "model.visual.layers.1"] {
        for side in ["k_scale", "v_scale"] {
            let data = 0.5f32.to_le_bytes().to_vec();
            tensors.insert(
                format!("{name}.self_attn.{side}"),
                (Dtype::F32, vec![], data),
            );
        }
    }
    let found = find_cache_scales(tensors.keys().map(String::as_str), &lookup(&tensors)).unwrap();
    assert_eq!(found.parts.len(), 2, "{:?}", found.parts);
}
