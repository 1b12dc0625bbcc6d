//! The least that work can cost: bytes that have to be read once, operations that have to be done.

use crate::backend::CacheRow;
use crate::model::{ExpertsConfig, LayerConfig, ModelConfig};
use crate::recipe::{Recipe, vector_bytes};

/// Rates that bound a worker, as measured or declared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second of a copy within the device's memory, read and written ones together.
    pub copy: f64,
    /// Operations per second of a large product; a multiplication and an addition are two.
    pub product: f64,
    /// Bytes per second from the host to the device; `None` where weights stay with the host.
    pub bus: Option<f64>,
}

/// What bounds a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes over the copy rate.
    Bytes,
    /// Operations over the product rate.
    Operations,
    /// Bytes over the bus rate.
    Bus,
}

impl Bound {
    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Bytes => "copy",
            Bound::Operations => "product",
            Bound::Bus => "bus",
        }
    }
}

/// The least time of some work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Seconds.
    pub seconds: f64,
    /// What they are bounded by.
    pub bound: Bound,
}

/// What some work reads and computes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes.
    pub bytes: f64,
    /// Operations.
    pub operations: f64,
}

impl Cost {
    /// Both together.
    pub fn plus(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes + other.bytes,
            operations: self.operations + other.operations,
        }
    }

    /// The larger of the two times.
    pub fn floor(self, rates: Rates) -> Floor {
        let (bytes, operations) = (self.bytes / rates.copy, self.operations / rates.product);
        let bound = if bytes > operations {
            Bound::Bytes
        } else {
            Bound::Operations
        };
        Floor {
            seconds: bytes.max(operations),
            bound,
        }
    }
}

/// Sizes of a model that costs follow from.
#[derive(Clone, Debug)]
pub struct Costs {
    layers: Vec<LayerConfig>,
    /// The first layer that attends.
    attending: usize,
    hidden: f64,
    /// Elements of the MLP of a layer that has one.
    mlp: f64,
    /// Elements of the output projection.
    head: f64,
    /// Elements of the embedding where it is none of the others.
    embedding: f64,
}

impl Costs {
    /// Of a model.
    pub fn new(config: &ModelConfig) -> Self {
        let hidden = config.hidden_size as f64;
        let head = hidden * config.vocab_size as f64;
        Costs {
            layers: config.layers.clone(),
            attending: config.first_attention(),
            hidden,
            mlp: 3.0 * hidden * config.intermediate_size as f64,
            head,
            embedding: if config.tied_embeddings { 0.0 } else { head },
        }
    }

    /// Elements of a layer's key and value projections.
    fn stored(&self, layer: &LayerConfig) -> f64 {
        let recurrent = layer.recurrent;
        let states = recurrent.map_or(0, |shape| shape.projected() + shape.values());
        let kept = layer.projected_width() - layer.q_width();
        self.hidden * (kept + states) as f64
    }

    /// Elements of a layer's other projections that a row is multiplied with; of a recurrent one all
    /// but the MLP's are counted for every row.
    fn rest(&self, layer: &LayerConfig) -> f64 {
        let chosen = layer.experts.map_or(0, |shape| shape.chosen);
        self.rest_with(layer, chosen as f64)
    }

    /// The same with so many of its experts, where it has any.
    fn rest_with(&self, layer: &LayerConfig, experts: f64) -> f64 {
        let attention = 2.0 * self.hidden * layer.q_width() as f64;
        let mixture = layer.experts.map(|shape| {
            let each = 3.0 * self.hidden * shape.intermediate_size as f64;
            let beside = if shape.beside_mlp { self.mlp } else { 0.0 };
            beside + experts * each + self.hidden * shape.experts as f64
        });
        attention + mixture.unwrap_or(self.mlp)
    }

    /// Bytes of all weights but the embedding, in 16 bits.
    pub fn weights(&self) -> f64 {
        self.bytes_with(|shape| shape.experts as f64)
    }

    /// Bytes of all weights, in 16 bits: what a worker takes over.
    pub fn loaded(&self) -> f64 {
        self.weights() + 2.0 * self.embedding
    }

