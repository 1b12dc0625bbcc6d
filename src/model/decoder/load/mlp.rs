//! Weights of gated MLPs and of mixtures of experts.

use crate::backend::{Backend, BackendError, ExpertParts, TensorData};
use crate::model::tensors::{ExpertNames, Norms, Projections, beside};
use crate::model::{ExpertsConfig, LayerConfig};

use super::super::Output;
use super::super::mlp::{Both, Dense, Experts, Mlp};
use super::{LoadError, Loader};

impl<B: Backend> Loader<'_, B> {
    /// The MLP of layer number `index`.
    pub(super) fn mlp(&self, index: usize, layer: &LayerConfig) -> Result<Mlp<B>, LoadError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = Norms::new(config).mlp_output;
        let norm = norm
            .map(|part| self.norm(&name(part), hidden))
            .transpose()?;
        let folder = name("mlp");
        let experts = match layer.experts {
            Some(shape) if !shape.beside_mlp && norm.is_none() => {
                return Ok(Mlp::Experts(self.experts(index, shape)?));
            }
            Some(shape) if !shape.beside_mlp => {
                let what = "an output norm of experts that have no MLP beside them";
                return Err(self.unsupported(what.to_owned()));
            }
            beside => beside,
        };
        let Projections { gate_up, .. } = Projections::new(config, layer);
        let part = |parts: &[(&str, usize)], inner| {
            self.projection(&folder, parts, inner, config.mlp_bias)
        };
        let (inner, outer) = match experts {
            None => (norm, None),
            Some(_) => (None, norm),
        };
        let dense = Dense {
            gate_up: part(&gate_up, hidden)?,
            down: Output {
                projection: part(&[("down_proj", hidden)], config.intermediate_size)?,
                norm: inner,
            },
        };
        let Some(shape) = experts else {
            return Ok(Mlp::Dense(dense));
        };
        let what = || self.unsupported("experts beside an MLP without output norms".to_owned());
        let both = self.both(index, dense, (shape, outer.ok_or_else(what)?))?;
        Ok(Mlp::Both(Box::new(both)))
    }

    /// An MLP and experts beside it.
    fn both(
        &self,
        index: usize,
        mlp: Dense<B>,
        (shape, output): (ExpertsConfig, B::Vector),
    ) -> Result<Both<B>, LoadError> {
        let hidden = self.config.hidden_size;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        // What its input is normed to, one factor after the other.
        let root = 1.0 / (hidden as f32).sqrt();
        let scale = name(beside::ROUTER_SCALE);
        let scaled = self.weights.load(&scale, &[hidden])?.into_f32().into_iter();
        let scaled = scaled.map(|x| x * root).collect();
        let scales = name(beside::EXPERT_SCALES);
        let of_experts = self.weights.load(&scales, &[shape.experts])?;
        let vector = |tensor: String, data: TensorData| {
            let vector = self.backend.vector(data);
            vector.map_err(|source| LoadError::Backend { tensor, source })
        };
        let norm = |part: &str| self.norm(&name(part), hidden);
        Ok(Both {
            mlp,
            mlp_output: norm(beside::MLP_OUTPUT)?,
            router_norm: vector(scale, TensorData::F32(scaled))?,
            expert_norm: norm(beside::EXPERT_NORM)?,
            expert_output: norm(beside::EXPERT_OUTPUT)?,
            scales: vector(scales, of_experts)?,
            experts: self.experts(index, shape)?,
            output,
        })
    }

    /// The experts of layer number `index`.
    fn experts(&self, index: usize, shape: ExpertsConfig) -> Result<Experts<B>, LoadError> {
        let (hidden, width) = (self.config.hidden_size, shape.intermediate_size);
        let names = ExpertNames::new(shape);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let (router, folder) = (name(names.router), &name(names.folder));
        self.refuse_unapplied(&format!("{router}.bias"))?;
        let all = |parts: &[&str], sides: [usize; 2]| {
            let mut weights = Vec::new();
            for expert in 0..shape.experts {
                for part in parts {
                    let name = format!("{folder}.{expert}.{part}");
                    self.refuse_unapplied(&format!("{name}.bias"))?;
                    weights.push((format!("{name}.weight"), sides[0]));
                }
            }
            let name = format!("{folder}.*.{}.weight", parts.join("+"));
            let shape = (shape.experts, [parts.len() * sides[0], sides[1]]);
            self.expert_weight(&name, &weights, shape)
        };
        Ok(Experts {
            shape,
            router: self.weight(&format!("{router}.weight"), shape.experts, hidden)?,
            gate_up: all(&["gate_proj", "up_proj"], [width, hidden])?,
            down: all(&["down_proj"], [hidden, width])?,
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
        let taken = match self.stored(weights, inner)? {
            Some(parts) => take_over(ExpertParts::Stored(&parts))?,
            None => None,
        };
        if let Some(weight) = taken {
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
