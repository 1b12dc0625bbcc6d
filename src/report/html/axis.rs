//! Axes of plots: places in per cent of the plot's width, so that a plot is as wide as the page
//! lets it be while its text keeps its size.

use serde::Serialize;

use crate::report::contrast::number::significant;

/// Per cent of the width left free at either end, for marks that are centred there.
const MARGIN: f64 = 3.0;
/// Times that the largest spread may exceed the smallest one on a linear axis.
const LINEAR_SPREAD: f64 = 20.0;
/// Intervals that a linear axis has at most.
const INTERVALS: f64 = 6.0;
/// Least distance of two labels in per cent of the width: what a label takes on a phone.
const LABEL_WIDTH: f64 = 12.0;

/// From values to places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// Where a logarithmic axis turns linear around 0; absent for a linear axis.
    linear_below: Option<f64>,
}

/// A labelled place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Tick {
    /// Place in per cent of the width.
    pub x: String,
    /// Label.
    pub label: String,
}

/// A place, and whether the value lies beyond the axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spot {
    /// Place in per cent of the width; the nearest end for a value beyond the axis.
    pub x: String,
    /// The end beyond which the value lies: `low`, `high` or none.
    pub beyond: Option<&'static str>,
}

impl Axis {
    /// A linear axis from `low` to `high`, widened where they are equal.
    pub fn linear(low: f64, high: f64) -> Self {
        let (low, high) = match low < high {
            true => (low, high),
            false => (low - 0.5, low + 0.5),
        };
        Axis {
            low,
            high,
            linear_below: None,
        }
    }

    /// An axis around 0 on which each of `spreads`, the largest absolute values of several lists,
    /// is more than a dot: logarithmic on both sides of 0 where they differ much.
    pub fn around_zero(spreads: &[f64]) -> Self {
        let seen = || spreads.iter().copied().filter(|&spread| spread > 0.0);
        let largest = seen().fold(0.0, f64::max);
        let smallest = seen().fold(largest, f64::min);
        if largest == 0.0 {
            return Axis::linear(-1.0, 1.0);
        }
        let linear_below = (largest > LINEAR_SPREAD * smallest)
            .then(|| 10_f64.powf((smallest / 2.0).log10().floor()));
        Axis {
            low: -largest,
            high: largest,
            linear_below,
        }
    }

    /// Whether it is logarithmic on both sides of 0.
    pub fn is_logarithmic(&self) -> bool {
        self.linear_below.is_some()
    }

    /// The place of a value.
    pub fn spot(&self, value: f64) -> Spot {
        let beyond = if value < self.low {
            Some("low")
        } else if value > self.high {
            Some("high")
        } else {
            None
        };
        Spot {
            x: format!("{:.2}", self.place(value)),
            beyond,
        }
    }

    /// The place of a value in per cent of the width; the nearest end for one beyond the axis.
    pub fn place(&self, value: f64) -> f64 {
        let (low, high) = (self.stretch(self.low), self.stretch(self.high));
        let within = self.stretch(value.clamp(self.low, self.high));
        MARGIN + (100.0 - 2.0 * MARGIN) * (within - low) / (high - low)
    }

    /// Labelled places, from the lowest; `scale` and `unit` say how values are written.
    pub fn ticks(&self, scale: f64, unit: &str) -> Vec<Tick> {
        let values = match self.linear_below {
            None => self.linear_ticks(),
            Some(linear_below) => self.logarithmic_ticks(linear_below),
        };
        let tick = |value: f64| Tick {
            x: self.spot(value).x,
            label: format!("{}{unit}", label(scale * value)),
        };
        values.into_iter().map(tick).collect()
    }

    fn stretch(&self, value: f64) -> f64 {
        match self.linear_below {
            None => value,
            Some(linear_below) => (value / linear_below).asinh(),
        }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let step = nice((self.high - self.low) / INTERVALS);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        // Numbers too small for a step of their own must not make endless labels.
        let places = (first..=last).take(2 * INTERVALS as usize);
        places.map(|at| at as f64 * step).collect()
    }

    fn logarithmic_ticks(&self, linear_below: f64) -> Vec<f64> {
        let first = linear_below.log10().round() as i32;
        let last = self.high.log10().floor() as i32;
        let mut powers: Vec<f64> = Vec::new();
        // From the outermost inwards: the order of magnitude of what differs most is named.
        for power in (first..=last).rev().map(|power| 10_f64.powi(power)) {
            let outer = powers
                .last()
                .map_or(f64::INFINITY, |&outer| self.place(outer));
            let place = self.place(power);
            if outer - place >= LABEL_WIDTH && place - self.place(0.0) >= LABEL_WIDTH / 2.0 {
                powers.push(power);
            }
        }
        let negative = powers.iter().map(|power| -power);
        let positive = powers.iter().rev().copied();
        negative.chain([0.0]).chain(positive).collect()
    }
}

/// The next of 1, 2, 5, 10, … times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= value);
    factor.unwrap_or(10.0) * power
}

fn label(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ => significant(value, 4).replace('-', "\u{2212}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis) -> Vec<String> {
        let ticks = axis.ticks(1.0, "");
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn places_keep_a_margin_and_say_what_lies_beyond() {
        let axis = Axis::linear(0.0, 0.08);
        assert_eq!(axis.spot(0.0).x, "3.00");
        assert_eq!(axis.spot(0.04).x, "50.00");
        assert_eq!(axis.spot(0.08).beyond, None);
        let beyond = axis.spot(0.99);
        assert_eq!((beyond.x.as_str(), beyond.beyond), ("97.00", Some("high")));
        assert_eq!(axis.spot(-1.0).beyond, Some("low"));
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(Axis::linear(0.0, 8.0)), ["0", "2", "4", "6", "8"]);
        assert_eq!(
            labels(Axis::linear(-2.5, 1.0)),
            ["\u{2212}2", "\u{2212}1", "0", "1"]
        );
        assert_eq!(labels(Axis::linear(3.0, 3.0))[2], "3");
        assert!(labels(Axis::linear(0.0, f64::from_bits(1))).len() <= 12);
        assert!(labels(Axis::linear(-f64::MAX, f64::MAX)).len() <= 12);
        let percent = Axis::linear(0.0, 0.03).ticks(100.0, "%");
        assert_eq!(percent.last().unwrap().label, "3%");
    }

    #[test]
    fn lists_of_other_size_share_a_logarithmic_axis() {
        let like = Axis::around_zero(&[0.01, 0.02]);
        assert!(!like.is_logarithmic());
        let unlike = Axis::around_zero(&[0.003, 5.0, 0.0]);
        assert!(unlike.is_logarithmic());
        assert_eq!(unlike.spot(0.0).x, "50.00");
        let shown = labels(unlike).join(" ").replace('\u{2212}', "-");
        assert_eq!(shown, "-1 -0.01 0 0.01 1");
        let small: f64 = unlike.spot(0.003).x.parse().unwrap();
        assert!(small > 55.0, "{small}");
        assert_eq!(Axis::around_zero(&[0.0]).spot(0.0).x, "50.00");
    }
}
