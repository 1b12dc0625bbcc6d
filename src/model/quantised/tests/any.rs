//! Any tensors at all, which a file may hold.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![
        Dtype::I32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F8_E4M3,
        Dtype::I8,
        Dtype::I64,
    ])
}

fn stored(likely: Dtype) -> impl Strategy<Value = (Dtype, Vec<usize>, Vec<u8>)> {
    let side = prop::sample::select(vec![0usize, 1, 2, 3, 8, 16, 24, 32]);
    let dtype = prop_oneof![4 => Just(likely), 1 => dtype()];
    (dtype, prop::collection::vec(side, 0..=2), any::<u64>()).prop_map(|(dtype, shape, seed)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (dtype, shape, noise(bytes, seed))
    })
}

fn configs() -> impl Strategy<Value = Quantisation> {
    let packed = |bits, symmetric| parsed(packed_config(bits, symmetric));
    prop::sample::select(vec![
        awq("gemm", 8),
        awq("gemv", 8),
        parsed(json!({"quant_method": "fp8", "weight_block_size": [8, 16]})),
        packed(4, true),
        packed(8, false),
    ])
}

proptest! {
    #[test]
    fn any_tensors_are_refused_or_loaded_whole(
        quantisation in configs(),
        parts in [
            stored(Dtype::I32), stored(Dtype::I32), stored(Dtype::F16), stored(Dtype::I32),
            stored(Dtype::F16), stored(Dtype::I64), stored(Dtype::I32), stored(Dtype::F8_E4M3),
        ],
        present in any::<[bool; 8]>(),
        is_square in any::<bool>(),
    ) {
        const NAMES: [&str; 8] = [
            "qweight", "qzeros", "scales", "weight_packed", "weight_scale", "weight_shape",
            "weight_zero_point", "weight",
        ];
        let mut tensors = Tensors::new();
        for ((name, part), present) in NAMES.iter().zip(parts).zip(present) {
            if present {
                tensors.insert(format!("m.{name}"), part);
            }
        }
        // Shapes that fit each other, which chance hardly finds.
        if is_square {
            for (name, shape) in [("qweight", [16, 2]), ("qzeros", [2, 2]), ("scales", [2, 16])] {
                if let Some((dtype, own, bytes)) = tensors.get_mut(&format!("m.{name}")) {
                    *own = shape.to_vec();
                    *bytes = noise(shape[0] * shape[1] * dtype.bitsize() / 8, 1);
                }
            }
        }
        if let Ok(found) = found(&quantisation, &tensors) {
            for matrix in found.matrices.values() {
                if let Ok(codes) = matrix.codes(NumberType::F32, &lookup(&tensors)) {
                    prop_assert_eq!(codes.decode().len(), matrix.shape[0] * matrix.shape[1]);
                }
            }
        }
    }
}
