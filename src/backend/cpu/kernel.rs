//! The register tile that every product goes through: a few rows times one panel of 32 columns.
//!
//! Each element is one chain of fused multiply-adds over ascending `k`, whatever the vector width
//! and the number of rows of the tile. Its bits therefore depend on its own row and column only,
//! and are the same on every machine, with or without AVX-512. A general library cannot promise
//! this: the `gemm` crate (0.19), for example, takes another path for a single row, and nearly
//! every element of that row differs from the same row among two.

use pulp::{Simd, WithSimd};

/// Columns of a panel.
pub const PANEL: usize = 32;

/// Columns of half a panel: the widest vector, and the tokens of a cache page.
pub const HALF: usize = 16;

/// One row of a panel.
pub type PanelRow = [f32; PANEL];

/// Rows of the largest tile whose accumulators fit the registers of `S`: two vectors per row, two
/// of the panel and one broadcast element.
const fn tile_rows<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 12 } else { 6 }
}

/// Rows of the largest tile of `arch`.
pub fn largest_tile(arch: pulp::Arch) -> usize {
    struct Rows;
    impl WithSimd for Rows {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            tile_rows::<S>()
        }
    }
    arch.dispatch(Rows)
}

/// Rows of the next tile when `left` rows remain and no tile may exceed `largest`.
pub fn next_tile(left: usize, largest: usize) -> usize {
    [12, 8, 6, 4, 3, 2, 1]
        .into_iter()
        .find(|&rows| rows <= left && rows <= largest)
        .unwrap_or(0)
}

/// Calls `$body` with the constant `$rows` equal to `$value`, one of the sizes of [`next_tile`].
macro_rules! with_tile_rows {
    ($value:expr, $rows:ident => $body:expr) => {
        match $value {
            12 => {
                const $rows: usize = 12;
                $body
            }
            8 => {
                const $rows: usize = 8;
                $body
            }
            6 => {
                const $rows: usize = 6;
                $body
            }
            4 => {
                const $rows: usize = 4;
                $body
            }
            3 => {
                const $rows: usize = 3;
                $body
            }
            2 => {
                const $rows: usize = 2;
                $body
            }
            1 => {
                const $rows: usize = 1;
                $body
            }
            other => unreachable!("no tile has {other} rows"),
        }
    };
}
pub(super) use with_tile_rows;

/// The left and right half of a panel row.
pub type Halves<'a> = [&'a [f32; HALF]; 2];

/// Splits a panel row.
#[inline(always)]
pub fn halves(row: &PanelRow) -> Halves<'_> {
    let (halves, _) = row.as_chunks::<HALF>();
    [&halves[0], &halves[1]]
}

/// `out[r] = (add ? out[r] : 0) + sum over k of a(k)[r] * b(k)`, `k` ascending.
///
/// `a` yields column `k` of the left-hand rows, of which `of(column, r)` reads an element; `b`
/// yields row `k` of the panel; `out` is `[ROWS]` rows. Columns are not arrays by value: the
/// compiler would copy them to the stack first.
#[inline(always)]
pub fn tile<'a, S: Simd, C: Copy, const ROWS: usize>(
    simd: S,
    (a, of): (impl Iterator<Item = C> + Clone, impl Fn(C, usize) -> f32),
    b: impl Iterator<Item = Halves<'a>> + Clone,
    out: &mut [PanelRow],
    add: bool,
) {
    for at in 0..HALF / S::F32_LANES {
        let mut sums = [[simd.splat_f32s(0.0); 2]; ROWS];
        if add {
            for (sum, out) in sums.iter_mut().zip(&*out) {
                *sum = pair::<S>(halves(out), at);
            }
        }
        for (a, b) in a.clone().zip(b.clone()) {
            let [left, right] = pair::<S>(b, at);
            for (r, sum) in sums.iter_mut().enumerate() {
                let a = simd.splat_f32s(of(a, r));
                sum[0] = simd.mul_add_f32s(a, left, sum[0]);
                sum[1] = simd.mul_add_f32s(a, right, sum[1]);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            let (halves, _) = out.as_chunks_mut::<HALF>();
            for (half, sum) in halves.iter_mut().zip(sum) {
                S::as_mut_simd_f32s(half).0[at] = sum;
            }
        }
    }
}

#[inline(always)]
fn pair<S: Simd>(halves: Halves, at: usize) -> [S::f32s; 2] {
    halves.map(|half| S::as_simd_f32s(half).0[at])
}

/// `row *= factor`, explicitly as vectors: over many rows the compiler prefers columns.
#[inline(always)]
pub fn scale_row<S: Simd>(simd: S, row: &mut PanelRow, factor: f32) {
    let factor = simd.splat_f32s(factor);
    for x in S::as_mut_simd_f32s(row).0 {
        *x = simd.mul_f32s(*x, factor);
    }
}

/// [`tile`] with the left-hand rows packed as `[inner][rows]`.
#[inline(always)]
pub fn packed_tile<'a, S: Simd>(
    simd: S,
    rows: usize,
    a: &[f32],
    b: impl Iterator<Item = Halves<'a>> + Clone,
    out: &mut [PanelRow],
    add: bool,
) {
    with_tile_rows!(rows, ROWS => {
        let (a, _) = a.as_chunks::<ROWS>();
        tile::<S, _, ROWS>(simd, (a.iter(), |a: &[f32; ROWS], r| a[r]), b, out, add);
    });
}

