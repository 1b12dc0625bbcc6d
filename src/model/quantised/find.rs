//! Which matrices of a checkpoint are stored as codes, and by which tensors.

use std::collections::{BTreeMap, BTreeSet};

use ::safetensors::tensor::Dtype;

use super::super::ModelError;
use super::super::safetensors::float_type;
use super::super::tensors::{check_shape, is_other_part, missing};
use super::config::Quantisation;
use super::form::{AwqOrder, ByteKind, Form, Granularity};
use super::matrix::Matrix;

/// Codes of a 32-bit word of AutoAWQ.
pub(super) const AWQ_PER_WORD: usize = 8;

/// Scales of activations, which these workers keep native.
const UNUSED: [&str; 2] = ["input_scale", "activation_scale"];

/// A tensor as its file holds it.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// File.
    pub path: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: &'a [usize],
    /// Content.
    pub bytes: &'a [u8],
}

/// Looks a stored tensor up by its name.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<Stored<'a>> + 'a;

/// What of a checkpoint is stored as codes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Matrices by the names of their weights.
    pub matrices: BTreeMap<String, Matrix>,
    /// Every stored tensor that belongs to one of them.
    pub parts: BTreeSet<String>,
}

/// Finds the matrices among tensors of these `names`, and checks that their parts fit each other
/// and the config.
///
/// # Errors
/// Names the tensor that is missing, has another shape or type, or is stored in a form that the
/// config does not name.
pub(crate) fn find<'a, 'n>(
    quantisation: &Quantisation,
    names: impl Iterator<Item = &'n str>,
    lookup: &Lookup<'a>,
) -> Result<Found, ModelError> {
    let mut found = Found::default();
    for name in names {
        let Some((module, part)) = name.rsplit_once('.') else {
            continue;
        };
        // Other parts of a multimodal model are never loaded, however they are stored.
        if is_other_part(name) {
            continue;
        }
        let Some(stored) = lookup(name) else { continue };
        let module = Module {
            quantisation,
            name: module,
            codes: stored,
            lookup,
        };
        let matrix = match (part, stored.dtype) {
            ("qweight", _) => module.awq(name)?,
            ("weight_packed", _) => module.packed(name)?,
            ("weight", Dtype::F8_E4M3) => module.bytes(name, ByteKind::E4m3)?,
            ("weight", Dtype::I8) => module.bytes(name, ByteKind::Int8)?,
            _ => continue,
        };
        if quantisation.ignores(module.name) {
            let what = format!("storage of module `{}`", module.name);
            let expected = "numbers as they are: the config leaves this module out";
            return Err(ModelError::invalid(
                stored.path,
                what,
                matrix.form,
                expected,
            ));
        }
        if let Some(scales) = lookup(&matrix.scales) {
            float_type(&scales, &matrix.scales)?;
        }
        found.parts.extend(module.parts(name, &matrix));
        found
            .matrices
            .insert(format!("{}.weight", module.name), matrix);
    }
    Ok(found)
}

struct Module<'m, 'a> {
    quantisation: &'m Quantisation,
    name: &'m str,
    codes: Stored<'a>,
    lookup: &'m Lookup<'a>,
}

impl Module<'_, '_> {
    fn awq(&self, name: &str) -> Result<Matrix, ModelError> {
        let (order, group) = self.form(name, |form| match form {
            Form::Awq { order, group } => Some((*order, *group)),
            Form::Packed { .. } | Form::Bytes { .. } => None,
        })?;
        let [first, second] = self.sides(name, Dtype::I32)?;
        let shape = match order {
            AwqOrder::Gemm => [second * AWQ_PER_WORD, first],
            AwqOrder::Gemv => [first, second * AWQ_PER_WORD],
        };
        let form = Form::Awq { order, group };
        let matrix = self.matrix(shape, form, "scales");
        self.whole_groups(name, &matrix)?;
        let groups = matrix.grid()[1];
        let (zeros, scales) = match order {
            AwqOrder::Gemm => ([groups, shape[0] / AWQ_PER_WORD], [groups, shape[0]]),
            AwqOrder::Gemv => {
                let words = gemv_zero_words(groups, matrix.tile()[1]);
                ([shape[0], words], [shape[0], words * AWQ_PER_WORD])
            }
        };
        self.expect("qzeros", Dtype::I32, &zeros)?;
        self.expect_scales(&matrix, &[&scales])?;
        Ok(matrix)
    }

