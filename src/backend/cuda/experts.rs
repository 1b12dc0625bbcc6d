//! Mixtures of experts: pairs of a row and an expert, sorted by expert on the device, cut into tiles,
//! multiplied tile by tile, and summed row by row.
//!
//! Nothing is read back: grids are as large as the number of rows allows them to become. A row's
//! products have the same bits in every tile and kernel of its format, and its terms are added in
//! the order of its logits, so that it never matters where other rows go.
//!
//! Router logits are products like others: rows rounded to the weights' 16-bit type, sums in f32,
//! which are not rounded again before experts are chosen.

mod functions;

use super::CudaBackend;
use super::device::{Buffer, Purpose, launch};
use super::functions::Kernels;
use super::product::Finish;
use super::tensor::{CudaTensor, CudaWeight, activation_number, blocks, int, of_one_type};
use crate::backend::{BackendError, ExpertParts, ExpertWeights, RoutingRule};
use functions::Arguments;
pub use functions::ExpertFunctions;

/// Most experts of a layer: a thread of the block that sorts for each.
const MOST_EXPERTS: usize = 1024;
/// Elements of a row that a block sums.
const MIX_PART: usize = 1024;
/// Rows and outputs of a block without tensor cores, and its threads.
const FEW: (usize, u32) = (16, 256);

/// Which experts rows go to, and room for what is computed of them.
pub struct CudaRoutes {
    experts: usize,
    chosen: usize,
    rows: usize,
    /// `[rows, chosen]`: experts, by descending logit.
    picks: Buffer,
    /// Their weights, likewise.
    weights: Buffer,
    /// Pairs, sorted by expert.
    order: Buffer,
    /// Tiles: expert, first of `order`, pairs.
    tiles: Buffer,
    /// How many there are.
    tile_count: Buffer,
    /// `[pairs, intermediate_size]`, in the weights' format.
    activated: Buffer,
    /// `[pairs, inner]` in f32.
    products: Buffer,
}

impl CudaRoutes {
    /// No rows yet.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for more experts than one block sorts.
    pub(super) fn new(kernels: &Kernels, experts: usize) -> Result<Self, BackendError> {
        if experts > MOST_EXPERTS {
            let what = format!("{experts} experts of a layer; the CUDA worker has {MOST_EXPERTS}");
            return Err(BackendError::Unsupported(what));
        }
        let none = || kernels.device.allocate(0, Purpose::Staging);
        Ok(CudaRoutes {
            experts,
            chosen: 0,
            rows: 0,
            picks: none()?,
            weights: none()?,
            order: none()?,
            tiles: none()?,
            tile_count: kernels.device.allocate(4, Purpose::Staging)?,
            activated: none()?,
            products: none()?,
        })
    }

    fn pairs(&self) -> usize {
        self.rows * self.chosen
    }

    /// Sorts the pairs and cuts them into tiles of `rows` rows; returns how many there are at most.
    fn sort(&mut self, kernels: &Kernels, rows: usize) -> Result<usize, BackendError> {
        let pairs = self.pairs();
        // Every expert may have a tile that is not full.
        let most = pairs / rows + self.experts.min(pairs);
        self.order.reserve(4 * pairs)?;
        self.tiles.reserve(16 * most)?;
        let (from, count, experts) = (self.picks.pointer(), int(pairs), int(self.experts));
        let (order, tiles) = (self.order.pointer(), self.tiles.pointer());
        let (tile_count, tile) = (self.tile_count.pointer(), int(rows));
        let device = &kernels.device;
        kernels.start("sort_pairs", 1, |function, grid| {
            // SAFETY: there are `count` pairs with experts below `experts`, and room for as many
            // and for the most tiles that they can make.
            unsafe {
                launch!(device, function, grid, 1024, 0;
                    from, count, experts, tile, order, tiles, tile_count)
            }
        })?;
        Ok(most)
    }
}

impl CudaBackend {
    /// See [`crate::backend::Backend::expert_weight`]. No library multiplies these as a whole.
    pub(super) fn take_over_experts(
        &self,
        parts: ExpertParts<'_>,
        out: usize,
        inner: usize,
    ) -> Result<Option<CudaWeight>, BackendError> {
        let weight = match parts {
            ExpertParts::Numbers(parts) => Some(self.take_over(of_one_type(parts), out, inner)?),
            ExpertParts::Stored(parts) => self.take_over_stored(parts, out, inner)?,
        };
        if let Some(weight) = &weight {
            self.kernels.expect_experts(weight.format);
        }
        Ok(weight)
    }

