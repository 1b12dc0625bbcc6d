//! Seeded random weights of any shape: for speed without model files.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use rayon::prelude::*;

use crate::backend::{NumberType, StoredNumbers, TensorData};
use crate::recipe::NativeDtype;
use crate::schema::FileDigest;

use super::tensors::expected;
use super::{ModelConfig, ModelError, WeightSource};

/// Elements of a block, of which tensors are pieced together.
const BLOCK: usize = 1 << 22;
/// Bytes of a number.
const NUMBER_BYTES: usize = 2;
/// Bytes of a file beside its largest matrix.
const MOST_BYTES: usize = 2 << 30;
/// Elements from one tensor's place in its block to the next one's.
const STEP: usize = 7919;
/// Such steps that a block has room for.
const STEPS: usize = BLOCK / STEP;

/// Weights drawn from a counter, uniform in `±1 / sqrt(inner)`, which keeps activations near 1;
/// norms are 1 and biases 0. Every tensor starts elsewhere in a block of noise.
pub struct NoiseWeights {
    native: NativeDtype,
    /// As files would hold them, by inner size.
    files: BTreeMap<usize, Vec<u8>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<usize, Block>,
    /// Where matrices begin, in elements from the first one of an endlessly repeated block.
    starts: BTreeMap<String, usize>,
    /// Where the next one begins in the file of its inner size.
    next: BTreeMap<usize, usize>,
    spent: Duration,
}

#[derive(Clone)]
enum Block {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl NoiseWeights {
    /// Weights in a 16-bit format.
    pub fn new(native: NativeDtype) -> Self {
        NoiseWeights {
            native,
            files: BTreeMap::new(),
            state: Mutex::default(),
        }
    }

    /// Weights of a model as files in memory hold them, from where they are taken as those of real
    /// checkpoints are: one after another, and anew from the start of a file of [`MOST_BYTES`] and its
    /// largest matrix. Caches of the host hold less.
    pub fn of_files(config: &ModelConfig) -> Self {
        Self::in_files(config, MOST_BYTES)
    }

    fn in_files(config: &ModelConfig, most_bytes: usize) -> Self {
        // Elements of all matrices, and of the largest one.
        let mut sizes: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for shape in expected(config).into_values() {
            if let [out, inner] = shape[..] {
                let (all, largest) = sizes.entry(inner).or_default();
                *all += out * inner + STEP;
                *largest = (*largest).max(out * inner);
            }
        }
        let native = config.native_dtype;
        let file = |(inner, (all, largest)): (usize, (usize, usize))| {
            let block = Block::new(native, inner).bytes();
            let elements = all.min(largest + STEP + most_bytes / NUMBER_BYTES);
            let mut bytes = vec![0; elements * NUMBER_BYTES];
            bytes
                .par_chunks_mut(block.len())
                .for_each(|piece| piece.copy_from_slice(&block[..piece.len()]));
            (inner, bytes)
        };
        NoiseWeights {
            files: sizes.into_iter().map(file).collect(),
            ..NoiseWeights::new(native)
        }
    }

    /// Where a matrix begins, in elements: always the same place.
    fn start(&self, state: &mut State, name: &str, [out, inner]: [usize; 2]) -> usize {
        if let Some(start) = state.starts.get(name) {
            return *start;
        }
        // Matrices are whole numbers of blocks, some of them: behind a step each begins elsewhere in one.
        let number = state.starts.len() + 1;
        let start = match self.files.get(&inner) {
            None => number * STEP,
            Some(file) => {
                let elements = file.len() / NUMBER_BYTES;
                let next = state.next.get(&inner).copied().unwrap_or_default();
                let fits = next + out * inner <= elements;
                let start = if fits { next } else { number % STEPS * STEP };
                let start = start.min(elements.saturating_sub(out * inner));
                state.next.insert(inner, start + out * inner + STEP);
                start
            }
        };
        state.starts.insert(name.to_owned(), start);
        start
    }

