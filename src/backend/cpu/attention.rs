//! Causal attention over the stored bytes, by online softmax over blocks of 64 tokens.
//!
//! Blocks are aligned to positions and taken in ascending order; every row takes whole blocks,
//! with masked tokens at probability exactly zero. So the operations behind a row's result, and
//! their order, follow from its own position and the layer's window alone. What differs between
//! calls is only how many fully masked blocks or tokens a row sees beside its neighbours: they add
//! zero, and a final `+ 0.0` removes the one trace that leaves, the sign of a zero.
//!
//! A decoded tile serves all rows and query heads of a task: query heads that share a key/value
//! head, and in a prompt a run of rows of the same slot.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::cache::{CpuCache, PAGE, Side};
use super::exp::exp2;
use super::kernel::{
    PANEL, PanelRow, TileRows, largest_tile, pack_rows, packed_tile, scale_row, tile, tiles,
    with_tile_rows,
};
use super::rowwise::{larger, tree, tree_sum};
use crate::backend::{CacheLayer, CacheRow};

/// Tokens of a block.
const BLOCK: usize = 64;
/// Pages of a block.
const BLOCK_PAGES: usize = BLOCK / PAGE;
/// Query vectors (rows times query heads per key/value head) that share decoded tiles.
const TASK_QUERIES: usize = 96;

/// Queries and where they stand.
pub struct Queries<'a> {
    /// `[rows, heads * head_dim]`.
    pub q: &'a [f32],
    /// Row after row.
    pub rows: &'a [CacheRow],
}

/// Rows of one slot and one key/value head.
struct Task {
    slot: usize,
    kv_head: usize,
    /// Row numbers.
    rows: Vec<usize>,
    /// First position that any of them sees.
    first: usize,
    /// Largest position among them.
    last: usize,
}

impl Task {
    /// Blocks that any row sees a token of.
    fn blocks(&self) -> std::ops::RangeInclusive<usize> {
        self.first / BLOCK..=self.last / BLOCK
    }
}

/// `out[i] = softmax(q[i] K^T / score_divisor) V` over the positions of the row's slot that it
/// sees, per head; `out` is `[rows, heads * head_dim]`.
///
/// # Panics
/// Where shapes do not fit or a position was never stored.
pub fn attend(arch: Arch, cache: &CpuCache, layer: usize, queries: &Queries, out: &mut [f32]) {
    let shape = cache.layer(layer);
    let head_dim = shape.head_dim;
    assert_eq!(queries.q.len(), out.len(), "elements of queries");
    if queries.rows.is_empty() {
        return;
    }
    let width = out.len() / queries.rows.len();
    let group = width / shape.width();
    assert_eq!(
        width,
        group * shape.width(),
        "query heads per key/value head"
    );
    let tasks = plan(cache, layer, queries.rows, group);
    let results: Vec<Vec<f32>> = tasks
        .par_iter()
        .map_init(Scratch::default, |scratch, task| {
            let mut result = vec![0.0; task.rows.len() * group * head_dim];
            arch.dispatch(Attention {
                cache,
                layer,
                shape,
                task,
                queries,
                group,
                tiles: &tiles(task.rows.len() * group, largest_tile(arch)),
                scratch,
                result: &mut result,
            });
            result
        })
        .collect();
    let share = group * head_dim;
    for (task, result) in tasks.iter().zip(&results) {
        for (&row, result) in task.rows.iter().zip(result.chunks_exact(share)) {
            let first = row * width + task.kv_head * share;
            out[first..first + share].copy_from_slice(result);
        }
    }
}

fn plan(cache: &CpuCache, layer: usize, rows: &[CacheRow], group: usize) -> Vec<Task> {
    let mut slots: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        cache.check_visible(layer, *row);
        // Rows of a slot usually stand together: the search ends at once.
        match slots.iter_mut().rev().find(|(slot, _)| *slot == row.slot) {
            Some((_, members)) => members.push(i),
            None => slots.push((row.slot, vec![i])),
        }
    }
    let shape = cache.layer(layer);
    let share = (TASK_QUERIES / group).max(1);
    let mut tasks = Vec::new();
    for (slot, members) in &slots {
        for members in members.chunks(share) {
            let positions = || members.iter().map(|&i| rows[i].position);
            let first = positions().min().unwrap_or(0);
            let last = positions().max().unwrap_or(0);
            tasks.extend((0..shape.kv_heads).map(|kv_head| Task {
                slot: *slot,
                kv_head,
                rows: members.to_vec(),
                first: shape.first_visible(first),
                last,
            }));
        }
    }
    // The longest first: threads finish together.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.blocks().count() * task.rows.len()));
    tasks
}

