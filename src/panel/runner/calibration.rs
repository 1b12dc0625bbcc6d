//! Fixed scales: calibrated once per run on the native cache, or taken from the checkpoint where the
//! protocol says so; stored, and reused on resume.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{Engine, Observer};
use crate::panel::CalibrationDocs;
use crate::schema::{CALIBRATION_SCHEMA, Calibration, CalibrationSource, ModelIdentity};

use super::batch::stop_asked;
use super::event::{Event, Sink};
use super::{RunError, RunInput};

/// The run's calibration, from its directory or measured and stored now; `None` when asked to stop.
pub(super) fn of_run(
    input: &RunInput<'_>,
    arm: &str,
    engine: &mut dyn Engine,
    sink: &mut Sink<'_>,
) -> Result<Option<Calibration>, RunError> {
    let missing = || RunError::NoCalibration {
        arm: arm.to_owned(),
    };
    let plan = &input.dir.manifest().protocol.calibration;
    if plan.source == CalibrationSource::Checkpoint {
        let expected = of_checkpoint(engine.model()).ok_or_else(missing)?;
        if let Some(stored) = input.dir.calibration()? {
            check(&stored, &expected)?;
            return Ok(Some(stored));
        }
        input.dir.write_calibration(&expected)?;
        sink(&Event::CalibrationFinished);
        return Ok(Some(expected));
    }
    let documents = input.panels.calibration.as_ref().ok_or_else(missing)?;
    let forced = plan.forced_tokens;
    if let Some(stored) = input.dir.calibration()? {
        check(&stored, &blank(engine.model(), documents, forced))?;
        return Ok(Some(stored));
    }
    let measured = calibrate(documents, forced, engine, input.stop, sink)?;
    if let Some(calibration) = &measured {
        input.dir.write_calibration(calibration)?;
        sink(&Event::CalibrationFinished);
    }
    Ok(measured)
}

/// Measures the largest absolute keys and values on the native cache; `None` when asked to stop.
///
/// # Errors
/// [`RunError::Engine`].
pub fn calibrate(
    documents: &CalibrationDocs,
    forced_tokens: u32,
    engine: &mut dyn Engine,
    stop: &AtomicBool,
    sink: &mut Sink<'_>,
) -> Result<Option<Calibration>, RunError> {
    let blank = blank(engine.model(), documents, forced_tokens);
    sink(&Event::CalibrationStarted {
        documents: documents.documents.len(),
        tokens: blank.tokens,
    });
    let mut observer = Progress { stop, sink };
    let layers = engine
        .calibrate(&documents.documents, forced_tokens, &mut observer)
        .map_err(|error| RunError::engine("native", error))?;
    // A stopped calibration has seen a part of the documents only.
    Ok((!stop.load(Ordering::Relaxed)).then_some(Calibration { layers, ..blank }))
}

/// Fixed scales that the checkpoint of `model` brings along; `None` where it has none.
pub fn of_checkpoint(model: &ModelIdentity) -> Option<Calibration> {
    Some(Calibration {
        schema: CALIBRATION_SCHEMA.to_owned(),
        model: model.name.clone(),
        weights_sha256: model.weights_sha256.clone(),
        documents_sha256: String::new(),
        documents: 0,
        tokens: 0,
        source: CalibrationSource::Checkpoint,
        layers: model.checkpoint_absmax()?,
    })
}

/// Everything of a calibration but its figures.
fn blank(model: &ModelIdentity, documents: &CalibrationDocs, forced_tokens: u32) -> Calibration {
    let count = documents.documents.len();
    let prompts: u64 = documents.documents.iter().map(|ids| ids.len() as u64).sum();
    Calibration {
        schema: CALIBRATION_SCHEMA.to_owned(),
        model: model.name.clone(),
        weights_sha256: model.weights_sha256.clone(),
        documents_sha256: documents.sha256.clone(),
        documents: u32::try_from(count).unwrap_or(u32::MAX),
        tokens: prompts + count as u64 * u64::from(forced_tokens),
        source: CalibrationSource::Measured,
        layers: Vec::new(),
    }
}

/// Refuses a stored calibration of another model, of other documents or from another source.
fn check(stored: &Calibration, expected: &Calibration) -> Result<(), RunError> {
    let sources = [stored.source, expected.source].map(|source| source.name().to_owned());
    let fields = [
        ("source", &sources[0], &sources[1]),
        (
            "weights_sha256",
            &stored.weights_sha256,
            &expected.weights_sha256,
        ),
        (
            "documents_sha256",
            &stored.documents_sha256,
            &expected.documents_sha256,
        ),
    ];
    for (field, found, expected) in fields {
        if found != expected {
            return Err(RunError::Calibration {
                field,
                found: found.clone(),
                expected: expected.clone(),
            });
        }
    }
    if stored.tokens != expected.tokens {
        return Err(RunError::Calibration {
            field: "tokens",
            found: stored.tokens.to_string(),
            expected: expected.tokens.to_string(),
        });
    }
    Ok(())
}

struct Progress<'a, 's> {
    stop: &'a AtomicBool,
    sink: &'a mut Sink<'s>,
}

impl Observer for Progress<'_, '_> {
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()> {
        (self.sink)(&Event::TokensProcessed(tokens));
        stop_asked(self.stop)
    }
}