    /// Time that making weights took so far, which real ones do not take.
    pub fn spent(&self) -> Duration {
        self.lock().spent
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Block {
    fn new(native: NativeDtype, inner: usize) -> Self {
        let gain = 1.0 / (inner.max(1) as f32).sqrt();
        let numbers = (0..BLOCK as u32).into_par_iter().map(|i| uniform(i) * gain);
        match native {
            NativeDtype::F16 => Block::F16(numbers.map(f16::from_f32).collect()),
            NativeDtype::Bf16 => Block::Bf16(numbers.map(bf16::from_f32).collect()),
        }
    }

    /// The numbers, little-endian.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Block::F16(block) => block.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Block::Bf16(block) => block.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    fn tensor(&self, start: usize, count: usize) -> TensorData {
        match self {
            Block::F16(block) => TensorData::F16(pieces(block, start, count)),
            Block::Bf16(block) => TensorData::Bf16(pieces(block, start, count)),
        }
    }
}

/// A number in -1..1 from a counter.
fn uniform(i: u32) -> f32 {
    let bits = (i ^ (i >> 13)).wrapping_mul(0x9e37_79b1);
    ((bits ^ (bits >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// `count` elements of the endlessly repeated block from `start` on.
fn pieces<T: Copy + Default + Send + Sync>(block: &[T], start: usize, count: usize) -> Vec<T> {
    let mut data = vec![T::default(); count];
    data.par_chunks_mut(block.len()).for_each(|piece| {
        let (head, tail) = block.split_at(start % block.len());
        let first = piece.len().min(tail.len());
        let (to_tail, to_head) = piece.split_at_mut(first);
        to_tail.copy_from_slice(&tail[..first]);
        to_head.copy_from_slice(&head[..to_head.len()]);
    });
    data
}

impl WeightSource for NoiseWeights {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let began = Instant::now();
        let count: usize = shape.iter().product();
        let mut state = self.lock();
        let data = match shape {
            [width] if name.ends_with(".bias") => TensorData::F32(vec![0.0; *width]),
            [width] => TensorData::F32(vec![1.0; *width]),
            _ => {
                let inner = shape.last().copied().unwrap_or(1);
                let start = self.start(&mut state, name, [count / inner.max(1), inner]);
                let block = state
                    .blocks
                    .entry(inner)
                    .or_insert_with(|| Block::new(self.native, inner));
                block.tensor(start, count)
            }
        };
        state.spent += began.elapsed();
        Ok(data)
    }

    fn numbers(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<StoredNumbers<'_>>, ModelError> {
        let &[out, inner] = shape else {
            return Ok(None);
        };
        let Some(file) = self.files.get(&inner) else {
            return Ok(None);
        };
        let first = self.start(&mut self.lock(), name, [out, inner]) * NUMBER_BYTES;
        let bytes = file.get(first..first + out * inner * NUMBER_BYTES);
        Ok(bytes.map(|bytes| StoredNumbers {
            numbers: match self.native {
                NativeDtype::F16 => NumberType::F16,
                NativeDtype::Bf16 => NumberType::Bf16,
            },
            bytes,
        }))
    }

    fn contains(&self, _: &str) -> bool {
        false
    }

    fn files(&self) -> &[FileDigest] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DemoModel, ModelSource};

    #[test]
    fn weights_are_seeded_spread_and_small() {
        let load = |source: &NoiseWeights| source.load("a.weight", &[300, 64]).unwrap();
        let first = load(&NoiseWeights::new(NativeDtype::F16));
        assert_eq!(first, load(&NoiseWeights::new(NativeDtype::F16)));
        let TensorData::F16(values) = &first else {
            panic!("expected halves");
        };
        assert_eq!(values.len(), 300 * 64);
        let values: Vec<f32> = values.iter().map(|x| x.to_f32()).collect();
        let largest = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest > 0.124 && largest <= 0.125, "{largest}");
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.003, "{mean}");
    }

    #[test]
    fn tensors_differ_and_reach_beyond_a_block() {
        let source = NoiseWeights::new(NativeDtype::Bf16);
        let load = |name| source.load(name, &[2 * BLOCK + 5, 1]).unwrap();
        let [a, b] = ["a.weight", "b.weight"].map(load);
        assert_eq!(a, load("a.weight"));
        assert_eq!(a.len(), 2 * BLOCK + 5);
        assert_ne!(a, b);
        let TensorData::Bf16(a) = a else {
            panic!("expected bfloat16");
        };
        assert_eq!(a[0], a[BLOCK]);
        assert_eq!(a[0].to_f32(), bf16::from_f32(uniform(STEP as u32)).to_f32());
        assert_eq!(a[BLOCK - 1], a[2 * BLOCK - 1]);
    }

    #[test]
    fn files_hold_the_numbers_that_are_loaded() {
        let demo = ModelSource::Demo(DemoModel::Tolerant).open().unwrap();
        let mut config = demo.config;
        // More than three blocks.
        config.vocab_size = 3 * BLOCK / config.hidden_size + 7;
        for most_bytes in [0, 1 << 20, MOST_BYTES] {
            let source = NoiseWeights::in_files(&config, most_bytes);
            let mut starts = Vec::new();
            for (name, shape) in expected(&config) {
                let numbers = source.numbers(&name, &shape).unwrap();
                assert_eq!(numbers.is_some(), shape.len() == 2, "{name}");
                if let Some(numbers) = numbers {
                    let loaded = source.load(&name, &shape).unwrap();
                    assert!(numbers.read() == loaded, "{name} of {most_bytes}");
                    starts.push(numbers.bytes.as_ptr() as usize);
                }
            }
            assert!(starts.len() > 10, "{}", starts.len());
            if most_bytes == MOST_BYTES {
                starts.sort_unstable();
                assert!(starts.is_sorted_by(|a, b| a < b), "one after another");
            }
        }
    }
}
