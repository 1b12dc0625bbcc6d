//! 4-bit integers in groups: how elements are stored and read back.
//!
//! A group is 32 or 64 neighbouring elements of a head vector. With each of them are stored
//!
//! - `minimum`: the largest FP16 number that is not above the group's smallest element;
//! - `scale`: the smallest FP16 number that is not below `(largest element - minimum) / 15`, or 1
//!   where that is 0 (all elements are the minimum);
//! - `code` per element: `(x - minimum) / scale`, a true f32 division, rounded to nearest, ties to even,
//!   from 0 to 15.
//!
//! An element reads back as `code * scale + minimum` (at most 65,504), rounded to the native format:
//! 16-bit numbers are what attention multiplies on a GPU, and an element of an exact `native` cache
//! is no finer. Both roundings of the parameters lead away from the elements, so none lies outside of
//! the 16 levels: nothing saturates.
//!
//! FP16 has to hold every element: a magnitude above 65,504 is refused, as NaN and infinities are.

use half::f16;

use super::NativeDtype;

/// Largest magnitude that can be stored.
pub const LARGEST: f32 = 65504.0;

/// Bytes of a group's scale and minimum.
const PARAMETER_BYTES: u64 = 4;

/// Elements of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupSize {
    /// 32.
    Of32,
    /// 64.
    Of64,
}

/// What is stored with a group, both positive or negative finite FP16 numbers by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Distance of neighbouring levels; above 0.
    pub scale: u16,
    /// The lowest level.
    pub minimum: u16,
}

impl GroupSize {
    /// The number.
    pub const fn elements(self) -> usize {
        match self {
            GroupSize::Of32 => 32,
            GroupSize::Of64 => 64,
        }
    }

    /// Stored bytes of so many elements, in whole groups: two codes a byte, scale and minimum.
    pub fn stored_bytes(self, elements: u64) -> u64 {
        let size = self.elements() as u64;
        let group = size / 2 + PARAMETER_BYTES;
        elements.div_ceil(size).saturating_mul(group)
    }
}

impl Parameters {
    /// Those of a group.
    ///
    /// # Errors
    /// The index of the first element that FP16 does not hold.
    pub fn of(group: &[f32]) -> Result<Self, usize> {
        // NaN compares with nothing.
        let held = |x: &f32| x.abs() <= LARGEST;
        if let Some(broken) = group.iter().position(|x| !held(x)) {
            return Err(broken);
        }
        let smallest = group.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let minimum = below(smallest);
        let step = (largest - minimum.to_f32()) / 15.0;
        let scale = if step > 0.0 { above(step) } else { f16::ONE };
        Ok(Parameters {
            scale: scale.to_bits(),
            minimum: minimum.to_bits(),
        })
    }

    /// Scale and minimum as f32.
    #[inline]
    pub fn widened(self) -> (f32, f32) {
        let [scale, minimum] = [self.scale, self.minimum].map(|bits| f16::from_bits(bits).to_f32());
        (scale, minimum)
    }

    /// The code of an element of the group.
    #[inline]
    pub fn quantise(self, x: f32) -> u8 {
        let (scale, minimum) = self.widened();
        // Between 0 and 15: nothing is lost.
        ((x - minimum) / scale).round_ties_even().clamp(0.0, 15.0) as u8
    }

    /// The element of a code.
    #[inline]
    pub fn dequantise(self, native: NativeDtype, code: u8) -> f32 {
        let (scale, minimum) = self.widened();
        native.round((f32::from(code) * scale + minimum).min(LARGEST))
    }
}

/// The largest FP16 number that is not above `x`; the zero is positive.
fn below(x: f32) -> f16 {
    let nearest = f16::from_f32(x + 0.0);
    if nearest.to_f32() <= x {
        return nearest;
    }
    let bits = nearest.to_bits();
    f16::from_bits(match nearest.to_f32() > 0.0 {
        true => bits - 1,
        // Zero is the nearest of a small negative number, and has its sign.
        false => bits + 1,
    })
}

