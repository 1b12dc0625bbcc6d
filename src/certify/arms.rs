//! The candidate and its controls, as the protocol and the manifest name them.

use std::collections::{BTreeSet, HashMap};

use crate::recipe::{CacheShape, Recipe, bytes_per_token};
use crate::schema::{
    ArmRole, AttentionLayers, Geometry, Manifest, ManifestArm, ModelIdentity, ProtocolModel, Record,
};

use super::evidence::{ArmEvidence, Evidence};
use super::findings::Finding;
use super::{CertifyError, Reason, imported, order};

/// The control arm of a protocol with one control, whatever the protocol calls it.
const NATIVE_ARM: &str = "native";

/// One candidate arm with its controls.
pub(super) struct Trial<'a> {
    /// The run's evidence.
    pub evidence: &'a Evidence,
    /// The candidate arm.
    pub arm: &'a ManifestArm,
    /// Its recipe; absent where an import names it by a free name.
    pub recipe: Option<Recipe>,
    /// The protocol's controls, in its order.
    pub controls: Vec<Control<'a>>,
}

/// A declared control.
pub(super) struct Control<'a> {
    /// Name in the protocol.
    pub name: &'a str,
    /// Its arm in the run; absent where the run has none.
    pub arm: Option<&'a ManifestArm>,
}

impl<'a> Trial<'a> {
    /// Finds the candidate arm `name` and its controls.
    ///
    /// # Errors
    /// [`CertifyError::NoCandidate`], [`CertifyError::Recipe`].
    pub fn new(name: &str, evidence: &'a Evidence) -> Result<Self, CertifyError> {
        let manifest = &evidence.manifest;
        let arm = candidate_arm(name, manifest)?;
        let recipe = if evidence.is_imported() {
            Recipe::parse(&arm.recipe).ok()
        } else {
            Some(parse_recipe(arm, manifest)?)
        };
        let controls = manifest
            .protocol
            .controls
            .iter()
            .map(|name| Control {
                name,
                arm: control_arm(name, manifest),
            })
            .collect();
        Ok(Trial {
            evidence,
            arm,
            recipe,
            controls,
        })
    }

    /// The evidence of an arm; `None` where it left nothing behind.
    pub fn evidence_of(&self, arm: &str) -> Option<&'a ArmEvidence> {
        self.evidence.arms.get(arm)
    }

    /// Records of an arm on a panel by the digest of their case.
    pub fn by_case(&self, arm: &str, panel: &str) -> HashMap<&'a str, &'a Record> {
        let found = self.evidence_of(arm);
        let records = found.map_or(&[][..], |found| found.on(panel));
        records
            .iter()
            .map(|record| (record.case_sha256.as_str(), record))
            .collect()
    }

    /// Whether the certificate rests on what the arm `name` left behind.
    pub fn involves(&self, name: &str) -> bool {
        let is_control = |control: &Control<'_>| control.arm.is_some_and(|arm| arm.arm == name);
        let is_aa = |arm: &ManifestArm| arm.role == ArmRole::Aa && arm.arm == name;
        name == self.arm.arm
            || self.controls.iter().any(is_control)
            || self.evidence.manifest.arms.iter().any(is_aa)
    }

    /// What stands against the trial before any record is looked at.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.find_unsupported(&mut findings);
        findings.extend(order::findings(self));
        self.find_undeclared(&mut findings);
        findings.extend(imported::findings(self));
        for control in self.controls.iter().filter(|control| control.arm.is_none()) {
            let detail = format!("the run has no arm for control {}", control.name);
            findings.push(Finding {
                by_nature: self.evidence.is_imported(),
                ..Finding::new(Reason::MissingRecords, detail)
            });
        }
        findings
    }

    fn find_unsupported(&self, findings: &mut Vec<Finding>) {
        let controls = self.controls.iter().filter_map(|control| control.arm);
        for arm in std::iter::once(self.arm).chain(controls) {
            if let Some(why) = &arm.unsupported {
                let detail = format!("arm {}: {why}", arm.arm);
                findings.push(Finding::new(Reason::ArmUnsupported, detail));
            }
        }
    }

    fn find_undeclared(&self, findings: &mut Vec<Finding>) {
        let manifest = &self.evidence.manifest;
        let protocol = &manifest.protocol;
        if !protocol
            .models
            .iter()
            .any(|model| declares(model, &manifest.model))
        {
            findings.push(Finding::new(Reason::ModelUndeclared, undeclared(manifest)));
        }
        if !self.is_recipe_declared() {
            let detail = format!(
                "protocol {} does not declare recipe {}",
                protocol.name, self.arm.recipe
            );
            findings.push(Finding::new(Reason::RecipeUndeclared, detail));
        }
    }

    fn is_recipe_declared(&self) -> bool {
        let declared = &self.evidence.manifest.protocol.candidates;
        declared
            .iter()
            .any(|candidate| candidate.spec == self.arm.recipe)
    }
}

