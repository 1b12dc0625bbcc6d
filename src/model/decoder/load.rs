//! Moves a checkpoint's weights to a backend, one tensor at a time.

mod mixer;
mod mlp;
#[cfg(test)]
mod tests;

use crate::backend::{
    Backend, BackendError, Codes, StoredNumbers, StoredParts, TensorData, concatenated,
};
use crate::model::tensors::{LAYER_SCALAR, Norms};
use crate::model::{LayerConfig, ModelConfig, ModelError, WeightSource};

use super::{Decoder, HeadNorms, Layer, Mixer, Output, Projection};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend could not take the weights over.
    #[error("tensor {tensor}: {source}")]
    Backend {
        /// Tensor name.
        tensor: String,
        /// Cause.
        source: BackendError,
    },
    /// The device is missing or does not work.
    #[error(transparent)]
    Device(BackendError),
    /// The backend could not allocate activations.
    #[error("activations: {0}")]
    Activations(BackendError),
}

/// Token embeddings, `[vocab_size, hidden_size]`.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output projection, likewise.
const HEAD: &str = "lm_head.weight";

impl<B: Backend> Decoder<B> {
    /// Loads every tensor that `config` asks for. A host copy lives only until the backend has
    /// taken its tensor over.
    ///
    /// # Errors
    /// A tensor that is missing or malformed, a bias that the checkpoint holds but `config` does
    /// not apply, or what the backend reports.
    pub fn load(
        config: ModelConfig,
        weights: &dyn WeightSource,
        backend: B,
    ) -> Result<Self, LoadError> {
        let loader = Loader {
            config: &config,
            weights,
            backend: &backend,
        };
        if config.layers.is_empty() {
            return Err(loader.unsupported("a model without decoder layers".to_owned()));
        }
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        loader.check_tied_head(&[vocab, hidden])?;
        let embedding = loader.weight(EMBEDDING, vocab, hidden)?;
        let layers = (0..config.layers.len())
            .map(|index| loader.layer(index))
            .collect::<Result<_, _>>()?;
        let final_norm = loader.norm("model.norm.weight", hidden)?;
        let head = if config.tied_embeddings {
            None
        } else {
            Some(loader.weight(HEAD, vocab, hidden)?)
        };
        Ok(Decoder {
            backend,
            config,
            embedding,
            layers,
            final_norm,
            head,
        })
    }
}

