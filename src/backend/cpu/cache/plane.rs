//! One component of one layer's share of a page: stored elements (keys `[kv_heads][head_dim][16]`,
//! values `[kv_heads][16][head_dim]`) and inline scales.

use half::{bf16, f16};
use pulp::Simd;

use super::PAGE;
use super::packed::Packed;
use super::pool::Tally;
use crate::backend::CacheLayer;
use crate::backend::cpu::widen;
use crate::backend::cpu::worker::Precision;
use crate::backend::storage::{Side, Storage};
use crate::recipe::{ByteFormat, NativeDtype, float8};

/// Heads and their width.
#[derive(Clone, Copy, Debug)]
pub struct PlaneShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head vector.
    pub head_dim: usize,
}

impl PlaneShape {
    /// Of a layer.
    pub fn of(layer: &CacheLayer) -> Self {
        PlaneShape {
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
        }
    }

    /// Elements per token.
    pub fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Where element `d` of a head vector lies.
    pub(super) fn index(self, side: Side, head: usize, lane: usize, d: usize) -> usize {
        match side {
            Side::Key => (head * self.head_dim + d) * PAGE + lane,
            Side::Value => (head * PAGE + lane) * self.head_dim + d,
        }
    }
}

/// One head of a plane, and how to read it.
#[derive(Clone, Copy)]
pub struct HeadOf {
    /// Heads and widths.
    pub shape: PlaneShape,
    /// Storage of the plane.
    pub storage: Storage,
    /// Key/value head.
    pub head: usize,
}

/// Stored elements and their inline scales (`[kv_heads][16]`, dynamic scales only).
pub struct Plane {
    elements: Elements,
    scales: Box<[f32]>,
}

enum Elements {
    Half(Box<[u16]>),
    /// Native components that are not rounded.
    Whole(Box<[f32]>),
    Byte(Box<[u8]>),
    Packed(Packed),
}

impl Plane {
    /// A plane of zeros.
    pub fn new(shape: PlaneShape, storage: Storage, precision: Precision) -> Self {
        let len = shape.width() * PAGE;
        let (elements, scales) = match storage {
            Storage::Native(_) => match precision {
                Precision::Native => (Elements::Half(vec![0; len].into()), 0),
                Precision::Whole => (Elements::Whole(vec![0.0; len].into()), 0),
            },
            Storage::Fixed(..) => (Elements::Byte(vec![0; len].into()), 0),
            Storage::Dynamic(..) => (Elements::Byte(vec![0; len].into()), shape.kv_heads * PAGE),
            Storage::Grouped(size, native) => {
                (Elements::Packed(Packed::new(shape, size, native)), 0)
            }
        };
        Plane {
            elements,
            scales: vec![1.0; scales].into(),
        }
    }

    /// Bytes of elements and scales.
    pub fn bytes(&self) -> u64 {
        let elements = match &self.elements {
            Elements::Half(elements) => size_of_val(&elements[..]) as u64,
            Elements::Whole(elements) => size_of_val(&elements[..]) as u64,
            Elements::Byte(elements) => size_of_val(&elements[..]) as u64,
            Elements::Packed(packed) => packed.bytes(),
        };
        elements + size_of_val(&self.scales[..]) as u64
    }

    /// Stores one token (`x` is `[kv_heads * head_dim]`).
    ///
    /// # Errors
    /// The index of the first element that is not finite, or that the storage cannot hold.
    pub fn store(
        &mut self,
        side: Side,
        shape: PlaneShape,
        storage: Storage,
        lane: usize,
        x: &[f32],
    ) -> Result<Tally, usize> {
        let mut tally = Tally::UNCHANGED;
        match (&mut self.elements, storage) {
            (Elements::Half(stored), Storage::Native(native)) => {
                for (head, x) in x.chunks_exact(shape.head_dim).enumerate() {
                    let at = |d| shape.index(side, head, lane, d);
                    store_native(stored, at, native, x).map_err(|d| head * shape.head_dim + d)?;
                }
            }
            (Elements::Whole(stored), Storage::Native(_)) => {
                check_finite(x)?;
                for (head, x) in x.chunks_exact(shape.head_dim).enumerate() {
                    for (d, &x) in x.iter().enumerate() {
                        stored[shape.index(side, head, lane, d)] = x;
                    }
                }
            }
            (Elements::Byte(stored), Storage::Fixed(format, native, scale)) => {
                check_finite(x)?;
                for (head, x) in x.chunks_exact(shape.head_dim).enumerate() {
                    let at = |d| shape.index(side, head, lane, d);
                    store_bytes(stored, at, (format, native, scale), x, &mut tally);
                }
            }
            (Elements::Byte(stored), Storage::Dynamic(format, native)) => {
                check_finite(x)?;
                for (head, x) in x.chunks_exact(shape.head_dim).enumerate() {
                    let absmax = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    let scale = float8::scale_from_absmax(format, absmax);
                    self.scales[head * PAGE + lane] = scale;
                    let at = |d| shape.index(side, head, lane, d);
                    store_bytes(stored, at, (format, native, scale), x, &mut tally);
                }
            }
            (Elements::Packed(packed), Storage::Grouped(..)) => {
                for (head, x) in x.chunks_exact(shape.head_dim).enumerate() {
                    let stored = packed.store((side, shape), (head, lane), x, &mut tally);
                    stored.map_err(|d| head * shape.head_dim + d)?;
                }
            }
            _ => unreachable!("a plane keeps the storage that it was made for"),
        }
        Ok(tally)
    }