/// Whether the protocol's entry stands for the run's model.
pub(super) fn declares(model: &ProtocolModel, run: &ModelIdentity) -> bool {
    let name = model.name == "*" || model.name == run.name;
    let weights = model.sha256.as_ref();
    name && weights.is_none_or(|sha256| *sha256 == run.weights_sha256)
}

/// Says what the protocol declares under the model's name, if anything.
fn undeclared(manifest: &Manifest) -> String {
    let (protocol, model) = (&manifest.protocol, &manifest.model);
    let named = protocol
        .models
        .iter()
        .find(|named| named.name == model.name);
    let (name, weights) = (&model.name, &model.weights_sha256);
    match named.and_then(|named| named.sha256.as_ref()) {
        Some(declared) => format!(
            "protocol {} declares model {name} with weights {declared}, the run has weights \
             {weights}",
            protocol.name
        ),
        None => format!(
            "protocol {} does not declare model {name} with weights {weights}",
            protocol.name
        ),
    }
}

fn candidate_arm<'a>(name: &str, manifest: &'a Manifest) -> Result<&'a ManifestArm, CertifyError> {
    let candidates = || {
        manifest
            .arms
            .iter()
            .filter(|arm| arm.role == ArmRole::Candidate)
    };
    candidates().find(|arm| arm.arm == name).ok_or_else(|| {
        let names: Vec<&str> = candidates().map(|arm| arm.arm.as_str()).collect();
        CertifyError::NoCandidate {
            found: name.to_owned(),
            candidates: names.join(", "),
        }
    })
}

fn parse_recipe(arm: &ManifestArm, manifest: &Manifest) -> Result<Recipe, CertifyError> {
    let layers = manifest.model.geometry.layers as usize;
    let parsed = Recipe::parse(&arm.recipe);
    parsed
        .and_then(|recipe| recipe.check_layers(layers).map(|()| recipe))
        .map_err(|source| CertifyError::Recipe {
            arm: arm.arm.clone(),
            source,
        })
}

fn control_arm<'a>(name: &str, manifest: &'a Manifest) -> Option<&'a ManifestArm> {
    let of_several = format!("control-{name}");
    let sole = manifest.protocol.controls.len() == 1;
    manifest.arms.iter().find(|arm| {
        let named = arm.arm == name || arm.arm == of_several;
        arm.role == ArmRole::Control && (named || sole && arm.arm == NATIVE_ARM)
    })
}

/// What `bytes` gives of `recipe` over the layers of a model that keep keys and values.
pub(super) fn over_attention(
    recipe: &Recipe,
    geometry: &Geometry,
    bytes: impl Fn(&Recipe, &CacheShape) -> u64,
) -> u64 {
    let shape = CacheShape {
        layers: geometry.layers,
        kv_heads: geometry.kv_heads,
        head_dim: geometry.head_dim,
    };
    let one = CacheShape { layers: 1, ..shape };
    let by_layer = ByLayer::new(recipe, geometry);
    let of = |numbers: &[u32], shape: &CacheShape| {
        let of_layer = |number: &u32| bytes(by_layer.of(*number), shape);
        numbers.iter().map(of_layer).fold(0, u64::saturating_add)
    };
    // Layers that differ are counted, not every layer looked at: a foreign file may claim any depth.
    let alike = bytes(recipe, &shape).saturating_sub(of(&geometry.recurrent_layers, &one));
    let kinds = geometry.attention_layers.iter();
    kinds.fold(alike, |sum, kind| {
        let others = sum.saturating_sub(of(&kind.layers, &one));
        others.saturating_add(of(&kind.layers, &shape_of(kind)))
    })
}