    fn packed(&self, name: &str) -> Result<Matrix, ModelError> {
        let [rows, words] = self.sides(name, Dtype::I32)?;
        let columns = match self.written_shape()? {
            [found, columns] if found == rows => columns,
            other => {
                let what = format!("tensor `{}.weight_shape`", self.name);
                let expected = format!("{rows} rows, as `{name}` has");
                return Err(self.invalid(what, format!("{other:?}"), expected));
            }
        };
        let is_signed = self.stored("weight_zero_point").is_none();
        let form = self.form(name, |form| match form {
            Form::Packed {
                bits,
                group,
                symmetric,
            } if *symmetric == is_signed
                && words == (columns * *bits as usize).div_ceil(32)
                && self.scale_columns() == Some(columns.div_ceil(group.unwrap_or(columns))) =>
            {
                Some(*form)
            }
            _ => None,
        })?;
        let matrix = self.matrix([rows, columns], form, "weight_scale");
        let groups = matrix.grid()[1];
        self.expect_scales(&matrix, &[&[rows, groups]])?;
        if let (Some(zeros), Form::Packed { bits, .. }) = (self.stored("weight_zero_point"), form) {
            let (dtype, first) = match zeros.dtype {
                Dtype::I8 => (Dtype::I8, rows),
                _ => (Dtype::I32, (rows * bits as usize).div_ceil(32)),
            };
            self.expect("weight_zero_point", dtype, &[first, groups])?;
        }
        Ok(matrix)
    }

    fn bytes(&self, name: &str, kind: ByteKind) -> Result<Matrix, ModelError> {
        let [rows, columns] = self.sides(name, self.codes.dtype)?;
        let scales = ["weight_scale_inv", "weight_scale"];
        let part = scales.into_iter().find(|part| self.stored(part).is_some());
        let Some((part, stored)) = part.and_then(|part| Some((part, self.stored(part)?))) else {
            let missing_name = format!("{}.{}", self.name, scales[1]);
            return Err(missing(self.codes.path, &missing_name, &[]));
        };
        let form = self.form(name, |form| match form {
            Form::Bytes { kind: own, scale } if *own == kind => {
                let grid = self.matrix([rows, columns], *form, part).grid();
                let is_scalar = stored.shape.iter().all(|&side| side == 1);
                let fits = match scale {
                    Granularity::Tensor => is_scalar,
                    Granularity::Channel => stored.shape == [rows] || stored.shape == [rows, 1],
                    Granularity::Group(_) | Granularity::Block(_) => stored.shape == grid,
                };
                fits.then_some(*form)
            }
            _ => None,
        });
        let form = form.map_err(|error| match error {
            ModelError::Unsupported { path, what } => {
                let what = format!("{what}, scales of shape {:?}", stored.shape);
                ModelError::Unsupported { path, what }
            }
            other => other,
        })?;
        Ok(self.matrix([rows, columns], form, part))
    }

    fn matrix(&self, shape: [usize; 2], form: Form, scales: &str) -> Matrix {
        Matrix {
            module: self.name.to_owned(),
            shape,
            form,
            scales: format!("{}.{scales}", self.name),
        }
    }

    /// Every stored tensor of the matrix.
    fn parts(&self, codes: &str, matrix: &Matrix) -> Vec<String> {
        let mut parts = vec![codes.to_owned(), matrix.scales.clone()];
        let others: &[&str] = match matrix.form {
            Form::Awq { .. } => &["qzeros"],
            Form::Packed { .. } => &["weight_zero_point", "weight_shape"],
            Form::Bytes { .. } => &[],
        };
        let unused = match self.quantisation.activations {
            Some(_) => &UNUSED[..],
            None => &[],
        };
        let others = others.iter().chain(unused);
        parts.extend(
            others
                .filter(|part| self.stored(part).is_some())
                .map(|part| matrix.part(part)),
        );
        parts
    }

