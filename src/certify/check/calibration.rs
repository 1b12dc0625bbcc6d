//! The calibration against the model and the protocol.

use crate::schema::{
    CALIBRATION_PANEL, Calibration, CalibrationPlan, CalibrationSource, Manifest, is_sha256,
};

use super::super::CertifyError;

/// A field, what it holds and what is expected.
type Fault = (&'static str, String, String);

/// Checks that `found` is of the run's model, and of the documents that its protocol asks for.
///
/// # Errors
/// [`CertifyError::Calibration`].
pub(in crate::certify) fn check_calibration(
    found: &Calibration,
    manifest: &Manifest,
) -> Result<(), CertifyError> {
    match fault_of_model(found, manifest).or_else(|| fault_of_documents(found, manifest)) {
        None => Ok(()),
        Some((field, found, expected)) => Err(CertifyError::Calibration {
            field,
            found,
            expected,
        }),
    }
}

fn fault_of_model(found: &Calibration, manifest: &Manifest) -> Option<Fault> {
    let model = &manifest.model;
    let source = manifest.protocol.calibration.source;
    let own = model.checkpoint_absmax();
    let (layers, expected) = (found.layers.len(), model.geometry.layers);
    let text = str::to_owned;
    if found.weights_sha256 != model.weights_sha256 {
        let weights = (found.weights_sha256.clone(), model.weights_sha256.clone());
        Some(("weights_sha256", weights.0, weights.1))
    } else if found.model != model.name {
        Some(("model", found.model.clone(), model.name.clone()))
    } else if layers != expected as usize {
        Some(("layers", format!("{layers} layers"), expected.to_string()))
    } else if found.source != source {
        Some(("source", text(found.source.name()), text(source.name())))
    } else if source == CalibrationSource::Checkpoint && own.as_ref() != Some(&found.layers) {
        let expected = "those of the checkpoint's scales";
        Some(("layers", text("other values"), text(expected)))
    } else {
        None
    }
}

fn fault_of_documents(found: &Calibration, manifest: &Manifest) -> Option<Fault> {
    let protocol = &manifest.protocol;
    let asked = |number: u64| format!("{number}, which protocol {} asks for", protocol.name);
    let (documents, tokens) = amount(&protocol.calibration);
    if u64::from(found.documents) != documents {
        return Some(("documents", found.documents.to_string(), asked(documents)));
    }
    if found.tokens != tokens {
        return Some(("tokens", found.tokens.to_string(), asked(tokens)));
    }
    let tokenizer = &manifest.model.tokenizer_sha256;
    let frozen = protocol.frozen_sha256(CALIBRATION_PANEL, tokenizer);
    let digest = &found.documents_sha256;
    let expected = match (documents, frozen) {
        (0, _) if digest.is_empty() => return None,
        (0, _) => "none: no document is used".to_owned(),
        (_, Some(frozen)) if frozen == digest => return None,
        (_, Some(frozen)) => format!("{frozen}, which protocol {} froze", protocol.name),
        (_, None) if is_sha256(digest) => return None,
        (_, None) => "64 lower-case hexadecimal digits".to_owned(),
    };
    Some(("documents_sha256", format!("`{digest}`"), expected))
}

/// Documents that a protocol asks for, and tokens that they store, forced ones included.
fn amount(plan: &CalibrationPlan) -> (u64, u64) {
    if plan.source == CalibrationSource::Checkpoint {
        return (0, 0);
    }
    let documents = u64::from(plan.documents);
    let of_length = |length: &u32| u64::from(*length) + u64::from(plan.forced_tokens);
    let lengths = plan.lengths.iter();
    let tokens = lengths.map(|length| documents.saturating_mul(of_length(length)));
    (
        documents.saturating_mul(plan.lengths.len() as u64),
        tokens.fold(0, u64::saturating_add),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CALIBRATION_SCHEMA, FrozenPanel, LayerAbsmax, sha256_hex};
    use crate::store::samples;

    fn calibration(manifest: &Manifest) -> Calibration {
        Calibration {
            schema: CALIBRATION_SCHEMA.to_owned(),
            model: manifest.model.name.clone(),
            weights_sha256: manifest.model.weights_sha256.clone(),
            documents_sha256: sha256_hex(b"documents"),
            documents: 2,
            tokens: 2 * (1024 + 32),
            source: CalibrationSource::Measured,
            layers: vec![LayerAbsmax { k: 1.0, v: 2.0 }; 2],
        }
    }

    #[test]
    fn other_documents_than_the_protocol_asks_for_are_refused() {
        let mut manifest = samples::manifest(samples::protocol());
        let sound = calibration(&manifest);
        check_calibration(&sound, &manifest).unwrap();
        type Change = fn(&mut Calibration);
        let changes: [(Change, &str); 5] = [
            (
                |c| c.documents = 999,
                "documents: found 999, expected 2, which protocol sample asks for",
            ),
            (
                |c| c.tokens = 5,
                "tokens: found 5, expected 2112, which protocol sample asks for",
            ),
            (
                |c| c.documents_sha256.clear(),
                "documents_sha256: found ``, expected 64 lower-case",
            ),
            (|c| c.model = "x".to_owned(), "model: found x, expected"),
            (
                |c| c.layers.truncate(1),
                "layers: found 1 layers, expected 2",
            ),
        ];
        for (change, message) in changes {
            let mut changed = sound.clone();
            change(&mut changed);
            let error = check_calibration(&changed, &manifest).unwrap_err();
            let whole = format!("calibration.json: {message}");
            assert!(error.to_string().starts_with(&whole), "{error}");
        }
        let frozen = |sha256: &str| FrozenPanel {
            panel: CALIBRATION_PANEL.to_owned(),
            tokenizer_sha256: sha256_hex(b"tokenizer"),
            sha256: sha256.to_owned(),
        };
        manifest.protocol.frozen_panels = vec![frozen(&sound.documents_sha256)];
        check_calibration(&sound, &manifest).unwrap();
        manifest.protocol.frozen_panels = vec![frozen(&sha256_hex(b"others"))];
        let error = check_calibration(&sound, &manifest).unwrap_err();
        assert!(
            error.to_string().ends_with("which protocol sample froze"),
            "{error}"
        );
    }

    #[test]
    fn scales_of_the_checkpoint_rest_on_no_document() {
        let mut plan = samples::protocol().calibration;
        assert_eq!(amount(&plan), (2, 2112));
        plan.lengths.push(8192);
        assert_eq!(amount(&plan), (4, 2112 + 2 * (8192 + 32)));
        plan.source = CalibrationSource::Checkpoint;
        assert_eq!(amount(&plan), (0, 0));
    }
}
