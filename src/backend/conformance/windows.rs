//! Layers with windows keep no more than they need, and nobody can tell: outputs, totals and largest
//! elements are those of a cache that keeps everything, which one pass over a whole sequence is.

use super::storage::{GROUPED, SMALL};
use super::{Shape, Suite, bits, noise, span};
use crate::backend::{Backend, BackendError, CacheLayer, CacheLayout, CacheRow, Purpose};
use crate::recipe::{LayerState, NativeDtype, paged_bytes};
use crate::schema::LayerAbsmax;

/// Windows of the layers: within a page, over several, over several blocks of tokens; and none.
const WINDOWS: [Option<usize>; 5] = [Some(21), None, Some(90), Some(21), Some(3)];

/// Of a sequence; far beyond every window.
const TOKENS: usize = 230;

const RECIPES: [(Shape, &str); 6] = [
    (SMALL, "native"),
    (SMALL, "SD"),
    (SMALL, "AF"),
    (SMALL, "k=int8:dynamic,v=e4m3:fixed,sink=5,skip-layers=0"),
    (GROUPED, "k=int4,v=int4-64"),
    (GROUPED, "k=e4m3,v=int4,sink=70,q=e4m3"),
];

fn layout(shape: Shape, recipe: &str) -> CacheLayout {
    let shape = Shape {
        layers: WINDOWS.len(),
        ..shape
    };
    let mut layout = shape.layout(recipe, NativeDtype::F16);
    for (layer, window) in layout.layers.iter_mut().zip(WINDOWS) {
        layer.window = window;
    }
    layout
}

/// What each position of a sequence gives in every layer: `[positions][layers]`.
type Outputs = Vec<Vec<Vec<u32>>>;

/// Sequences are told apart by their seeds.
struct Windows<'a, B: Backend> {
    suite: &'a Suite<'a, B>,
    shape: Shape,
    layout: CacheLayout,
    cache: B::Cache,
}

impl<'a, B: Backend> Windows<'a, B> {
    fn new(suite: &'a Suite<'a, B>, shape: Shape, layout: CacheLayout) -> Self {
        let cache = suite.backend.cache(&layout).expect("a cache");
        Windows {
            suite,
            shape,
            layout,
            cache,
        }
    }

    fn numbers(
        &self,
        seed: u64,
        layer: usize,
        which: u64,
        row: CacheRow,
        width: usize,
    ) -> Vec<f32> {
        let seed = seed + 97 * row.position as u64 + 10_007 * which + 100_003 * layer as u64;
        noise(seed, width)
    }

    /// A pass through all layers: outputs of every row and layer.
    fn pass(&mut self, rows: &[CacheRow], seeds: &[u64]) -> Vec<Vec<Vec<u32>>> {
        let backend = self.suite.backend;
        let (q_width, kv_width) = (self.shape.q_width(), self.shape.kv_width());
        let mut found = vec![Vec::new(); rows.len()];
        for layer in 0..WINDOWS.len() {
            let all = |which: u64, width: usize| {
                let of_row =
                    |row: &CacheRow| self.numbers(seeds[row.slot], layer, which, *row, width);
                self.suite
                    .upload(&rows.iter().flat_map(of_row).collect::<Vec<_>>(), width)
            };
            let (k, v, mut q) = (all(0, kv_width), all(1, kv_width), all(2, q_width));
            backend
                .store(&mut self.cache, layer, &k, &v, rows)
                .expect("storage");
            backend
                .round_queries(&self.cache, layer, &mut q)
                .expect("rounded queries");
            let mut out = backend.tensor(rows.len(), q_width).expect("a tensor");
            backend
                .attend(&self.cache, layer, &q, rows, &mut out)
                .expect("attention");
            let out = self.suite.host(&out);
            for (found, out) in found.iter_mut().zip(out.chunks(q_width)) {
                assert!(
                    out.iter().all(|x| x.is_finite()),
                    "a number in layer {layer}"
                );
                found.push(bits(out));
            }
        }
        found
    }

    /// Checks a pass against what everything kept gives.
    fn agrees(&mut self, what: &str, rows: &[CacheRow], seeds: &[u64], expected: &[&Outputs]) {
        let found = self.pass(rows, seeds);
        for (row, found) in rows.iter().zip(found) {
            for (layer, found) in found.iter().enumerate() {
                assert!(
                    *found == expected[row.slot][row.position][layer],
                    "{} {what}: {row:?} in layer {layer}",
                    self.layout.recipe.name
                );
            }
        }
    }

