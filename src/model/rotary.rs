//! Rotary tables, computed step by step in f32 as Hugging Face transformers does.
//!
//! At position 8,192 one unit in the last place of an angle is 0.0005 radians, so a table that is
//! merely more exact gives other logits at long positions. What has to agree: the f32 inverse
//! frequencies and the f32 product of position and inverse frequency.

use std::f32::consts::PI;

use crate::backend::RotaryTable;

use super::{QueryGrowth, Rope, RopeScaling};

/// Inverse frequencies, `[rotated / 2]`: radians per position, before any table is made.
///
/// Factors that are not `rotated / 2` in number are a broken config: the frequencies then fall
/// short, and [`RotaryTables::extend`] panics rather than rotate by wrong angles.
pub fn inverse_frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    // What is not rotated has no frequency: the formulas know the rotated part only.
    let head_dim = rope.rotated(head_dim);
    let periods = periods(rope.theta, head_dim);
    match &rope.scaling {
        RopeScaling::Default => periods.iter().map(|p| 1.0 / p).collect(),
        RopeScaling::Linear { factor } => {
            let factor = *factor as f32;
            periods.iter().map(|p| 1.0 / p / factor).collect()
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            let band = Llama3Band {
                factor: *factor as f32,
                low: *low_freq_factor,
                high: *high_freq_factor,
                context: *original_context as f64,
            };
            periods.iter().map(|p| band.scale(1.0 / p)).collect()
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            truncate,
            ..
        } => {
            let dimension = |rotations: f64| {
                let turns = *original_context as f64 / (rotations * 2.0 * std::f64::consts::PI);
                head_dim as f64 * turns.ln() / (2.0 * rope.theta.ln())
            };
            let (low, high) = (dimension(*beta_fast), dimension(*beta_slow));
            let (low, high) = if *truncate {
                (low.floor(), high.ceil())
            } else {
                (low, high)
            };
            let ramp = Ramp::new(low.max(0.0), high.min(head_dim as f64 - 1.0));
            yarn(&periods, *factor as f32, &ramp)
        }
        RopeScaling::LongRope { factors, .. } => periods
            .iter()
            .zip(factors)
            .map(|(period, factor)| 1.0 / (factor * period))
            .collect(),
        RopeScaling::FrequencyFactors { factors } => periods
            .iter()
            .zip(factors)
            .map(|(period, factor)| 1.0 / period / factor)
            .collect(),
        RopeScaling::Proportional { factor, .. } => {
            let (factor, turned) = (*factor as f32, rope.turned_pairs(head_dim));
            let frequency = |(i, period): (usize, &f32)| match i < turned {
                true => 1.0 / period / factor,
                false => 0.0,
            };
            periods.iter().enumerate().map(frequency).collect()
        }
    }
}

/// Multiplier of cosines and sines.
pub fn attention_factor(rope: &Rope) -> f32 {
    match &rope.scaling {
        RopeScaling::Yarn {
            attention_factor, ..
        }
        | RopeScaling::LongRope {
            attention_factor, ..
        } => *attention_factor as f32,
        RopeScaling::Default
        | RopeScaling::Linear { .. }
        | RopeScaling::Llama3 { .. }
        | RopeScaling::FrequencyFactors { .. }
        | RopeScaling::Proportional { .. } => 1.0,
    }
}

/// Angles of queries and of keys; the same unless queries grow with their position.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    /// For queries.
    pub q: RotaryTable,
    /// For keys.
    pub k: RotaryTable,
}

impl RotaryTables {
    /// Tables without positions.
    pub fn new(rope: &Rope, head_dim: usize) -> Self {
        let table = RotaryTable {
            cos: [].into(),
            sin: [].into(),
            half: rope.rotated(head_dim) / 2,
            head_dim,
        };
        RotaryTables {
            q: table.clone(),
            k: table,
        }
    }

