//! Inputs of convolutions as they are kept from pass to pass.

use std::ops::Range;

use half::{bf16, f16};

use crate::backend::cpu::worker::Precision;
use crate::recipe::NativeDtype;

/// Inputs of all slots of a layer.
pub struct Inputs {
    native: NativeDtype,
    kept: Kept,
}

enum Kept {
    Rounded(Vec<u16>),
    Whole(Vec<f32>),
}

impl Inputs {
    /// Zeros.
    pub fn new(native: NativeDtype, precision: Precision, elements: usize) -> Self {
        let kept = match precision {
            Precision::Native => Kept::Rounded(vec![0; elements]),
            Precision::Whole => Kept::Whole(vec![0.0; elements]),
        };
        Inputs { native, kept }
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        match &self.kept {
            Kept::Rounded(kept) => size_of_val(&kept[..]) as u64,
            Kept::Whole(kept) => size_of_val(&kept[..]) as u64,
        }
    }

    /// Name of the format.
    pub fn format(&self) -> &'static str {
        match self.kept {
            Kept::Rounded(_) => self.native.name(),
            Kept::Whole(_) => "f32",
        }
    }

    /// What is kept of `x`, wherever it is kept.
    #[inline]
    pub fn round(&self, x: f32) -> f32 {
        match self.kept {
            Kept::Rounded(_) => self.native.round(x),
            Kept::Whole(_) => x,
        }
    }

    /// Reads elements from number `first` on.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        match &self.kept {
            Kept::Rounded(kept) => {
                for (x, &bits) in out.iter_mut().zip(&kept[range]) {
                    *x = match self.native {
                        NativeDtype::F16 => f16::from_bits(bits).to_f32(),
                        NativeDtype::Bf16 => bf16::from_bits(bits).to_f32(),
                    };
                }
            }
            Kept::Whole(kept) => out.copy_from_slice(&kept[range]),
        }
    }

    /// Writes elements from number `first` on.
    pub fn write(&mut self, first: usize, x: &[f32]) {
        let range = first..first + x.len();
        match &mut self.kept {
            Kept::Rounded(kept) => {
                for (bits, &x) in kept[range].iter_mut().zip(x) {
                    *bits = match self.native {
                        NativeDtype::F16 => f16::from_f32(x).to_bits(),
                        NativeDtype::Bf16 => bf16::from_f32(x).to_bits(),
                    };
                }
            }
            Kept::Whole(kept) => kept[range].copy_from_slice(x),
        }
    }

    /// Moves elements to number `to` and on.
    pub fn shift(&mut self, elements: Range<usize>, to: usize) {
        match &mut self.kept {
            Kept::Rounded(kept) => kept.copy_within(elements, to),
            Kept::Whole(kept) => kept.copy_within(elements, to),
        }
    }
}
