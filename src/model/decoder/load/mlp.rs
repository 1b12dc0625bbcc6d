//! Weights of gated MLPs and of mixtures of experts.

use crate::backend::{Backend, TensorData};
use crate::model::tensors::{Norms, Projections};
use crate::model::{ExpertsConfig, LayerConfig};

use super::super::Output;
use super::super::mlp::{Dense, Experts, Mlp};
use super::{LoadError, Loader};

impl<B: Backend> Loader<'_, B> {
    /// The MLP of layer number `index`.
    pub(super) fn mlp(&self, index: usize, layer: &LayerConfig) -> Result<Mlp<B>, LoadError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = Norms::new(config).mlp_output;
        let norm = norm.map(|part| self.norm(&name(part), hidden));
        let folder = name("mlp");
        if let Some(shape) = layer.experts {
            let norm = norm.transpose()?;
            return Ok(Mlp::Experts(self.experts(&folder, shape, norm)?));
        }
        let Projections { gate_up, .. } = Projections::new(config, layer);
        let part = |parts: &[(&str, usize)], inner| {
            self.projection(&folder, parts, inner, config.mlp_bias)
        };
        Ok(Mlp::Dense(Dense {
            gate_up: part(&gate_up, hidden)?,
            down: Output {
                projection: part(&[("down_proj", hidden)], config.intermediate_size)?,
                norm: norm.transpose()?,
            },
        }))
    }

    /// Experts, whose tensors are named below `folder`.
    fn experts(
        &self,
        folder: &str,
        shape: ExpertsConfig,
        norm: Option<B::Vector>,
    ) -> Result<Experts<B>, LoadError> {
        let (hidden, width) = (self.config.hidden_size, shape.intermediate_size);
        let router = format!("{folder}.gate.weight");
        self.refuse_unapplied(&format!("{folder}.gate.bias"))?;
        let all = |parts: &[&str], sides: [usize; 2]| {
            let own = |expert: usize| {
                parts.iter().map(move |part| {
                    let name = format!("{folder}.experts.{expert}.{part}");
                    self.refuse_unapplied(&format!("{name}.bias"))?;
                    Ok(self.weights.load(&format!("{name}.weight"), &sides)?)
                })
            };
            let weights = (0..shape.experts).flat_map(own);
            let weights = weights.collect::<Result<Vec<TensorData>, LoadError>>()?;
            let (out, inner) = (parts.len() * sides[0], sides[1]);
            let weight = self
                .backend
                .expert_weight(weights, shape.experts, [out, inner]);
            weight.map_err(|source| LoadError::Backend {
                tensor: format!("{folder}.experts.*.{}.weight", parts.join("+")),
                source,
            })
        };
        Ok(Experts {
            shape,
            router: self.weight(&router, shape.experts, hidden)?,
            gate_up: all(&["gate_proj", "up_proj"], [width, hidden])?,
            down: all(&["down_proj"], [hidden, width])?,
            norm,
        })
    }
}