    /// Appends rows until the tables cover positions `0..positions`; rows that stand already stay.
    ///
    /// # Panics
    /// See [`inverse_frequencies`].
    pub fn extend(&mut self, rope: &Rope, positions: usize) {
        extend_table(&mut self.k, rope, positions);
        match rope.query_growth {
            None => self.q = self.k.clone(),
            Some(growth) => {
                let half = self.k.half;
                let grown = |x: &[f32]| {
                    let of_row = |(position, x)| {
                        let factor = query_factor(growth, position);
                        <[f32]>::iter(x).map(move |x| x * factor)
                    };
                    x.chunks(half).enumerate().flat_map(of_row).collect()
                };
                self.q.cos = grown(&self.k.cos);
                self.q.sin = grown(&self.k.sin);
            }
        }
    }

    /// Those of queries and of keys.
    pub fn both(&self) -> [RotaryTable; 2] {
        [self.q.clone(), self.k.clone()]
    }

    /// Positions that the tables cover.
    pub fn positions(&self) -> usize {
        self.k.cos.len() / self.k.half
    }
}

/// What queries at a position are multiplied by, in f32 as the library that defines it computes it.
pub fn query_factor(growth: QueryGrowth, position: usize) -> f32 {
    let periods = (position / growth.period) as f32;
    1.0 + growth.beta as f32 * (1.0 + periods).ln()
}

fn extend_table(table: &mut RotaryTable, rope: &Rope, positions: usize) {
    let present = table.cos.len() / table.half;
    if present >= positions {
        return;
    }
    let frequencies = inverse_frequencies(rope, table.head_dim);
    assert_eq!(frequencies.len(), table.half, "one frequency per pair");
    let factor = attention_factor(rope);
    let (mut cos, mut sin) = (table.cos.to_vec(), table.sin.to_vec());
    for position in present..positions {
        for frequency in &frequencies {
            // The product is rounded to f32 first; sine and cosine of that angle are then taken in
            // f64, so that the last bit does not depend on the platform's f32 functions.
            let angle = f64::from(position as f32 * frequency);
            cos.push(angle.cos() as f32 * factor);
            sin.push(angle.sin() as f32 * factor);
        }
    }
    (table.cos, table.sin) = (cos.into(), sin.into());
}

/// `theta ^ (2 i / head_dim)`: exponent and power are f32 numbers.
fn periods(theta: f64, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            f64::from(theta as f32).powf(f64::from(exponent)) as f32
        })
        .collect()
}

/// Llama 3.1: wavelengths longer than `context / low` are divided by the factor, shorter than
/// `context / high` kept, and blended between.
struct Llama3Band {
    factor: f32,
    low: f64,
    high: f64,
    context: f64,
}

impl Llama3Band {
    fn scale(&self, frequency: f32) -> f32 {
        let wavelength = 2.0 * PI / frequency;
        if wavelength < (self.context / self.high) as f32 {
            return frequency;
        }
        if wavelength > (self.context / self.low) as f32 {
            return frequency / self.factor;
        }
        let smooth =
            (self.context as f32 / wavelength - self.low as f32) / (self.high - self.low) as f32;
        (1.0 - smooth) * frequency / self.factor + smooth * frequency
    }
}

/// 0 up to `low`, 1 from `high`, straight between.
struct Ramp {
    low: f32,
    width: f32,
}

impl Ramp {
    fn new(low: f64, high: f64) -> Self {
        // A ramp without width would divide by zero.
        let high = if low == high { high + 0.001 } else { high };
        Ramp {
            low: low as f32,
            width: (high - low) as f32,
        }
    }

    fn at(&self, dimension: usize) -> f32 {
        ((dimension as f32 - self.low) / self.width).clamp(0.0, 1.0)
    }
}

/// YaRN: slow dimensions interpolate (divided by the factor), fast ones stay.
fn yarn(periods: &[f32], factor: f32, ramp: &Ramp) -> Vec<f32> {
    let blend = |(i, period): (usize, &f32)| {
        let kept = 1.0 - ramp.at(i);
        1.0 / (factor * period) * (1.0 - kept) + 1.0 / period * kept
    };
    periods.iter().enumerate().map(blend).collect()
}

#[cfg(test)]
mod tests;
