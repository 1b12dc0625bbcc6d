//! Weights of attention and of recurrent layers.

use crate::backend::{Backend, RecurrentLayer, TensorData};
use crate::model::LayerConfig;
use crate::model::tensors::{Projections, recurrent_tensors};

use super::super::{Attention, Projection, Recurrent};
use super::{LoadError, Loader};

impl<B: Backend> Loader<'_, B> {
    /// Attention of one layer, whose tensors are named below `folder`.
    pub(super) fn attention(
        &self,
        folder: &str,
        layer: &LayerConfig,
    ) -> Result<Attention<B>, LoadError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let Projections { heads, .. } = Projections::new(config, layer);
        let norms = self.head_norms(folder, layer)?;
        if !config.attention_gate {
            return Ok(Attention {
                heads: self.projection(folder, &heads, hidden, config.qkv_bias)?,
                norms,
                gate: None,
            });
        }
        let mut weights = Vec::new();
        for (part, out) in &heads {
            self.refuse_unapplied(&format!("{folder}.{part}.bias"))?;
            let name = format!("{folder}.{part}.weight");
            weights.push(self.weights.load(&name, &[*out, hidden])?);
        }
        let (queries, gate) = halves(weights.remove(0), layer.head_dim * hidden);
        weights.insert(0, queries);
        let out = layer.q_width() + 2 * layer.kv_width();
        let name = format!("{folder}.q_proj.weight");
        let gate = self.backend.weight(gate, layer.q_width(), hidden);
        let gate = gate.map_err(|source| LoadError::Backend {
            tensor: name,
            source,
        })?;
        let name = format!("{folder}.q_proj+k_proj+v_proj.weight");
        Ok(Attention {
            heads: Projection {
                weight: self.fused(&name, weights, out)?,
                bias: None,
            },
            norms,
            gate: Some(gate),
        })
    }

    /// A recurrent layer, whose tensors are named below `folder`.
    pub(super) fn recurrent(
        &self,
        folder: &str,
        shape: &RecurrentLayer,
    ) -> Result<Recurrent<B>, LoadError> {
        let name = |part: &str| format!("{folder}.{part}");
        let tensors = recurrent_tensors(shape, self.config.hidden_size);
        let load = |part: &str| {
            let named = tensors.iter().find(|(own, _)| *own == part);
            let sides = named.map_or(&[][..], |(_, sides)| sides.as_slice());
            self.weights.load(&name(part), sides)
        };
        let vector = |part: &str, data: Vec<f32>| {
            let vector = self.backend.vector(TensorData::F32(data));
            vector.map_err(|source| LoadError::Backend {
                tensor: name(part),
                source,
            })
        };
        self.refuse_unapplied(&name("conv1d.bias"))?;
        let inputs = [
            "in_proj_qkv.weight",
            "in_proj_z.weight",
            "in_proj_b.weight",
            "in_proj_a.weight",
        ];
        let inputs = inputs.into_iter().map(load).collect::<Result<_, _>>()?;
        let factors = load("conv1d.weight")?.into_f32();
        let decay = load("A_log")?.into_f32().into_iter();
        let decay = decay.map(|log| -(f64::from(log).exp() as f32));
        Ok(Recurrent {
            input: self.fused(&name("in_proj_qkv+z+b+a.weight"), inputs, shape.projected())?,
            convolution: vector("conv1d.weight", by_tap(&factors, shape.kernel))?,
            decay: vector("A_log", decay.collect())?,
            step_bias: vector("dt_bias", load("dt_bias")?.into_f32())?,
            // Unlike norms over the residual stream, this one is stored whole.
            norm: vector("norm.weight", load("norm.weight")?.into_f32())?,
        })
    }

    /// Weights that read the residual stream, as one of `out` rows.
    fn fused(
        &self,
        name: &str,
        parts: Vec<TensorData>,
        out: usize,
    ) -> Result<B::Weight, LoadError> {
        let weight = self
            .backend
            .fused_weight(parts, out, self.config.hidden_size);
        weight.map_err(|source| LoadError::Backend {
            tensor: name.to_owned(),
            source,
        })
    }
}

/// Pieces of `size` elements by turns: the first, third and so on, and the others.
fn halves(data: TensorData, size: usize) -> (TensorData, TensorData) {
    fn split<T: Copy>(data: &[T], size: usize) -> (Vec<T>, Vec<T>) {
        let piece = |odd: usize| {
            let pieces = data.chunks(size).skip(odd).step_by(2);
            pieces.flatten().copied().collect()
        };
        (piece(0), piece(1))
    }
    match data {
        TensorData::F32(data) => {
            let (first, second) = split(&data, size);
            (TensorData::F32(first), TensorData::F32(second))
        }
        TensorData::F16(data) => {
            let (first, second) = split(&data, size);
            (TensorData::F16(first), TensorData::F16(second))
        }
        TensorData::Bf16(data) => {
            let (first, second) = split(&data, size);
            (TensorData::Bf16(first), TensorData::Bf16(second))
        }
    }
}

/// `[channels, kernel]` as `[kernel, channels]`.
fn by_tap(factors: &[f32], kernel: usize) -> Vec<f32> {
    let tap = |tap: usize| factors.iter().skip(tap).step_by(kernel).copied();
    (0..kernel).flat_map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_their_gates_are_told_apart() {
        let data = TensorData::F32((0..12).map(|x| x as f32).collect());
        let (queries, gates) = halves(data, 3);
        assert_eq!(queries.into_f32(), [0.0, 1.0, 2.0, 6.0, 7.0, 8.0]);
        assert_eq!(gates.into_f32(), [3.0, 4.0, 5.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn factors_are_sorted_by_tap() {
        let factors = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
        assert_eq!(by_tap(&factors, 3), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
    }
}