/// Working memory of one task.
#[derive(Default)]
struct Scratch {
    /// Packed queries, tile by tile `[head_dim][rows of the tile]`.
    q: Vec<f32>,
    /// Decoded keys `[4 pages][head_dim][16]`: tokens are lanes.
    keys: Vec<f32>,
    /// Decoded values `[64][head_dim]` and as many zeros as a panel is wide.
    values: Vec<f32>,
    /// Scores `[2][queries]`, tokens as lanes.
    scores: Vec<PanelRow>,
    /// Unnormalised probabilities of the block.
    weights: Vec<[f32; BLOCK]>,
    /// Weighted sums of values `[head_dim/32][queries]`.
    sums: Vec<PanelRow>,
    /// Running maxima and sums.
    running: Vec<Running>,
}

/// Online softmax of one query vector.
#[derive(Clone, Copy)]
struct Running {
    /// Position of the query.
    position: usize,
    /// Largest score so far, in units of log2.
    largest: f32,
    /// Sum of `2^(score - largest)`.
    sum: f32,
    /// What the block multiplies older sums by.
    correction: f32,
}

struct Attention<'a> {
    cache: &'a CpuCache,
    layer: usize,
    shape: CacheLayer,
    task: &'a Task,
    queries: &'a Queries<'a>,
    group: usize,
    tiles: &'a [TileRows],
    scratch: &'a mut Scratch,
    /// `[rows, group, head_dim]`.
    result: &'a mut [f32],
}

impl WithSimd for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        self.begin();
        for block in self.task.blocks() {
            self.decode(simd, block);
            self.score(simd);
            self.soften(block);
            self.accumulate(simd);
        }
        self.finish();
    }
}

