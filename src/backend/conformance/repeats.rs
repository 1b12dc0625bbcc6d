//! Passes that follow each other have the bits that each has alone, whatever a backend records.

use super::{Suite, bits, noise, span};
use crate::backend::{
    Activation, Backend, BackendError, CacheLayer, CacheLayout, CacheRow, Destination,
    ExpertWeights, HeadProjection, LayerPass, RotaryTable, RoutingRule, TensorData,
};
use crate::recipe::{NativeDtype, Recipe};

const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const HIDDEN: usize = 96;
const WIDTH: usize = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
const VOCABULARY: usize = 50;
/// Experts, and their width.
const EXPERTS: usize = 6;
const EXPERT: usize = 24;

/// Layers of attention and, behind it, experts.
struct Model<'a, B: Backend> {
    backend: &'a B,
    embedding: B::Weight,
    norm: B::Vector,
    heads: [B::Weight; LAYERS],
    output: [B::Weight; LAYERS],
    router: B::Weight,
    gate_up: B::Weight,
    down: B::Weight,
}

/// Activations and cache of one way to run it.
struct State<B: Backend> {
    x: B::Tensor,
    normed: B::Tensor,
    packed: B::Tensor,
    q: B::Tensor,
    attended: B::Tensor,
    logits: B::Tensor,
    routes: B::Routes,
    table: RotaryTable,
}

impl<B: Backend> Model<'_, B> {
    fn state(&self, table: &RotaryTable) -> State<B> {
        let tensor = |width| self.backend.tensor(1, width).expect("a tensor");
        State {
            x: tensor(HIDDEN),
            normed: tensor(HIDDEN),
            packed: tensor(WIDTH),
            q: tensor(HEADS * HEAD_DIM),
            attended: tensor(HEADS * HEAD_DIM),
            logits: tensor(EXPERTS),
            routes: self.backend.routes(EXPERTS).expect("routes"),
            table: table.clone(),
        }
    }

    fn layers(
        &self,
        rows: &[CacheRow],
        cache: &mut B::Cache,
        state: &mut State<B>,
    ) -> Result<(), BackendError> {
        let b = self.backend;
        for layer in 0..LAYERS {
            b.rms_norm(&state.x, &self.norm, 1e-6, &mut state.normed)?;
            let heads = HeadProjection {
                weight: &self.heads[layer],
                bias: None,
                norms: None,
                keys_are_values: false,
                rotary: [&state.table; 2],
            };
            let to = Destination {
                cache: &mut *cache,
                layer,
                rows,
            };
            b.project_heads(&state.normed, &heads, to, &mut state.packed, &mut state.q)?;
            b.attend(cache, layer, &state.q, rows, &mut state.attended)?;
            b.matmul_add(&state.attended, &self.output[layer], None, &mut state.x)?;
            self.experts(state)?;
        }
        Ok(())
    }

    fn experts(&self, state: &mut State<B>) -> Result<(), BackendError> {
        let b = self.backend;
        b.rms_norm(&state.x, &self.norm, 1e-6, &mut state.normed)?;
        b.matmul(&state.normed, &self.router, None, &mut state.logits)?;
        let rule = RoutingRule {
            chosen: 2,
            renormalised: true,
            scales: None,
        };
        b.route(&state.logits, rule, &mut state.routes)?;
        let weights = ExpertWeights {
            gate_up: &self.gate_up,
            down: &self.down,
            activation: Activation::Silu,
        };
        b.mix_experts_add(&state.normed, weights, &mut state.routes, &mut state.x)
    }

    /// The residual stream behind the layers, which are run directly or by [`Backend::layers`].
    fn pass(
        &self,
        rows: &[CacheRow],
        cache: &mut B::Cache,
        state: &mut State<B>,
        directly: bool,
    ) -> Vec<u32> {
        let b = self.backend;
        let tensors = [
            &mut state.x,
            &mut state.normed,
            &mut state.packed,
            &mut state.q,
            &mut state.attended,
            &mut state.logits,
        ];
        for tensor in tensors {
            b.resize(tensor, rows.len()).expect("rows");
        }
        let id = |row: &CacheRow| ((row.position * 7 + row.slot * 3) % VOCABULARY) as u32;
        let ids: Vec<u32> = rows.iter().map(id).collect();
        b.embed(&self.embedding, &ids, &mut state.x)
            .expect("embeddings");
        if directly {
            self.layers(rows, cache, state).expect("layers");
        } else {
            let rotary = [state.table.clone()];
            let pass = LayerPass {
                rows,
                rotary: &rotary,
            };
            let run = |cache: &mut B::Cache, state: &mut State<B>| self.layers(rows, cache, state);
            b.layers(&pass, cache, state, |state| &mut state.x, run)
                .expect("layers");
        }
        b.settle().expect("numbers that can be stored");
        bits(&b.to_host(&state.x).expect("a copy"))
    }
}

/// A model that is run both ways, in turns.
struct Ways<'a, B: Backend> {
    model: &'a Model<'a, B>,
    /// Directly, and by [`Backend::layers`].
    caches: [B::Cache; 2],
    states: [State<B>; 2],
}

