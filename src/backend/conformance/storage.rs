//! What a cache stores and what it says about it.

use super::{Shape, Suite, noise, round, span};
use crate::backend::{Backend, BackendError, CacheLayer, CacheLayout, CacheRow};
use crate::recipe::float8::{self, ByteFormat};
use crate::recipe::int4::Parameters;
use crate::recipe::{Component, Format, NativeDtype, Recipe, ScalePolicy, vector_bytes};
use crate::schema::{ComponentTotals, LayerAbsmax};

pub const RECIPES: [&str; 13] = [
    "native",
    "AF",
    "AD",
    "RF",
    "RD",
    "SF",
    "SD",
    "k=e5m2:dynamic,v=e5m2:fixed",
    "k=int8:dynamic,v=e4m3:fixed",
    "k=e4m3:fixed,v=int8:fixed,skip-layers=0",
    "k=e4m3:dynamic,v=e4m3:dynamic,q=e4m3",
    "k=int8:dynamic,v=e5m2:fixed,q=e4m3,sink=5",
    "k=native,v=e4m3:dynamic,sink=30,skip-layers=1",
];

/// Recipes of whole groups.
pub const GROUPED_RECIPES: [&str; 4] = [
    "k=int4,v=int4-64",
    "k=native,v=int4",
    "k=int4-64,v=e4m3:fixed,q=e4m3",
    "k=int8:dynamic,v=int4,sink=5,skip-layers=1",
];

pub const SMALL: Shape = Shape {
    layers: 2,
    heads: 6,
    kv_heads: 2,
    head_dim: 24,
};

/// Heads of whole groups.
pub const GROUPED: Shape = Shape {
    layers: 2,
    heads: 6,
    kv_heads: 2,
    head_dim: 64,
};

/// Heads of more than 256 elements.
const WIDE: Shape = Shape {
    layers: 2,
    heads: 2,
    kv_heads: 1,
    head_dim: 512,
};

/// Every recipe, beside a shape that it fits.
pub fn recipes() -> impl Iterator<Item = (Shape, &'static str)> {
    let plain = RECIPES.into_iter().map(|recipe| (SMALL, recipe));
    let grouped = GROUPED_RECIPES.into_iter().map(|recipe| (GROUPED, recipe));
    let wide = ["native", "SD", "k=int4-64,v=e4m3:fixed,q=e4m3"].map(|recipe| (WIDE, recipe));
    plain.chain(grouped).chain(wide)
}

/// What reading one head vector back must give.
pub fn stored(layout: &CacheLayout, c: Component, absmax: f32, x: &[f32]) -> Vec<f32> {
    if let Format::Int4(size) = c.format {
        let groups = x.chunks(size.elements()).flat_map(|group| {
            let parameters = Parameters::of(group).expect("numbers that FP16 holds");
            let back = move |&x: &f32| parameters.dequantise(layout.native, parameters.quantise(x));
            group.iter().map(back)
        });
        return groups.collect();
    }
    let Some(format) = c.format.byte_format() else {
        return x.iter().map(|&x| round(layout.native, x)).collect();
    };
    let scale = vector_scale(c, format, absmax, x);
    x.iter()
        .map(|&x| float8::dequantise(format, float8::quantise(format, x, scale), scale))
        .collect()
}

fn vector_scale(c: Component, format: ByteFormat, absmax: f32, x: &[f32]) -> f32 {
    let absmax = match c.scale {
        Some(ScalePolicy::Fixed) => absmax,
        _ => x.iter().fold(0.0, |m, x| x.abs().max(m)),
    };
    float8::scale_from_absmax(format, absmax)
}

/// Keys and values of one layer as they must read back, `[rows, kv_heads * head_dim]`.
pub fn stored_rows(layout: &CacheLayout, layer: usize, k: &[f32], v: &[f32]) -> [Vec<f32>; 2] {
    let (kc, vc) = layout.recipe.components_at(layer, layout.layers.len());
    let none = LayerAbsmax { k: 0.0, v: 0.0 };
    let absmax = layout.absmax.as_ref().map_or(none, |a| a[layer]);
    let all = |c, absmax, x: &[f32]| {
        let shape = layout.layers[layer];
        let vectors = x.chunks_exact(shape.head_dim).enumerate();
        vectors
            .flat_map(|(i, x)| stored(layout, at(layout, shape, c, i), absmax, x))
            .collect()
    };
    [all(kc, absmax.k, k), all(vc, absmax.v, v)]
}

/// How vector `i` of a sequence is stored, whose first tokens may be native.
fn at(layout: &CacheLayout, shape: CacheLayer, c: Component, i: usize) -> Component {
    match i / shape.kv_heads < layout.recipe.sink as usize {
        true => Component::NATIVE,
        false => c,
    }
}

