//! The least that work can cost: bytes that have to be read once, operations that have to be done.

use crate::backend::CacheRow;
use crate::model::ModelConfig;
use crate::recipe::{CacheShape, Recipe, bytes_per_token};

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
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    layers: f64,
    /// Elements of a layer's key and value projections.
    stored: f64,
    /// Elements of a layer's other projections.
    rest: f64,
    /// Elements of the output projection.
    head: f64,
    /// Operations of attention per layer, row and position looked at.
    attention: f64,
    shape: CacheShape,
}

impl Costs {
    /// Of a model.
    pub fn new(config: &ModelConfig) -> Self {
        let hidden = config.hidden_size as f64;
        let queries = (config.heads * config.head_dim) as f64;
        let geometry = config.geometry();
        Costs {
            layers: config.layers as f64,
            stored: 2.0 * hidden * (config.kv_heads * config.head_dim) as f64,
            rest: 2.0 * hidden * queries + 3.0 * hidden * config.intermediate_size as f64,
            head: hidden * config.vocab_size as f64,
            attention: 4.0 * queries,
            shape: CacheShape {
                layers: geometry.layers,
                kv_heads: geometry.kv_heads,
                head_dim: geometry.head_dim,
            },
        }
    }

    /// Bytes of the weights that a pass reads, in 16 bits.
    pub fn weights(&self) -> f64 {
        2.0 * (self.layers * (self.stored + self.rest) + self.head)
    }

    /// Bytes that `tokens` stored tokens take under a recipe, over all layers.
    pub fn cache(&self, recipe: &Recipe, tokens: f64) -> f64 {
        bytes_per_token(recipe, &self.shape) as f64 * tokens
    }

    /// Operations of attention in one layer over rows at these positions.
    pub fn attention(&self, rows: &[CacheRow]) -> f64 {
        let looked_at: usize = rows.iter().map(|row| row.position + 1).sum();
        self.attention * looked_at as f64
    }

    /// One sequence from position 0 on: `prompt` tokens, the logits of the last `wanted` of which
    /// are wanted, and `new` further tokens one by one. Weights are not counted: whoever runs
    /// sequences side by side reads them once for all.
    ///
    /// Beyond its keys and values the last layer is needed for wanted rows only.
    pub fn sequence(&self, recipe: &Recipe, prompt: usize, wanted: usize, new: usize) -> Cost {
        let triangle = |tokens: usize| tokens as f64 * (tokens as f64 + 1.0) / 2.0;
        let (rows, steps) = ((prompt + new) as f64, (wanted + new) as f64);
        let others = self.layers - 1.0;
        let products = rows * (self.layers * self.stored + others * self.rest)
            + steps * (self.rest + self.head);
        let seen = triangle(prompt + new);
        let seen_last = seen - triangle(prompt - wanted);
        let stepped = triangle(prompt + new) - triangle(prompt);
        Cost {
            // A chunk of a prompt finds its own keys and values close at hand.
            bytes: self.cache(recipe, stepped),
            operations: 2.0 * products + self.attention * (others * seen + seen_last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::builtin_shape;

    fn costs() -> Costs {
        Costs::new(&builtin_shape("qwen3-8b").unwrap().unwrap())
    }

    /// 8.19 billion parameters, 0.62 of them in the embedding, which is only looked up.
    #[test]
    fn weights_are_those_of_the_shape() {
        assert_eq!(
            costs().weights(),
            2.0 * (8_190_735_360.0 - 622_329_856.0 - 308_224.0)
        );
    }

    #[test]
    fn a_step_reads_the_cache_and_a_prompt_computes() {
        let (costs, native) = (costs(), Recipe::native());
        assert_eq!(costs.cache(&native, 1.0), 147_456.0);
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
        assert_eq!(costs.attention(&rows), 4.0 * 4096.0 * 5050.0);
    }
}