/// Where a tile's rows begin, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRows {
    /// First row.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
}

/// Cuts `rows` rows into tiles.
pub fn tiles(rows: usize, largest: usize) -> Vec<TileRows> {
    let mut tiles = Vec::with_capacity(rows / largest + 4);
    let mut first = 0;
    while first < rows {
        let size = next_tile(rows - first, largest);
        tiles.push(TileRows { first, rows: size });
        first += size;
    }
    tiles
}

/// Packs rows (`row(r)` is `[inner]`) as `[inner][rows]`, the order in which a tile reads them.
pub fn pack_rows<'a>(
    packed: &mut [f32],
    rows: usize,
    inner: usize,
    row: impl Fn(usize) -> &'a [f32],
) {
    let packed = &mut packed[..rows * inner];
    for r in 0..rows {
        for (packed, &x) in packed[r..].iter_mut().step_by(rows).zip(row(r)) {
            *packed = x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tile<'a> {
        rows: usize,
        a: &'a [f32],
        b: &'a [PanelRow],
        out: &'a mut [PanelRow],
    }

    impl WithSimd for Tile<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let b = self.b.iter().map(halves);
            packed_tile(simd, self.rows, self.a, b, self.out, true);
        }
    }

    #[test]
    fn every_tile_is_one_chain_of_fused_multiply_adds() {
        let inner = 37;
        let value = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 501.0 - 1.0;
        let b: Vec<PanelRow> = (0..inner)
            .map(|k| std::array::from_fn(|c| value(k * PANEL + c + 7)))
            .collect();
        for rows in [1, 2, 3, 4, 6, 8, 12] {
            let a: Vec<f32> = (0..inner * rows).map(value).collect();
            let start = [0.25; PANEL];
            let mut out = vec![start; rows];
            let mut narrow = out.clone();
            pulp::Arch::new().dispatch(Tile {
                rows,
                a: &a,
                b: &b,
                out: &mut out,
            });
            Tile {
                rows,
                a: &a,
                b: &b,
                out: &mut narrow,
            }
            .with_simd(pulp::Scalar::new());
            assert_eq!(
                out, narrow,
                "the vector width changes the bits at {rows} rows"
            );
            for (r, out) in out.iter().enumerate() {
                for (c, &got) in out.iter().enumerate() {
                    let expected =
                        (0..inner).fold(start[c], |sum, k| a[k * rows + r].mul_add(b[k][c], sum));
                    assert_eq!(got.to_bits(), expected.to_bits());
                }
            }
        }
    }

    #[test]
    fn tiles_cover_every_row_once() {
        for largest in [6, 12] {
            for rows in 0..200 {
                let mut next = 0;
                for tile in tiles(rows, largest) {
                    assert_eq!(tile.first, next);
                    assert!(tile.rows >= 1 && tile.rows <= largest);
                    next += tile.rows;
                }
                assert_eq!(next, rows);
            }
        }
    }
}
