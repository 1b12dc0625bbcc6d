//! Activations of a forward pass, allocated once and resized.

use crate::backend::{Backend, BackendError, CacheRow};
use crate::model::rotary::RotaryTables;
use crate::model::{LayerConfig, ModelConfig};

/// Activations of a forward pass and rotary tables; widths are the model's, rows grow to the
/// largest pass seen.
pub struct Workspace<B: Backend> {
    /// Residual stream, `[rows, hidden_size]`.
    pub(super) x: B::Tensor,
    /// Normalised residual stream, likewise.
    pub(super) normed: B::Tensor,
    /// What is normed before it is added to the residual stream, likewise.
    pub(super) branch: B::Tensor,
    /// Head vectors, of every shape that layers have.
    pub(super) heads: Vec<HeadTensors<B>>,
    /// Which of them a layer with attention takes.
    pub(super) heads_of: Vec<usize>,
    /// Tensors of recurrent layers, of every shape that there is.
    pub(super) recurrent: Vec<RecurrentTensors<B>>,
    /// Which of them a recurrent layer takes.
    pub(super) recurrent_of: Vec<usize>,
    /// Tensors of gated MLPs.
    pub(super) dense: DenseTensors<B>,
    /// Tensors of mixtures of experts, of every number of experts that layers have.
    pub(super) experts: Vec<ExpertTensors<B>>,
    /// Which of them a layer with experts takes.
    pub(super) experts_of: Vec<usize>,
    /// `[wanted rows, vocab_size]`.
    pub(super) logits: B::Tensor,
    /// Angles up to the furthest position seen, of every rotary embedding and head width that
    /// layers have.
    pub(super) rotary: Vec<RotaryTables>,
    /// Which of them a layer with attention takes.
    pub(super) rotary_of: Vec<usize>,
    /// Rotary embedding of each of them.
    ropes: Vec<usize>,
}

/// Head vectors of one shape.
pub(super) struct HeadTensors<B: Backend> {
    /// Queries, keys and values side by side, `[rows, (heads + 2 * kv_heads) * head_dim]`; keys
    /// alone where values are computed from them.
    pub packed: B::Tensor,
    /// Queries, `[rows, heads * head_dim]`.
    pub q: B::Tensor,
    /// Attention output, `[rows, heads * head_dim]`.
    pub attended: B::Tensor,
    /// Its gate, likewise, where there is one.
    pub gate: Option<B::Tensor>,
}

/// Tensors of recurrent layers of one shape.
pub(super) struct RecurrentTensors<B: Backend> {
    /// Input projections side by side, `[rows, projected]`.
    pub packed: B::Tensor,
    /// Convolved queries, keys and values, `[rows, channels]`.
    pub convolved: B::Tensor,
    /// What the states give, `[rows, values]`.
    pub out: B::Tensor,
    /// Room for some rows of it.
    pub kept: B::Tensor,
}

/// Tensors of gated MLPs; without elements where no layer has one.
pub(super) struct DenseTensors<B: Backend> {
    /// Gate and up projection side by side, `[rows, 2 * intermediate_size]`.
    pub packed: B::Tensor,
    /// `activation(gate) * up`, `[rows, intermediate_size]`.
    pub activated: B::Tensor,
}

/// Tensors of mixtures of one number of experts.
pub(super) struct ExpertTensors<B: Backend> {
    /// `[rows, experts]`.
    pub logits: B::Tensor,
    /// Which experts rows go to, with the backend's own room.
    pub routes: B::Routes,
    /// What experts beside an MLP give, `[rows, hidden_size]`; without elements for others.
    pub mixed: B::Tensor,
}

/// The distinct values of `of` over all layers that have one, and which of them each layer has; 0
/// for the others.
fn distinct<T: PartialEq>(
    layers: &[LayerConfig],
    of: impl Fn(&LayerConfig) -> Option<T>,
) -> (Vec<T>, Vec<usize>) {
    let mut found: Vec<T> = Vec::new();
    let numbers = layers.iter().map(|layer| {
        let Some(value) = of(layer) else { return 0 };
        found
            .iter()
            .position(|one| *one == value)
            .unwrap_or_else(|| {
                found.push(value);
                found.len() - 1
            })
    });
    let numbers = numbers.collect();
    (found, numbers)
}