    /// See [`crate::backend::Backend::route`].
    pub(super) fn choose_experts(
        &self,
        logits: &CudaTensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut CudaRoutes,
    ) -> Result<(), BackendError> {
        let (experts, chosen) = (routes.experts, rule.chosen);
        assert!(
            logits.width == experts && (1..=experts).contains(&chosen),
            "experts of a row"
        );
        let scales = rule.scales.map_or(0, |scales| {
            assert_eq!(scales.width, experts, "scales of experts");
            scales.data.pointer()
        });
        (routes.rows, routes.chosen) = (logits.rows, chosen);
        let bytes = 4 * routes.pairs();
        routes.picks.reserve(bytes)?;
        routes.weights.reserve(bytes)?;
        let from = logits.float(&self.kernels)?;
        let (picks, weights) = (routes.picks.pointer(), routes.weights.pointer());
        let (rows, experts, chosen) = (int(logits.rows), int(experts), int(chosen));
        let renormalised = i32::from(rule.renormalised);
        let kernels = &self.kernels;
        kernels.start("route", blocks(logits.rows, 8), |function, grid| {
            // SAFETY: logits are `[rows, experts]`, there is room for `[rows, chosen]`, and scales
            // are as many as experts.
            unsafe {
                launch!(kernels.device, function, grid, 256, 0;
                    from, rows, experts, chosen, renormalised, scales, picks, weights)
            }
        })
    }

    /// See [`crate::backend::Backend::mix_experts`].
    pub(super) fn mix(
        &self,
        x: &CudaTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut CudaRoutes,
        out: &mut CudaTensor,
        finish: Finish,
    ) -> Result<(), BackendError> {
        let (gate_up, down) = (weights.gate_up, weights.down);
        let (inner, width, experts) = (x.width, down.inner, routes.experts);
        assert!(
            gate_up.inner == inner
                && gate_up.out == 2 * experts * width
                && down.out == experts * inner
                && out.width == inner,
            "shape of experts"
        );
        if gate_up.format != down.format {
            let what = format!(
                "experts with gates and ups in {:?} and downs in {:?}",
                gate_up.format, down.format
            );
            return Err(BackendError::Unsupported(what));
        }
        assert!(
            out.rows == x.rows && routes.rows == x.rows,
            "rows of experts"
        );
        let (kernels, format) = (&self.kernels, gate_up.format);
        let operand = format.half();
        let from = x.operand_in(kernels, format)?;
        let to = match finish {
            Finish::Add => {
                let to = out.changed(kernels)?;
                out.operand = operand.or(out.operand);
                to
            }
            Finish::Write | Finish::Round => out.written(operand)?,
        };
        let pairs = routes.pairs();
        if pairs == 0 {
            return Ok(());
        }
        // Pieces of 16 bytes are copied to shared memory.
        let aligned = inner.is_multiple_of(8) && width.is_multiple_of(8);
        let functions = match operand {
            Some(format) if aligned => Some(kernels.experts(format)?),
            _ => None,
        };
        let tile = functions.as_ref().and_then(|own| own.tile(pairs / experts));
        let (rows, outs) = tile.map_or((FEW.0, [FEW.0; 2]), |(tile, _)| {
            (tile.rows, [tile.outs / 2, tile.outs])
        });
        let tiles = routes.sort(kernels, rows)?;
        routes.activated.reserve(pairs * width * format.bytes())?;
        routes.products.reserve(pairs * inner * 4)?;
        let (activated, products) = (routes.activated.pointer(), routes.products.pointer());
        let product = |gated: bool, [x, weight, out]: [u64; 3], inner: usize, columns: usize| {
            let column_blocks = columns.div_ceil(outs[usize::from(!gated)]);
            let arguments = Arguments {
                x,
                weight,
                out,
                tiles: routes.tiles.pointer(),
                tile_count: routes.tile_count.pointer(),
                order: routes.order.pointer(),
                inner: int(inner),
                columns: int(columns),
                chosen: int(routes.chosen),
                format: format as i32,
                activation: activation_number(weights.activation),
                by_pair: i32::from(!gated),
                column_blocks: int(column_blocks),
            };
            let (function, threads, shared) = match tile {
                Some((tile, functions)) => {
                    (&functions[usize::from(!gated)], tile.threads, tile.shared())
                }
                None => {
                    let names = ["expert_few_gated", "expert_few_plain"];
                    (kernels.get(names[usize::from(!gated)])?, FEW.1, 0)
                }
            };
            let grid = (blocks(tiles * column_blocks, 1), 1, 1);
            // SAFETY: rows, weights and outputs have the sizes that the arguments state; tiles name
            // experts and pairs that there are.
            unsafe { launch!(kernels.device, function, grid, threads, shared; arguments) }
        };
        product(
            true,
            [from, gate_up.data.pointer(), activated],
            inner,
            width,
        )?;
        product(
            false,
            [activated, down.data.pointer(), products],
            width,
            inner,
        )?;
        let (by, chosen, width) = (routes.weights.pointer(), int(routes.chosen), int(inner));
        let parts = inner.div_ceil(MIX_PART);
        let (count, add) = (int(parts), i32::from(finish == Finish::Add));
        kernels.start("mix", blocks(x.rows * parts, 1), |function, grid| {
            // SAFETY: there is a product for every pair, and a weight; `out` has a row for each of `x`.
            unsafe {
                launch!(kernels.device, function, grid, 256, 0;
                    products, by, to, chosen, width, count, add)
            }
        })
    }
}
