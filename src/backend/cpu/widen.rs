//! Exact widening of stored elements to f32, written so that the compiler vectorises it.
//!
//! Short floats are widened by moving their bits into f32's fields and multiplying by the power of
//! two that separates the exponent biases: exact for every finite value, subnormals included.
//! Infinities and NaN are not handled: neither weights nor a cache hold them.

/// IEEE half.
#[inline(always)]
pub fn f16(bits: u16) -> f32 {
    // Exponent bias 127 - 15 = 112.
    rebias((i32::from(bits as i16) << 13) as u32 & 0x8fff_e000, 112)
}

/// bfloat16.
#[inline(always)]
pub fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// FP8 E4M3.
#[inline(always)]
pub fn e4m3(byte: u8) -> f32 {
    // Exponent bias 127 - 7 = 120.
    rebias((i32::from(byte as i8) << 20) as u32 & 0x87f0_0000, 120)
}

/// FP8 E5M2.
#[inline(always)]
pub fn e5m2(byte: u8) -> f32 {
    rebias((i32::from(byte as i8) << 21) as u32 & 0x8fe0_0000, 112)
}

/// Signed 8-bit integer.
#[inline(always)]
pub fn int8(byte: u8) -> f32 {
    f32::from(byte as i8)
}

/// Widens `src` into `wide`, element by element.
///
/// One long loop: short inner loops of constant length are unrolled into scalar code instead of
/// being vectorised.
#[inline(always)]
pub fn all<T: Copy>(src: &[T], wide: &mut [f32], widen: impl Fn(T) -> f32) {
    for (wide, &stored) in wide.iter_mut().zip(src) {
        *wide = widen(stored);
    }
}

/// Sign, exponent and mantissa already stand in f32's fields, the exponent's bias too low by
/// `exponent`. Sign extension put copies of the sign between the fields; a mask removed them.
#[inline(always)]
fn rebias(bits: u32, exponent: u32) -> f32 {
    f32::from_bits(bits) * f32::from_bits((127 + exponent) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::ByteFormat;

    #[test]
    fn every_finite_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let half = half::f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(f16(bits).to_bits(), half.to_f32().to_bits(), "{bits:#06x}");
            }
            let brain = half::bf16::from_bits(bits);
            if brain.is_finite() {
                assert_eq!(
                    bf16(bits).to_bits(),
                    brain.to_f32().to_bits(),
                    "{bits:#06x}"
                );
            }
        }
    }

    #[test]
    fn every_finite_byte_widens_as_its_table_says() {
        let widenings: [fn(u8) -> f32; 3] = [e4m3, e5m2, int8];
        for (format, byte) in ByteFormat::ALL.into_iter().zip(widenings) {
            for stored in 0..=u8::MAX {
                let expected = format.table()[usize::from(stored)];
                if expected.is_finite() {
                    assert_eq!(byte(stored).to_bits(), expected.to_bits());
                }
            }
        }
    }
}