impl Attention<'_> {
    fn count(&self) -> usize {
        self.task.rows.len() * self.group
    }

    /// Packs the queries and clears the sums.
    fn begin(&mut self) {
        let head_dim = self.shape.head_dim;
        let count = self.count();
        let width = self.group * self.shape.width();
        let (task, group, q) = (self.task, self.group, self.queries.q);
        let query = |i: usize| {
            let head = task.kv_head * group + i % group;
            let first = task.rows[i / group] * width + head * head_dim;
            &q[first..first + head_dim]
        };
        let s = &mut *self.scratch;
        s.q.resize(count * head_dim, 0.0);
        for tile in self.tiles {
            let part = &mut s.q[tile.first * head_dim..];
            pack_rows(part, tile.rows, head_dim, |r| query(tile.first + r));
        }
        let panels = head_dim.div_ceil(PANEL);
        s.keys.resize(BLOCK * head_dim, 0.0);
        s.values.resize(BLOCK * head_dim + PANEL, 0.0);
        s.scores.resize(2 * count, [0.0; PANEL]);
        s.weights.resize(count, [0.0; BLOCK]);
        s.sums.clear();
        s.sums.resize(panels * count, [0.0; PANEL]);
        s.running.clear();
        s.running.extend((0..count).map(|i| Running {
            position: self.queries.rows[task.rows[i / group]].position,
            largest: f32::NEG_INFINITY,
            sum: 0.0,
            correction: 0.0,
        }));
    }

    /// Decodes the block's keys and values. Slots of its pages that hold no token become zeros:
    /// whatever bytes lie there never enter arithmetic.
    #[inline(always)]
    fn decode<S: Simd>(&mut self, simd: S, block: usize) {
        let Task { slot, kv_head, .. } = *self.task;
        let (cache, layer) = (self.cache, self.layer);
        let head_dim = self.shape.head_dim;
        let stored = cache.tokens(layer, slot) - block * BLOCK;
        let Scratch { keys, values, .. } = &mut *self.scratch;
        let pages = keys
            .chunks_exact_mut(PAGE * head_dim)
            .zip(values.chunks_exact_mut(PAGE * head_dim));
        for (page, (keys, values)) in pages.enumerate() {
            let tokens = stored.saturating_sub(page * PAGE).min(PAGE);
            if tokens > 0 {
                let number = block * BLOCK_PAGES + page;
                for (side, out) in [(Side::Key, &mut *keys), (Side::Value, &mut *values)] {
                    cache.decode(simd, (layer, side), (slot, number), kv_head, out);
                }
            }
            if tokens < PAGE {
                for lanes in keys.as_chunks_mut::<PAGE>().0 {
                    lanes[tokens..].fill(0.0);
                }
                values[tokens * head_dim..].fill(0.0);
            }
        }
    }

    /// `scores = q K^T` of the block.
    #[inline(always)]
    fn score<S: Simd>(&mut self, simd: S) {
        let count = self.count();
        let head_dim = self.shape.head_dim;
        let Scratch {
            q, keys, scores, ..
        } = &mut *self.scratch;
        let (keys, _) = keys.as_chunks::<PAGE>();
        let panels = keys.chunks_exact(2 * head_dim);
        for (keys, scores) in panels.zip(scores.chunks_exact_mut(count)) {
            let (left, right) = keys.split_at(head_dim);
            for tile in self.tiles {
                let q = &q[tile.first * head_dim..][..tile.rows * head_dim];
                let scores = &mut scores[tile.first..tile.first + tile.rows];
                let keys = left.iter().zip(right).map(|(left, right)| [left, right]);
                packed_tile(simd, tile.rows, q, keys, scores, false);
            }
        }
    }

    /// One step of the online softmax.
    #[inline(always)]
    fn soften(&mut self, block: usize) {
        let count = self.count();
        let shape = self.shape;
        let factor = std::f32::consts::LOG2_E / shape.score_divisor;
        let s = &mut *self.scratch;
        let (left, right) = s.scores.split_at(count);
        for (((running, weights), left), right) in s
            .running
            .iter_mut()
            .zip(&mut s.weights)
            .zip(left)
            .zip(right)
        {
            weights[..PANEL].copy_from_slice(left);
            weights[PANEL..].copy_from_slice(right);
            // Tokens of the block that the row may see, itself included.
            let within = |position: usize| position.saturating_sub(block * BLOCK).min(BLOCK);
            let first = within(shape.first_visible(running.position));
            running.step(weights, first..within(running.position + 1), factor);
        }
    }

    /// `sums = sums * correction + weights V`.
    #[inline(always)]
    fn accumulate<S: Simd>(&mut self, simd: S) {
        let count = self.count();
        let Scratch {
            values,
            weights,
            sums,
            running,
            ..
        } = &mut *self.scratch;
        let head_dim = self.shape.head_dim;
        for (panel, sums) in sums.chunks_exact_mut(count).enumerate() {
            for (sum, running) in sums.iter_mut().zip(&*running) {
                scale_row(simd, sum, running.correction);
            }
            // Columns beyond the head's width read on into the next row; nobody reads their sums.
            let values = values[panel * PANEL..]
                .windows(PANEL)
                .step_by(head_dim)
                .map(|row| {
                    let (row, _) = row.as_chunks::<PAGE>();
                    [&row[0], &row[1]]
                });
            for rows in self.tiles {
                let range = rows.first..rows.first + rows.rows;
                let (weights, sums) = (&weights[range.clone()], &mut sums[range]);
                with_tile_rows!(rows.rows, ROWS => {
                    let (weights, _) = weights.as_chunks::<ROWS>();
                    let weights = &weights[0];
                    let columns = (0..BLOCK, |t: usize, r: usize| weights[r][t]);
                    tile::<S, _, ROWS>(simd, columns, values.clone(), sums, true);
                });
            }
        }
    }

    fn finish(&mut self) {
        let head_dim = self.shape.head_dim;
        let count = self.count();
        for (i, out) in self.result.chunks_exact_mut(head_dim).enumerate() {
            let sum = self.scratch.running[i].sum;
            for (panel, out) in out.chunks_mut(PANEL).enumerate() {
                for (out, x) in out.iter_mut().zip(&self.scratch.sums[panel * count + i]) {
                    *out = x / sum + 0.0;
                }
            }
        }
    }
}

impl Running {
    /// Turns scores into weights `2^(score * factor - largest)`, zero outside `visible`.
    #[inline(always)]
    fn step(&mut self, weights: &mut [f32; BLOCK], visible: std::ops::Range<usize>, factor: f32) {
        if visible.is_empty() {
            // Before its window and beyond its position a row has no largest score to take.
            weights.fill(0.0);
            self.correction = 1.0;
            return;
        }
        for w in weights.iter_mut() {
            *w *= factor;
        }
        weights[..visible.start].fill(f32::NEG_INFINITY);
        weights[visible.end..].fill(f32::NEG_INFINITY);
        let largest = larger(self.largest, tree(fold_lanes(weights, larger), larger));
        for w in weights.iter_mut() {
            *w = exp2(*w - largest);
        }
        self.correction = exp2(self.largest - largest);
        let sum = tree_sum(fold_lanes(weights, |a, b| a + b));
        self.sum = self.sum.mul_add(self.correction, sum);
        self.largest = largest;
    }
}

/// Merges the block's four groups of 16 lanes in order.
#[inline(always)]
fn fold_lanes(x: &[f32; BLOCK], merge: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    let (groups, _) = x.as_chunks::<16>();
    std::array::from_fn(|i| {
        let first = merge(groups[0][i], groups[1][i]);
        merge(merge(first, groups[2][i]), groups[3][i])
    })
}
