//! One-byte number formats: the one rule by which elements are stored and read back.
//!
//! - stored: `byte = convert(x / scale)`: a true f32 division (a product with the reciprocal
//!   rounds differently), then rounding to nearest, ties to even, saturating at the largest finite
//!   value, infinities included;
//! - read back: `decode(byte) * scale`, one f32 product;
//! - `scale = absmax / largest finite value`.
//!
//! FP8 follows the Open Compute Project's 8-bit floating-point specification: E4M3 has no
//! infinities and 448 as its largest finite value, E5M2 has 57,344. NaN is stored as `0x7f` in
//! both. Eight-bit integers are symmetric (-127 to 127); the pattern -128, unused otherwise,
//! stands for NaN, so that no format hides one.
//!
//! IEEE halves are widened to f32 first, which is exact.

/// A number format with one byte per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteFormat {
    /// FP8 E4M3.
    E4m3,
    /// FP8 E5M2.
    E5m2,
    /// Signed integers.
    Int8,
}

/// Stored byte of NaN in both FP8 formats.
const FP8_NAN: u8 = 0x7f;
/// Stored byte of NaN in the integer format: -128.
const INT8_NAN: u8 = 0x80;
const INFINITY_BITS: u32 = 0x7f80_0000;

impl ByteFormat {
    /// Every format.
    pub const ALL: [ByteFormat; 3] = [ByteFormat::E4m3, ByteFormat::E5m2, ByteFormat::Int8];

    /// Largest finite value.
    pub const fn largest(self) -> f32 {
        match self {
            ByteFormat::E4m3 => 448.0,
            ByteFormat::E5m2 => 57344.0,
            ByteFormat::Int8 => 127.0,
        }
    }

    /// Least magnitude that overflows: halfway between the largest finite value and the next value
    /// of the same spacing, and whether that midpoint itself rounds (to even) beyond the largest.
    const fn overflow(self) -> (f32, bool) {
        match self {
            // 448 is 1.110b x 2^8: even, so the midpoint to 480 comes back to it.
            ByteFormat::E4m3 => (464.0, false),
            // 57,344 is 1.11b x 2^15: odd, so the midpoint goes on to 65,536.
            ByteFormat::E5m2 => (61440.0, true),
            // 127 is odd.
            ByteFormat::Int8 => (127.5, true),
        }
    }

    /// Value of every stored byte at scale 1.
    pub const fn table(self) -> &'static [f32; 256] {
        match self {
            ByteFormat::E4m3 => &E4M3_VALUES,
            ByteFormat::E5m2 => &E5M2_VALUES,
            ByteFormat::Int8 => &INT8_VALUES,
        }
    }
}

/// The stored byte of `x`: `convert(x / scale)`.
#[inline]
pub fn quantise(format: ByteFormat, x: f32, scale: f32) -> u8 {
    let scaled = x / scale;
    match format {
        ByteFormat::E4m3 => encode_e4m3(scaled),
        ByteFormat::E5m2 => encode_e5m2(scaled),
        ByteFormat::Int8 => encode_int8(scaled),
    }
}

/// The value of a stored byte: `decode(byte) * scale`.
#[inline]
pub fn dequantise(format: ByteFormat, byte: u8, scale: f32) -> f32 {
    format.table()[usize::from(byte)] * scale
}

/// [`quantise`] of `min(src.len(), dst.len())` elements under one scale; the compiler vectorises
/// each arm.
pub fn quantise_slice(format: ByteFormat, src: &[f32], scale: f32, dst: &mut [u8]) {
    match format {
        ByteFormat::E4m3 => convert_slice(src, scale, dst, encode_e4m3),
        ByteFormat::E5m2 => convert_slice(src, scale, dst, encode_e5m2),
        ByteFormat::Int8 => convert_slice(src, scale, dst, encode_int8),
    }
}

/// [`dequantise`] of `min(src.len(), dst.len())` bytes under one scale.
pub fn dequantise_slice(format: ByteFormat, src: &[u8], scale: f32, dst: &mut [f32]) {
    let table = format.table();
    for (value, &byte) in dst.iter_mut().zip(src) {
        *value = table[usize::from(byte)] * scale;
    }
}

/// The scale under which `absmax` becomes the largest finite value: `absmax / largest`.
///
/// A zero vector has scale 1. A scale is never subnormal: below the smallest normal f32 (an
/// absmax of about 5e-36 in E4M3) it is that smallest normal, under which every element still
/// converts without overflow. An absmax that is not finite gives a scale that is not finite;
/// callers refuse such input before they store anything.
pub fn scale_from_absmax(format: ByteFormat, absmax: f32) -> f32 {
    if absmax == 0.0 {
        return 1.0;
    }
    let scale = absmax / format.largest();
    if scale < f32::MIN_POSITIVE {
        f32::MIN_POSITIVE
    } else {
        scale
    }
}

