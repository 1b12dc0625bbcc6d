//! The probe of an arm: what it stores, and what queries of another format make of it.

use std::ops::ControlFlow;

use crate::backend::Backend;
use crate::engine::{
    ArmSetup, CaseError, EngineError, Observer, Score, ScoreObserver, ScoreRequest,
};
use crate::recipe::{Format, Recipe};
use crate::schema::{Engagement, QueryEngagement};

use super::arm::Arm;
use super::tasks::{Likelihood, Window};
use super::{LocalEngine, engagement};

/// Most tokens of the probe whose likelihood is looked at.
const TARGETS: usize = 32;

impl<B: Backend> LocalEngine<B> {
    /// An arm whose recipe proved to be engaged.
    pub(super) fn probed(&mut self, setup: &ArmSetup) -> Result<(Arm<B>, Engagement), EngineError> {
        let recipe = &setup.recipe;
        let mut queries = None;
        if recipe.q != Format::Native {
            // One after another: two caches at once would be twice the memory.
            let native = Recipe {
                q: Format::Native,
                ..recipe.clone()
            };
            let native_probe_nll = self.likelihood(&mut self.arm_of(setup, native)?, setup)?;
            queries = Some(QueryEngagement {
                format: recipe.q.to_string(),
                probe_nll: self.likelihood(&mut self.arm_of(setup, recipe.clone())?, setup)?,
                native_probe_nll,
            });
        }
        let mut arm = self.arm_of(setup, recipe.clone())?;
        let probe = std::slice::from_ref(&setup.probe);
        let mut observer = Unobserved;
        let stored = self.measure(&mut arm, probe, 0, &mut observer);
        let totals = stored.map_err(of_probe)?.totals;
        let tokens = setup.probe.len() as u64;
        let layers = &self.decoder.config().layers;
        let keep: Vec<bool> = layers.iter().map(|l| l.recurrent.is_none()).collect();
        let engagement = engagement::engagement(recipe, tokens, &totals, &keep, queries)?;
        Ok((arm, engagement))
    }

    fn arm_of(&self, setup: &ArmSetup, recipe: Recipe) -> Result<Arm<B>, EngineError> {
        Arm::new(&self.decoder, recipe, setup.absmax.clone(), setup.layout)
    }

    /// Negative log-likelihood of the probe's last tokens, in nats.
    fn likelihood(&mut self, arm: &mut Arm<B>, setup: &ArmSetup) -> Result<f64, EngineError> {
        let targets = setup.probe.len().saturating_sub(1).min(TARGETS);
        let request = ScoreRequest {
            ids: setup.probe.clone(),
            targets: targets as u32,
        };
        let failed = |error: CaseError| of_probe(EngineError::Worker(error.to_string()));
        let window = Window::new(&request, self.bounds()).map_err(failed)?;
        let mut scored = Scored(None);
        let mut task = Likelihood {
            observer: &mut scored,
        };
        let (decoder, workspace) = (&self.decoder, &mut self.workspace);
        Self::drive(decoder, workspace, Some(arm), &mut task, vec![(0, window)])
            .map_err(of_probe)?;
        match scored.0 {
            Some(Ok(score)) => Ok(score.nll_sum),
            Some(Err(error)) => Err(failed(error)),
            None => Err(of_probe(EngineError::Worker("it did not end".to_owned()))),
        }
    }
}

fn of_probe(error: EngineError) -> EngineError {
    match error {
        EngineError::Worker(what) => EngineError::Worker(format!("probe: {what}")),
        unsupported @ EngineError::Unsupported(_) => unsupported,
    }
}

/// Hears of probes, which nobody stops.
struct Unobserved;

impl Observer for Unobserved {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Keeps the score of a probe.
struct Scored(Option<Result<Score, CaseError>>);

impl Observer for Scored {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl ScoreObserver for Scored {
    fn scored(&mut self, _: usize, outcome: Result<Score, CaseError>) {
        self.0 = Some(outcome);
    }
}
