//! Projection weights and their product with activations.
//!
//! A weight `[out, inner]` is kept once, packed into panels `[out/32][inner][32]`, in the element
//! type of its checkpoint; 16-bit elements are widened exactly, one block at a time, so a 16-bit
//! checkpoint costs half the memory traffic. Work is cut by panels; the tiles write
//! `[panel][row][32]`, which is disjoint per panel, and a second pass puts it into rows.

use std::ops::Range;
use std::sync::Mutex;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::kernel::{
    PANEL, PanelRow, TileRows, halves, largest_tile, pack_rows, packed_tile, tiles,
};
use super::widen;
use crate::backend::TensorData;

/// Inner steps widened at a time: 8 KiB of f32, a quarter of a usual first-level cache.
const WIDEN_STEPS: usize = 64;

/// Fewest elements for which splitting work over threads pays.
pub const PARALLEL_ELEMENTS: usize = 16 * 1024;

/// A projection weight `[out, inner]` in panels; the last panel is padded with zeros.
pub struct CpuWeight {
    panels: Panels,
    /// Output features.
    pub out: usize,
    /// Input features.
    pub inner: usize,
}

/// `[out/32][inner]` rows of 32 output features.
enum Panels {
    F32(Vec<PanelRow>),
    F16(Vec<[u16; PANEL]>),
    Bf16(Vec<[u16; PANEL]>),
}

impl CpuWeight {
    /// Packs `[out, inner]`, row-major.
    ///
    /// # Panics
    /// Where `data` does not have `out * inner` elements, or `inner` is 0.
    pub fn pack(data: TensorData, out: usize, inner: usize) -> Self {
        assert!(inner > 0, "a weight [{out}, {inner}] without elements");
        assert_eq!(
            data.len(),
            out * inner,
            "elements of a weight [{out}, {inner}]"
        );
        let panels = match data {
            TensorData::F32(v) => Panels::F32(pack_panels(&v, out, inner, |x| x)),
            TensorData::F16(v) => Panels::F16(pack_panels(&v, out, inner, half::f16::to_bits)),
            TensorData::Bf16(v) => Panels::Bf16(pack_panels(&v, out, inner, half::bf16::to_bits)),
        };
        CpuWeight { panels, out, inner }
    }

    /// Bytes of the panels, their padding included.
    pub fn bytes(&self) -> u64 {
        let bytes = match &self.panels {
            Panels::F32(panels) => size_of_val(panels.as_slice()),
            Panels::F16(panels) | Panels::Bf16(panels) => size_of_val(panels.as_slice()),
        };
        bytes as u64
    }

    /// Reads row `index` of the weight (`[inner]`) back, as an embedding table does.
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn row(&self, index: usize, row: &mut [f32]) {
        assert!(index < self.out, "row {index} of a table of {}", self.out);
        let first = index / PANEL * self.inner;
        let lane = index % PANEL;
        let steps = first..first + self.inner;
        match &self.panels {
            Panels::F32(p) => copy_lane(&p[steps], lane, row, |x| x),
            Panels::F16(p) => copy_lane(&p[steps], lane, row, widen::f16),
            Panels::Bf16(p) => copy_lane(&p[steps], lane, row, widen::bf16),
        }
    }
}

fn pack_panels<T: Copy, U: Copy + Default>(
    data: &[T],
    out: usize,
    inner: usize,
    convert: impl Fn(T) -> U,
) -> Vec<[U; PANEL]> {
    let mut panels = vec![[U::default(); PANEL]; out.div_ceil(PANEL) * inner];
    for (o, row) in data.chunks_exact(inner).enumerate() {
        let first = o / PANEL * inner;
        for (panel, &x) in panels[first..first + inner].iter_mut().zip(row) {
            panel[o % PANEL] = convert(x);
        }
    }
    panels
}

fn copy_lane<T: Copy>(
    steps: &[[T; PANEL]],
    lane: usize,
    row: &mut [f32],
    widen: impl Fn(T) -> f32,
) {
    for (x, step) in row.iter_mut().zip(steps) {
        *x = widen(step[lane]);
    }
}

