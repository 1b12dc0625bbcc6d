//! Weights as a file stores them: to the bit what their numbers give.

use half::{bf16, f16};

use super::{Suite, noise};
use crate::backend::{Backend, NumberType, StoredNumbers, StoredParts};

/// Outputs of two parts, and inputs; rows of neither end at multiples of anything.
const PARTS: [usize; 2] = [144, 75];
const INNER: usize = 88;
const TYPES: [NumberType; 3] = [NumberType::F32, NumberType::F16, NumberType::Bf16];

fn bytes(numbers: NumberType, count: usize, seed: u64) -> Vec<u8> {
    let noise = noise(seed, count).into_iter();
    match numbers {
        NumberType::F32 => noise.flat_map(f32::to_le_bytes).collect(),
        NumberType::F16 => noise.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        NumberType::Bf16 => noise
            .flat_map(|x| bf16::from_f32(x).to_le_bytes())
            .collect(),
    }
}

/// A number that is not finite.
fn broken(numbers: NumberType) -> Vec<u8> {
    match numbers {
        NumberType::F32 => f32::NEG_INFINITY.to_le_bytes().to_vec(),
        NumberType::F16 => f16::NAN.to_le_bytes().to_vec(),
        NumberType::Bf16 => bf16::INFINITY.to_le_bytes().to_vec(),
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn stored(&self) {
        let rows: usize = PARTS.iter().sum();
        for (seed, numbers) in (170..).step_by(2).zip(TYPES) {
            // Files align nothing: every part begins at an odd byte.
            let of_part = |(seed, outputs): (u64, usize)| {
                [&[0][..], &bytes(numbers, outputs * INNER, seed)].concat()
            };
            let mut files = [0, 1].map(|at| of_part((seed + at as u64, PARTS[at])));
            let weight = |files: &[Vec<u8>; 2]| {
                let parts = files.each_ref().map(|file| StoredNumbers {
                    numbers,
                    bytes: &file[1..],
                });
                let expected: Vec<f32> = parts
                    .iter()
                    .flat_map(|part| part.read().into_f32())
                    .collect();
                let parts = StoredParts::Numbers(parts.into());
                let weight = self.backend.stored_weight(&parts, rows, INNER);
                (weight.expect("an answer"), expected)
            };
            let (found, expected) = weight(&files);
            let found = found.expect("finite numbers");
            let ids: Vec<u32> = (0..rows as u32).collect();
            let mut embedded = self.backend.tensor(rows, INNER).expect("a tensor");
            let done = self.backend.embed(&found, &ids, &mut embedded);
            done.expect("rows of a weight");
            assert_eq!(self.host(&embedded), expected, "{numbers:?}");
            // Wherever a number is not finite, nothing is taken over.
            let wrong = broken(numbers);
            for (part, number) in [(0, 0), (0, 9999), (1, PARTS[1] * INNER - 1)] {
                let place = 1 + number * wrong.len()..1 + (number + 1) * wrong.len();
                let right = files[part][place.clone()].to_vec();
                files[part][place.clone()].copy_from_slice(&wrong);
                assert!(
                    weight(&files).0.is_none(),
                    "{numbers:?}: {number} of part {part}"
                );
                files[part][place].copy_from_slice(&right);
            }
        }
        self.types_that_differ();
    }

    /// Parts of several types are joined on the host or left to it.
    fn types_that_differ(&self) {
        let files = [NumberType::F16, NumberType::Bf16].map(|numbers| bytes(numbers, INNER, 180));
        let parts = [
            StoredNumbers {
                numbers: NumberType::F16,
                bytes: &files[0],
            },
            StoredNumbers {
                numbers: NumberType::Bf16,
                bytes: &files[1],
            },
        ];
        let weight = self
            .backend
            .stored_weight(&StoredParts::Numbers(parts.into()), 2, INNER);
        let Some(weight) = weight.expect("an answer") else {
            return;
        };
        let mut embedded = self.backend.tensor(2, INNER).expect("a tensor");
        let done = self.backend.embed(&weight, &[0, 1], &mut embedded);
        done.expect("rows of a weight");
        let expected = parts.map(|part| part.read().into_f32()).concat();
        assert_eq!(self.host(&embedded), expected);
    }
}
