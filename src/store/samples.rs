//! A protocol and a manifest for tests.

use crate::schema::*;

/// One model, two candidates, both objectives; two lengths of NLL and retrieval.
pub fn protocol() -> Protocol {
    let nll = |length| PanelPlan::Nll {
        task: "wikipedia-nll".to_owned(),
        length,
        documents: 64,
        targets: 128,
    };
    let retrieval = |length| PanelPlan::Retrieval {
        task: "needle".to_owned(),
        length,
        cases: 200,
        max_new_tokens: 16,
    };
    let proportion = |limit| ProportionRule { limit, divisor: 24 };
    Protocol {
        schema: PROTOCOL_SCHEMA.to_owned(),
        name: "sample".to_owned(),
        description: "For tests.".to_owned(),
        family_alpha: 0.05,
        models: vec![model("sample-model", None)],
        controls: vec!["native".to_owned()],
        candidates: [
            ("AD", "k=native,v=e4m3:dynamic"),
            ("SD", "k=e4m3:dynamic,v=e4m3:dynamic"),
        ]
        .map(|(name, spec)| ProtocolCandidate {
            name: name.to_owned(),
            spec: spec.to_owned(),
        })
        .to_vec(),
        objectives: vec![ObjectiveName::Preservation, ObjectiveName::Aggregate],
        required: ObjectiveName::Preservation,
        calibration: CalibrationPlan {
            documents: 2,
            lengths: vec![1024],
            forced_tokens: 32,
            source: CalibrationSource::Measured,
        },
        panels: vec![
            PanelPlan::Math {
                task: "gsm8k".to_owned(),
                cases: 1319,
                max_new_tokens: 512,
            },
            nll(1024),
            nll(8192),
            retrieval(1024),
            retrieval(8192),
        ],
        rules: Rules {
            gross_loss: proportion(0.02),
            net_change: proportion(-0.01),
            nll: NllRule {
                limit: 0.01,
                divisor: 24,
                resamples: 100_000,
                seed: 1,
            },
            retrieval: proportion(0.05),
        },
        frozen_panels: Vec::new(),
        assay_sensitivity: AssaySensitivity {
            math: 0.5,
            retrieval: 0.9,
        },
        resource_limits: None,
        contrasts: Vec::new(),
        seed: 1,
    }
}

/// A declared model.
pub fn model(name: &str, sha256: Option<&str>) -> ProtocolModel {
    ProtocolModel {
        name: name.to_owned(),
        sha256: sha256.map(str::to_owned),
    }
}

/// Header of the panel that `plan` names, made for the tokenizer of [`manifest`].
pub fn header(plan: &PanelPlan, tokenizer_sha256: &str) -> PanelHeader {
    let task = plan.builtin_task().unwrap();
    let mut sources = task.accepted_sources().into_iter();
    let source = sources.find(|source| source.sha256.is_some()).unwrap();
    PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: plan.panel_name(),
        task: task.id(),
        tokenizer_sha256: tokenizer_sha256.to_owned(),
        sources: vec![FileDigest {
            path: format!("{}/{}", task.folder, source.file),
            sha256: source.sha256.unwrap(),
        }],
        parser: task.parser,
        cases: plan.case_count(),
    }
}

/// Gives a model one weight file of this content.
pub fn give_weights(model: &mut ModelIdentity, content: &[u8]) {
    model.files = vec![FileDigest {
        path: "model.safetensors".to_owned(),
        sha256: sha256_hex(content),
    }];
    model.weights_sha256 = weights_sha256(model.files.iter());
}

/// A manifest without panels, with a native arm and one candidate.
pub fn manifest(protocol: Protocol) -> Manifest {
    let arm = |name: &str, role, recipe: &str| ManifestArm {
        arm: name.to_owned(),
        role,
        recipe: recipe.to_owned(),
        unsupported: None,
    };
    Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        tool: ToolIdentity {
            version: "0.0.0".to_owned(),
            source_sha256: "0".repeat(64),
        },
        protocol_sha256: canonical_sha256(&protocol).unwrap(),
        protocol,
        model: ModelIdentity {
            name: "sample-model".to_owned(),
            family: "qwen3".to_owned(),
            files: vec![FileDigest {
                path: "model.safetensors".to_owned(),
                sha256: sha256_hex(b"weights"),
            }],
            weights_sha256: sha256_hex(format!("{}\n", sha256_hex(b"weights")).as_bytes()),
            tokenizer_sha256: sha256_hex(b"tokenizer"),
            quantised: None,
            penalties: Vec::new(),
            geometry: Geometry {
                layers: 2,
                hidden_size: 64,
                heads: 4,
                kv_heads: 2,
                head_dim: 16,
                vocab_size: 256,
                context: 16384,
                native_dtype: "f16".to_owned(),
                recurrent_layers: Vec::new(),
                attention_layers: Vec::new(),
            },
        },
        worker: WorkerIdentity {
            kind: "cpu".to_owned(),
            device: "sample".to_owned(),
            arithmetic: "f32".to_owned(),
        },
        panels: Vec::new(),
        arms: vec![
            arm("native", ArmRole::Control, "native"),
            arm("AD", ArmRole::Candidate, "k=native,v=e4m3:dynamic"),
        ],
        limit: None,
        shard: None,
        servers: None,
    }
}
