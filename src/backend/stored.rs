//! Weights as files hold them, and what their bytes stand for; work is spread over threads.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{Backend, BackendError, Codes, NumberType, TensorData};

/// Elements converted by one thread at a time.
const CHUNK: usize = 1 << 16;

/// Numbers as a file holds them: little-endian, row-major, one after another. Whether they are finite is
/// open.
#[derive(Clone, Copy, Debug)]
pub struct StoredNumbers<'a> {
    /// Their type.
    pub numbers: NumberType,
    /// A whole number of them.
    pub bytes: &'a [u8],
}

impl StoredNumbers<'_> {
    /// The numbers.
    pub fn read(&self) -> TensorData {
        match self.numbers {
            NumberType::F32 => TensorData::F32(read_le(self.bytes, f32::from_le_bytes)),
            NumberType::F16 => TensorData::F16(read_le(self.bytes, f16::from_le_bytes)),
            NumberType::Bf16 => TensorData::Bf16(read_le(self.bytes, bf16::from_le_bytes)),
        }
    }

    /// Whether all of a piece of `bytes`, a whole number of numbers of this type, are finite.
    pub fn are_finite(numbers: NumberType, bytes: &[u8]) -> bool {
        fn all<const SIZE: usize>(bytes: &[u8], is_finite: impl Fn([u8; SIZE]) -> bool) -> bool {
            // Without a branch per number, a compiler takes many at a time.
            let raw = bytes.as_chunks::<SIZE>().0.iter();
            raw.fold(true, |all, raw| all & is_finite(*raw))
        }
        match numbers {
            NumberType::F32 => all(bytes, |raw| f32::from_le_bytes(raw).is_finite()),
            NumberType::F16 => all(bytes, |raw| u16::from_le_bytes(raw) & 0x7c00 != 0x7c00),
            NumberType::Bf16 => all(bytes, |raw| u16::from_le_bytes(raw) & 0x7f80 != 0x7f80),
        }
    }
}

/// Weights as a checkpoint stores them.
pub enum StoredParts<'a> {
    /// As numbers.
    Numbers(Vec<StoredNumbers<'a>>),
    /// As codes.
    Codes(Vec<Codes<'a>>),
}

impl StoredParts<'_> {
    /// The numbers of every part.
    pub fn read(&self) -> Vec<TensorData> {
        match self {
            StoredParts::Numbers(parts) => parts.iter().map(StoredNumbers::read).collect(),
            StoredParts::Codes(parts) => parts.iter().map(Codes::decode).collect(),
        }
    }
}

/// [`Backend::stored_weight`] by way of the numbers on the host.
pub(super) fn weight<B: Backend>(
    backend: &B,
    parts: &StoredParts<'_>,
    out: usize,
    inner: usize,
) -> Result<Option<B::Weight>, BackendError> {
    let parts = parts.read();
    if parts.iter().any(|part| part.first_non_finite().is_some()) {
        return Ok(None);
    }
    backend.fused_weight(parts, out, inner).map(Some)
}

/// Reads little-endian values of `SIZE` bytes; `bytes` is a whole number of them.
fn read_le<const SIZE: usize, T: Copy + Default + Send + Sync>(
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        let numbers = NumberType::Bf16;
        let bytes = &[0x80, 0x3f, 0x00, 0xc0];
        let expected = vec![bf16::from_f32(1.0), bf16::from_f32(-2.0)];
        let read = StoredNumbers { numbers, bytes }.read();
        assert_eq!(read, TensorData::Bf16(expected));
    }

    proptest! {
        /// Numbers are finite exactly where the type says so, whatever their bits.
        #[test]
        fn finite_numbers_are_told_from_others(words in proptest::collection::vec(any::<u32>(), 0..40)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for numbers in [NumberType::F32, NumberType::F16, NumberType::Bf16] {
                let read = StoredNumbers { numbers, bytes: &bytes }.read();
                let found = StoredNumbers::are_finite(numbers, &bytes);
                prop_assert_eq!(found, read.first_non_finite().is_none());
            }
        }
    }

    #[test]
    fn every_half_is_told_apart() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            let found = [NumberType::F16, NumberType::Bf16]
                .map(|numbers| StoredNumbers::are_finite(numbers, &bytes));
            let expected = [
                f16::from_bits(bits).is_finite(),
                bf16::from_bits(bits).is_finite(),
            ];
            assert_eq!(found, expected, "{bits:#06x}");
        }
    }
}
