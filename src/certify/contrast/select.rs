//! Which contrasts are declared, and which are asked for.

use crate::schema::{ArmRole, Manifest, ManifestArm, Protocol};

use super::ContrastError;

/// A contrast of two arms, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArmPair {
    /// As declared or typed: `AF-RF`.
    pub text: String,
    /// First arm.
    pub first: String,
    /// Second arm.
    pub second: String,
}

/// Contrasts of a comparison.
#[derive(Debug)]
pub(super) struct Selection {
    /// Every declared contrast, in the protocol's order: the family.
    pub declared: Vec<ArmPair>,
    /// Which of them are asked for.
    pub shown: Vec<bool>,
    /// Asked for and not declared.
    pub undeclared: Vec<ArmPair>,
    /// Asked for the other way round than declared: what was typed, and the declared contrast.
    pub reversed: Vec<(String, String)>,
}

/// Resolves what was asked for; nothing asked for is every declared contrast.
///
/// # Errors
/// [`ContrastError::NothingDeclared`], [`ContrastError::UnknownArm`].
pub(super) fn select(
    protocol: &Protocol,
    manifests: &[&Manifest],
    asked: &[String],
) -> Result<Selection, ContrastError> {
    let declared: Vec<ArmPair> = protocol
        .contrasts
        .iter()
        .filter_map(|text| {
            let (first, second) = protocol.contrast(text)?;
            Some(pair(text, &first.name, &second.name))
        })
        .collect();
    if asked.is_empty() && declared.is_empty() {
        return Err(ContrastError::NothingDeclared {
            protocol: protocol.name.clone(),
            arms: arm_names(manifests).join(", "),
        });
    }
    let mut selection = Selection {
        shown: vec![asked.is_empty(); declared.len()],
        declared,
        undeclared: Vec::new(),
        reversed: Vec::new(),
    };
    for text in asked {
        selection.add(text, protocol, manifests)?;
    }
    Ok(selection)
}

impl Selection {
    fn add(
        &mut self,
        text: &str,
        protocol: &Protocol,
        manifests: &[&Manifest],
    ) -> Result<(), ContrastError> {
        if let Some(at) = self.declared.iter().position(|pair| pair.text == text) {
            self.shown[at] = true;
            return Ok(());
        }
        let reverse = |pair: &ArmPair| format!("{}-{}", pair.second, pair.first) == text;
        // The test has two sides: the other order is the same hypothesis of the same family.
        if let Some(at) = self.declared.iter().position(reverse) {
            self.shown[at] = true;
            let declared = self.declared[at].text.clone();
            self.reversed.push((text.to_owned(), declared));
            return Ok(());
        }
        let named = |name: &str| {
            let mut runs = manifests.iter();
            runs.any(|manifest| find_arm(protocol, manifest, name).is_some())
        };
        // Names may themselves hold a hyphen.
        let found = text
            .match_indices('-')
            .map(|(at, _)| (&text[..at], &text[at + 1..]))
            .find(|(first, second)| first != second && named(first) && named(second));
        let Some((first, second)) = found else {
            return Err(ContrastError::UnknownArm {
                found: text.to_owned(),
                arms: arm_names(manifests).join(", "),
            });
        };
        let asked = pair(text, first, second);
        if !self.undeclared.contains(&asked) {
            self.undeclared.push(asked);
        }
        Ok(())
    }
}

/// The arm of a run that a contrast names: the one with the recipe of the declared candidate of
/// this name, else the arm of this name. The second native run is no arm of a contrast.
pub(super) fn find_arm<'a>(
    protocol: &Protocol,
    manifest: &'a Manifest,
    name: &str,
) -> Option<&'a ManifestArm> {
    let candidate = protocol.candidates.iter().find(|c| c.name == name);
    manifest.arms.iter().find(|arm| match candidate {
        Some(declared) => arm.role == ArmRole::Candidate && arm.recipe == declared.spec,
        None => arm.role != ArmRole::Aa && arm.arm == name,
    })
}