/// The smallest FP16 number that is not below a positive `x`.
fn above(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    match nearest.to_f32() >= x {
        true => nearest,
        false => f16::from_bits(nearest.to_bits() + 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_of_whole_groups() {
        assert_eq!(GroupSize::Of32.stored_bytes(128), 64 + 16);
        assert_eq!(GroupSize::Of64.stored_bytes(128), 64 + 8);
        assert_eq!(GroupSize::Of64.stored_bytes(65), 72);
        assert_eq!(GroupSize::Of32.stored_bytes(0), 0);
    }

    #[test]
    fn sixteen_levels_from_the_smallest_to_the_largest() {
        let group: Vec<f32> = (0..16).map(|i| i as f32 * 0.25 - 1.5).collect();
        let found = Parameters::of(&group).unwrap();
        assert_eq!(found.widened(), (0.25, -1.5));
        for (code, &x) in (0..16).zip(&group) {
            assert_eq!(found.quantise(x), code);
            assert_eq!(found.dequantise(NativeDtype::F16, code), x);
        }
        // Ties go to even codes.
        assert_eq!(found.quantise(-1.375), 0);
        assert_eq!(found.quantise(-1.125), 2);
    }

    #[test]
    fn groups_without_spread() {
        for x in [0.0, -0.0, 1.5, -2.0_f32.powi(-24), 65504.0, -65504.0] {
            let found = Parameters::of(&[x; 32]).unwrap();
            assert_eq!(found.widened(), (1.0, x), "{x}");
            assert_eq!(found.quantise(x), 0);
            assert_eq!(found.dequantise(NativeDtype::F16, 0), x);
        }
        // No FP16 number, but between two.
        let found = Parameters::of(&[0.1; 32]).unwrap();
        assert_eq!(found.quantise(0.1), 15);
        assert_eq!(
            found.dequantise(NativeDtype::F16, 15),
            NativeDtype::F16.round(0.1)
        );
    }

    #[test]
    fn the_ends_of_fp16() {
        let found = Parameters::of(&[-65504.0, 65504.0]).unwrap();
        assert_eq!(found.widened(), (8736.0, -65504.0));
        // Sixteen levels reach beyond the largest number, which stands in for the last.
        assert_eq!(found.quantise(65504.0), 15);
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            assert_eq!(
                found.dequantise(native, 15),
                native.round(65504.0),
                "{native:?}"
            );
        }
        let tiny = Parameters::of(&[0.0, 1e-10]).unwrap();
        assert_eq!(tiny.widened(), (2.0_f32.powi(-24), 0.0));
        for broken in [65504.01_f32.next_up(), f32::INFINITY, f32::NAN, -7e4] {
            assert_eq!(Parameters::of(&[0.0, 1.0, broken]), Err(2), "{broken}");
        }
    }

    proptest! {
        /// Against f64: no element lies outside of the levels, and none is read back further away
        /// than half a step and the rounding to native.
        #[test]
        fn nothing_saturates(
            group in prop::collection::vec(-1.0f32..1.0, 1..64),
            exponent in -30i32..16,
            offset in -1.0f32..1.0,
        ) {
            let unit = 2.0_f32.powi(exponent);
            let group: Vec<f32> = group.iter().map(|x| (x * unit + offset * 32.0).clamp(-LARGEST, LARGEST)).collect();
            let found = Parameters::of(&group).unwrap();
            let (scale, minimum) = found.widened();
            prop_assert!(scale > 0.0 && scale.is_finite());
            for &x in &group {
                let level = (f64::from(x) - f64::from(minimum)) / f64::from(scale);
                prop_assert!((-1e-6..15.0 + 1e-5).contains(&level), "{level}");
                let code = found.quantise(x);
                prop_assert!((f64::from(code) - level).abs() <= 0.5 + 1e-5);
                let exact = f64::from(code) * f64::from(scale) + f64::from(minimum);
                let back = f64::from(found.dequantise(NativeDtype::F16, code));
                prop_assert!((back - exact.min(65504.0)).abs() <= exact.abs() * 2.0_f64.powi(-11) + 2.0_f64.powi(-25));
            }
        }
    }
}