/// Smallest and largest scale of a vector.
fn scales(c: Component, absmax: f32, x: &[f32]) -> (Option<f32>, Option<f32>) {
    if let Format::Int4(size) = c.format {
        let groups = x.chunks(size.elements());
        let scales = groups.map(|group| Parameters::of(group).expect("numbers").widened().0);
        return (scales.clone().reduce(f32::min), scales.reduce(f32::max));
    }
    let scale = c.format.byte_format();
    let scale = scale.map(|format| vector_scale(c, format, absmax, x));
    (scale, scale)
}

fn totals(
    layout: &CacheLayout,
    shape: CacheLayer,
    c: Component,
    absmax: f32,
    x: &[f32],
) -> ComponentTotals {
    let mut totals = ComponentTotals::default();
    for (i, x) in x.chunks_exact(shape.head_dim).enumerate() {
        let c = at(layout, shape, c, i);
        let back = stored(layout, c, absmax, x);
        let differing = x
            .iter()
            .zip(&back)
            .filter(|(x, b)| round(layout.native, **x) != **b);
        let (scale_min, scale_max) = scales(c, absmax, x);
        let saturated = c
            .format
            .byte_format()
            .zip(scale_min)
            .map_or(0, |(format, scale)| {
                x.iter()
                    .filter(|x| float8::saturates(format, **x, scale))
                    .count()
            });
        totals.merge(&ComponentTotals {
            bytes: vector_bytes(c, shape.head_dim as u32),
            elements: x.len() as u64,
            saturated: saturated as u64,
            changed: differing.count() as u64,
            scale_min,
            scale_max,
        });
    }
    totals
}