fn arm_names(manifests: &[&Manifest]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for arm in manifests.iter().flat_map(|manifest| &manifest.arms) {
        if arm.role != ArmRole::Aa && !names.contains(&arm.arm) {
            names.push(arm.arm.clone());
        }
    }
    names
}

fn pair(text: &str, first: &str, second: &str) -> ArmPair {
    ArmPair {
        text: text.to_owned(),
        first: first.to_owned(),
        second: second.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ProtocolCandidate;
    use crate::store::samples;

    fn setting() -> (Protocol, Manifest) {
        let mut protocol = samples::protocol();
        let mut manifest = samples::manifest(protocol.clone());
        for (name, spec) in [
            ("A-F", "k=native,v=e4m3:fixed"),
            ("RF", "k=e4m3:fixed,v=native"),
        ] {
            protocol.candidates.push(ProtocolCandidate {
                name: name.to_owned(),
                spec: spec.to_owned(),
            });
            manifest.arms.push(ManifestArm {
                // Runs name arms by the recipe, protocols as they like.
                arm: format!("arm-{name}"),
                role: ArmRole::Candidate,
                recipe: spec.to_owned(),
                unsupported: None,
            });
        }
        protocol.contrasts = vec!["AD-SD".to_owned(), "A-F-RF".to_owned()];
        (protocol, manifest)
    }

    fn selected(asked: &[&str]) -> Result<Selection, String> {
        let (protocol, manifest) = setting();
        let asked: Vec<String> = asked.iter().map(|&text| text.to_owned()).collect();
        select(&protocol, &[&manifest], &asked).map_err(|error| error.to_string())
    }

    #[test]
    fn a_filter_never_changes_what_is_declared() {
        let all = selected(&[]).unwrap();
        assert_eq!(all.shown, [true, true]);
        assert_eq!(all.declared[1], pair("A-F-RF", "A-F", "RF"));
        let one = selected(&["A-F-RF"]).unwrap();
        assert_eq!(one.declared, all.declared);
        assert_eq!(one.shown, [false, true]);
        assert!(one.undeclared.is_empty() && one.reversed.is_empty());
    }

    #[test]
    fn the_other_order_is_the_declared_contrast() {
        let found = selected(&["RF-A-F", "SD-AD"]).unwrap();
        assert_eq!(found.shown, [true, true]);
        assert!(found.undeclared.is_empty());
        let reversed = ("RF-A-F".to_owned(), "A-F-RF".to_owned());
        assert_eq!(found.reversed[0], reversed);
    }

    #[test]
    fn arms_are_found_by_candidate_name_and_by_arm_name() {
        let found = selected(&["AD-A-F", "native-arm-RF", "AD-A-F"]).unwrap();
        assert_eq!(
            found.undeclared,
            [
                pair("AD-A-F", "AD", "A-F"),
                pair("native-arm-RF", "native", "arm-RF")
            ]
        );
        assert_eq!(found.shown, [false, false]);
    }

    #[test]
    fn what_names_no_two_arms_is_refused_with_the_arms() {
        for text in ["AD-XX", "AD", "AD-AD", "", "-", "AD-native-aa", "AD-SD2"] {
            let error = selected(&[text]).unwrap_err();
            assert!(error.contains(&format!("found `{text}`")), "{error}");
            assert!(error.contains("native, AD, arm-A-F, arm-RF"), "{error}");
        }
        // Declared, and of no run: missing evidence, no error.
        assert_eq!(selected(&["AD-SD"]).unwrap().shown, [true, false]);
        // A declared candidate that no run has, in an undeclared contrast.
        assert!(selected(&["SD-RF"]).is_err());
    }

    #[test]
    fn nothing_declared_and_nothing_asked_is_refused() {
        let (mut protocol, manifest) = setting();
        protocol.contrasts.clear();
        let error = select(&protocol, &[&manifest], &[]).unwrap_err();
        assert!(
            error.to_string().contains("declares no contrasts"),
            "{error}"
        );
        let asked = ["AD-native".to_owned()];
        assert!(select(&protocol, &[&manifest], &asked).is_ok());
    }
}