/// Whether `x / scale` overflows the format as IEEE 754 defines overflow: rounded to nearest even
/// with the format's precision but an unbounded exponent, it would exceed the largest finite value.
///
/// The last bit of a division may push `absmax / scale` a hair over the largest value, which still
/// rounds to it: that is rounding, not saturation. NaN does not saturate.
#[inline]
pub fn saturates(format: ByteFormat, x: f32, scale: f32) -> bool {
    let magnitude = (x / scale).abs();
    let (midpoint, midpoint_overflows) = format.overflow();
    magnitude > midpoint || (midpoint_overflows && magnitude == midpoint)
}

fn convert_slice(src: &[f32], scale: f32, dst: &mut [u8], encode: impl Fn(f32) -> u8) {
    for (byte, &x) in dst.iter_mut().zip(src) {
        *byte = encode(x / scale);
    }
}

#[inline]
fn encode_e4m3(x: f32) -> u8 {
    encode_fp8::<3, 7>(x, ByteFormat::E4m3.largest())
}

#[inline]
fn encode_e5m2(x: f32) -> u8 {
    encode_fp8::<2, 15>(x, ByteFormat::E5m2.largest())
}

/// Converts to an FP8 format with `MANTISSA` explicit bits and exponent bias `BIAS`. Free of
/// branches once compiled.
#[inline]
fn encode_fp8<const MANTISSA: u32, const BIAS: u32>(x: f32, largest: f32) -> u8 {
    let bits = x.to_bits();
    let sign = ((bits >> 24) & 0x80) as u8;
    let magnitude = bits & 0x7fff_ffff;
    // Non-negative floats order as their bits do.
    let clipped = magnitude.min(largest.to_bits());

    // Normal: drop the surplus mantissa bits to nearest even, then change the exponent's bias.
    let shift = 23 - MANTISSA;
    let half = (1 << (shift - 1)) - 1;
    let rounded = (clipped + half + ((clipped >> shift) & 1)) >> shift;
    let normal = rounded.wrapping_sub((127 - BIAS) << MANTISSA);

    // Subnormal: beside a number whose last bit weighs as much as the format's smallest step, the
    // f32 addition itself rounds to nearest even.
    let anchor = f32::from_bits((127 + 24 - BIAS - MANTISSA) << 23);
    let subnormal = (f32::from_bits(clipped) + anchor)
        .to_bits()
        .wrapping_sub(anchor.to_bits());

    let smallest_normal = (128 - BIAS) << 23;
    let byte = if clipped < smallest_normal {
        subnormal
    } else {
        normal
    };
    if magnitude > INFINITY_BITS {
        FP8_NAN
    } else {
        sign | byte as u8
    }
}

#[inline]
fn encode_int8(x: f32) -> u8 {
    if x.is_nan() {
        INT8_NAN
    } else {
        // `as` truncates a whole number between -127 and 127: nothing is lost.
        x.clamp(-127.0, 127.0).round_ties_even() as i8 as u8
    }
}

static E4M3_VALUES: [f32; 256] = fp8_values(3, 7, false);
static E5M2_VALUES: [f32; 256] = fp8_values(2, 15, true);
static INT8_VALUES: [f32; 256] = int8_values();

/// Values of all FP8 bytes. With `infinities` the top exponent holds infinity and NaN, without it
/// only the all-ones pattern is NaN.
const fn fp8_values(mantissa_bits: u32, bias: i32, infinities: bool) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        values[byte] = fp8_value(byte as u32, mantissa_bits, bias, infinities);
        byte += 1;
    }
    values
}

const fn fp8_value(byte: u32, mantissa_bits: u32, bias: i32, infinities: bool) -> f32 {
    let magnitude = byte & 0x7f;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let exponent = (magnitude >> mantissa_bits) as i32;
    let top = exponent == (0x7f >> mantissa_bits);
    let unsigned = if magnitude == 0x7f || (infinities && top && mantissa != 0) {
        f32::NAN
    } else if infinities && top {
        f32::INFINITY
    } else if exponent == 0 {
        mantissa as f32 * power_of_two(1 - bias - mantissa_bits as i32)
    } else {
        (mantissa + (1 << mantissa_bits)) as f32
            * power_of_two(exponent - bias - mantissa_bits as i32)
    };
    // The sign of NaN says nothing; both patterns give the same one.
    if byte & 0x80 != 0 && !unsigned.is_nan() {
        -unsigned
    } else {
        unsigned
    }
}

const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

const fn int8_values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        values[byte] = byte as u8 as i8 as f32;
        byte += 1;
    }
    values[INT8_NAN as usize] = f32::NAN;
    values
}

#[cfg(test)]
mod tests;