impl<B: Backend> Suite<'_, B> {
    pub fn storage(&self) {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for (shape, recipe) in recipes() {
                self.counters(&shape.layout(recipe, native));
                // Layers of other heads, and other widths.
                let mut layout = shape.layout(recipe, native);
                let head_dim = if recipe.contains("int4") { 64 } else { 40 };
                layout.layers[1] = CacheLayer::new(3, head_dim);
                self.counters(&layout);
            }
        }
        self.refusals();
        self.rewritten_positions_count_once(&SMALL.layout("SD", NativeDtype::F16));
        let others = "k=e4m3,v=int4,sink=22";
        self.rewritten_positions_count_once(&GROUPED.layout(others, NativeDtype::Bf16));
        self.numbers_that_cannot_be_stored();
    }

    fn counters(&self, layout: &CacheLayout) {
        let mut cache = self.backend.cache(layout).expect("a cache");
        let rows = span(1, 0, 37);
        for (layer, shape) in layout.layers.iter().enumerate() {
            let (width, head_dim) = (shape.width(), shape.head_dim);
            let mut k = noise(30 + layer as u64, rows.len() * width);
            let mut v = noise(40 + layer as u64, rows.len() * width);
            // Zero vectors.
            k[head_dim..2 * head_dim].fill(0.0);
            v[..head_dim].fill(0.0);
            let (dk, dv) = (self.upload(&k, width), self.upload(&v, width));
            self.backend
                .store(&mut cache, layer, &dk, &dv, &rows)
                .expect("storage");
            let (kc, vc) = layout.recipe.components_at(layer, layout.layers.len());
            let none = LayerAbsmax { k: 0.0, v: 0.0 };
            let absmax = layout.absmax.as_ref().map_or(none, |a| a[layer]);
            let got = self.backend.slot_totals(&cache, 1).expect("totals");
            assert_eq!(
                got[layer].k,
                totals(layout, *shape, kc, absmax.k, &k),
                "{}",
                layout.recipe.name
            );
            assert_eq!(
                got[layer].v,
                totals(layout, *shape, vc, absmax.v, &v),
                "{}",
                layout.recipe.name
            );
            let back = stored_rows(layout, layer, &k, &v);
            let largest = |x: &[f32]| x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            let got = self.backend.slot_absmax(&cache, 1).expect("absmax");
            assert_eq!(
                (got[layer].k, got[layer].v),
                (largest(&back[0]), largest(&back[1]))
            );
        }
        self.check_bytes(layout, &cache, rows.len());
        self.backend.reset_slot(&mut cache, 1).expect("a reset");
        for layer in self.backend.slot_totals(&cache, 1).expect("totals") {
            assert_eq!(layer, Default::default());
        }
    }

    fn check_bytes(&self, layout: &CacheLayout, cache: &B::Cache, tokens: usize) {
        let totals = self.backend.slot_totals(cache, 1).expect("totals");
        let bytes: u64 = totals.iter().map(|t| t.k.bytes + t.v.bytes).sum();
        let in_sink = (layout.recipe.sink as usize).min(tokens);
        let mut expected = 0;
        for (layer, shape) in layout.layers.iter().enumerate() {
            let (k, v) = layout.recipe.components_at(layer, layout.layers.len());
            for c in [k, v] {
                let bytes = |c: Component| vector_bytes(c, shape.head_dim as u32);
                let quantised = (tokens - in_sink) as u64 * bytes(c);
                let native = in_sink as u64 * bytes(Component::NATIVE);
                expected += shape.kv_heads as u64 * (quantised + native);
            }
        }
        assert_eq!(bytes, expected, "{}", layout.recipe.name);
        let other = self.backend.slot_totals(cache, 0).expect("totals");
        assert!(other.iter().all(|t| t.k.elements == 0 && t.v.elements == 0));
    }

    fn refusals(&self) {
        let mut layout = SMALL.layout("AF", NativeDtype::F16);
        layout.absmax = None;
        let refused = |layout: &CacheLayout, name: &str| match self.backend.cache(layout) {
            Err(BackendError::Unsupported(what)) => assert!(what.contains(name), "{what}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{name} was accepted"),
        };
        refused(&layout, "AF");
        layout.absmax = Some(SMALL.absmax()[..1].to_vec());
        refused(&layout, "calibration");
        layout.absmax = Some(vec![
            LayerAbsmax {
                k: 1.0,
                v: f32::NAN
            };
            2
        ]);
        refused(&layout, "NaN");
        let mut layout = SMALL.layout("AD", NativeDtype::F16);
        layout.recipe.skip_layers = vec![2];
        refused(&layout, "2");
        layout.recipe = Recipe::parse("k=native,v=q8_0").expect("a recipe");
        refused(&layout, "q8_0");
        layout.recipe = Recipe::parse("k=native,v=int4").expect("a recipe");
        refused(&layout, "int4 has groups of 32 elements, and head_dim 24");
    }

    /// A rejected verification leaves no trace: neither overwritten tokens nor truncated ones.
    fn rewritten_positions_count_once(&self, layout: &CacheLayout) {
        let width = layout.layers[0].width();
        let store = |cache: &mut B::Cache, seed: u64, rows: &[CacheRow]| {
            for layer in 0..layout.layers.len() {
                let x = self.upload(&noise(seed, rows.len() * width), width);
                self.backend
                    .store(cache, layer, &x, &x, rows)
                    .expect("storage");
            }
        };
        let mut plain = self.backend.cache(layout).expect("a cache");
        store(&mut plain, 1, &span(0, 0, 20));
        store(&mut plain, 2, &span(0, 20, 25));
        let mut verified = self.backend.cache(layout).expect("a cache");
        store(&mut verified, 1, &span(0, 0, 20));
        store(&mut verified, 3, &span(0, 20, 70));
        store(&mut verified, 2, &span(0, 20, 25));
        self.backend
            .truncate_slot(&mut verified, 0, 25)
            .expect("truncation");
        for slot in 0..2 {
            assert_eq!(
                self.backend.slot_totals(&plain, slot).expect("totals"),
                self.backend.slot_totals(&verified, slot).expect("totals")
            );
            assert_eq!(
                self.backend.slot_absmax(&plain, slot).expect("absmax"),
                self.backend.slot_absmax(&verified, slot).expect("absmax")
            );
        }
    }

    fn numbers_that_cannot_be_stored(&self) {
        // Beyond the largest half, and beyond any number.
        for (recipe, broken, allowed) in [
            ("native", 1e6, false),
            ("native", f32::NAN, false),
            ("AD", f32::INFINITY, false),
            ("SD", f32::NAN, false),
            ("SD", 1e6, true),
            ("k=int4,v=int4-64", 1e6, false),
            ("k=int4,v=int4", f32::NAN, false),
            ("k=int4,v=int4", 65504.0, true),
            ("k=e4m3,v=e4m3,sink=2", 1e6, false),
            ("k=e4m3,v=e4m3,sink=1", 1e6, true),
        ] {
            for rows in [3, 40] {
                self.stores_or_names(recipe, broken, allowed, rows);
            }
        }
    }

    fn stores_or_names(&self, recipe: &str, broken: f32, allowed: bool, rows: usize) {
        let width = GROUPED.kv_width();
        let layout = GROUPED.layout(recipe, NativeDtype::F16);
        let mut cache = self.backend.cache(&layout).expect("a cache");
        let k = noise(50, rows * width);
        let mut v = k.clone();
        v[width + 30] = broken;
        v[(rows - 1) * width] = broken;
        let (k, v) = (self.upload(&k, width), self.upload(&v, width));
        let stored = self.backend.store(&mut cache, 1, &k, &v, &span(0, 0, rows));
        let result = stored.and_then(|()| self.backend.settle());
        match result {
            Ok(()) => assert!(allowed, "{recipe} stored {broken}"),
            Err(BackendError::NotFinite { row: 1, what }) => {
                assert!(
                    !allowed && what.contains("layer 1") && what.contains("value"),
                    "{what}"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
}
