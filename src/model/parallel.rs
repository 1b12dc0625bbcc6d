//! Conversions of whole tensors, spread over threads.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::backend::TensorData;

/// Elements converted by one thread at a time.
const CHUNK: usize = 1 << 16;

/// Reads little-endian values of `SIZE` bytes; `bytes` is a whole number of them.
pub(crate) fn read_le<const SIZE: usize, T: Copy + Default + Send + Sync>(
    bytes: &[u8],
    convert: impl Fn([u8; SIZE]) -> T + Sync,
) -> Vec<T> {
    let mut out = vec![T::default(); bytes.len() / SIZE];
    out.par_chunks_mut(CHUNK)
        .zip(bytes.par_chunks(CHUNK * SIZE))
        .for_each(|(values, bytes)| {
            for (value, raw) in values.iter_mut().zip(bytes.as_chunks::<SIZE>().0) {
                *value = convert(*raw);
            }
        });
    out
}

/// Little-endian 32-bit floats.
pub(crate) fn read_f32(bytes: &[u8]) -> TensorData {
    TensorData::F32(read_le(bytes, f32::from_le_bytes))
}

/// Little-endian IEEE halves.
pub(crate) fn read_f16(bytes: &[u8]) -> TensorData {
    TensorData::F16(read_le(bytes, f16::from_le_bytes))
}

/// Little-endian bfloat16.
pub(crate) fn read_bf16(bytes: &[u8]) -> TensorData {
    TensorData::Bf16(read_le(bytes, bf16::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        let read = read_bf16(&[0x80, 0x3f, 0x00, 0xc0]);
        let expected = vec![bf16::from_f32(1.0), bf16::from_f32(-2.0)];
        assert_eq!(read, TensorData::Bf16(expected));
    }
}
