//! Operations that treat every row, or every head vector, on its own.
//!
//! Sums run over 16 lanes that are merged as a fixed binary tree, so their order depends on the
//! width only, never on other rows or on the machine's vector width.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::exp::{gelu_tanh, silu, tanh};
use super::product::PARALLEL_ELEMENTS;
use crate::backend::{Activation, CacheRow, RotaryTable};

/// Partial sums of a reduction.
pub const LANES: usize = 16;

/// Adds 16 partial sums as a binary tree.
#[inline(always)]
pub fn tree_sum(lanes: [f32; LANES]) -> f32 {
    tree(lanes, |a, b| a + b)
}

/// The larger number; `a` where `b` is NaN.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Merges 16 lanes as a binary tree.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES], merge: impl Fn(f32, f32) -> f32) -> f32 {
    for i in 0..8 {
        lanes[i] = merge(lanes[i], lanes[i + 8]);
    }
    for i in 0..4 {
        lanes[i] = merge(lanes[i], lanes[i + 4]);
    }
    for i in 0..2 {
        lanes[i] = merge(lanes[i], lanes[i + 2]);
    }
    merge(lanes[0], lanes[1])
}

#[inline(always)]
pub fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = x.mul_add(x, *lane);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(x, *lane);
    }
    tree_sum(lanes)
}

#[inline(always)]
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

/// Runs `$body` compiled for the widest vectors of `$arch`, with the variables named before it.
///
/// A closure does not do: unless the compiler happens to inline it, its body is compiled for the
/// baseline instruction set, where a fused multiply-add is a call into the mathematics library.
macro_rules! vectorised {
    ($arch:expr, |$($name:ident: $type:ty),*| -> $output:ty $body:block) => {{
        struct Body<'a> {
            $($name: $type,)*
            lifetime: std::marker::PhantomData<&'a ()>,
        }
        impl<'a> WithSimd for Body<'a> {
            type Output = $output;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> $output {
                let Body { $($name,)* .. } = self;
                $body
            }
        }
        $arch.dispatch(Body { $($name,)* lifetime: std::marker::PhantomData })
    }};
}
pub(in crate::backend::cpu) use vectorised;

/// Calls `f(row number, row)` for rows of `width`, in parallel where that pays.
fn for_rows(x: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if x.len() >= PARALLEL_ELEMENTS {
        let share = (PARALLEL_ELEMENTS / 4 / width.max(1)).max(1);
        x.par_chunks_mut(width)
            .with_min_len(share)
            .enumerate()
            .for_each(|(i, row)| f(i, row));
    } else {
        for (i, row) in x.chunks_mut(width).enumerate() {
            f(i, row);
        }
    }
}

/// `out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight`, rows of `weight.len()`.
pub fn rms_norm(arch: Arch, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "elements of a norm");
    let width = weight.len();
    for_rows(out, width, |i, out| {
        let x = &x[i * width..(i + 1) * width];
        vectorised!(arch, |x: &'a [f32],
                           weight: &'a [f32],
                           eps: f32,
                           out: &'a mut [f32]|
         -> () {
            let inverse = inverse_rms(x, eps);
            for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * inverse * w;
            }
        });
    });
}

/// [`rms_norm`] in place, over head vectors of `weight.len()`.
pub fn rms_norm_in_place(arch: Arch, x: &mut [f32], weight: &[f32], eps: f32) {
    for_rows(x, weight.len(), |_, x| {
        vectorised!(arch, |x: &'a mut [f32],
                           weight: &'a [f32],
                           eps: f32|
         -> () {
            let inverse = inverse_rms(x, eps);
            for (x, &w) in x.iter_mut().zip(weight) {
                *x = *x * inverse * w;
            }
        });
    });
}

/// `residual[i] += x[i] / sqrt(mean(x[i]^2) + eps) * weight`, rows of `weight.len()`.
pub fn rms_norm_add(arch: Arch, x: &[f32], weight: &[f32], eps: f32, residual: &mut [f32]) {
    assert_eq!(x.len(), residual.len(), "elements of a norm");
    let width = weight.len();
    for_rows(residual, width, |i, residual| {
        let x = &x[i * width..(i + 1) * width];
        vectorised!(arch, |x: &'a [f32],
                           weight: &'a [f32],
                           eps: f32,
                           residual: &'a mut [f32]|
         -> () {
            let inverse = inverse_rms(x, eps);
            for ((sum, &x), &w) in residual.iter_mut().zip(x).zip(weight) {
                *sum += x * inverse * w;
            }
        });
    });
}

/// `out = activation(gate) * up`, rows of `width`; a row of `packed` holds gate, then up.
pub fn gate(arch: Arch, activation: Activation, packed: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(packed.len(), 2 * out.len(), "elements of a gate");
    for_rows(out, width, |i, out| {
        let (gate, up) = packed[2 * i * width..2 * (i + 1) * width].split_at(width);
        match activation {
            Activation::Silu => {
                vectorised!(arch, |gate: &'a [f32],
                                   up: &'a [f32],
                                   out: &'a mut [f32]|
                 -> () { gated(gate, up, out, silu) });
            }
            Activation::GeluTanh => {
                vectorised!(arch, |gate: &'a [f32],
                                   up: &'a [f32],
                                   out: &'a mut [f32]|
                 -> () {
                    gated(gate, up, out, gelu_tanh)
                });
            }
        }
    });
}

#[inline(always)]
fn gated(gate: &[f32], up: &[f32], out: &mut [f32], activation: impl Fn(f32) -> f32) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = activation(gate) * up;
    }
}

/// `x = cap * tanh(x / cap)`, NaN where `x` is not finite, rows of `width`.
pub fn soft_cap(arch: Arch, x: &mut [f32], width: usize, cap: f32) {
    for_rows(x, width, |_, x| {
        vectorised!(arch, |x: &'a mut [f32], cap: f32| -> () {
            for x in x {
                *x = cap * tanh(*x / cap) + 0.0 * *x;
            }
        });
    });
}

/// Rotates every head vector (the first half of what is rotated against the second) by its row's
/// position.
pub fn rotary(arch: Arch, x: &mut [f32], width: usize, table: &RotaryTable, rows: &[CacheRow]) {
    let (half, head_dim) = (table.half, table.head_dim);
    for_rows(x, width, |i, row| {
        let angles = rows[i].position * half..(rows[i].position + 1) * half;
        let (cos, sin) = (&table.cos[angles.clone()], &table.sin[angles]);
        vectorised!(arch, |row: &'a mut [f32],
                           cos: &'a [f32],
                           sin: &'a [f32],
                           half: usize,
                           head_dim: usize|
         -> () {
            for head in row.chunks_exact_mut(head_dim) {
                let (first, second) = head.split_at_mut(half);
                for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        });
    });
}
