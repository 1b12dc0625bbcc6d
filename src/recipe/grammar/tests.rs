use proptest::prelude::*;

use super::*;

fn quantised(format: Format, scale: ScalePolicy) -> Component {
    Component {
        format,
        scale: Some(scale),
    }
}

#[test]
fn names_and_their_spellings_are_the_same_recipes() {
    for (name, spec) in NAMED {
        let recipe = Recipe::parse(name).unwrap();
        assert_eq!(recipe.name, name);
        assert_eq!(recipe.spec(), spec);
        assert_eq!(Recipe::parse(spec).unwrap(), recipe);
        assert_eq!(recipe.needs_calibration(), name.ends_with('F'));
        assert!(!recipe.is_native());
    }
    let ad = Recipe::parse("AD").unwrap();
    assert_eq!(ad.k, Component::NATIVE);
    assert_eq!(ad.v, quantised(Format::E4m3, ScalePolicy::Dynamic));
}

#[test]
fn native_in_every_spelling() {
    for text in ["native", "k=native,v=native", "k=native,v=native,q=native"] {
        assert_eq!(Recipe::parse(text).unwrap(), Recipe::native(), "{text}");
    }
    assert_eq!(Recipe::native().spec(), "k=native,v=native");
    assert!(!Recipe::native().needs_calibration());
}

#[test]
fn policies_find_their_components() {
    let canonical = |text: &str| Recipe::parse(text).unwrap().spec();
    for (text, expected) in [
        ("k=e4m3,v=e4m3", "k=e4m3:dynamic,v=e4m3:dynamic"),
        ("k=e4m3,v=e4m3:fixed", "k=e4m3:fixed,v=e4m3:fixed"),
        ("k=e4m3,v=native:fixed", "k=e4m3:fixed,v=native"),
        ("k=e4m3,v=native", "k=e4m3:dynamic,v=native"),
        ("k=e5m2:fixed,v=int8:dynamic", "k=e5m2:fixed,v=int8:dynamic"),
        ("k=native,v=e5m2,q=native", "k=native,v=e5m2:dynamic"),
        ("k=int4-32,v=int4:dynamic", "k=int4,v=int4"),
        ("k=int4-64,v=e4m3:fixed", "k=int4-64,v=e4m3:fixed"),
        ("k=e4m3,v=int4-64:dynamic", "k=e4m3:dynamic,v=int4-64"),
    ] {
        assert_eq!(canonical(text), expected, "{text}");
    }
}

#[test]
fn options_in_any_order() {
    let first = Recipe::parse("k=e4m3,v=e4m3,skip-layers=-1,3,0,sink=4,q=e4m3").unwrap();
    let second = Recipe::parse("k=e4m3,v=e4m3,q=e4m3,sink=04,skip-layers=0,3,-1").unwrap();
    assert_eq!(first, second);
    assert_eq!(
        first.spec(),
        "k=e4m3:dynamic,v=e4m3:dynamic,q=e4m3,sink=4,skip-layers=0,3,-1"
    );
    assert_eq!(first.name, first.spec());
}

#[test]
fn skipped_layers_count_from_both_ends() {
    let recipe = Recipe::parse("k=e4m3,v=e4m3,skip-layers=0,-1").unwrap();
    let applied: Vec<bool> = (0..4).map(|i| recipe.applies_to_layer(i, 4)).collect();
    assert_eq!(applied, [false, true, true, false]);
    assert_eq!(
        recipe.components_at(3, 4),
        (Component::NATIVE, Component::NATIVE)
    );
    assert_eq!(recipe.check_layers(4), Ok(()));
    assert_eq!(
        recipe.check_layers(1),
        Err(RecipeError::LayerTwice { layer: -1 })
    );
    assert_eq!(
        recipe.check_layers(2),
        Err(RecipeError::EveryLayerSkipped { layers: 2 })
    );
    let deep = Recipe::parse("k=e4m3,v=e4m3,skip-layers=-5").unwrap();
    assert_eq!(
        deep.check_layers(4),
        Err(RecipeError::LayerOutOfRange {
            layer: -5,
            layers: 4
        })
    );
    // Three recurrent layers to one that stores keys and values.
    let heads = [0, 0, 0, 64, 0, 0, 0, 64];
    let skipping = |layers: &str| {
        let recipe = Recipe::parse(&format!("k=e4m3,v=e4m3,skip-layers={layers}"));
        recipe.unwrap().check_heads(&heads)
    };
    assert_eq!(skipping("3"), Ok(()));
    assert_eq!(
        skipping("3,-1"),
        Err(RecipeError::EveryLayerSkipped { layers: 2 })
    );
    assert_eq!(
        skipping("3,-2"),
        Err(RecipeError::LayerWithoutHeads { layer: -2 })
    );
    let lowest = Recipe::parse("k=e4m3,v=e4m3,skip-layers=-2147483648").unwrap();
    assert!(lowest.applies_to_layer(0, 4) && lowest.check_layers(4).is_err());
}

