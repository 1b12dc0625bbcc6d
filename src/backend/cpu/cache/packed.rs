//! 4-bit integers in groups: two codes a byte, and a scale and a minimum per group and token.
//!
//! A head's share of a page is a run of elements in stored order (keys `[head_dim][16]`, values
//! `[16][head_dim]`). Byte `i` of it holds element `i` in its lower half and, in its upper half, the
//! one that lies half the run further on: so both halves are widened by one long loop each.

use pulp::Simd;

use super::PAGE;
use super::plane::{HeadOf, PlaneShape};
use super::pool::Tally;
use crate::backend::cpu::widen;
use crate::backend::storage::Side;
use crate::recipe::int4::{self, Parameters};
use crate::recipe::{GroupSize, NativeDtype};

/// Stored codes and parameters of one plane.
pub struct Packed {
    size: GroupSize,
    native: NativeDtype,
    /// `[kv_heads][head_dim * 16 / 2]`.
    codes: Box<[u8]>,
    /// `[kv_heads][groups][16]`.
    parameters: Box<[Parameters]>,
}

impl Packed {
    /// A plane of zeros.
    pub fn new(shape: PlaneShape, size: GroupSize, native: NativeDtype) -> Self {
        let elements = shape.width() * PAGE;
        let zero = Parameters {
            scale: half::f16::ONE.to_bits(),
            minimum: 0,
        };
        Packed {
            size,
            native,
            codes: vec![0; elements / 2].into(),
            parameters: vec![zero; elements / size.elements()].into(),
        }
    }

    /// Bytes of codes and parameters.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.codes[..]) + size_of_val(&self.parameters[..])) as u64
    }

    /// Stores one head vector of a token.
    ///
    /// # Errors
    /// The index of the first element that FP16 does not hold.
    pub fn store(
        &mut self,
        (side, shape): (Side, PlaneShape),
        (head, lane): (usize, usize),
        x: &[f32],
        tally: &mut Tally,
    ) -> Result<(), usize> {
        let (size, native) = (self.size.elements(), self.native);
        for (group, x) in x.chunks_exact(size).enumerate() {
            let parameters = Parameters::of(x).map_err(|d| group * size + d)?;
            self.parameters[self.group_at(shape, head, group, lane)] = parameters;
            for (d, &x) in x.iter().enumerate() {
                let code = parameters.quantise(x);
                let kept = parameters.dequantise(native, code);
                tally.changed += u32::from(kept != native.round(x));
                let (at, shift) = place(shape, head, shape.index(side, 0, lane, group * size + d));
                self.codes[at] = self.codes[at] & !(15 << shift) | code << shift;
            }
        }
        Ok(())
    }

    /// Decodes one head vector of a token.
    pub fn vector(
        &self,
        (side, shape): (Side, PlaneShape),
        (head, lane): (usize, usize),
        vector: &mut [f32],
    ) {
        for (d, x) in vector.iter_mut().enumerate() {
            let group = d / self.size.elements();
            let parameters = self.parameters[self.group_at(shape, head, group, lane)];
            let (at, shift) = place(shape, head, shape.index(side, 0, lane, d));
            *x = parameters.dequantise(self.native, self.codes[at] >> shift & 15);
        }
    }

    /// Smallest and largest scale of a token.
    pub fn scales(&self, shape: PlaneShape, lane: usize) -> (f32, f32) {
        let lanes = self.parameters.chunks_exact(PAGE);
        let scales = lanes.take(shape.width() / self.size.elements());
        let scales = scales.map(|lanes| lanes[lane].widened().0);
        scales.fold((f32::INFINITY, 0.0), |(low, high), scale| {
            (low.min(scale), high.max(scale))
        })
    }

    /// Decodes one head in stored order.
    #[inline(always)]
    pub fn decode<S: Simd>(&self, simd: S, side: Side, at: HeadOf, out: &mut [f32]) {
        let (head_dim, size) = (at.shape.head_dim, self.size.elements());
        let half = head_dim * PAGE / 2;
        let codes = &self.codes[at.head * half..][..half];
        let (low, high) = out.split_at_mut(half);
        widen::all(codes, low, |byte| f32::from(byte & 15));
        widen::all(codes, high, |byte| f32::from(byte >> 4));
        let groups = head_dim / size;
        let (parameters, _) = self.parameters[at.head * groups * PAGE..].as_chunks::<PAGE>();
        for (group, lanes) in parameters[..groups].iter().enumerate() {
            let scales: [f32; PAGE] = std::array::from_fn(|lane| widen::f16(lanes[lane].scale));
            let minima: [f32; PAGE] = std::array::from_fn(|lane| widen::f16(lanes[lane].minimum));
            match side {
                Side::Key => {
                    let rows = &mut out[group * size * PAGE..][..size * PAGE];
                    shift_lanes(simd, &scales, &minima, rows);
                }
                Side::Value => {
                    for (lane, row) in out.chunks_exact_mut(head_dim).enumerate() {
                        let (scale, minimum) = (scales[lane], minima[lane]);
                        for x in &mut row[group * size..][..size] {
                            *x = *x * scale + minimum;
                        }
                    }
                }
            }
        }
        match self.native {
            NativeDtype::F16 => round_all(out, nearest_f16),
            NativeDtype::Bf16 => round_all(out, nearest_bf16),
        }
    }

    fn group_at(&self, shape: PlaneShape, head: usize, group: usize, lane: usize) -> usize {
        (head * (shape.head_dim / self.size.elements()) + group) * PAGE + lane
    }
}

