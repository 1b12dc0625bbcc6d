//! A matrix that is stored as codes.

use super::form::{Form, Granularity};

/// A matrix that is stored as codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    /// Name of the module.
    pub module: String,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// How it is stored.
    pub form: Form,
    /// Name of its scales.
    pub scales: String,
}

impl Matrix {
    /// Name of a part of the module.
    pub(super) fn part(&self, name: &str) -> String {
        format!("{}.{name}", self.module)
    }

    /// Rows and columns of the grid of scales.
    pub(super) fn grid(&self) -> [usize; 2] {
        let [rows, columns] = self.tile();
        [
            self.shape[0].div_ceil(rows),
            self.shape[1].div_ceil(columns),
        ]
    }

    /// Rows and columns under one scale.
    pub(super) fn tile(&self) -> [usize; 2] {
        let [rows, columns] = self.shape;
        match self.form {
            Form::Awq { group, .. } | Form::Packed { group, .. } => [1, group.unwrap_or(columns)],
            Form::Bytes { scale, .. } => match scale {
                Granularity::Tensor => [rows, columns],
                Granularity::Channel => [1, columns],
                Granularity::Group(group) => [1, group],
                Granularity::Block(sides) => sides,
            },
        }
    }
}
