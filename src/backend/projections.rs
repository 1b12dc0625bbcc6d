//! Projections whose outputs stand side by side, and what is computed from them: every operation
//! as the sequence of simpler ones that it stands for.

use super::{Activation, Backend, BackendError, CacheRow, RotaryTable, TensorData};

/// A layer's projection to queries, keys and values with what happens to their head vectors.
pub struct HeadProjection<'a, B: Backend> {
    /// `[(heads + 2 * kv_heads) * head_dim, inner]`: the rows of queries, keys and values; without
    /// those of values where keys are values.
    pub weight: &'a B::Weight,
    /// As many elements as the weight has rows.
    pub bias: Option<&'a B::Vector>,
    /// Norms over head vectors.
    pub norms: Option<HeadNormWeights<'a, B>>,
    /// Values are what the projection to keys gives, before norm and rotation.
    pub keys_are_values: bool,
    /// Rotate query and key head vectors.
    pub rotary: [&'a RotaryTable; 2],
}

/// Norms over head vectors, `[head_dim]`.
pub struct HeadNormWeights<'a, B: Backend> {
    /// Of queries.
    pub q: &'a B::Vector,
    /// Of keys.
    pub k: &'a B::Vector,
    /// Of values.
    pub v: Option<&'a B::Vector>,
    /// Epsilon of all.
    pub eps: f32,
}

impl<B: Backend> HeadProjection<'_, B> {
    /// Elements of a token's keys, and of its values, where a token is projected to `packed`
    /// elements of which `queries` are its queries'.
    pub fn kv_width(&self, packed: usize, queries: usize) -> usize {
        (packed - queries) / if self.keys_are_values { 1 } else { 2 }
    }
}

/// A projection to gate and up.
pub struct GateProjection<'a, B: Backend> {
    /// `[2 * intermediate_size, inner]`: the rows of gate and up.
    pub weight: &'a B::Weight,
    /// As many elements as the weight has rows.
    pub bias: Option<&'a B::Vector>,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Where the keys and values of a pass are stored.
pub struct Destination<'a, B: Backend> {
    /// Cache.
    pub cache: &'a mut B::Cache,
    /// Layer.
    pub layer: usize,
    /// Place of each row.
    pub rows: &'a [CacheRow],
}

/// [`Backend::project_heads`] by simpler operations.
///
/// # Errors
/// What they report.
pub fn project_heads<B: Backend>(
    backend: &B,
    x: &B::Tensor,
    heads: &HeadProjection<'_, B>,
    to: Destination<'_, B>,
    [packed, q, k, v]: [&mut B::Tensor; 4],
) -> Result<(), BackendError> {
    backend.matmul(x, heads.weight, heads.bias, packed)?;
    let (queries, keys) = (backend.width(q), backend.width(k));
    backend.columns(packed, 0, q)?;
    backend.columns(packed, queries, k)?;
    let first_value = if heads.keys_are_values {
        queries
    } else {
        queries + keys
    };
    backend.columns(packed, first_value, v)?;
    if let Some(norms) = &heads.norms {
        backend.rms_norm_heads(q, norms.q, norms.eps)?;
        backend.rms_norm_heads(k, norms.k, norms.eps)?;
        if let Some(norm) = norms.v {
            backend.rms_norm_heads(v, norm, norms.eps)?;
        }
    }
    let [q_table, k_table] = heads.rotary;
    backend.rotary(q, q_table, to.rows)?;
    backend.rotary(k, k_table, to.rows)?;
    backend.round_queries(to.cache, to.layer, q)?;
    backend.store(to.cache, to.layer, k, v, to.rows)
}

/// The elements of `parts`, one after another; where their types differ, as 32-bit floats, which
/// hold them all exactly.
pub fn concatenated(parts: Vec<TensorData>) -> TensorData {
    let mut parts = parts.into_iter();
    let Some(first) = parts.next() else {
        return TensorData::F32(Vec::new());
    };
    parts.fold(first, |all, part| match (all, part) {
        (TensorData::F32(all), TensorData::F32(part)) => TensorData::F32(joined(all, &part)),
        (TensorData::F16(all), TensorData::F16(part)) => TensorData::F16(joined(all, &part)),
        (TensorData::Bf16(all), TensorData::Bf16(part)) => TensorData::Bf16(joined(all, &part)),
        (all, part) => TensorData::F32(joined(all.into_f32(), &part.into_f32())),
    })
}

fn joined<T: Copy>(mut all: Vec<T>, part: &[T]) -> Vec<T> {
    all.extend_from_slice(part);
    all
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn parts_keep_their_type_where_it_is_one() {
        let f16s =
            |values: &[f32]| TensorData::F16(values.iter().copied().map(f16::from_f32).collect());
        assert_eq!(
            concatenated(vec![f16s(&[1.0]), f16s(&[2.0, 3.0])]),
            f16s(&[1.0, 2.0, 3.0])
        );
        let mixed = vec![f16s(&[0.1]), TensorData::Bf16(vec![bf16::from_f32(1e30)])];
        let expected = vec![f16::from_f32(0.1).to_f32(), bf16::from_f32(1e30).to_f32()];
        assert_eq!(concatenated(mixed), TensorData::F32(expected));
    }
}