    /// Bytes of the weights that a pass over so many rows reads: of experts those that any row goes
    /// to, which are taken to be chosen evenly and by each row on its own.
    pub fn weights_read(&self, rows: usize) -> f64 {
        self.bytes_with(|shape| {
            let all = shape.experts as f64;
            let spared = 1.0 - shape.chosen as f64 / all;
            all * (1.0 - spared.powf(rows as f64))
        })
    }

    fn bytes_with(&self, experts: impl Fn(ExpertsConfig) -> f64) -> f64 {
        let layers = self.layers.iter();
        let elements: f64 = layers
            .map(|layer| {
                self.stored(layer) + self.rest_with(layer, layer.experts.map_or(0.0, &experts))
            })
            .sum();
        2.0 * (elements + self.head)
    }

    /// Bytes that a stored token takes under a recipe in layer number `at`.
    fn token_bytes(&self, recipe: &Recipe, at: usize) -> f64 {
        let layer = &self.layers[at];
        let (k, v) = recipe.components_at(at, self.layers.len());
        let bytes = [k, v].map(|c| vector_bytes(c, layer.head_dim as u32));
        (layer.kv_heads as u64 * (bytes[0] + bytes[1])) as f64
    }

    /// Attention of the first layer that attends, over rows at these positions under a recipe: bytes that
    /// they read of its cache, and operations.
    pub fn attention(&self, recipe: &Recipe, rows: &[CacheRow]) -> Cost {
        let layer = &self.layers[self.attending];
        let looked_at = rows.iter().map(|row| visible(layer, row.position));
        let looked_at = looked_at.sum::<f64>();
        Cost {
            bytes: self.token_bytes(recipe, self.attending) * looked_at,
            operations: attention(layer) * looked_at,
        }
    }

    /// One sequence from position 0 on: `prompt` tokens, the logits of the last `wanted` of which
    /// are wanted, and `new` further tokens one by one. Weights are not counted: whoever runs
    /// sequences side by side reads them once for all.
    ///
    /// Beyond its keys and values the last layer is needed for wanted rows only.
    pub fn sequence(&self, recipe: &Recipe, prompt: usize, wanted: usize, new: usize) -> Cost {
        let mut cost = Cost::default();
        for (at, layer) in self.layers.iter().enumerate() {
            let rows = prompt + new;
            let first = if at + 1 == self.layers.len() {
                prompt - wanted
            } else {
                0
            };
            let seen = |from: usize| (from..rows).map(|p| visible(layer, p)).sum::<f64>();
            let products =
                rows as f64 * self.stored(layer) + (rows - first) as f64 * self.rest(layer);
            cost.operations += 2.0 * products + attention(layer) * seen(first);
            // A chunk of a prompt finds its own keys and values close at hand.
            cost.bytes += self.token_bytes(recipe, at) * seen(prompt);
        }
        cost.operations += 2.0 * (wanted + new) as f64 * self.head;
        cost
    }
}

/// Operations of attention in a layer per row and position looked at.
fn attention(layer: &LayerConfig) -> f64 {
    4.0 * layer.q_width() as f64
}

