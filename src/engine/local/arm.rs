//! The open arm: a recipe, its scales, its layout and a cache that grows with the requests.

use crate::backend::{Backend, BackendError, CacheLayout};
use crate::engine::{BatchLayout, EngineError};
use crate::model::{Decoder, ModelConfig};
use crate::recipe::Recipe;
use crate::schema::LayerAbsmax;

use super::admission::Admission;
use super::{engine_error, footprint};

/// Slots grow in steps of this many tokens.
const GROWTH: usize = 512;

/// An open arm.
pub(super) struct Arm<B: Backend> {
    recipe: Recipe,
    absmax: Option<Vec<LayerAbsmax>>,
    layout: BatchLayout,
    slot_tokens: usize,
    cache: Option<(B::Cache, Admission)>,
}

impl<B: Backend> Arm<B> {
    /// Checks that recipe, scales and layout fit together and the model; allocates nothing yet.
    pub fn new(
        decoder: &Decoder<B>,
        recipe: Recipe,
        absmax: Option<Vec<LayerAbsmax>>,
        layout: BatchLayout,
    ) -> Result<Self, EngineError> {
        check_recipe(decoder.config(), &recipe)?;
        let layers = decoder.config().layers.len();
        let scales = absmax.as_ref().map_or(0, Vec::len);
        if recipe.needs_calibration() && scales != layers {
            return Err(EngineError::Worker(format!(
                "fixed scales of recipe {}: found {scales} layers, expected {layers}",
                recipe.name
            )));
        }
        if layout.slots == 0 || layout.prefill_chunk == 0 {
            return Err(EngineError::Unsupported(format!(
                "batch layout of {} slots and prefill chunks of {} tokens, expected at least one \
                 of each",
                layout.slots, layout.prefill_chunk
            )));
        }
        Ok(Arm {
            recipe,
            absmax,
            layout,
            slot_tokens: 0,
            cache: None,
        })
    }

    /// Slots and chunk.
    pub fn layout(&self) -> BatchLayout {
        self.layout
    }

    /// The cache, with room for `tokens` per slot, and which sequences it has room for side by
    /// side. Growing it forgets what it holds, so every sequence has to be finished.
    pub fn cache_for(
        &mut self,
        decoder: &Decoder<B>,
        tokens: usize,
    ) -> Result<(&mut B::Cache, Admission), EngineError> {
        let fits = self.slot_tokens >= tokens;
        let found = match self.cache.take() {
            Some(found) if fits => found,
            outgrown => {
                // Two caches at once would be twice the memory.
                drop(outgrown);
                let context = decoder.config().context;
                self.slot_tokens = tokens.max(1).next_multiple_of(GROWTH).min(context);
                self.allocate(decoder).map_err(engine_error)?
            }
        };
        let (cache, admission) = self.cache.insert(found);
        if !admission.has_room(tokens) {
            return Err(EngineError::Worker(format!(
                "cache: found a sequence of up to {tokens} tokens, expected at most the {} that \
                 fit into the memory that is free beside weights and activations: shorter panels \
                 or smaller recipes need less",
                admission.tokens().unwrap_or_default()
            )));
        }
        Ok((cache, *admission))
    }

    fn allocate(&self, decoder: &Decoder<B>) -> Result<(B::Cache, Admission), BackendError> {
        let (backend, layout) = (decoder.backend(), self.cache_layout(decoder));
        let activations = footprint::activations(decoder.config(), self.layout, self.slot_tokens);
        let limit = backend.cache_limit(&layout, activations)?;
        Ok((backend.cache(&layout)?, Admission::new(limit)))
    }

    fn cache_layout(&self, decoder: &Decoder<B>) -> CacheLayout {
        let config = decoder.config();
        CacheLayout {
            layers: config.cache_layers(),
            native: config.native_dtype,
            slots: self.layout.slots,
            slot_tokens: self.slot_tokens,
            pass_tokens: self.layout.prefill_chunk,
            recipe: self.recipe.clone(),
            absmax: self.absmax.clone(),
        }
    }
}

/// Whether `recipe` fits a model's layers and heads, whatever the backend.
///
/// # Errors
/// [`EngineError::Unsupported`] names the recipe.
pub(in crate::engine) fn check_recipe(
    config: &ModelConfig,
    recipe: &Recipe,
) -> Result<(), EngineError> {
    recipe
        .check(&config.stored_head_dims())
        .map_err(|e| EngineError::Unsupported(format!("recipe {}: {e}", recipe.name)))
}

/// Asks the backend whether it would build a cache for `recipe`, on a very small one, and attend to what
/// that stores.
pub(super) fn try_recipe<B: Backend>(
    decoder: &Decoder<B>,
    recipe: &Recipe,
) -> Result<(), EngineError> {
    let layers = decoder.config().layers.len();
    let absmax = recipe
        .needs_calibration()
        .then(|| vec![LayerAbsmax { k: 1.0, v: 1.0 }; layers]);
    let layout = BatchLayout {
        slots: 1,
        prefill_chunk: 1,
    };
    let mut arm = Arm::new(decoder, recipe.clone(), absmax, layout)?;
    let (cache, _) = arm.cache_for(decoder, 1)?;
    decoder.check_attention(cache).map_err(engine_error)
}
