//! Weights of gated MLPs and of mixtures of experts.

use crate::backend::{Backend, BackendError, ExpertParts};
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
            let mut weights = Vec::new();
            for expert in 0..shape.experts {
                for part in parts {
                    let name = format!("{folder}.experts.{expert}.{part}");
                    self.refuse_unapplied(&format!("{name}.bias"))?;
                    weights.push((format!("{name}.weight"), sides[0]));
                }
            }
            let name = format!("{folder}.experts.*.{}.weight", parts.join("+"));
            let shape = (shape.experts, [parts.len() * sides[0], sides[1]]);
            self.expert_weight(&name, &weights, shape)
        };
        Ok(Experts {
            shape,
            router: self.weight(&router, shape.experts, hidden)?,
            gate_up: all(&["gate_proj", "up_proj"], [width, hidden])?,
            down: all(&["down_proj"], [hidden, width])?,
            norm,
        })
    }

    /// Weights of all experts, named and sized by `weights`, as one; `name` is for messages.
    fn expert_weight(
        &self,
        name: &str,
        weights: &[(String, usize)],
        (experts, shape): (usize, [usize; 2]),
    ) -> Result<B::Weight, LoadError> {
        let take_over = |parts: ExpertParts<'_>| {
            let weight = self.backend.expert_weight(parts, experts, shape);
            weight.map_err(|source| LoadError::Backend {
                tensor: name.to_owned(),
                source,
            })
        };
        let inner = shape[1];
        if let Some(codes) = self.codes(weights, inner)?
            && let Some(weight) = take_over(ExpertParts::Codes(&codes))?
        {
            return Ok(weight);
        }
        let load = |(name, out): &(String, usize)| self.weights.load(name, &[*out, inner]);
        let numbers = weights.iter().map(load).collect::<Result<_, _>>()?;
        let weight = take_over(ExpertParts::Numbers(numbers))?;
        weight.ok_or_else(|| LoadError::Backend {
            tensor: name.to_owned(),
            source: BackendError::Device("numbers that were not taken over".to_owned()),
        })
    }
}