/// Bytes of a token in the layers that have a window, and of the full windows; `None` where no layer
/// has one.
pub(super) fn in_windows(recipe: &Recipe, geometry: &Geometry) -> Option<(u64, u64)> {
    let kinds = geometry.attention_layers.iter();
    let windowed = kinds.filter_map(|kind| Some((kind, kind.window?)));
    let by_layer = ByLayer::new(recipe, geometry);
    let mut found = None;
    for (kind, window) in windowed {
        let (token, windows) = found.get_or_insert((0_u64, 0_u64));
        for number in &kind.layers {
            let bytes = bytes_per_token(by_layer.of(*number), &shape_of(kind));
            *token = token.saturating_add(bytes);
            *windows = windows.saturating_add(bytes.saturating_mul(u64::from(window)));
        }
    }
    found
}

fn shape_of(kind: &AttentionLayers) -> CacheShape {
    CacheShape {
        layers: 1,
        kv_heads: kind.kv_heads,
        head_dim: kind.head_dim,
    }
}

/// What a recipe makes of single layers: of a foreign file's lists, each may be as long as the file.
struct ByLayer {
    skipped: BTreeSet<usize>,
    native: Recipe,
    /// The recipe without skipped layers.
    quantised: Recipe,
}

impl ByLayer {
    fn new(recipe: &Recipe, geometry: &Geometry) -> Self {
        ByLayer {
            skipped: recipe.skipped_layers(geometry.layers as usize),
            native: Recipe::native(),
            quantised: Recipe {
                skip_layers: Vec::new(),
                ..recipe.clone()
            },
        }
    }

    /// The recipe of a layer of its own.
    fn of(&self, number: u32) -> &Recipe {
        match self.skipped.contains(&(number as usize)) {
            true => &self.native,
            false => &self.quantised,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::sink_bytes;

    /// Layers 0 and 2 of 4 keep 2 heads of 8; of layers 0 and 1, which stay native, one does.
    #[test]
    fn recurrent_layers_store_nothing() {
        let geometry = Geometry {
            layers: 4,
            kv_heads: 2,
            head_dim: 8,
            recurrent_layers: vec![1, 3],
            attention_layers: Vec::new(),
            ..Geometry::unknown()
        };
        let of = |text: &str| {
            let recipe = Recipe::parse(text).unwrap();
            over_attention(&recipe, &geometry, bytes_per_token)
        };
        assert_eq!(of("native"), 2 * 2 * (16 + 16));
        assert_eq!(of("AF"), 2 * 2 * (16 + 8));
        assert_eq!(of("k=native,v=e4m3:fixed,skip-layers=0,1"), 2 * (32 + 24));
        let sink = Recipe::parse("k=native,v=e4m3,sink=3").unwrap();
        assert_eq!(over_attention(&sink, &geometry, sink_bytes), 3 * 2 * 2 * 16);
        assert_eq!(in_windows(&sink, &geometry), None);
    }

    /// Layers 0 and 2 keep 20 tokens in 2 heads of 8, layer 3 all of them in one head of 16; layer 1 is
    /// recurrent.
    #[test]
    fn layers_that_differ_are_counted_by_their_own_shape() {
        let kind = |layers: &[u32], kv_heads, head_dim, window| AttentionLayers {
            layers: layers.to_vec(),
            kv_heads,
            head_dim,
            window,
        };
        let geometry = Geometry {
            layers: 4,
            kv_heads: 2,
            head_dim: 16,
            recurrent_layers: vec![1],
            attention_layers: vec![kind(&[0, 2], 2, 8, Some(20)), kind(&[3], 1, 16, None)],
            ..Geometry::unknown()
        };
        let of = |text: &str| {
            let recipe = Recipe::parse(text).unwrap();
            let all = over_attention(&recipe, &geometry, bytes_per_token);
            (all, in_windows(&recipe, &geometry).unwrap())
        };
        let layer = 2 * 32;
        assert_eq!(of("native"), (2 * layer + 64, (2 * layer, 20 * 2 * layer)));
        let skipping = of("k=native,v=e4m3:fixed,skip-layers=2");
        assert_eq!(skipping, (48 + 64 + 48, (48 + 64, 20 * (48 + 64))));
        // A foreign file may say anything, and ends nothing.
        let absurd = Geometry {
            layers: u32::MAX,
            attention_layers: vec![kind(&[7, 7, u32::MAX], u32::MAX, u32::MAX, Some(u32::MAX))],
            ..geometry
        };
        let native = Recipe::native();
        assert!(over_attention(&native, &absurd, bytes_per_token) > 0);
        assert_eq!(in_windows(&native, &absurd).unwrap().1, u64::MAX);
    }
}