#[test]
fn refusals_say_what_was_found_and_expected() {
    let messages: Vec<String> = [
        "",
        "ad",
        "A",
        "fp8",
        "FP16",
        "k8v8",
        "K16V8",
        "Native",
        "AD,q=e4m3",
        "K=e4m3,v=e4m3",
        "v=e4m3,k=native",
        "quux",
        "k=fp8,v=native",
        "k=e4m3",
        "k=e4m3,",
        "k=E4M3,v=native",
        "k=native,v=int4/16",
        "k=nvfp4,v=native",
        "k=native,v=int4:fixed",
        "k=int4,v=native:fixed",
        "int4",
        "k=native,v=e4m3:static",
        "k=native,v=e4m3:",
        "k=native,v=native:fixed",
        "k=native:fixed,v=e4m3",
        "k=e4m3:fixed,v=e4m3",
        "k=e4m3:fixed,v=native:fixed",
        "k=native,v=native,q=e4m3",
        "k=native,v=native,skip-layers=0",
        "k=native,v=native,sink=4",
        "k=e4m3,v=e4m3,sink=0",
        "k=e4m3,v=e4m3,sink=129",
        "k=e4m3,v=e4m3,sink=+4",
        "k=e4m3,v=e4m3,sink=",
        "k=e4m3,v=e4m3,sink=4,sink=4",
        "k=e4m3,v=e4m3,sink=4,5",
        "k=e4m3,v=e4m3,q=e5m2",
        "k=e4m3,v=e4m3,q=e4m3,q=e4m3",
        "k=e4m3,v=e4m3,skip-layers=",
        "k=e4m3,v=e4m3,skip-layers=1,x",
        "k=e4m3,v=e4m3,skip-layers=1,+2",
        "k=e4m3,v=e4m3,skip-layers=99999999999",
        "k=e4m3,v=e4m3,skip-layers=1,1",
        "k=e4m3,v=e4m3,skip-layers=1,q=e4m3,2",
        "k=e4m3,v=e4m3,skip-layers=1,skip-layers=2",
        "k=e4m3,v=e4m3,1",
        "k=e4m3, v=e4m3",
    ]
    .iter()
    .map(|text| Recipe::parse(text).unwrap_err().to_string())
    .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

fn component() -> impl Strategy<Value = Component> {
    let policy = prop_oneof![Just(ScalePolicy::Fixed), Just(ScalePolicy::Dynamic)];
    prop_oneof![
        Just(Component::NATIVE),
        (
            prop_oneof![Just(Format::E4m3), Just(Format::E5m2), Just(Format::Int8)],
            policy
        )
            .prop_map(|(format, scale)| quantised(format, scale)),
        prop_oneof![Just(GroupSize::Of32), Just(GroupSize::Of64)].prop_map(|group| Component {
            format: Format::Int4(group),
            scale: None,
        }),
    ]
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let layers = prop::collection::btree_set(-40i32..40, 0..6);
    let sink = prop_oneof![Just(0), 1..=MOST_SINK];
    let parts = (component(), component(), any::<bool>(), sink, layers);
    parts.prop_map(|(k, v, q, sink, layers)| {
        if k == Component::NATIVE && v == Component::NATIVE {
            return Recipe::native();
        }
        let mut recipe = Recipe {
            name: String::new(),
            k,
            v,
            q: if q { Format::E4m3 } else { Format::Native },
            sink,
            skip_layers: layers.into_iter().collect(),
        };
        sort_layers(&mut recipe.skip_layers);
        recipe.name = name_of(&recipe.spec());
        recipe
    })
}

proptest! {
    #[test]
    fn the_canonical_spelling_reads_back(recipe in recipe()) {
        prop_assert_eq!(Recipe::parse(&recipe.spec()), Ok(recipe.clone()));
        // Arms are folders, and protocols name candidates, by it.
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.=,:".contains(c);
        prop_assert!(recipe.spec().chars().all(fits));
        prop_assert_eq!(Recipe::parse(&recipe.name.clone()), Ok(recipe));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[kvq=,:/a-z0-9 -]{0,40}|\\PC{0,20}") {
        if let Ok(recipe) = Recipe::parse(&text) {
            let again = Recipe::parse(&recipe.spec());
            prop_assert_eq!(again, Ok(recipe));
        }
    }
}

#[test]
fn block_formats_have_no_policy() {
    for spec in ["k=native,v=q8_0", "k=q8_0,v=q4_0", "k=e4m3:fixed,v=iq4_nl"] {
        let recipe = Recipe::parse(spec).unwrap();
        assert_eq!(recipe.spec(), spec);
        assert!(!recipe.is_native());
    }
    assert!(!Recipe::parse("k=q8_0,v=q4_0").unwrap().needs_calibration());
    for spec in [
        "k=native,v=q8_0:fixed",
        "k=q8_0:dynamic,v=native",
        "k=e4m3,v=q4_0:fixed",
    ] {
        let error = Recipe::parse(spec).unwrap_err().to_string();
        assert!(error.contains("block formats hold their scales"), "{error}");
    }
}
