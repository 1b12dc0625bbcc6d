//! Activations of the reference worker.

use crate::backend::Held;

/// Activations `[rows, width]`, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuTensor {
    pub(super) data: Vec<f32>,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) held: Held,
}

impl CpuTensor {
    /// A tensor of `data.len() / width` rows.
    ///
    /// # Panics
    /// Where `data` is not whole rows.
    pub fn from_rows(data: Vec<f32>, width: usize) -> Self {
        let rows = data.len() / width.max(1);
        assert_eq!(
            rows * width,
            data.len(),
            "elements of rows of width {width}"
        );
        CpuTensor {
            data,
            rows,
            width,
            held: Held::default(),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Enters how much room the elements take.
    pub(super) fn note(&mut self) {
        self.held.set(float_bytes(self.data.capacity()));
    }

    pub(super) fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.width..(index + 1) * self.width]
    }
}

/// Bytes of f32 elements.
pub(super) fn float_bytes(elements: usize) -> u64 {
    elements as u64 * 4
}