/// What happens to a finished product.
#[derive(Clone, Copy)]
pub enum Finish {
    /// `out = product`.
    Write,
    /// `out += product`.
    Add,
}

/// Products on one instruction set, with their scratch memory.
pub struct Product {
    arch: Arch,
    largest: usize,
    scratch: Mutex<Scratch>,
}

#[derive(Default)]
struct Scratch {
    /// Activations, tile by tile `[inner][rows of the tile]`.
    packed: Vec<f32>,
    /// `[panel][row]`.
    sums: Vec<PanelRow>,
}

impl Product {
    /// Products on `arch`.
    pub fn new(arch: Arch) -> Self {
        Product {
            arch,
            largest: largest_tile(arch),
            scratch: Mutex::default(),
        }
    }

    /// `out (+)= x * weight^T + bias` with `x` `[rows, inner]` and `out` `[rows, out]`.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn apply(
        &self,
        x: &[f32],
        weight: &CpuWeight,
        bias: Option<&[f32]>,
        out: &mut [f32],
        finish: Finish,
    ) {
        let columns = 0..weight.out;
        self.start(x, weight, columns, (bias, finish), out);
    }

    /// `out = x * weight[columns]^T`, of some rows of the weight.
    ///
    /// # Panics
    /// Where shapes do not fit.
    pub fn apply_columns(
        &self,
        x: &[f32],
        weight: &CpuWeight,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        self.start(x, weight, columns, (None, Finish::Write), out);
    }

    fn start(
        &self,
        x: &[f32],
        weight: &CpuWeight,
        columns: Range<usize>,
        (bias, finish): (Option<&[f32]>, Finish),
        out: &mut [f32],
    ) {
        assert!(columns.end <= weight.out, "columns of a product");
        let rows = out.len() / columns.len().max(1);
        assert_eq!(
            out.len(),
            rows * columns.len(),
            "elements of a product's output"
        );
        assert_eq!(
            x.len(),
            rows * weight.inner,
            "elements of a product's input"
        );
        if rows == 0 {
            return;
        }
        // A thread that panicked holding the lock leaves only scratch memory behind.
        let mut scratch = self.scratch.lock().unwrap_or_else(|e| e.into_inner());
        let Scratch { packed, sums } = &mut *scratch;
        let tiles = tiles(rows, self.largest);
        grow(packed, x.len());
        pack(&mut packed[..x.len()], x, weight.inner, &tiles);
        let panels = columns.start / PANEL..columns.end.div_ceil(PANEL);
        grow(sums, panels.len() * rows);
        let sums = &mut sums[..panels.len() * rows];
        let operands = (&packed[..x.len()], weight, panels.start);
        self.multiply(operands, &tiles, rows, sums);
        let first = columns.start % PANEL;
        unpack(sums, rows, bias, (out, first, columns.len()), finish);
    }

    fn multiply(
        &self,
        (packed, weight, first): (&[f32], &CpuWeight, usize),
        tiles: &[TileRows],
        rows: usize,
        sums: &mut [PanelRow],
    ) {
        let panels = sums.len() / rows;
        let share = panels.div_ceil(4 * rayon::current_num_threads());
        sums.par_chunks_mut(rows)
            .with_min_len(share)
            .enumerate()
            .for_each(|(panel, sums)| {
                self.arch.dispatch(PanelProduct {
                    packed,
                    weight,
                    panel: first + panel,
                    tiles,
                    sums,
                });
            });
    }
}

fn grow<T: Clone + Default>(scratch: &mut Vec<T>, len: usize) {
    if scratch.len() < len {
        scratch.resize(len, T::default());
    }
}

