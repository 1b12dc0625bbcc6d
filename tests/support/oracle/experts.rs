//! Mixtures of experts as their definition reads.

use kvassay::backend::{
    Backend, BackendError, ExpertWeights, RoutingRule, TensorData, cannot_route,
};

use super::{Matrix, Oracle};

/// Experts of every row with their weights.
#[derive(Default)]
pub struct Routes {
    rows: Vec<Vec<(usize, f64)>>,
}

/// Experts and weights of one row.
fn choose(logits: &[f32], chosen: usize, renormalised: bool) -> Vec<(usize, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits
        .iter()
        .map(|x| (f64::from(*x) - f64::from(largest)).exp())
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
    order.truncate(chosen);
    let total: f64 = if renormalised {
        order.iter().map(|&expert| powers[expert]).sum()
    } else {
        powers.iter().sum()
    };
    let weight = |&expert: &usize| (expert, powers[expert] / total);
    order.iter().map(weight).collect()
}

pub fn route(
    logits: &Matrix,
    rule: RoutingRule<'_, Oracle>,
    routes: &mut Routes,
) -> Result<(), BackendError> {
    routes.rows.clear();
    for row in 0..logits.rows {
        let logits = logits.row(row);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if logits.iter().any(|x| x.is_nan()) || !largest.is_finite() {
            return Err(cannot_route(row, logits));
        }
        let mut picks = choose(logits, rule.chosen, rule.renormalised);
        if let Some(scales) = rule.scales {
            let scaled = picks.iter_mut();
            scaled.for_each(|(expert, weight)| *weight *= f64::from(scales[*expert]));
        }
        routes.rows.push(picks);
    }
    Ok(())
}

/// Rows `expert * rows..` of a weight.
fn part(weight: &Matrix, expert: usize, rows: usize) -> Matrix {
    let width = weight.width;
    Matrix {
        rows,
        width,
        data: weight.data[expert * rows * width..][..rows * width].to_vec(),
    }
}

/// The sum over a row's experts, row by row.
pub fn mix(
    oracle: &Oracle,
    x: &Matrix,
    weights: ExpertWeights<'_, Oracle>,
    routes: &Routes,
) -> Result<Vec<f32>, BackendError> {
    assert_eq!(x.rows, routes.rows.len());
    let (inner, width) = (x.width, weights.down.width);
    let mut data = Vec::new();
    for (row, picks) in routes.rows.iter().enumerate() {
        let input = oracle.weight(TensorData::F32(x.row(row).to_vec()), 1, inner)?;
        let mut sum = vec![0.0; inner];
        for &(expert, weight) in picks {
            let gate_up = part(weights.gate_up, expert, 2 * width);
            let packed = oracle.product(&input, &gate_up, None);
            let mut activated = oracle.tensor(1, width)?;
            oracle.gate(&packed, weights.activation, &mut activated)?;
            let out = oracle.product(&activated, &part(weights.down, expert, inner), None);
            for (sum, y) in sum.iter_mut().zip(out.data) {
                *sum += weight * f64::from(y);
            }
        }
        data.extend(sum.into_iter().map(|x| x as f32));
    }
    Ok(data)
}
