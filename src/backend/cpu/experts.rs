//! Mixtures of experts: the rows of one expert after another, gathered, through the products that
//! everything else goes through.
//!
//! A row's terms are added in ascending order of its experts, whatever other rows go where.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use super::CpuBackend;
use super::exp::exp2;
use super::product::{CpuWeight, Finish};
use super::rowwise::{self, LANES, larger, tree, tree_sum};
use super::tensor::{CpuTensor, float_bytes};
use crate::backend::{
    BackendError, ExpertWeights, Held, Ledger, Purpose, RoutingRule, cannot_route,
};

/// Which experts rows go to.
#[derive(Debug, Default)]
pub struct CpuRoutes {
    experts: usize,
    chosen: usize,
    /// `[rows, chosen]`: expert and weight, by descending logit.
    picks: Vec<(u32, f32)>,
}

impl CpuRoutes {
    /// No rows yet.
    pub(super) fn new(experts: usize) -> Self {
        CpuRoutes {
            experts,
            ..CpuRoutes::default()
        }
    }

    /// Rows and weights of every expert, by ascending row.
    fn by_expert(&self) -> Vec<Vec<(usize, f32)>> {
        let mut rows = vec![Vec::new(); self.experts];
        for (row, picks) in self.picks.chunks_exact(self.chosen.max(1)).enumerate() {
            for &(expert, weight) in picks {
                rows[expert as usize].push((row, weight));
            }
        }
        rows
    }
}

/// Room for the rows of one expert.
#[derive(Debug, Default)]
pub struct Room {
    /// `[rows, inner]`.
    x: Vec<f32>,
    /// `[rows, 2 * intermediate_size]`.
    packed: Vec<f32>,
    /// `[rows, intermediate_size]`.
    activated: Vec<f32>,
    /// `[rows, inner]`.
    out: Vec<f32>,
    held: Held,
}

impl Room {
    /// None yet.
    pub fn new(ledger: &Arc<Ledger>) -> Self {
        Room {
            held: Held::new(ledger, Purpose::Staging, 0),
            ..Room::default()
        }
    }

    /// Enters how much there is.
    fn note(&mut self) {
        let all = [&self.x, &self.packed, &self.activated, &self.out];
        let elements = all.map(Vec::capacity).iter().sum();
        self.held.set(float_bytes(elements));
    }
}