    /// Smallest and largest scale of a token; `None` for native storage.
    pub fn scales(
        &self,
        storage: Storage,
        shape: PlaneShape,
        lane: usize,
    ) -> (Option<f32>, Option<f32>) {
        if let (Elements::Packed(packed), Storage::Grouped(..)) = (&self.elements, storage) {
            let (low, high) = packed.scales(shape, lane);
            return (Some(low), Some(high));
        }
        let scales = || (0..shape.kv_heads).filter_map(|head| self.scale(storage, head, lane));
        (scales().reduce(f32::min), scales().reduce(f32::max))
    }

    /// The one scale of a head vector; `None` where there is none.
    fn scale(&self, storage: Storage, head: usize, lane: usize) -> Option<f32> {
        match storage {
            Storage::Native(_) | Storage::Grouped(..) => None,
            Storage::Fixed(_, _, scale) => Some(scale),
            Storage::Dynamic(..) => Some(self.scales[head * PAGE + lane]),
        }
    }

    /// Decodes one head vector.
    pub fn vector(
        &self,
        side: Side,
        shape: PlaneShape,
        storage: Storage,
        head: usize,
        lane: usize,
        vector: &mut [f32],
    ) {
        if let Elements::Packed(packed) = &self.elements {
            packed.vector((side, shape), (head, lane), vector);
            return;
        }
        let scale = self.scale(storage, head, lane).unwrap_or(1.0);
        for (d, x) in vector.iter_mut().enumerate() {
            let at = shape.index(side, head, lane, d);
            *x = match (&self.elements, storage) {
                (Elements::Half(stored), Storage::Native(native)) => {
                    widen_native(native, stored[at])
                }
                (Elements::Whole(stored), Storage::Native(_)) => stored[at],
                (
                    Elements::Byte(stored),
                    Storage::Fixed(format, ..) | Storage::Dynamic(format, _),
                ) => float8::dequantise(format, stored[at], scale),
                _ => unreachable!("a plane keeps the storage that it was made for"),
            };
        }
    }

    /// Decodes one head in stored order: `out` is `[head_dim][16]` for keys and `[16][head_dim]`
    /// for values.
    #[inline(always)]
    pub fn decode<S: Simd>(&self, simd: S, side: Side, at: HeadOf, out: &mut [f32]) {
        if let Elements::Packed(packed) = &self.elements {
            packed.decode(simd, side, at, out);
            return;
        }
        match at.storage {
            Storage::Native(_) | Storage::Grouped(..) => self.widen(at, 1.0, out),
            Storage::Fixed(_, _, scale) => self.widen(at, scale, out),
            Storage::Dynamic(..) => {
                self.widen(at, 1.0, out);
                let (scales, _) = self.scales[at.head * PAGE..].as_chunks::<PAGE>();
                match side {
                    Side::Key => scale_lanes(simd, &scales[0], out),
                    Side::Value => scale_rows(&scales[0], at.shape.head_dim, out),
                }
            }
        }
    }