    fn stored(&self, part: &str) -> Option<Stored<'_>> {
        (self.lookup)(&format!("{}.{part}", self.name))
    }

    /// The first of the config's forms that the tensors allow.
    fn form<T>(&self, name: &str, fits: impl Fn(&Form) -> Option<T>) -> Result<T, ModelError> {
        self.quantisation
            .forms
            .iter()
            .find_map(fits)
            .ok_or_else(|| {
                let known: Vec<String> = self
                    .quantisation
                    .forms
                    .iter()
                    .map(Form::to_string)
                    .collect();
                let what = format!(
                    "tensor `{name}` ({} of shape {:?}), which is in no form that the config names \
                 for {}: {}",
                    self.codes.dtype,
                    self.codes.shape,
                    self.quantisation.method,
                    known.join("; ")
                );
                ModelError::unsupported(self.codes.path, what)
            })
    }

    /// Sides of the tensor of codes, none of them 0.
    fn sides(&self, name: &str, dtype: Dtype) -> Result<[usize; 2], ModelError> {
        match (self.codes.shape, self.codes.dtype) {
            (&[rows, columns], found) if rows > 0 && columns > 0 && found == dtype => {
                Ok([rows, columns])
            }
            (shape, found) => {
                let expected = format!("a matrix of {dtype}");
                let found = format!("{found} of shape {shape:?}");
                Err(self.invalid(format!("tensor `{name}`"), found, expected))
            }
        }
    }

    fn scale_columns(&self) -> Option<usize> {
        self.stored("weight_scale")?.shape.last().copied()
    }

    /// What `weight_shape` holds.
    fn written_shape(&self) -> Result<[usize; 2], ModelError> {
        let name = format!("{}.weight_shape", self.name);
        let Some(stored) = self.stored("weight_shape") else {
            return Err(missing(self.codes.path, &name, &[2]));
        };
        let numbers: Option<Vec<usize>> = match stored.dtype {
            Dtype::I64 => {
                let words = stored.bytes.as_chunks::<8>().0.iter();
                words
                    .map(|word| usize::try_from(i64::from_le_bytes(*word)).ok())
                    .collect()
            }
            Dtype::I32 => {
                let words = stored.bytes.as_chunks::<4>().0.iter();
                words
                    .map(|word| usize::try_from(i32::from_le_bytes(*word)).ok())
                    .collect()
            }
            _ => None,
        };
        // Sides beyond 32 bits are nonsense, and a product of two must not overflow.
        match numbers.as_deref() {
            Some(&[rows, columns]) if columns > 0 && columns <= u32::MAX as usize => {
                Ok([rows, columns])
            }
            _ => {
                let found = format!("{} of shape {:?}", stored.dtype, stored.shape);
                let expected = "two positive whole numbers (I64 or I32)";
                Err(self.invalid(format!("tensor `{name}`"), found, expected))
            }
        }
    }

    fn whole_groups(&self, name: &str, matrix: &Matrix) -> Result<(), ModelError> {
        let [_, columns] = matrix.shape;
        let group = matrix.tile()[1];
        if columns.is_multiple_of(group) {
            return Ok(());
        }
        let expected = format!("a multiple of the group size {group}");
        Err(self.invalid(
            format!("inputs of tensor `{name}`"),
            columns.to_string(),
            expected,
        ))
    }

    fn expect(&self, part: &str, dtype: Dtype, shape: &[usize]) -> Result<(), ModelError> {
        let name = format!("{}.{part}", self.name);
        let Some(stored) = self.stored(part) else {
            return Err(missing(self.codes.path, &name, shape));
        };
        check_shape(stored.path, &name, stored.shape, shape)?;
        if stored.dtype != dtype {
            let what = format!("dtype of tensor `{name}`");
            return Err(ModelError::invalid(stored.path, what, stored.dtype, dtype));
        }
        Ok(())
    }

    fn expect_scales(&self, matrix: &Matrix, shapes: &[&[usize; 2]]) -> Result<(), ModelError> {
        let Some(stored) = (self.lookup)(&matrix.scales) else {
            return Err(missing(
                self.codes.path,
                &matrix.scales,
                shapes[0].as_slice(),
            ));
        };
        if shapes.iter().any(|shape| stored.shape == shape.as_slice()) {
            return Ok(());
        }
        check_shape(
            stored.path,
            &matrix.scales,
            stored.shape,
            shapes[0].as_slice(),
        )
    }

    fn invalid(&self, what: String, found: String, expected: impl std::fmt::Display) -> ModelError {
        ModelError::invalid(self.codes.path, what, found, expected)
    }
}

/// Words of a row of zero points in AutoAWQ's GEMV order, which pads them for its kernels.
fn gemv_zero_words(groups: usize, group: usize) -> usize {
    let multiple = match group {
        128.. => 1,
        64.. => 2,
        _ => 4,
    };
    groups.div_ceil(AWQ_PER_WORD).next_multiple_of(multiple)
}
