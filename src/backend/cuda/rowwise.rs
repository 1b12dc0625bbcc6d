//! Operations that treat every row on its own.

use super::CudaBackend;
use super::device::{Purpose, launch};
use super::tensor::{CudaTensor, CudaVector, CudaWeight, blocks, int};
use crate::backend::{BackendError, CacheRow, RotaryTable};

impl CudaBackend {
    /// See [`crate::backend::Backend::embed`].
    pub(super) fn start_embed(
        &self,
        table: &CudaWeight,
        ids: &[u32],
        x: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            x.rows == ids.len() && x.width == table.inner,
            "shape of embeddings"
        );
        let known = |&id: &u32| (id as usize) < table.out;
        assert!(ids.iter().all(known), "ids within the table");
        let to = x.written(table.format.half())?;
        let ids = self.kernels.device.upload(ids, Purpose::Staging)?;
        let (from, format, width) = (table.data.pointer(), table.format as i32, int(x.width));
        let ids_at = ids.pointer();
        self.kernels.start("embed", x.rows as u32, |function, grid| {
            // SAFETY: ids lie within the table, one row of `x` for each.
            unsafe { launch!(self.kernels.device, function, grid, 256, 0; from, format, ids_at, to, width) }
        })
    }

    /// See [`crate::backend::Backend::rms_norm`].
    pub(super) fn start_norm(
        &self,
        x: &CudaTensor,
        weight: &CudaVector,
        eps: f32,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            x.width == weight.width && out.width == x.width && out.rows >= x.rows,
            "shape of a norm"
        );
        let to = out.written_for_products(x.operand)?;
        let (from, by) = (x.float(&self.kernels)?, weight.data.pointer());
        let (width, format) = (int(x.width), to.format as i32);
        let to = to.pointer;
        self.kernels.start("rms_norm", x.rows as u32, |function, grid| {
            // SAFETY: the tensors have the same shape, the weight is as wide.
            unsafe { launch!(self.kernels.device, function, grid, 256, 0; from, by, eps, to, format, width) }
        })
    }

    /// See [`crate::backend::Backend::rms_norm_heads`].
    pub(super) fn start_norm_heads(
        &self,
        x: &mut CudaTensor,
        weight: &CudaVector,
        eps: f32,
    ) -> Result<(), BackendError> {
        assert_eq!(x.width % weight.width, 0, "width of whole head vectors");
        let vectors = x.elements() / weight.width;
        let (to, by) = (x.changed(&self.kernels)?, weight.data.pointer());
        let (count, width) = (vectors as i64, int(weight.width));
        self.kernels
            .start("rms_norm_heads", blocks(vectors, 8), |function, grid| {
                // SAFETY: `x` holds `count` vectors as wide as the weight.
                unsafe {
                    launch!(self.kernels.device, function, grid, 256, 0; to, by, eps, count, width)
                }
            })
    }

    /// See [`crate::backend::Backend::rms_norm_add`].
    pub(super) fn start_norm_add(
        &self,
        x: &CudaTensor,
        weight: &CudaVector,
        eps: f32,
        residual: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            x.width == weight.width && residual.width == x.width && residual.rows == x.rows,
            "shape of a norm"
        );
        let (from, by) = (x.float(&self.kernels)?, weight.data.pointer());
        let (to, width) = (residual.changed(&self.kernels)?, int(x.width));
        self.kernels
            .start("rms_norm_add", x.rows as u32, |function, grid| {
                // SAFETY: the tensors have the same shape, the weight is as wide.
                unsafe {
                    launch!(self.kernels.device, function, grid, 256, 0; from, by, eps, to, width)
                }
            })
    }

    /// See [`crate::backend::Backend::scale`].
    pub(super) fn start_scale(&self, x: &mut CudaTensor, factor: f32) -> Result<(), BackendError> {
        let (to, elements) = (x.changed(&self.kernels)?, x.elements() as i64);
        self.kernels
            .start("scale", blocks(x.elements(), 256), |function, grid| {
                // SAFETY: `x` has `elements` elements.
                unsafe {
                    launch!(self.kernels.device, function, grid, 256, 0; to, factor, elements)
                }
            })
    }

    /// See [`crate::backend::Backend::soft_cap`].
    pub(super) fn start_soft_cap(&self, x: &mut CudaTensor, cap: f32) -> Result<(), BackendError> {
        let (to, elements) = (x.changed(&self.kernels)?, x.elements() as i64);
        self.kernels
            .start("soft_cap", blocks(x.elements(), 256), |function, grid| {
                // SAFETY: `x` has `elements` elements.
                unsafe { launch!(self.kernels.device, function, grid, 256, 0; to, cap, elements) }
            })
    }

    /// See [`crate::backend::Backend::rotary`].
    pub(super) fn start_rotary(
        &self,
        x: &mut CudaTensor,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        assert_eq!(x.rows, rows.len(), "rows to rotate");
        assert_eq!(x.width % table.head_dim, 0, "width of whole head vectors");
        let furthest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        assert!(
            furthest * table.half <= table.cos.len(),
            "positions of a table"
        );
        let rows = self.kept.rows(&self.kernels.device, rows)?;
        let [cos, sin] = self.kept.table(&self.kernels.device, table)?.addresses();
        let pairs = x.elements() / table.head_dim * table.half;
        let (to, places) = (x.changed(&self.kernels)?, rows.places());
        let (count, width, half) = (pairs as i64, int(x.width), int(table.half));
        let head_dim = int(table.head_dim);
        let aligned = table.half.is_multiple_of(4) && table.head_dim.is_multiple_of(4);
        let own = if aligned { 4 } else { 1 };
        let own_pairs = own as i32;
        self.kernels
            .start("rotary", blocks(pairs, 256 * own), |function, grid| {
                // SAFETY: positions lie within the table, `x` holds `count` pairs.
                unsafe {
                    launch!(self.kernels.device, function, grid, 256, 0;
                    to, cos, sin, places, count, width, half, head_dim, own_pairs)
                }
            })
    }

    /// See [`crate::backend::Backend::columns`].
    pub(super) fn start_columns(
        &self,
        x: &CudaTensor,
        first: usize,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            out.rows == x.rows && first + out.width <= x.width,
            "columns of a tensor"
        );
        let (from, to) = (x.float(&self.kernels)?, out.written(x.operand)?);
        let (across, first, width) = (int(x.width), int(first), int(out.width));
        self.kernels.start("columns", out.rows as u32, |function, grid| {
            // SAFETY: both tensors have as many rows, the columns lie within those of `x`.
            unsafe {
                launch!(self.kernels.device, function, grid, 256, 0; from, across, first, to, width)
            }
        })
    }

    /// See [`crate::backend::Backend::gather`].
    pub(super) fn start_gather(
        &self,
        x: &CudaTensor,
        rows: &[usize],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            out.rows == rows.len() && out.width == x.width,
            "shape of gathered rows"
        );
        assert!(rows.iter().all(|&row| row < x.rows), "rows of a tensor");
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let rows = self.kernels.device.upload(&rows, Purpose::Staging)?;
        let held = x.held()?;
        let to = out.written_as(held.format, x.operand)?.pointer;
        let (from, at) = (held.pointer, rows.pointer());
        let bytes = (x.width * held.format.bytes()) as i64;
        self.kernels
            .start("gather", out.rows as u32, |function, grid| {
                // SAFETY: rows lie within `x`, one row of `out` for each.
                unsafe { launch!(self.kernels.device, function, grid, 256, 0; from, at, to, bytes) }
            })
    }
}
