//! Weights from codes: to the bit what the definition says.

use super::{Suite, noise};
use crate::backend::{Backend, CodeKind, Codes, NumberType, StoredParts, TensorData, Zeros};
use crate::recipe::ByteFormat;

/// Outputs and inputs: whole words of eight codes in every order.
const SHAPE: [usize; 2] = [144, 88];

/// What codes are made from.
struct Stored {
    bytes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Zeros,
}

impl Stored {
    fn new(kind: CodeKind, tile: [usize; 2], seed: u64) -> Self {
        let [rows, columns] = SHAPE;
        let groups = columns.div_ceil(tile[1]);
        let byte = |x: f32| ((x + 1.0) * 128.0) as u8;
        let bytes = noise(seed, rows * columns).into_iter().map(byte);
        let scales = noise(seed + 1, rows.div_ceil(tile[0]) * groups);
        let zeros = match (kind, tile[0]) {
            (CodeKind::Interleaved, _) | (CodeKind::Nibble, 1) => {
                let zero = |x: f32| byte(x) & 15;
                let each = noise(seed + 2, rows * groups).into_iter().map(zero);
                Zeros::Each(each.collect())
            }
            (CodeKind::Nibble, _) => Zeros::All(8),
            (CodeKind::Byte, _) => Zeros::All(128),
            (CodeKind::Int8 | CodeKind::E4m3, _) => Zeros::All(0),
        };
        // No NaN among the codes.
        let number = |byte: u8| match kind {
            CodeKind::E4m3 if byte & 0x7f == 0x7f => 0x80,
            _ => byte,
        };
        Stored {
            bytes: bytes.map(number).collect(),
            scales: scales.into_iter().map(|scale| scale / 7.0).collect(),
            zeros,
        }
    }

    fn codes(&self, kind: CodeKind, tile: [usize; 2], numbers: NumberType) -> Codes<'_> {
        let [rows, columns] = SHAPE;
        Codes {
            shape: SHAPE,
            kind,
            bytes: &self.bytes,
            row_bytes: match kind {
                CodeKind::Interleaved => rows / 2,
                CodeKind::Nibble => columns / 2,
                CodeKind::Byte | CodeKind::Int8 | CodeKind::E4m3 => columns,
            },
            tile,
            scales: self.scales.clone(),
            zeros: self.zeros.clone(),
            numbers,
        }
    }
}

/// The number at a place, by definition.
fn number(codes: &Codes<'_>, row: usize, column: usize) -> f32 {
    let half = |byte: u8, upper: bool| if upper { byte >> 4 } else { byte & 15 };
    let bytes = codes.bytes;
    let code = match codes.kind {
        CodeKind::Interleaved => {
            const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
            let place = ORDER.iter().position(|&output| output == row % 8).unwrap();
            let word = column * codes.row_bytes + row / 8 * 4;
            half(bytes[word + place / 2], place % 2 == 1)
        }
        CodeKind::Nibble => half(bytes[row * codes.row_bytes + column / 2], column % 2 == 1),
        CodeKind::Byte | CodeKind::Int8 | CodeKind::E4m3 => bytes[row * codes.row_bytes + column],
    };
    let group = column / codes.tile[1];
    let zero = match &codes.zeros {
        Zeros::All(zero) => *zero,
        Zeros::Each(zeros) => zeros[row * codes.groups() + group],
    };
    let value = match codes.kind {
        CodeKind::E4m3 => ByteFormat::E4m3.table()[usize::from(code)],
        CodeKind::Int8 => f32::from(code.cast_signed()),
        _ => f32::from(code) - f32::from(zero),
    };
    let x = value * codes.scales[row / codes.tile[0] * codes.groups() + group];
    match codes.numbers {
        NumberType::F32 => x,
        NumberType::F16 => half::f16::from_f32(x).to_f32(),
        NumberType::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn codes(&self) {
        self.codes_become_their_numbers();
        self.numbers_that_are_not_finite_are_left_to_the_host();
    }

    fn codes_become_their_numbers(&self) {
        let [rows, columns] = SHAPE;
        let kinds = [
            (CodeKind::Interleaved, [1, 44]),
            (CodeKind::Nibble, [1, 32]),
            (CodeKind::Nibble, [rows, columns]),
            (CodeKind::Byte, [1, columns]),
            (CodeKind::Int8, [1, 20]),
            (CodeKind::E4m3, [48, 40]),
            (CodeKind::E4m3, [rows, columns]),
        ];
        for (seed, (kind, tile)) in (70..).step_by(6).zip(kinds) {
            let stored = [0, 3].map(|more| Stored::new(kind, tile, seed + more));
            for numbers in [NumberType::F32, NumberType::F16, NumberType::Bf16] {
                let parts = stored
                    .each_ref()
                    .map(|stored| stored.codes(kind, tile, numbers));
                let place = |part: &Codes<'_>, at: usize| number(part, at / columns, at % columns);
                let expected: Vec<f32> = parts
                    .iter()
                    .flat_map(|part| (0..rows * columns).map(|at| place(part, at)))
                    .collect();
                let parts = StoredParts::Codes(parts.into());
                let weight = self.backend.stored_weight(&parts, 2 * rows, columns);
                let weight = weight.expect("a weight").expect("finite numbers");
                let ids: Vec<u32> = (0..2 * rows as u32).collect();
                let mut found = self.backend.tensor(ids.len(), columns).expect("a tensor");
                let embedded = self.backend.embed(&weight, &ids, &mut found);
                embedded.expect("rows of a weight");
                assert_eq!(self.host(&found), expected, "{kind:?} {tile:?} {numbers:?}");
            }
        }
    }

    fn numbers_that_are_not_finite_are_left_to_the_host(&self) {
        let tile = [1, SHAPE[1]];
        let mut broken = Stored::new(CodeKind::E4m3, tile, 90);
        broken.bytes[1234] = 0xff;
        let nan = broken.codes(CodeKind::E4m3, tile, NumberType::Bf16);
        assert!(matches!(nan.decode().first_non_finite(), Some((1234, x)) if x.is_nan()));
        // In range of f32 and bf16, not of f16.
        let mut large = Stored::new(CodeKind::Int8, tile, 91);
        large.scales[7] = 1000.0;
        large.bytes[7 * SHAPE[1] + 3] = 127;
        let of_large = |numbers| large.codes(CodeKind::Int8, tile, numbers);
        for (codes, finite) in [
            (nan, false),
            (of_large(NumberType::F16), false),
            (of_large(NumberType::Bf16), true),
        ] {
            let decoded: TensorData = codes.decode();
            assert_eq!(decoded.first_non_finite().is_none(), finite);
            let parts = StoredParts::Codes(vec![codes]);
            let weight = self.backend.stored_weight(&parts, SHAPE[0], SHAPE[1]);
            assert_eq!(weight.expect("an answer").is_some(), finite);
        }
    }
}