struct Loader<'a, B: Backend> {
    config: &'a ModelConfig,
    weights: &'a dyn WeightSource,
    backend: &'a B,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&self, index: usize) -> Result<Layer<B>, LoadError> {
        let config = self.config;
        let layer = &config.layers[index];
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let hidden = config.hidden_size;
        let norm = |part: &str| self.norm(&name(part), hidden);
        let norms = Norms::new(config);
        let (mixer, projection) = match &layer.recurrent {
            None => {
                let folder = name("self_attn");
                let (queries, bias) = (layer.q_width(), config.attention_output_bias);
                let output = self.projection(&folder, &[("o_proj", hidden)], queries, bias)?;
                (Mixer::Attention(self.attention(&folder, layer)?), output)
            }
            Some(shape) => {
                let folder = name("linear_attn");
                let parts = [("out_proj", hidden)];
                let output = self.projection(&folder, &parts, shape.values(), false)?;
                (Mixer::Recurrent(self.recurrent(&folder, shape)?), output)
            }
        };
        Ok(Layer {
            input_norm: norm(norms.attention)?,
            mixer,
            output: Output {
                projection,
                norm: norms.attention_output.map(norm).transpose()?,
            },
            mlp_norm: norm(norms.mlp)?,
            mlp: self.mlp(index, layer)?,
            scalar: self.layer_scalar(&name(LAYER_SCALAR))?,
        })
    }

    /// What the residual stream is multiplied by after a layer.
    fn layer_scalar(&self, name: &str) -> Result<Option<f32>, LoadError> {
        if !self.config.layer_scalars {
            return Ok(None);
        }
        Ok(self.weights.load(name, &[1])?.into_f32().pop())
    }

    fn head_norms(
        &self,
        prefix: &str,
        layer: &LayerConfig,
    ) -> Result<Option<HeadNorms<B>>, LoadError> {
        let names = ["q_norm", "k_norm"].map(|part| format!("{prefix}.{part}.weight"));
        if !self.config.qk_norm {
            for name in &names {
                self.refuse_unapplied(name)?;
            }
            return Ok(None);
        }
        let [q, k] = names;
        // A norm without a weight: a product with 1 leaves every number as it is.
        let ones = || {
            let ones = TensorData::F32(vec![1.0; layer.head_dim]);
            self.backend
                .vector(ones)
                .map_err(|source| LoadError::Backend {
                    tensor: format!("{prefix}.v_norm"),
                    source,
                })
        };
        Ok(Some(HeadNorms {
            q: self.norm(&q, layer.head_dim)?,
            k: self.norm(&k, layer.head_dim)?,
            v: self.config.value_norm.then(ones).transpose()?,
        }))
    }

    /// Projections of the same input as one, named and sized by `parts`.
    fn projection(
        &self,
        prefix: &str,
        parts: &[(&str, usize)],
        inner: usize,
        bias: bool,
    ) -> Result<Projection<B>, LoadError> {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (part, out) in parts {
            let bias_name = format!("{prefix}.{part}.bias");
            if bias {
                biases.push(self.weights.load(&bias_name, &[*out])?);
            } else {
                self.refuse_unapplied(&bias_name)?;
            }
            weights.push((format!("{prefix}.{part}.weight"), *out));
        }
        let out = parts.iter().map(|(_, out)| out).sum();
        let names: Vec<&str> = parts.iter().map(|(part, _)| *part).collect();
        let failed = |kind: &str| {
            let tensor = format!("{prefix}.{}.{kind}", names.join("+"));
            move |source| LoadError::Backend { tensor, source }
        };
        let taken = match self.stored(&weights, inner)? {
            Some(parts) => self.backend.stored_weight(&parts, out, inner),
            None => Ok(None),
        };
        let weight = match taken.map_err(failed("weight"))? {
            Some(weight) => weight,
            None => {
                let load = |(name, out): &(String, usize)| self.weights.load(name, &[*out, inner]);
                let weights = weights.iter().map(load).collect::<Result<_, _>>()?;
                let weight = self.backend.fused_weight(weights, out, inner);
                weight.map_err(failed("weight"))?
            }
        };
        let bias = bias.then(|| self.backend.vector(concatenated(biases)));
        Ok(Projection {
            weight,
            bias: bias.transpose().map_err(failed("bias"))?,
        })
    }

    /// Weights `[out, inner]`, by name and `out`, as the checkpoint stores them: all as codes, or all as
    /// numbers.
    fn stored(
        &self,
        weights: &[(String, usize)],
        inner: usize,
    ) -> Result<Option<StoredParts<'_>>, ModelError> {
        let found = weights.iter();
        let found = found.map(|(name, out)| self.weights.codes(name, &[*out, inner]));
        let found: Vec<Option<Codes<'_>>> = found.collect::<Result<_, _>>()?;
        if let Some(codes) = found.into_iter().collect() {
            return Ok(Some(StoredParts::Codes(codes)));
        }
        let found = weights.iter();
        let found = found.map(|(name, out)| self.weights.numbers(name, &[*out, inner]));
        let found: Vec<Option<StoredNumbers<'_>>> = found.collect::<Result<_, _>>()?;
        let numbers: Option<Vec<_>> = found.into_iter().collect();
        Ok(numbers.map(StoredParts::Numbers))
    }

    /// A tensor that changes the model but that the config does not ask for is never ignored.
    fn refuse_unapplied(&self, name: &str) -> Result<(), LoadError> {
        if !self.weights.contains(name) {
            return Ok(());
        }
        Err(self.unsupported(format!(
            "tensor {name}, which the config of a {} model does not apply",
            self.config.family.name()
        )))
    }

    /// A head that is stored although the config ties it to the embedding has to be the same: which
    /// of two the checkpoint's author meant cannot be known.
    fn check_tied_head(&self, shape: &[usize]) -> Result<(), LoadError> {
        if !self.config.tied_embeddings || !self.weights.contains(HEAD) {
            return Ok(());
        }
        let [head, embedding] = [HEAD, EMBEDDING].map(|name| self.weights.load(name, shape));
        let (head, embedding) = (head?, embedding?);
        if head == embedding || head.into_f32() == embedding.into_f32() {
            return Ok(());
        }
        Err(self.unsupported(format!(
            "tensor {HEAD}, which differs from {EMBEDDING} although tie_word_embeddings is true"
        )))
    }

    fn unsupported(&self, what: String) -> LoadError {
        let files = self.weights.files().iter();
        let paths: Vec<&str> = files.map(|file| file.path.as_str()).collect();
        LoadError::Model(ModelError::Unsupported {
            path: paths.join(", "),
            what,
        })
    }

    fn weight(&self, name: &str, out: usize, inner: usize) -> Result<B::Weight, LoadError> {
        let failed = |source| LoadError::Backend {
            tensor: name.to_owned(),
            source,
        };
        if let Some(numbers) = self.weights.numbers(name, &[out, inner])? {
            let parts = StoredParts::Numbers(vec![numbers]);
            let weight = self.backend.stored_weight(&parts, out, inner);
            if let Some(weight) = weight.map_err(failed)? {
                return Ok(weight);
            }
        }
        let data = self.weights.load(name, &[out, inner])?;
        self.backend.weight(data, out, inner).map_err(failed)
    }

    /// The weight of a norm, as it multiplies.
    fn norm(&self, name: &str, width: usize) -> Result<B::Vector, LoadError> {
        let mut data = self.weights.load(name, &[width])?;
        if self.config.norms_less_one {
            let mut weight = data.into_f32();
            weight.iter_mut().for_each(|w| *w += 1.0);
            data = TensorData::F32(weight);
        }
        let failed = |source| LoadError::Backend {
            tensor: name.to_owned(),
            source,
        };
        self.backend.vector(data).map_err(failed)
    }
}
