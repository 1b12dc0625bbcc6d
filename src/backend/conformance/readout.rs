//! Reading logits: choices, likelihoods, and which logits are refused.

use super::{Suite, bits, noise, oracle};
use crate::backend::{Backend, BackendError};

const LOWEST: f32 = f32::NEG_INFINITY;

impl<B: Backend> Suite<'_, B> {
    pub fn readout(&self) {
        self.greedy_choice();
        self.suppressed_logits();
        self.likelihood();
        self.logits_are_what_is_declared();
    }

    fn greedy_choice(&self) {
        let width = 100;
        let mut logits = noise(12, 4 * width);
        logits[17] = 9.0;
        logits[90] = 9.0;
        logits[width + 99] = 9.0;
        logits[2 * width..3 * width].fill(-2e30);
        logits[2 * width + 40] = -1e30;
        logits[3 * width] = 9.0;
        let choice = self.backend.argmax(&self.upload(&logits, width), &[]);
        assert_eq!(choice.expect("a choice"), [17, 99, 40, 0]);
    }

    fn suppressed_logits(&self) {
        let width = 100;
        let mut logits = noise(14, 3 * width);
        for (at, value) in [
            (17, 9.0),
            (40, 8.0),
            (width + 99, 9.0),
            (2 * width, f32::NAN),
        ] {
            logits[at] = value;
        }
        let ids = [0, 17, 99];
        let mut tensor = self.upload(&logits, width);
        let suppress = |tensor: &mut B::Tensor, ids: &[u32]| {
            let done = self.backend.suppress(tensor, ids);
            done.expect("suppressed logits");
        };
        suppress(&mut tensor, &ids);
        for row in logits.chunks_exact_mut(width) {
            ids.iter().for_each(|&id| row[id as usize] = LOWEST);
        }
        assert_eq!(bits(&self.host(&tensor)), bits(&logits));
        let choices = self.backend.argmax(&tensor, &ids).expect("choices");
        assert_eq!(choices[0], 40);
        assert!(
            choices.iter().all(|choice| !ids.contains(choice)),
            "{choices:?}"
        );
        let nll = self.backend.nll(&tensor, &[40, 99, 1], &ids);
        let nll = nll.expect("likelihoods");
        let expected = oracle::nll(&logits[..width], 40);
        assert!(
            (nll[0] - expected).abs() < 1e-5,
            "{} for {expected}",
            nll[0]
        );
        assert_eq!(nll[1], f64::INFINITY);
        // Other ids take effect, and none changes nothing.
        suppress(&mut tensor, &[]);
        assert_eq!(bits(&self.host(&tensor)), bits(&logits));
        suppress(&mut tensor, &[40]);
        assert_eq!(self.host(&tensor)[40], LOWEST);
    }

    fn likelihood(&self) {
        let width = 1000;
        let mut logits: Vec<f32> = noise(13, 4 * width).iter().map(|x| x * 40.0).collect();
        logits[width..2 * width]
            .iter_mut()
            .for_each(|x| *x += 1000.0);
        let targets = [3, 999, 500, 7];
        let got = self
            .backend
            .nll(&self.upload(&logits, width), &targets, &[])
            .expect("likelihoods");
        for (i, &target) in targets.iter().enumerate() {
            let expected = oracle::nll(&logits[i * width..][..width], target as usize);
            assert!(
                (got[i] - expected).abs() < 1e-5,
                "{} for {expected}",
                got[i]
            );
        }
    }

    /// Suppressed logits are -inf, all others finite, in every row and at every place: else the row
    /// and the place are named.
    fn logits_are_what_is_declared(&self) {
        let (width, suppressed) = (300, [5_u32, 258, 299]);
        let mut sound = noise(16, 4 * width);
        for row in sound.chunks_exact_mut(width) {
            suppressed.iter().for_each(|&id| row[id as usize] = LOWEST);
        }
        let read = |logits: &[f32], suppressed: &[u32]| {
            let tensor = self.upload(logits, width);
            let choices = self.backend.argmax(&tensor, suppressed).map(|_| ());
            let sums = self.backend.nll(&tensor, &[1; 4], suppressed).map(|_| ());
            [choices, sums].map(|result| match result {
                Ok(()) => None,
                Err(BackendError::NotFinite { row, what }) => Some((row, what)),
                Err(other) => panic!("{other}"),
            })
        };
        assert_eq!(read(&sound, &suppressed), [None, None]);
        let finite = "expected a finite number";
        let masked = "expected -inf for a suppressed token";
        for (row, id, value, expected) in [
            (2, 0, f32::NAN, finite),
            (0, 299, f32::NAN, masked),
            (3, 150, f32::INFINITY, finite),
            (1, 4, LOWEST, finite),
            (3, 298, LOWEST, finite),
            (2, 258, 0.5, masked),
            (0, 5, -f32::MAX, masked),
        ] {
            let mut broken = sound.clone();
            broken[row * width + id] = value;
            let what = format!("logit {id} is {value}, {expected}");
            let expected = Some((row, what));
            assert_eq!(read(&broken, &suppressed), [expected.clone(), expected]);
        }
        // A mask that the model did not declare, and one that was not applied.
        let named = |id: usize, value: f32, expected: &str| {
            Some((0, format!("logit {id} is {value}, {expected}")))
        };
        let undeclared = named(5, LOWEST, finite);
        assert_eq!(read(&sound, &[]), [undeclared.clone(), undeclared]);
        let missing = named(7, sound[7], masked);
        assert_eq!(read(&sound, &[5, 7, 258, 299]), [missing.clone(), missing]);
        let all: Vec<u32> = (0..width as u32).collect();
        let [choices, _] = read(&vec![LOWEST; 4 * width], &all);
        let what = "every token is suppressed, expected a logit that is not";
        assert_eq!(choices, Some((0, what.to_owned())));
    }
}