/// The `count` experts of the largest logits, of equal ones the lower number first, with their
/// weights before any scale; `None` where there is NaN or no finite largest logit.
fn choose(logits: &[f32], count: usize, renormalised: bool) -> Option<Vec<(u32, f32)>> {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for (i, &x) in logits.iter().enumerate() {
        lanes[i % LANES] = larger(lanes[i % LANES], x);
    }
    let largest = tree(lanes, larger);
    if !largest.is_finite() || logits.iter().any(|x| x.is_nan()) {
        return None;
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // Stable, and zeros are equal whatever their sign. There is no NaN.
    let of = |expert: u32| logits[expert as usize];
    order.sort_by(|&a, &b| of(b).partial_cmp(&of(a)).unwrap_or(Ordering::Equal));
    let power = |x: f32| exp2((x - largest) * std::f32::consts::LOG2_E);
    let chosen = order.iter().take(count);
    let mut picks: Vec<(u32, f32)> = chosen.map(|&e| (e, power(of(e)))).collect();
    let total = if renormalised {
        picks.iter().map(|(_, power)| power).sum::<f32>()
    } else {
        let mut lanes = [0.0; LANES];
        for (i, &x) in logits.iter().enumerate() {
            lanes[i % LANES] += power(x);
        }
        tree_sum(lanes)
    };
    picks.iter_mut().for_each(|(_, weight)| *weight /= total);
    Some(picks)
}

impl CpuBackend {
    /// See [`crate::backend::Backend::route`].
    pub(super) fn choose_experts(
        &self,
        logits: &CpuTensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut CpuRoutes,
    ) -> Result<(), BackendError> {
        assert!(
            logits.width == routes.experts && (1..=routes.experts).contains(&rule.chosen),
            "experts of a row"
        );
        routes.chosen = rule.chosen;
        routes.picks.clear();
        for row in 0..logits.rows {
            let logits = logits.row(row);
            let picks = choose(logits, rule.chosen, rule.renormalised);
            let picks = picks.ok_or_else(|| cannot_route(row, logits))?;
            let scale = |expert: u32| rule.scales.map_or(1.0, |scales| scales[expert as usize]);
            let scaled = picks.into_iter().map(|(e, weight)| (e, weight * scale(e)));
            routes.picks.extend(scaled);
        }
        Ok(())
    }

    /// See [`crate::backend::Backend::mix_experts`].
    pub(super) fn mix(
        &self,
        x: &CpuTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &CpuRoutes,
        out: &mut CpuTensor,
        finish: Finish,
    ) {
        let (gate_up, down) = (weights.gate_up, weights.down);
        let (width, inner) = (2 * down.inner, x.width);
        assert!(
            gate_up.inner == inner
                && gate_up.out == routes.experts * width
                && down.out == routes.experts * inner
                && out.width == inner,
            "shape of experts"
        );
        assert!(
            out.rows == x.rows && routes.picks.len() == x.rows * routes.chosen,
            "rows of experts"
        );
        if let Finish::Write = finish {
            out.data.fill(0.0);
        }
        // A thread that panicked holding the lock leaves only scratch memory behind.
        let mut room = Mutex::lock(&self.experts).unwrap_or_else(|e| e.into_inner());
        for (expert, rows) in routes.by_expert().into_iter().enumerate() {
            if rows.is_empty() {
                continue;
            }
            let room = &mut *room;
            room.x.clear();
            let inputs = rows.iter().map(|&(row, _)| x.row(row));
            inputs.for_each(|x| room.x.extend_from_slice(x));
            room.packed.resize(rows.len() * width, 0.0);
            room.activated.resize(rows.len() * down.inner, 0.0);
            room.out.resize(rows.len() * inner, 0.0);
            let part = |weight: &CpuWeight, x: &[f32], out: &mut [f32], width: usize| {
                let columns = expert * width..(expert + 1) * width;
                self.product.apply_columns(x, weight, columns, out);
            };
            part(gate_up, &room.x, &mut room.packed, width);
            let activated = &mut room.activated;
            rowwise::gate(
                self.arch,
                weights.activation,
                &room.packed,
                down.inner,
                activated,
            );
            part(down, &room.activated, &mut room.out, inner);
            for (&(row, weight), y) in rows.iter().zip(room.out.chunks_exact(inner)) {
                let sum = &mut out.data[row * inner..(row + 1) * inner];
                for (sum, &y) in sum.iter_mut().zip(y) {
                    *sum += weight * y;
                }
            }
        }
        room.note();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_go_to_the_lower_number() {
        let numbers = |logits: &[f32], count| -> Vec<u32> {
            let picks = choose(logits, count, true).expect("finite logits");
            picks.into_iter().map(|(expert, _)| expert).collect()
        };
        assert_eq!(numbers(&[1.0, 2.0, 2.0, 1.0, 2.0], 4), [1, 2, 4, 0]);
        assert_eq!(numbers(&[0.0, -0.0, 0.0], 3), [0, 1, 2]);
        assert_eq!(numbers(&[-0.0, 0.0, -0.0], 2), [0, 1]);
        let below = f32::NEG_INFINITY;
        assert_eq!(numbers(&[below, 1.0, below], 2), [1, 0]);
    }

    #[test]
    fn weights_are_shares_of_all_or_of_the_chosen() {
        let logits = [0.0, 2.0_f32.ln(), 5.0_f32.ln()];
        let weights = |renormalised| -> Vec<f32> {
            let picks = choose(&logits, 2, renormalised).expect("finite logits");
            picks.into_iter().map(|(_, weight)| weight).collect()
        };
        for (found, expected) in [
            (weights(false), [5.0 / 8.0, 2.0 / 8.0]),
            (weights(true), [5.0 / 7.0, 2.0 / 7.0]),
        ] {
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
            }
        }
    }

    #[test]
    fn what_cannot_be_ordered_is_refused() {
        for logits in [
            [1.0, f32::NAN, 0.0],
            [f32::INFINITY, 0.0, 0.0],
            [f32::NEG_INFINITY; 3],
        ] {
            assert!(choose(&logits, 2, true).is_none(), "{logits:?}");
        }
    }
}
