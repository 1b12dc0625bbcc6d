//! Mixtures of experts against f64, and bit for bit against themselves beside other rows.

use super::{Suite, bits, noise, oracle, within};
use crate::backend::{
    Activation, Backend, BackendError, ExpertParts, ExpertWeights, RoutingRule, TensorData,
};

/// Width of rows and of an expert, experts, and experts of a row. Tensor cores want multiples of 8;
/// the largest has outputs and terms beyond every tile.
const SHAPES: [(usize, usize, usize, usize); 4] = [
    (304, 136, 5, 3),
    (64, 40, 40, 8),
    (48, 27, 6, 2),
    (24, 16, 3, 3),
];

/// Rows of the largest pass: more than every tile has, for each expert.
const ROWS: usize = 260;

/// Weights of experts on a backend and on the host.
struct Experts<B: Backend> {
    shape: (usize, usize, usize, usize),
    gate_up: B::Weight,
    down: B::Weight,
    /// As they are stored.
    host: [Vec<f32>; 2],
    activation: Activation,
    tolerance: f64,
}

/// A rule of routing on the host.
#[derive(Clone, Copy)]
struct Rule<'a> {
    renormalised: bool,
    scales: Option<&'a [f32]>,
}

impl<B: Backend> Experts<B> {
    /// Experts and weights of a row with these logits.
    fn picks(&self, logits: &[f32], rule: Rule<'_>) -> Vec<(usize, f64)> {
        let chosen = self.shape.3;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("numbers"));
        let power = |expert: usize| f64::from(logits[expert] - logits[order[0]]).exp();
        let over = if rule.renormalised {
            chosen
        } else {
            logits.len()
        };
        let total: f64 = order.iter().take(over).map(|&expert| power(expert)).sum();
        let scale = |expert: usize| rule.scales.map_or(1.0, |scales| f64::from(scales[expert]));
        let own = order.iter().take(chosen);
        own.map(|&expert| (expert, power(expert) / total * scale(expert)))
            .collect()
    }

    /// What a row becomes.
    fn expected(&self, x: &[f32], logits: &[f32], rule: Rule<'_>) -> Vec<oracle::Term> {
        let (inner, width, ..) = self.shape;
        let mut sums = vec![(0.0, 0.0); inner];
        for (expert, weight) in self.picks(logits, rule) {
            let [gate_up, down] = [(0, 2 * width * inner), (1, inner * width)]
                .map(|(part, size)| &self.host[part][expert * size..][..size]);
            let packed = oracle::product(x, gate_up, inner, None);
            let values: Vec<f32> = packed.iter().map(|term| term.0 as f32).collect();
            let gated = oracle::gated(self.activation, &values);
            // What gates and ups lack of f64 is as large as what they sum.
            let size = |i: usize| (gated[i].1.abs() + packed[i].1) * (1.0 + packed[width + i].1);
            for (out, sum) in sums.iter_mut().enumerate() {
                for (i, w) in down[out * width..][..width].iter().enumerate() {
                    let w = weight * f64::from(*w);
                    sum.0 += w * gated[i].0;
                    sum.1 += (w * size(i)).abs();
                }
            }
        }
        sums
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn experts(&self) {
        for (number, shape) in SHAPES.into_iter().enumerate() {
            for (format, experts) in self.stored_experts(shape).into_iter().enumerate() {
                // Every format with every way to weigh.
                self.mixtures_are_those_of_f64(&experts, (number + format) % 3);
                self.mixtures_do_not_depend_on_other_rows(&experts);
                self.one_expert_may_take_all(&experts);
            }
        }
        let [experts, ..] = self.stored_experts(SHAPES[2]);
        self.equal_logits_go_to_the_lower_number(&experts);
        self.what_cannot_be_routed_is_named_or_spreads(&experts);
    }

    /// Experts of every element type.
    fn stored_experts(&self, shape: (usize, usize, usize, usize)) -> [Experts<B>; 3] {
        let (inner, width, experts, _) = shape;
        let own = |seed: u64, out: usize, of: usize| -> Vec<f32> {
            let gain = 2.0 / (of as f32).sqrt();
            let all = noise(seed, experts * out * of).into_iter();
            all.map(|x| x * gain).collect()
        };
        let weights = [own(120, 2 * width, inner), own(121, inner, width)];
        let sides = [[2 * width, inner], [inner, width]];
        type Round = fn(f32) -> f32;
        let round: [(Round, f64, Activation); 3] = [
            (|x| x, self.tolerance.f32, Activation::Silu),
            (
                |x| half::f16::from_f32(x).to_f32(),
                self.tolerance.f16,
                Activation::GeluTanh,
            ),
            (
                |x| half::bf16::from_f32(x).to_f32(),
                self.tolerance.bf16,
                Activation::Silu,
            ),
        ];
        let mut format = 0;
        round.map(|(round, tolerance, activation)| {
            let host = weights
                .each_ref()
                .map(|w| w.iter().copied().map(round).collect());
            let load = |part: usize, host: &[Vec<f32>; 2]| {
                // Gates and ups, or downs, of one expert after another.
                let pieces = [2 * experts, experts][part];
                let parts = host[part].chunks_exact(host[part].len() / pieces);
                let parts = parts.map(|data| match format {
                    0 => TensorData::F32(data.to_vec()),
                    1 => TensorData::F16(data.iter().copied().map(half::f16::from_f32).collect()),
                    _ => TensorData::Bf16(data.iter().copied().map(half::bf16::from_f32).collect()),
                });
                let parts = ExpertParts::Numbers(parts.collect());
                let weight = self.backend.expert_weight(parts, experts, sides[part]);
                weight.expect("memory").expect("a weight")
            };
            let loaded = Experts {
                shape,
                gate_up: load(0, &host),
                down: load(1, &host),
                host,
                activation,
                tolerance,
            };
            format += 1;
            loaded
        })
    }

    /// The sums of every row of `x`, added to 0.5 where `add` is set.
    fn mixed(
        &self,
        experts: &Experts<B>,
        (x, logits): (&[f32], &[f32]),
        rule: Rule<'_>,
        add: bool,
    ) -> Result<Vec<f32>, BackendError> {
        let (inner, _, count, chosen) = experts.shape;
        let (b, rows) = (self.backend, x.len() / inner);
        let scales = rule.scales.map(|scales| self.vector(scales));
        let mut routes = b.routes(count)?;
        let rule = RoutingRule {
            chosen,
            renormalised: rule.renormalised,
            scales: scales.as_ref(),
        };
        b.route(&self.upload(logits, count), rule, &mut routes)?;
        let weights = ExpertWeights {
            gate_up: &experts.gate_up,
            down: &experts.down,
            activation: experts.activation,
        };
        let x = self.upload(x, inner);
        if add {
            let mut residual = self.upload(&vec![0.5; rows * inner], inner);
            b.mix_experts_add(&x, weights, &mut routes, &mut residual)?;
            return Ok(self.host(&residual));
        }
        let mut out = b.tensor(rows, inner)?;
        b.mix_experts(&x, weights, &mut routes, &mut out)?;
        Ok(self.host(&out))
    }

    fn mixtures_are_those_of_f64(&self, experts: &Experts<B>, way: usize) {
        let (inner, _, count, _) = experts.shape;
        let scales = noise(122, count);
        let rule = Rule {
            renormalised: way != 1,
            scales: (way == 2).then_some(&scales),
        };
        let rows = 21;
        let x = noise(123, rows * inner);
        let logits: Vec<f32> = noise(124, rows * count).iter().map(|x| x * 3.0).collect();
        let input = (x.as_slice(), logits.as_slice());
        let lines = x.chunks_exact(inner).zip(logits.chunks_exact(count));
        let mut expected: Vec<_> = lines
            .flat_map(|(x, logits)| experts.expected(x, logits, rule))
            .collect();
        let found = self.mixed(experts, input, rule, false).expect("a mixture");
        within(experts.tolerance, "mix_experts", &found, &expected);
        expected.iter_mut().for_each(|(sum, size)| {
            *sum += 0.5;
            *size += 0.5;
        });
        let found = self.mixed(experts, input, rule, true).expect("a mixture");
        within(experts.tolerance, "mix_experts_add", &found, &expected);
    }

    fn mixtures_do_not_depend_on_other_rows(&self, experts: &Experts<B>) {
        let (inner, _, count, _) = experts.shape;
        let rule = Rule {
            renormalised: true,
            scales: None,
        };
        let (x, logits) = (noise(125, ROWS * inner), noise(126, ROWS * count));
        let run = |order: &[usize]| {
            let of = |data: &[f32], width: usize| -> Vec<f32> {
                let row = |&row: &usize| data[row * width..][..width].to_vec();
                order.iter().flat_map(row).collect()
            };
            let (x, logits) = (of(&x, inner), of(&logits, count));
            let found = self.mixed(experts, (&x, &logits), rule, false);
            bits(&found.expect("a mixture"))
        };
        let all: Vec<usize> = (0..ROWS).collect();
        let whole = run(&all);
        let reversed: Vec<usize> = all.iter().rev().copied().collect();
        let orders = [&all[7..8], &all[3..20], &all[100..190], &reversed];
        for order in orders {
            let found = run(order);
            for (found, row) in found.chunks_exact(inner).zip(order) {
                let expected = &whole[row * inner..][..inner];
                assert!(found == expected, "row {row} among {}", order.len());
            }
        }
    }

    /// A row has the same bits where every other one goes to the same experts, which leaves others
    /// without any.
    fn one_expert_may_take_all(&self, experts: &Experts<B>) {
        let (inner, _, count, _) = experts.shape;
        let rule = Rule {
            renormalised: false,
            scales: None,
        };
        let (x, mut logits) = (noise(127, ROWS * inner), noise(128, ROWS * count));
        let whole = self.mixed(experts, (&x, &logits), rule, false);
        let whole = bits(&whole.expect("a mixture"));
        let (first, others) = logits.split_at_mut(count);
        for other in others.chunks_exact_mut(count) {
            other.copy_from_slice(first);
        }
        let found = self.mixed(experts, (&x, &logits), rule, false);
        let found = found.expect("a mixture");
        assert!(bits(&found[..inner]) == whole[..inner]);
        let last = experts.expected(&x[(ROWS - 1) * inner..], &logits[..count], rule);
        within(
            experts.tolerance,
            "the last row",
            &found[(ROWS - 1) * inner..],
            &last,
        );
    }

    fn equal_logits_go_to_the_lower_number(&self, experts: &Experts<B>) {
        let (inner, _, count, _) = experts.shape;
        let below = f32::NEG_INFINITY;
        let rows = [
            vec![1.0; count],
            [vec![0.0], vec![2.0; count - 1]].concat(),
            [vec![-0.0, 0.0, -0.0], vec![-1.0; count - 3]].concat(),
            [vec![below; count - 1], vec![-3.0]].concat(),
        ];
        let rule = Rule {
            renormalised: true,
            scales: None,
        };
        let x = noise(129, rows.len() * inner);
        let found = self.mixed(experts, (&x, &rows.concat()), rule, false);
        let lines = x.chunks_exact(inner).zip(&rows);
        let expected: Vec<_> = lines
            .flat_map(|(x, logits)| experts.expected(x, logits, rule))
            .collect();
        let found = found.expect("a mixture");
        within(experts.tolerance, "equal logits", &found, &expected);
    }

    fn what_cannot_be_routed_is_named_or_spreads(&self, experts: &Experts<B>) {
        let (inner, _, count, _) = experts.shape;
        let rule = Rule {
            renormalised: true,
            scales: None,
        };
        let (x, logits) = (noise(130, 5 * inner), noise(131, 5 * count));
        let whole = self.mixed(experts, (&x, &logits), rule, false);
        let whole = whole.expect("a mixture");
        for broken in [f32::NAN, f32::INFINITY] {
            let mut logits = logits.clone();
            logits[3 * count + 1] = broken;
            let error = match self.mixed(experts, (&x, &logits), rule, false) {
                Ok(found) => {
                    let (row, others) =
                        (3 * inner..4 * inner, [0..3 * inner, 4 * inner..5 * inner]);
                    assert!(found[row].iter().all(|x| x.is_nan()), "{broken}");
                    for other in others {
                        assert!(bits(&found[other.clone()]) == bits(&whole[other]));
                    }
                    continue;
                }
                Err(error) => error,
            };
            let is_named = matches!(error, BackendError::NotFinite { row: 3, .. });
            assert!(is_named, "{error:?}");
        }
    }
}
