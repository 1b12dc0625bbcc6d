use proptest::prelude::*;

use super::*;

const FP8: [(ByteFormat, &str); 2] = [(ByteFormat::E4m3, "e4m3"), (ByteFormat::E5m2, "e5m2")];

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/fixtures/float8/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn words(bytes: &[u8]) -> Vec<f32> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    chunks
        .iter()
        .map(|chunk| f32::from_bits(u32::from_le_bytes(*chunk)))
        .collect()
}

#[test]
fn every_half_converts_as_the_reference() {
    for (format, name) in FP8 {
        let expected = golden(&format!("halves.{name}"));
        assert_eq!(expected.len(), 65_536);
        for bits in 0..=u16::MAX {
            let x = half::f16::from_bits(bits).to_f32();
            let found = quantise(format, x, 1.0);
            assert_eq!(
                found,
                expected[usize::from(bits)],
                "{name}: half {bits:#06x} = {x}"
            );
        }
    }
}

#[test]
fn sampled_floats_convert_as_the_reference_one_by_one_and_in_bulk() {
    let inputs = words(&golden("floats.f32"));
    for (format, name) in FP8 {
        let expected = golden(&format!("floats.{name}"));
        assert_eq!(expected.len(), inputs.len());
        let mut bulk = vec![0; inputs.len()];
        quantise_slice(format, &inputs, 1.0, &mut bulk);
        for (i, &x) in inputs.iter().enumerate() {
            assert_eq!(quantise(format, x, 1.0), expected[i], "{name}: {x:e}");
            assert_eq!(bulk[i], expected[i], "{name} in bulk: {x:e}");
        }
    }
}

#[test]
fn every_byte_decodes_as_the_reference() {
    for (format, name) in FP8 {
        let expected = words(&golden(&format!("decode.{name}")));
        let bytes: Vec<u8> = (0..=255).collect();
        let mut bulk = vec![0.0; 256];
        dequantise_slice(format, &bytes, 1.0, &mut bulk);
        for (byte, &value) in bytes.iter().zip(&expected) {
            let found = dequantise(format, *byte, 1.0);
            let same = found.to_bits() == value.to_bits() || (found.is_nan() && value.is_nan());
            assert!(
                same,
                "{name}: byte {byte:#04x} decodes to {found}, expected {value}"
            );
            assert_eq!(found.to_bits(), bulk[usize::from(*byte)].to_bits());
        }
    }
}

#[test]
fn bytes_survive_a_round_trip() {
    for format in ByteFormat::ALL {
        for byte in 0..=255u8 {
            let value = format.table()[usize::from(byte)];
            let back = quantise(format, value, 1.0);
            if value.is_nan() {
                assert!(format.table()[usize::from(back)].is_nan());
            } else if value.is_infinite() {
                assert_eq!(format.table()[usize::from(back)].abs(), format.largest());
            } else {
                assert_eq!(back, byte, "{format:?}");
            }
        }
    }
}

#[test]
fn integers_round_to_even_and_clamp() {
    let cases = [
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (126.5, 126),
        (127.4, 127),
        (1e9, 127),
        (f32::NEG_INFINITY, -127),
    ];
    for (x, expected) in cases {
        assert_eq!(quantise(ByteFormat::Int8, x, 1.0) as i8, expected, "{x}");
    }
    assert!(
        dequantise(
            ByteFormat::Int8,
            quantise(ByteFormat::Int8, f32::NAN, 1.0),
            1.0
        )
        .is_nan()
    );
}

#[test]
fn saturation_is_overflow_after_rounding() {
    let cases = [
        (ByteFormat::E4m3, 448.0, false),
        (ByteFormat::E4m3, 464.0, false),
        (ByteFormat::E4m3, 464.00003, true),
        (ByteFormat::E5m2, 61439.996, false),
        (ByteFormat::E5m2, 61440.0, true),
        (ByteFormat::Int8, 127.49999, false),
        (ByteFormat::Int8, 127.5, true),
        (ByteFormat::E4m3, f32::INFINITY, true),
        (ByteFormat::E4m3, f32::NAN, false),
    ];
    for (format, x, expected) in cases {
        assert_eq!(saturates(format, x, 1.0), expected, "{format:?} {x}");
        assert_eq!(saturates(format, -x, 1.0), expected, "{format:?} -{x}");
    }
    assert!(saturates(ByteFormat::E4m3, 300.0, 0.5));
}

#[test]
fn scales_of_extreme_vectors() {
    for format in ByteFormat::ALL {
        assert_eq!(scale_from_absmax(format, 0.0), 1.0);
        assert_eq!(scale_from_absmax(format, format.largest()), 1.0);
        assert_eq!(
            scale_from_absmax(format, f32::from_bits(1)),
            f32::MIN_POSITIVE
        );
        assert!(!scale_from_absmax(format, f32::INFINITY).is_finite());
        assert!(!scale_from_absmax(format, f32::NAN).is_finite());
    }
    assert_eq!(scale_from_absmax(ByteFormat::E4m3, 1.0), 1.0 / 448.0);
}

fn formats() -> impl Strategy<Value = ByteFormat> {
    prop::sample::select(ByteFormat::ALL.to_vec())
}

/// Nearest table entry by exhaustive search, in f64, ties to the even byte. Clipping first keeps
/// the distances of huge inputs apart.
fn nearest(format: ByteFormat, x: f32) -> f32 {
    let x = x.clamp(-format.largest(), format.largest());
    let mut best = (f64::INFINITY, 0u8);
    for byte in 0..=255u8 {
        let value = format.table()[usize::from(byte)];
        if !value.is_finite() {
            continue;
        }
        let distance = (f64::from(value) - f64::from(x)).abs();
        if distance < best.0 || (distance == best.0 && byte % 2 == 0) {
            best = (distance, byte);
        }
    }
    format.table()[usize::from(best.1)]
}

proptest! {
    #[test]
    fn conversion_picks_the_nearest_value(format in formats(), x in prop::num::f32::ANY) {
        prop_assume!(x.is_finite());
        let found = dequantise(format, quantise(format, x, 1.0), 1.0);
        prop_assert_eq!(found, nearest(format, x));
    }

    #[test]
    fn values_of_everyday_size_pick_the_nearest(format in formats(), x in -500.0f32..500.0) {
        let found = dequantise(format, quantise(format, x, 1.0), 1.0);
        prop_assert_eq!(found, nearest(format, x));
    }

    #[test]
    fn absmax_never_saturates_its_own_scale(format in formats(), bits in 1u32..0x7e80_0000) {
        let absmax = f32::from_bits(bits);
        let scale = scale_from_absmax(format, absmax);
        prop_assert!(scale.is_normal());
        prop_assert!(!saturates(format, absmax, scale));
        if absmax > 1e-30 {
            let byte = quantise(format, absmax, scale);
            prop_assert_eq!(format.table()[usize::from(byte)], format.largest());
        }
    }

    #[test]
    fn scaling_divides(format in formats(), x in -1e4f32..1e4, scale in 1e-3f32..1e3) {
        let byte = quantise(format, x, scale);
        prop_assert_eq!(byte, quantise(format, x / scale, 1.0));
        prop_assert_eq!(dequantise(format, byte, scale), format.table()[usize::from(byte)] * scale);
    }
}