impl<B: Backend> Workspace<B> {
    /// Allocates for passes of one row; [`Workspace::prepare`] grows it.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn new(backend: &B, config: &ModelConfig) -> Result<Self, BackendError> {
        let tensor = |width: usize| backend.tensor(1, width);
        let attends = |layer: &LayerConfig| layer.recurrent.is_none();
        let widths = |layer: &LayerConfig| {
            attends(layer).then(|| (layer.q_width(), layer.projected_width()))
        };
        let (shapes, heads_of) = distinct(&config.layers, widths);
        let heads = shapes.into_iter().map(|(queries, projected)| {
            Ok(HeadTensors {
                packed: tensor(projected)?,
                q: tensor(queries)?,
                attended: tensor(queries)?,
                gate: config.attention_gate.then(|| tensor(queries)).transpose()?,
            })
        });
        let (states, recurrent_of) = distinct(&config.layers, |layer| layer.recurrent);
        let recurrent = states.into_iter().map(|shape| {
            Ok(RecurrentTensors {
                packed: tensor(shape.projected())?,
                convolved: tensor(shape.channels())?,
                out: tensor(shape.values())?,
                kept: tensor(shape.values())?,
            })
        });
        let counts = |layer: &LayerConfig| {
            let shape = layer.experts?;
            Some((shape.experts, shape.beside_mlp))
        };
        let (counts, experts_of) = distinct(&config.layers, counts);
        let experts = counts.into_iter().map(|(count, beside_mlp)| {
            let mixed = if beside_mlp { config.hidden_size } else { 0 };
            Ok(ExpertTensors {
                logits: tensor(count)?,
                routes: backend.routes(count)?,
                mixed: tensor(mixed)?,
            })
        });
        let dense = config.dense_width();
        let angles = |layer: &LayerConfig| attends(layer).then_some((layer.rope, layer.head_dim));
        let (tables, rotary_of) = distinct(&config.layers, angles);
        let empty =
            |&(rope, head_dim): &(usize, usize)| RotaryTables::new(&config.ropes[rope], head_dim);
        Ok(Workspace {
            x: tensor(config.hidden_size)?,
            normed: tensor(config.hidden_size)?,
            branch: tensor(config.hidden_size)?,
            heads: heads.collect::<Result<_, BackendError>>()?,
            heads_of,
            recurrent: recurrent.collect::<Result<_, BackendError>>()?,
            recurrent_of,
            dense: DenseTensors {
                packed: tensor(2 * dense)?,
                activated: tensor(dense)?,
            },
            experts: experts.collect::<Result<_, BackendError>>()?,
            experts_of,
            logits: tensor(config.vocab_size)?,
            rotary: tables.iter().map(empty).collect(),
            rotary_of,
            ropes: tables.iter().map(|(rope, _)| *rope).collect(),
        })
    }

    /// Makes room for a pass over `rows`.
    pub(super) fn prepare(
        &mut self,
        backend: &B,
        config: &ModelConfig,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let furthest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        for (tables, &rope) in self.rotary.iter_mut().zip(&self.ropes) {
            if tables.positions() <= furthest {
                // Doubling keeps the number of extensions small.
                let positions = (furthest + 1).next_power_of_two().min(config.context);
                tables.extend(&config.ropes[rope], positions.max(furthest + 1));
            }
        }
        backend.resize(&mut self.x, rows.len())?;
        for heads in &mut self.heads {
            backend.resize(&mut heads.packed, rows.len())?;
            backend.resize(&mut heads.q, rows.len())?;
            backend.resize(&mut heads.attended, rows.len())?;
            if let Some(gate) = &mut heads.gate {
                backend.resize(gate, rows.len())?;
            }
        }
        for tensors in &mut self.recurrent {
            let all = [
                &mut tensors.packed,
                &mut tensors.convolved,
                &mut tensors.out,
            ];
            for tensor in all {
                backend.resize(tensor, rows.len())?;
            }
        }
        self.resize_inner(backend, config, rows.len())
    }

    /// Drops every row that is not wanted of the residual stream and of what layer number `layer`
    /// goes on with.
    pub(super) fn narrow(
        &mut self,
        backend: &B,
        config: &ModelConfig,
        layer: usize,
        wanted: &[usize],
    ) -> Result<(), BackendError> {
        let keep = |tensor: &mut B::Tensor, room: &mut B::Tensor| {
            backend.resize(room, wanted.len())?;
            backend.gather(tensor, wanted, room)?;
            std::mem::swap(tensor, room);
            Ok(())
        };
        // What is computed from either stands free until then, and is as wide.
        keep(&mut self.x, &mut self.normed)?;
        if config.layers[layer].recurrent.is_some() {
            let tensors = &mut self.recurrent[self.recurrent_of[layer]];
            keep(&mut tensors.out, &mut tensors.kept)?;
        } else {
            let heads = &mut self.heads[self.heads_of[layer]];
            keep(&mut heads.q, &mut heads.attended)?;
            if let Some(gate) = &mut heads.gate {
                keep(gate, &mut heads.attended)?;
            }
            backend.resize(&mut heads.attended, wanted.len())?;
        }
        self.resize_inner(backend, config, wanted.len())
    }

    /// Sets the rows of everything that is computed from attention and the residual stream.
    fn resize_inner(
        &mut self,
        backend: &B,
        config: &ModelConfig,
        rows: usize,
    ) -> Result<(), BackendError> {
        let dense = &mut self.dense;
        let inner = [&mut self.normed, &mut dense.packed, &mut dense.activated];
        let of_experts = self.experts.iter_mut();
        let of_experts = of_experts.flat_map(|room| [&mut room.logits, &mut room.mixed]);
        for tensor in inner.into_iter().chain(of_experts) {
            backend.resize(tensor, rows)?;
        }
        if config.output_norms {
            backend.resize(&mut self.branch, rows)?;
        }
        Ok(())
    }
}