    fn same_totals(&self, what: &str, slot: usize, (other, of): (&Self, usize)) {
        let backend = self.suite.backend;
        let name = &self.layout.recipe.name;
        let totals = |windows: &Self, slot| backend.slot_totals(&windows.cache, slot);
        let absmax = |windows: &Self, slot| backend.slot_absmax(&windows.cache, slot);
        assert_eq!(
            totals(self, slot).expect("totals"),
            totals(other, of).expect("totals"),
            "{name} {what}"
        );
        assert_eq!(
            absmax(self, slot).expect("absmax"),
            absmax(other, of).expect("absmax"),
            "{name} {what}"
        );
    }

    fn cut(&mut self, slot: usize, tokens: usize) -> Result<(), BackendError> {
        let backend = self.suite.backend;
        backend.truncate_slot(&mut self.cache, slot, tokens)
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn windows(&self) {
        self.keeping_less_changes_nothing(SMALL);
    }

    pub fn windows_over_groups(&self) {
        self.keeping_less_changes_nothing(GROUPED);
    }

    fn keeping_less_changes_nothing(&self, shape: Shape) {
        for (_, recipe) in RECIPES.into_iter().filter(|case| case.0 == shape) {
            self.keeping_less_changes_nothing_under(shape, recipe);
        }
    }

    /// Two sequences in chunks, with wrong tokens that are cut off again, in slots that held others.
    fn keeping_less_changes_nothing_under(&self, shape: Shape, recipe: &str) {
        let layout = layout(shape, recipe);
        let mut everything = Windows::new(self, shape, layout.clone());
        let seeds = [1, 2, 3];
        let whole: Vec<Outputs> = (0..2)
            .map(|slot| everything.pass(&span(slot, 0, TOKENS), &seeds))
            .collect();
        for chunk in [7, 64, 150] {
            let what = format!("in chunks of {chunk}");
            let mut bounded = Windows::new(self, shape, layout.clone());
            // Slots change their sequences, and a third one comes and goes.
            let expected: Vec<&Outputs> = vec![&whole[1], &whole[0]];
            let (swapped, wrong) = ([2, 1, 3], [7, 8, 9]);
            for slot in 0..3 {
                bounded.pass(&span(slot, 0, 100), &wrong);
                self.backend
                    .reset_slot(&mut bounded.cache, slot)
                    .expect("a reset");
            }
            for from in (0..TOKENS).step_by(chunk) {
                let to = (from + chunk).min(TOKENS);
                if from % 7 < 3 {
                    // A draft that is taken back, in one piece or in two.
                    let end = (from + 40).min(TOKENS);
                    bounded.pass(&span(0, from, end), &wrong);
                    if from % 2 == 0 {
                        bounded.cut(0, end - (end - from) / 2).expect("a cut");
                    }
                    bounded.cut(0, from).expect("a cut");
                }
                let mut rows: Vec<_> = (0..2).flat_map(|slot| span(slot, from, to)).collect();
                rows.sort_by_key(|row| (row.position, (row.slot + row.position) % 2));
                bounded.agrees(&what, &rows, &swapped, &expected);
                if from % 5 == 0 && to < TOKENS {
                    bounded.pass(&span(2, 0, 30), &wrong);
                    self.backend
                        .reset_slot(&mut bounded.cache, 2)
                        .expect("a reset");
                }
            }
            for slot in 0..2 {
                bounded.same_totals(&what, slot, (&everything, 1 - slot));
            }
            // In the last pass, cuts leave what a shorter sequence stored.
            let kept = TOKENS - (TOKENS - 1) % chunk / 2;
            bounded.cut(0, kept).expect("a cut");
            let mut shorter = Windows::new(self, shape, layout.clone());
            shorter.pass(&span(1, 0, kept), &seeds);
            bounded.same_totals(&what, 0, (&shorter, 1));
            self.backend
                .reset_slot(&mut bounded.cache, 0)
                .expect("a reset");
            let none = self.backend.slot_totals(&bounded.cache, 0).expect("totals");
            assert!(none.iter().all(|totals| *totals == Default::default()));
            let nothing = LayerAbsmax { k: 0.0, v: 0.0 };
            let none = self.backend.slot_absmax(&bounded.cache, 0).expect("absmax");
            assert!(none.iter().all(|absmax| *absmax == nothing));
        }
    }

    pub fn cuts_behind_the_last_pass_are_refused(&self) {
        let mut windows = Windows::new(self, SMALL, layout(SMALL, "AD"));
        let seeds = [4, 5, 6];
        windows.pass(&span(0, 0, 100), &seeds);
        windows.pass(&span(0, 100, 130), &seeds);
        let before = self.backend.slot_totals(&windows.cache, 0).expect("totals");
        match windows.cut(0, 60) {
            Err(BackendError::Unsupported(what)) => {
                assert!(what.contains("cut back to 60 tokens"), "{what}");
            }
            other => panic!("{other:?}"),
        }
        let after = self.backend.slot_totals(&windows.cache, 0).expect("totals");
        assert_eq!(before, after, "a refusal changes nothing");
        windows
            .cut(0, 100)
            .expect("a cut to where the last pass began");
        windows.cut(0, 0).expect("a cut to nothing");
    }

    /// A sequence whose numbers cannot be stored takes pages that another one gave back. (The CPU worker
    /// refuses them before it writes any; its own tests spoil what is free.)
    pub fn numbers_of_other_sequences_never_enter(&self) {
        for recipe in ["native", "SD"] {
            let layout = layout(SMALL, recipe);
            let seeds = [1, 2, 3];
            let whole = Windows::new(self, SMALL, layout.clone()).pass(&span(0, 0, 200), &seeds);
            let mut windows = Windows::new(self, SMALL, layout);
            let expected = [&whole];
            windows.agrees("before", &span(0, 0, 150), &seeds, &expected);
            for from in 150..200 {
                windows.agrees("beside", &span(0, from, from + 1), &seeds, &expected);
                let broken = vec![f32::NAN; 100 * SMALL.kv_width()];
                let broken = self.upload(&broken, SMALL.kv_width());
                for layer in 0..WINDOWS.len() {
                    let cache = &mut windows.cache;
                    let rows = span(1, 0, 100);
                    let stored = self.backend.store(cache, layer, &broken, &broken, &rows);
                    let found = stored.and_then(|()| self.backend.settle());
                    assert!(matches!(found, Err(BackendError::NotFinite { .. })));
                }
                let reset = self.backend.reset_slot(&mut windows.cache, 1);
                reset.expect("a reset");
            }
        }
    }

    /// Sequences that grow token by token, side by side.
    pub fn sequences_take_the_bytes_that_memory_figures_give(&self) {
        let ledger = self.backend.meter().ledger;
        let (slots, tokens) = (3, 200);
        for (shape, recipe) in RECIPES {
            let mut layout = layout(shape, recipe);
            // Room for a window's pages wherever they begin, and for all of the other layers.
            (layout.slots, layout.slot_tokens, layout.pass_tokens) = (slots, tokens, 0);
            layout.layers[4] = CacheLayer {
                window: Some(3),
                ..CacheLayer::new(1, shape.head_dim)
            };
            let states = layout.layers.iter().map(|layer| LayerState::Attention {
                kv_heads: layer.kv_heads as u32,
                head_dim: layer.head_dim as u32,
                window: layer.window.map(|window| window as u32),
            });
            let states: Vec<LayerState> = states.collect();
            let figure = slots as u64 * paged_bytes(&layout.recipe, &states, tokens as u64);
            let before = ledger.held(Purpose::Cache);
            let mut cache = self.backend.cache(&layout).expect("a cache");
            for position in 0..tokens {
                let rows: Vec<CacheRow> =
                    (0..slots).map(|slot| CacheRow { slot, position }).collect();
                for (layer, shape) in layout.layers.iter().enumerate() {
                    let x = noise(position as u64, slots * shape.width());
                    let x = self.upload(&x, shape.width());
                    self.backend
                        .store(&mut cache, layer, &x, &x, &rows)
                        .expect("storage");
                }
                let held = ledger.held(Purpose::Cache) - before;
                assert!(held <= figure, "{recipe}: {held} of {figure} at {position}");
            }
            assert_eq!(ledger.held(Purpose::Cache) - before, figure, "{recipe}");
            drop(cache);
            assert_eq!(ledger.held(Purpose::Cache), before, "{recipe}");
        }
    }
}