fn pack(packed: &mut [f32], x: &[f32], inner: usize, tiles: &[TileRows]) {
    let mut rest = packed;
    let mut parts = Vec::with_capacity(tiles.len());
    for tile in tiles {
        let (part, tail) = rest.split_at_mut(tile.rows * inner);
        parts.push((tile, part));
        rest = tail;
    }
    let one = |(tile, part): (&TileRows, &mut [f32])| {
        pack_rows(part, tile.rows, inner, |r| {
            let first = (tile.first + r) * inner;
            &x[first..first + inner]
        });
    };
    if x.len() >= PARALLEL_ELEMENTS {
        parts.into_par_iter().for_each(one);
    } else {
        parts.into_iter().for_each(one);
    }
}

/// Rows of `width` from sums whose first panel begins `first` columns before.
fn unpack(
    sums: &[PanelRow],
    rows: usize,
    bias: Option<&[f32]>,
    (out, first, width): (&mut [f32], usize, usize),
    finish: Finish,
) {
    let one = |(row, out): (usize, &mut [f32])| {
        let (head, tail) = out.split_at_mut((PANEL - first).min(width));
        let parts = [(first, head)].into_iter();
        let parts = parts.chain(tail.chunks_mut(PANEL).map(|part| (0, part)));
        for (panel, (lane, out)) in parts.enumerate() {
            let sums = &sums[panel * rows + row][lane..];
            let bias = bias.map(|bias| &bias[panel * PANEL..]);
            finish_panel(sums, bias, out, finish);
        }
    };
    if out.len() >= PARALLEL_ELEMENTS && rows > 1 {
        out.par_chunks_mut(width).enumerate().for_each(one);
    } else {
        out.chunks_mut(width).enumerate().for_each(one);
    }
}

fn finish_panel(sums: &[f32], bias: Option<&[f32]>, out: &mut [f32], finish: Finish) {
    let mut row = [0.0; PANEL];
    let row = &mut row[..out.len()];
    row.copy_from_slice(&sums[..out.len()]);
    for (sum, bias) in row.iter_mut().zip(bias.into_iter().flatten()) {
        *sum += bias;
    }
    match finish {
        Finish::Write => out.copy_from_slice(row),
        Finish::Add => out.iter_mut().zip(row).for_each(|(out, sum)| *out += *sum),
    }
}

/// All rows times one panel.
struct PanelProduct<'a> {
    packed: &'a [f32],
    weight: &'a CpuWeight,
    panel: usize,
    tiles: &'a [TileRows],
    sums: &'a mut [PanelRow],
}

impl WithSimd for PanelProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let inner = self.weight.inner;
        let steps = self.panel * inner..(self.panel + 1) * inner;
        match &self.weight.panels {
            Panels::F32(p) => self.block(simd, 0, &p[steps]),
            Panels::F16(p) => self.widened(simd, &p[steps], widen::f16),
            Panels::Bf16(p) => self.widened(simd, &p[steps], widen::bf16),
        }
    }
}

impl PanelProduct<'_> {
    #[inline(always)]
    fn widened<S: Simd>(
        &mut self,
        simd: S,
        steps: &[[u16; PANEL]],
        widen: impl Fn(u16) -> f32 + Copy,
    ) {
        let mut wide = [[0.0; PANEL]; WIDEN_STEPS];
        for (block, steps) in steps.chunks(WIDEN_STEPS).enumerate() {
            widen::all(steps.as_flattened(), wide.as_flattened_mut(), widen);
            self.block(simd, block * WIDEN_STEPS, &wide[..steps.len()]);
        }
    }

    /// Adds the inner steps from `first` on.
    #[inline(always)]
    fn block<S: Simd>(&mut self, simd: S, first: usize, steps: &[PanelRow]) {
        let inner = self.weight.inner;
        for tile in self.tiles {
            let start = tile.first * inner + first * tile.rows;
            let a = &self.packed[start..start + steps.len() * tile.rows];
            let sums = &mut self.sums[tile.first..tile.first + tile.rows];
            let b = steps.iter().map(halves);
            packed_tile(simd, tile.rows, a, b, sums, first > 0);
        }
    }
}
