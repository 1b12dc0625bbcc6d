//! Blocks of quantised elements to 32-bit floats.
//!
//! Every product and sum is rounded on its own, in the order of the format's reference, so that
//! results agree with it to the last bit.

use half::f16;
use rayon::prelude::*;

use super::GgmlType;

/// Elements of a super-block.
const SUPER: usize = 256;

/// Blocks converted by one thread at a time.
const BLOCKS_PER_TASK: usize = 256;

/// The elements of `bytes`, a whole number of blocks of `kind`, in file order.
pub(super) fn dequantize(kind: GgmlType, bytes: &[u8]) -> Vec<f32> {
    match kind {
        GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 => plain(kind, bytes),
        GgmlType::Q4_0 => blocks(bytes, q4_0),
        GgmlType::Q4_1 => blocks(bytes, q4_1),
        GgmlType::Q5_0 => blocks(bytes, q5_0),
        GgmlType::Q5_1 => blocks(bytes, q5_1),
        GgmlType::Q8_0 => blocks(bytes, q8_0),
        GgmlType::Q4K => blocks(bytes, q4_k),
        GgmlType::Q5K => blocks(bytes, q5_k),
        GgmlType::Q6K => blocks(bytes, q6_k),
    }
}

fn plain(kind: GgmlType, bytes: &[u8]) -> Vec<f32> {
    match kind {
        GgmlType::F16 => blocks(bytes, |raw: &[u8; 2], out: &mut [f32; 1]| {
            out[0] = f16::from_le_bytes(*raw).to_f32();
        }),
        GgmlType::Bf16 => blocks(bytes, |raw: &[u8; 2], out: &mut [f32; 1]| {
            out[0] = half::bf16::from_le_bytes(*raw).to_f32();
        }),
        _ => blocks(bytes, |raw: &[u8; 4], out: &mut [f32; 1]| {
            out[0] = f32::from_le_bytes(*raw);
        }),
    }
}

/// Converts every block of `B` bytes into `N` elements, spread over threads.
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    convert: impl Fn(&[u8; B], &mut [f32; N]) + Sync,
) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / B * N];
    out.par_chunks_mut(N * BLOCKS_PER_TASK)
        .zip(bytes.par_chunks(B * BLOCKS_PER_TASK))
        .for_each(|(out, bytes)| {
            let out = out.as_chunks_mut::<N>().0;
            for (raw, values) in bytes.as_chunks::<B>().0.iter().zip(out) {
                convert(raw, values);
            }
        });
    out
}

/// The IEEE half at byte `at`.
fn half_at(raw: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([raw[at], raw[at + 1]]).to_f32()
}

/// Low and high nibble, as signed numbers.
fn nibbles(byte: u8) -> (i32, i32) {
    (i32::from(byte & 0x0f), i32::from(byte >> 4))
}

/// Scale, then 16 bytes of nibbles offset by 8.
fn q4_0(raw: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(raw, 0);
    for (j, byte) in raw[2..].iter().enumerate() {
        let (low, high) = nibbles(*byte);
        out[j] = scale * (low - 8) as f32;
        out[j + 16] = scale * (high - 8) as f32;
    }
}

/// Scale and minimum, then 16 bytes of nibbles.
fn q4_1(raw: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (half_at(raw, 0), half_at(raw, 2));
    for (j, byte) in raw[4..].iter().enumerate() {
        let (low, high) = nibbles(*byte);
        out[j] = scale * low as f32 + minimum;
        out[j + 16] = scale * high as f32 + minimum;
    }
}

/// Nibbles with their fifth bits from a 32-bit word at `at`, nibbles right after it.
fn five_bits(raw: &[u8], at: usize, mut put: impl FnMut(usize, i32)) {
    let fifth = u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let bit = |j: usize| ((fifth >> j & 1) << 4) as i32;
    for (j, byte) in raw[at + 4..].iter().enumerate() {
        let (low, high) = nibbles(*byte);
        put(j, low | bit(j));
        put(j + 16, high | bit(j + 16));
    }
}

/// Scale, fifth bits, nibbles; offset by 16.
fn q5_0(raw: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(raw, 0);
    five_bits(raw, 2, |j, q| out[j] = scale * (q - 16) as f32);
}

/// Scale, minimum, fifth bits, nibbles.
fn q5_1(raw: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (half_at(raw, 0), half_at(raw, 2));
    five_bits(raw, 4, |j, q| out[j] = scale * q as f32 + minimum);
}

/// Scale, then 32 signed bytes.
fn q8_0(raw: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(raw, 0);
    for (value, byte) in out.iter_mut().zip(&raw[2..]) {
        *value = f32::from(*byte as i8) * scale;
    }
}

/// Scale and minimum number `j` (0 to 7) of a super-block: 6 bits each, packed in 12 bytes.
fn scale_and_minimum(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 0x0f) | (packed[j - 4] >> 6 << 4),
            (packed[j + 4] >> 4) | (packed[j] >> 6 << 4),
        )
    };
    (f32::from(scale), f32::from(minimum))
}

/// Writes one group of 32 elements: `scale * q - minimum`.
fn group(out: &mut [f32], scale: f32, minimum: f32, quants: impl Iterator<Item = u8>) {
    for (value, q) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(q) - minimum;
    }
}

/// Super-scale, super-minimum, 12 bytes of scales and minima, 128 bytes of nibbles.
fn q4_k(raw: &[u8; 144], out: &mut [f32; SUPER]) {
    let (d, dmin) = (half_at(raw, 0), half_at(raw, 2));
    let (packed, nibbles) = (&raw[4..16], &raw[16..]);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, j);
        let bytes = &nibbles[j / 2 * 32..][..32];
        let shift = 4 * (j % 2);
        let quants = bytes.iter().map(|byte| byte >> shift & 0x0f);
        group(out, d * scale, dmin * minimum, quants);
    }
}

/// As [`q4_k`], with 32 bytes of fifth bits before the nibbles: bit `j` belongs to group `j`.
fn q5_k(raw: &[u8; 176], out: &mut [f32; SUPER]) {
    let (d, dmin) = (half_at(raw, 0), half_at(raw, 2));
    let (packed, fifth, nibbles) = (&raw[4..16], &raw[16..48], &raw[48..]);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, j);
        let bytes = &nibbles[j / 2 * 32..][..32];
        let shift = 4 * (j % 2);
        let quants = bytes
            .iter()
            .zip(fifth)
            .map(|(byte, high)| (byte >> shift & 0x0f) | ((high >> j & 1) << 4));
        group(out, d * scale, dmin * minimum, quants);
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, super-scale; offset by
/// 32.
fn q6_k(raw: &[u8; 210], out: &mut [f32; SUPER]) {
    let d = half_at(raw, 208);
    let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
    for (index, value) in out.iter_mut().enumerate() {
        // Two halves of 128 elements; in each, four groups of 32 that share 64 bytes of nibbles
        // and 32 bytes of bit pairs.
        let (half, group, l) = (index / 128, index / 32 % 4, index % 32);
        let nibble = low[half * 64 + group % 2 * 32 + l] >> (4 * (group / 2)) & 0x0f;
        let pair = high[half * 32 + l] >> (2 * group) & 3;
        let q = i32::from(nibble | pair << 4) - 32;
        let scale = f32::from(scales[index / 16] as i8);
        *value = d * scale * q as f32;
    }
}