    /// Widens the stored elements of one head under one scale; a scale of 1 leaves them exact.
    #[inline(always)]
    fn widen(&self, at: HeadOf, scale: f32, out: &mut [f32]) {
        let len = at.shape.head_dim * PAGE;
        let range = at.head * len..(at.head + 1) * len;
        match (&self.elements, at.storage) {
            (Elements::Half(e), Storage::Native(NativeDtype::F16)) => {
                widen::all(&e[range], out, widen::f16);
            }
            (Elements::Half(e), _) => widen::all(&e[range], out, widen::bf16),
            (Elements::Whole(e), _) => out.copy_from_slice(&e[range]),
            (Elements::Packed(_), _) => unreachable!("groups are decoded as such"),
            (Elements::Byte(e), storage) => {
                let stored = &e[range];
                match storage.byte_format() {
                    ByteFormat::E4m3 => widen::all(stored, out, |x| widen::e4m3(x) * scale),
                    ByteFormat::E5m2 => widen::all(stored, out, |x| widen::e5m2(x) * scale),
                    ByteFormat::Int8 => widen::all(stored, out, |x| widen::int8(x) * scale),
                }
            }
        }
    }
}

#[cfg(test)]
impl Plane {
    /// Overwrites the tokens from `kept` on: NaN in native storage and in scales, the largest
    /// pattern in bytes.
    pub fn poison(&mut self, side: Side, shape: PlaneShape, kept: usize) {
        if let Elements::Packed(packed) = &mut self.elements {
            packed.poison(side, shape, kept);
            return;
        }
        for head in 0..shape.kv_heads {
            for lane in kept..PAGE {
                if let Some(scale) = self.scales.get_mut(head * PAGE + lane) {
                    *scale = f32::NAN;
                }
                for d in 0..shape.head_dim {
                    let at = shape.index(side, head, lane, d);
                    match &mut self.elements {
                        Elements::Half(e) => e[at] = 0x7fff,
                        Elements::Whole(e) => e[at] = f32::NAN,
                        Elements::Byte(e) => e[at] = 0x7f,
                        Elements::Packed(_) => unreachable!("poisoned as such"),
                    }
                }
            }
        }
    }
}

/// Multiplies `[head_dim][16]` by a scale per token.
#[inline(always)]
fn scale_lanes<S: Simd>(simd: S, scales: &[f32; PAGE], x: &mut [f32]) {
    let (scales, _) = S::as_simd_f32s(scales);
    for lanes in x.as_chunks_mut::<PAGE>().0 {
        let (lanes, _) = S::as_mut_simd_f32s(lanes);
        for (lane, &scale) in lanes.iter_mut().zip(scales) {
            *lane = simd.mul_f32s(*lane, scale);
        }
    }
}

/// Multiplies `[16][head_dim]` by a scale per token.
#[inline(always)]
fn scale_rows(scales: &[f32; PAGE], head_dim: usize, x: &mut [f32]) {
    for (row, &scale) in x.chunks_exact_mut(head_dim).zip(scales) {
        for x in row {
            *x *= scale;
        }
    }
}

fn check_finite(x: &[f32]) -> Result<(), usize> {
    x.iter().position(|x| !x.is_finite()).map_or(Ok(()), Err)
}

pub(super) fn store_native(
    stored: &mut [u16],
    at: impl Fn(usize) -> usize,
    native: NativeDtype,
    x: &[f32],
) -> Result<(), usize> {
    for (d, &x) in x.iter().enumerate() {
        let bits = match native {
            NativeDtype::F16 => finite_bits(f16::from_f32(x).to_bits(), f16::INFINITY.to_bits()),
            NativeDtype::Bf16 => finite_bits(bf16::from_f32(x).to_bits(), bf16::INFINITY.to_bits()),
        };
        stored[at(d)] = bits.ok_or(d)?;
    }
    Ok(())
}

/// The bits unless they are infinity or NaN.
fn finite_bits(bits: u16, infinity: u16) -> Option<u16> {
    (bits & 0x7fff < infinity).then_some(bits)
}

/// Stores a head vector as bytes, `at(d)` being where element `d` goes.
fn store_bytes(
    stored: &mut [u8],
    at: impl Fn(usize) -> usize,
    (format, native, scale): (ByteFormat, NativeDtype, f32),
    x: &[f32],
    tally: &mut Tally,
) {
    const GROUP: usize = 64;
    let mut bytes = [0; GROUP];
    for (group, x) in x.chunks(GROUP).enumerate() {
        float8::quantise_slice(format, x, scale, &mut bytes);
        for (d, (&x, &byte)) in x.iter().zip(&bytes).enumerate() {
            let kept = float8::dequantise(format, byte, scale);
            tally.changed += u32::from(kept != native.round(x));
            tally.saturated += u32::from(float8::saturates(format, x, scale));
            stored[at(group * GROUP + d)] = byte;
        }
    }
}

pub(super) fn widen_native(native: NativeDtype, bits: u16) -> f32 {
    match native {
        NativeDtype::F16 => widen::f16(bits),
        NativeDtype::Bf16 => widen::bf16(bits),
    }
}
