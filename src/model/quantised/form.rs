//! Forms in which a matrix may be stored.

use std::fmt;

pub(crate) use crate::backend::NumberType;

/// The form of a matrix `[out, in]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// INT4 of AutoAWQ, unsigned with zero points.
    Awq {
        /// Order of codes.
        order: AwqOrder,
        /// Elements of a row under one scale; all of them where `None`.
        group: Option<usize>,
    },
    /// Whole numbers of compressed-tensors in 32-bit words, row by row.
    Packed {
        /// 4 or 8.
        bits: u32,
        /// Elements of a row under one scale; all of them where `None`.
        group: Option<usize>,
        /// No zero points.
        symmetric: bool,
    },
    /// A byte per element.
    Bytes {
        /// What a byte stands for.
        kind: ByteKind,
        /// Elements under one scale.
        scale: Granularity,
    },
}

/// Packing orders of AutoAWQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwqOrder {
    /// `[in, out / 8]` words, in which codes of eight outputs are interleaved.
    Gemm,
    /// `[out, in / 8]` words, in order.
    Gemv,
}

/// What a stored byte stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteKind {
    /// FP8 E4M3.
    E4m3,
    /// Signed whole number.
    Int8,
}

/// Elements under one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granularity {
    /// All.
    Tensor,
    /// A row.
    Channel,
    /// So many of a row.
    Group(usize),
    /// A block of so many rows and columns.
    Block([usize; 2]),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grouped = |f: &mut fmt::Formatter<'_>, group: &Option<usize>| match group {
            Some(group) => write!(f, ", groups of {group}"),
            None => f.write_str(", one scale per row"),
        };
        match self {
            Form::Awq { order, group } => {
                f.write_str("INT4")?;
                grouped(f, group)?;
                f.write_str(match order {
                    AwqOrder::Gemm => " with zero points, GEMM order",
                    AwqOrder::Gemv => " with zero points, GEMV order",
                })
            }
            Form::Packed {
                bits,
                group,
                symmetric,
            } => {
                write!(f, "INT{bits}")?;
                grouped(f, group)?;
                f.write_str(if *symmetric {
                    ", symmetric"
                } else {
                    " with zero points"
                })
            }
            Form::Bytes { kind, scale } => {
                f.write_str(match kind {
                    ByteKind::E4m3 => "E4M3",
                    ByteKind::Int8 => "INT8",
                })?;
                match scale {
                    Granularity::Tensor => f.write_str(", one scale per tensor"),
                    Granularity::Channel => f.write_str(", one scale per row"),
                    Granularity::Group(group) => write!(f, ", groups of {group}"),
                    Granularity::Block([rows, columns]) => {
                        write!(f, ", blocks of {rows}x{columns}")
                    }
                }
            }
        }
    }
}