/// Positions that a row looks at in a layer.
fn visible(layer: &LayerConfig, position: usize) -> f64 {
    (position + 1).min(layer.window.unwrap_or(usize::MAX)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::builtin_shape;

    fn costs() -> Costs {
        Costs::new(&builtin_shape("qwen3-8b").unwrap().unwrap())
    }

    /// 8.19 billion parameters, 0.62 of them in the embedding, which is only looked up, and some in norms.
    #[test]
    fn weights_are_those_of_the_shape() {
        let matrices = 2.0 * (8_190_735_360.0 - 308_224.0);
        assert_eq!(costs().loaded(), matrices);
        assert_eq!(costs().weights(), matrices - 2.0 * 622_329_856.0);
        let mut config = builtin_shape("qwen3-8b").unwrap().unwrap();
        config.tied_embeddings = true;
        assert_eq!(Costs::new(&config).loaded(), costs().weights());
    }

    #[test]
    fn a_step_reads_the_cache_and_a_prompt_computes() {
        let (costs, native) = (costs(), Recipe::native());
        let step = costs.sequence(&native, 1024, 1, 1);
        let prompt = costs.sequence(&native, 1024, 1, 0);
        assert_eq!((prompt.bytes, step.bytes), (0.0, 147_456.0 * 1025.0));
        // Two per element of the weights, and attention over 1,025 positions in 36 layers.
        let operations = costs.weights() + 36.0 * 1025.0 * 4.0 * 4096.0;
        assert_eq!(step.operations - prompt.operations, operations);
        let rates = Rates {
            copy: 4e12,
            product: 8e14,
            bus: None,
        };
        assert_eq!(step.floor(rates).bound, Bound::Operations);
        let weights = Cost {
            bytes: costs.weights(),
            operations: 0.0,
        };
        assert_eq!(step.plus(weights).operations, step.operations);
        assert_eq!(weights.floor(rates).bound, Bound::Bytes);
        assert_eq!(weights.floor(rates).seconds, costs.weights() / 4e12);
    }

    /// A prompt of which every row is wanted costs as much as the same tokens one by one.
    #[test]
    fn chunks_do_not_change_operations() {
        let (costs, native) = (costs(), Recipe::native());
        let whole = costs.sequence(&native, 100, 100, 0).operations;
        let stepped = costs.sequence(&native, 1, 1, 99).operations;
        assert!((whole - stepped).abs() < 1e-9 * whole);
        let rows: Vec<CacheRow> = (0..100)
            .map(|position| CacheRow { slot: 0, position })
            .collect();
        let attention = costs.attention(&native, &rows);
        assert_eq!(attention.operations, 4.0 * 4096.0 * 5050.0);
        assert_eq!(attention.bytes, 4096.0 * 5050.0);
    }

    /// A row goes through some experts; rows together read what any of them goes through.
    #[test]
    fn experts_are_read_once_and_computed_where_they_are_chosen() {
        let mut config = builtin_shape("qwen3-8b").unwrap().unwrap();
        let dense = Costs::new(&config);
        let shape = ExpertsConfig {
            experts: 128,
            chosen: 8,
            intermediate_size: 768,
            renormalised: true,
            beside_mlp: false,
        };
        config.layers[5].experts = Some(shape);
        let costs = Costs::new(&config);
        let (each, router) = (3.0 * 4096.0 * 768.0, 4096.0 * 128.0);
        let mlp = 3.0 * 4096.0 * 12_288.0;
        let fewer = |experts: f64| 2.0 * (mlp - experts * each - router);
        assert_eq!(dense.weights() - costs.weights(), fewer(128.0));
        assert_eq!(dense.weights_read(1), dense.weights());
        assert!((dense.weights() - costs.weights_read(1) - fewer(8.0)).abs() < 1.0);
        // Of two rows the second goes to 8 of 128, of which half an expert is one of the first's.
        assert!((dense.weights() - costs.weights_read(2) - fewer(15.5)).abs() < 1.0);
        assert!((costs.weights_read(10_000) - costs.weights()).abs() < 1.0);
        let native = Recipe::native();
        let operations = |costs: &Costs| costs.sequence(&native, 10, 10, 0).operations;
        let difference = operations(&dense) - operations(&costs);
        assert_eq!(difference, 10.0 * fewer(8.0));
        // Beside an MLP, and with one projection for keys and values.
        let layer = &mut config.layers[5];
        layer.keys_are_values = true;
        layer.experts = Some(ExpertsConfig {
            beside_mlp: true,
            ..shape
        });
        let more = Costs::new(&config).weights() - costs.weights();
        assert_eq!(more, 2.0 * (mlp - 4096.0 * 1024.0));
    }

    /// A layer with a window looks at no more than that.
    #[test]
    fn windows_bound_what_is_looked_at() {
        let mut costs = costs();
        let whole = costs.sequence(&Recipe::native(), 90, 90, 10);
        costs.layers[3].window = Some(30);
        let windowed = costs.sequence(&Recipe::native(), 90, 90, 10);
        // Positions 30 on see up to 70 tokens fewer.
        let fewer = (0..=70).sum::<usize>() as f64;
        let operations = whole.operations - windowed.operations;
        assert_eq!(operations, 4.0 * 4096.0 * fewer);
        let bytes = (61..=70).sum::<usize>() as f64 * 4096.0;
        assert_eq!(whole.bytes - windowed.bytes, bytes);
    }
}