#[cfg(test)]
impl Packed {
    /// Overwrites the tokens from `kept` on: the largest codes, NaN in parameters.
    pub fn poison(&mut self, side: Side, shape: PlaneShape, kept: usize) {
        let broken = Parameters {
            scale: 0x7fff,
            minimum: 0x7fff,
        };
        for lanes in self.parameters.chunks_exact_mut(PAGE) {
            lanes[kept..].fill(broken);
        }
        for head in 0..shape.kv_heads {
            for (lane, d) in
                (kept..PAGE).flat_map(|lane| (0..shape.head_dim).map(move |d| (lane, d)))
            {
                let (at, shift) = place(shape, head, shape.index(side, 0, lane, d));
                self.codes[at] |= 15 << shift;
            }
        }
    }
}

/// Byte and shift of an element of a head, given its place in stored order.
fn place(shape: PlaneShape, head: usize, element: usize) -> (usize, u32) {
    let half = shape.head_dim * PAGE / 2;
    let upper = element / half;
    (head * half + element % half, 4 * upper as u32)
}

/// `x * scale + minimum` of `[elements][16]`, a scale and a minimum per token.
#[inline(always)]
fn shift_lanes<S: Simd>(simd: S, scales: &[f32; PAGE], minima: &[f32; PAGE], x: &mut [f32]) {
    let (scales, _) = S::as_simd_f32s(scales);
    let (minima, _) = S::as_simd_f32s(minima);
    for lanes in x.as_chunks_mut::<PAGE>().0 {
        let (lanes, _) = S::as_mut_simd_f32s(lanes);
        for ((lane, &scale), &minimum) in lanes.iter_mut().zip(scales).zip(minima) {
            // The product is exact: fused or not, it is rounded once.
            *lane = simd.mul_add_f32s(*lane, scale, minimum);
        }
    }
}

#[inline(always)]
fn round_all(x: &mut [f32], nearest: impl Fn(f32) -> f32) {
    for x in x {
        *x = nearest(*x);
    }
}

/// The nearest half of a number that is not far above the largest one, which stands in for what lies
/// beyond. Free of branches, unlike a conversion to bits and back.
#[inline(always)]
fn nearest_f16(x: f32) -> f32 {
    let bits = x.min(int4::LARGEST).to_bits();
    let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
    let normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & !0x1fff;
    // Between 0.5 and 1, the last bit of f32 weighs as much as the smallest half.
    let subnormal = (f32::from_bits(magnitude) + 0.5 - 0.5).to_bits();
    let is_normal = magnitude >= 0x3880_0000;
    f32::from_bits(sign | if is_normal { normal } else { subnormal })
}

/// The nearest bfloat16, likewise.
#[inline(always)]
fn nearest_bf16(x: f32) -> f32 {
    let bits = x.min(int4::LARGEST).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_a_conversion() {
        for bits in (0..=u32::MAX).step_by(7919) {
            let x = f32::from_bits(bits);
            if x.abs() <= int4::LARGEST {
                for (native, found) in [
                    (NativeDtype::F16, nearest_f16(x)),
                    (NativeDtype::Bf16, nearest_bf16(x)),
                ] {
                    assert_eq!(found.to_bits(), native.round(x).to_bits(), "{x:e}");
                }
            }
        }
        assert_eq!(nearest_f16(65536.0), 65504.0);
        assert_eq!(nearest_bf16(65536.0), 65536.0);
    }
}