impl<B: Backend> Ways<'_, B> {
    /// A pass both ways.
    fn agree(&mut self, what: &str, rows: &[CacheRow]) {
        let (caches, states) = (&mut self.caches, &mut self.states);
        let [directly, repeated] = [0, 1].map(|way| {
            let (cache, state) = (&mut caches[way], &mut states[way]);
            self.model.pass(rows, cache, state, way == 0)
        });
        assert_eq!(directly, repeated, "{what}: {rows:?}");
    }

    /// So many steps of some slots, which grow by a token each.
    fn steps(&mut self, count: usize, slots: &[usize], lengths: &mut [usize]) {
        for _ in 0..count {
            let row = |&slot: &usize| CacheRow {
                slot,
                position: lengths[slot],
            };
            let rows: Vec<CacheRow> = slots.iter().map(row).collect();
            self.agree("a step", &rows);
            for &slot in slots {
                lengths[slot] += 1;
            }
        }
    }
}

fn table(positions: usize) -> RotaryTable {
    RotaryTable {
        cos: noise(70, positions * HEAD_DIM / 2).into(),
        sin: noise(71, positions * HEAD_DIM / 2).into(),
        half: HEAD_DIM / 2,
        head_dim: HEAD_DIM,
    }
}

fn halves(x: Vec<f32>) -> TensorData {
    TensorData::F16(x.into_iter().map(half::f16::from_f32).collect())
}

impl<B: Backend> Suite<'_, B> {
    /// Steps of one row per slot, as many as are recorded somewhere, with everything in between
    /// that may outdate a recording: prompts, ends of sequences, a longer rotary table, another
    /// span, a cache of its own.
    pub fn repeats(&self) {
        self.steps("native", NativeDtype::F16, halves);
    }

    pub fn repeats_in_bf16(&self) {
        let bfloats =
            |x: Vec<f32>| TensorData::Bf16(x.into_iter().map(half::bf16::from_f32).collect());
        self.steps("AD", NativeDtype::Bf16, bfloats);
    }

    pub fn repeats_in_f32(&self) {
        self.steps("SF", NativeDtype::F16, TensorData::F32);
    }

    pub fn repeats_over_groups(&self) {
        self.steps("k=int4,v=e4m3,q=e4m3,sink=4", NativeDtype::F16, halves);
    }

    /// See [`Suite::repeats`].
    fn steps(&self, recipe: &str, native: NativeDtype, element: impl Fn(Vec<f32>) -> TensorData) {
        let weight = |seed: u64, out: usize, inner: usize| {
            let x: Vec<f32> = noise(seed, out * inner).iter().map(|x| x * 0.1).collect();
            let weight = self.backend.weight(element(x), out, inner);
            weight.expect("a weight")
        };
        let model = Model {
            backend: self.backend,
            embedding: weight(60, VOCABULARY, HIDDEN),
            norm: self.vector(&noise(61, HIDDEN)),
            heads: [62, 63].map(|seed| weight(seed, WIDTH, HIDDEN)),
            output: [64, 65].map(|seed| weight(seed, HIDDEN, HEADS * HEAD_DIM)),
            router: weight(66, EXPERTS, HIDDEN),
            gate_up: weight(67, EXPERTS * 2 * EXPERT, HIDDEN),
            down: weight(68, EXPERTS * HIDDEN, EXPERT),
        };
        let recipe = Recipe::parse(recipe).expect("a recipe");
        let mut layers = vec![CacheLayer::new(KV_HEADS, HEAD_DIM); LAYERS];
        if recipe.sink > 0 {
            // Two kinds of layers, and so two plans.
            layers[0].window = Some(20);
        }
        let layout = CacheLayout {
            layers,
            native,
            slots: 4,
            slot_tokens: 1100,
            pass_tokens: 1100,
            absmax: recipe
                .needs_calibration()
                .then(|| vec![crate::schema::LayerAbsmax { k: 0.5, v: 0.5 }; LAYERS]),
            recipe,
        };
        let cache = || self.backend.cache(&layout).expect("a cache");
        let (short, long) = (table(1060), table(1100));
        let mut ways = Ways {
            model: &model,
            caches: [cache(), cache()],
            states: [model.state(&short), model.state(&short)],
        };
        let mut lengths = [1012, 20, 5];
        for (slot, &length) in lengths.iter().enumerate() {
            ways.agree("a prompt", &span(slot, 0, length));
        }
        // The first slot comes to its second span on the way.
        ways.steps(22, &[0, 1, 2], &mut lengths);
        ways.steps(6, &[2, 0], &mut lengths);
        for state in &mut ways.states {
            state.table = long.clone();
        }
        ways.steps(7, &[0, 1, 2], &mut lengths);
        ways.agree("a prompt beside", &span(3, 0, 70));
        ways.steps(6, &[0, 1, 2], &mut lengths);
        // Other caches, at whatever addresses.
        ways.caches = [cache(), cache()];
        ways.steps(8, &[0, 1, 2], &mut [0; 3]);
    }
}
