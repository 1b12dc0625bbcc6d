//! What a protocol must satisfy before anything runs under it.

mod fields;

use std::collections::BTreeSet;

use crate::recipe::{Component, Format, Recipe, RecipeError, ScalePolicy};

use super::protocol_file::check_schema;
use super::{
    CalibrationSource, LARGEST_ALPHA, PanelPlan, Protocol, ProtocolCandidate, RuleName, is_sha256,
};
use crate::stats::{MAX_RESAMPLES, least_resamples};

pub(super) use fields::require;
use fields::{
    check_arm_names, check_control, check_name, check_panel, check_proportion, check_text, unique,
};

/// Name of the arm that runs the control a second time; no control or candidate may take it.
pub const AA_ARM: &str = "native-aa";

/// Why a protocol is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// Not readable as what it claims to be.
    #[error("protocol is no readable {format}: {message}")]
    Syntax {
        /// `TOML` or `JSON`.
        format: &'static str,
        /// The parser's message, with line and column.
        message: String,
    },
    /// Another kind of document, or an older version.
    #[error("protocol schema: found {found}, expected `kvassay.protocol/1`")]
    Schema {
        /// The schema in quotes, or that there is none.
        found: String,
    },
    /// A version that this crate does not know yet.
    #[error(
        "protocol schema: found `{found}`, which is newer than `kvassay.protocol/1`: a newer kvassay is needed"
    )]
    NewerSchema {
        /// The schema as found.
        found: String,
    },
    /// A candidate's recipe does not parse.
    #[error("protocol candidate `{candidate}`: {source}")]
    Recipe {
        /// The candidate's name.
        candidate: String,
        /// Why.
        source: RecipeError,
    },
    /// A field breaks a rule.
    #[error("protocol field {field}: found {found}, expected {expected}")]
    Field {
        /// Path of the field.
        field: String,
        /// What was found.
        found: String,
        /// What is expected.
        expected: String,
    },
}

impl Protocol {
    /// Checks every rule that a protocol must satisfy; the first violation is the error.
    ///
    /// # Errors
    /// [`ProtocolError`] names the field, what was found and what is expected.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        check_schema(Some(&self.schema))?;
        check_name("name", &self.name)?;
        check_text("description", &self.description)?;
        let alpha = self.family_alpha;
        require(
            alpha > 0.0 && alpha <= LARGEST_ALPHA,
            "family_alpha",
            alpha,
            "0 < family_alpha <= 0.5",
        )?;
        self.check_models()?;
        self.check_controls()?;
        self.check_candidates()?;
        self.check_objectives()?;
        self.check_calibration()?;
        self.check_panels()?;
        self.check_rules()?;
        self.check_assay()?;
        self.check_resource_limits()?;
        self.check_contrasts()
    }

    fn check_models(&self) -> Result<(), ProtocolError> {
        require(
            !self.models.is_empty(),
            "models",
            "none",
            "at least one model",
        )?;
        unique(
            "models",
            self.models.iter().map(|model| model.name.as_str()),
        )?;
        for (i, model) in self.models.iter().enumerate() {
            if model.name != "*" {
                check_text(&format!("models[{i}].name"), &model.name)?;
            }
            if let Some(sha256) = &model.sha256 {
                require(
                    is_sha256(sha256),
                    &format!("models[{i}].sha256"),
                    format!("`{sha256}`"),
                    "64 lower-case hexadecimal digits",
                )?;
            }
        }
        Ok(())
    }

    fn check_controls(&self) -> Result<(), ProtocolError> {
        require(
            !self.controls.is_empty(),
            "controls",
            "none",
            "at least one native control",
        )?;
        unique("controls", self.controls.iter().map(String::as_str))?;
        for (i, control) in self.controls.iter().enumerate() {
            check_control(&format!("controls[{i}]"), control)?;
        }
        Ok(())
    }

    fn check_candidates(&self) -> Result<(), ProtocolError> {
        require(
            !self.candidates.is_empty(),
            "candidates",
            "none",
            "at least one recipe",
        )?;
        unique(
            "candidates",
            self.candidates.iter().map(|c| c.name.as_str()),
        )?;
        let mut specs = BTreeSet::new();
        for (i, candidate) in self.candidates.iter().enumerate() {
            self.check_candidate(i, candidate)?;
            require(
                specs.insert(&candidate.spec),
                &format!("candidates[{i}].spec"),
                format!("`{}` a second time", candidate.spec),
                "each recipe once",
            )?;
        }
        let candidates = self.candidates.iter().map(|candidate| &candidate.name);
        check_arm_names(self.controls.iter().chain(candidates))
    }

    fn check_candidate(&self, i: usize, given: &ProtocolCandidate) -> Result<(), ProtocolError> {
        let (name, spec) = (&given.name, &given.spec);
        let name_field = format!("candidates[{i}].name");
        let spec_field = format!("candidates[{i}].spec");
        check_name(&name_field, name)?;
        let recipe = Recipe::parse(spec).map_err(|source| ProtocolError::Recipe {
            candidate: name.clone(),
            source,
        })?;
        require(
            !recipe.is_native(),
            &spec_field,
            "the native cache",
            "a quantised recipe",
        )?;
        let canonical = recipe.spec();
        require(
            canonical == *spec,
            &spec_field,
            format!("`{spec}`"),
            format!("the canonical spelling `{canonical}`"),
        )?;
        // A recipe without a name of its own may be called anything that means nothing else.
        let own_name = recipe.name != canonical;
        require(
            !own_name || recipe.name == *name,
            &name_field,
            format!("`{name}`"),
            format!("`{}`, the name of `{spec}`", recipe.name),
        )?;
        let elsewhere = Recipe::parse(name).is_ok_and(|other| other != recipe);
        let taken = name == AA_ARM || name.starts_with("control-") || self.controls.contains(name);
        require(
            !elsewhere && !taken,
            &name_field,
            format!("`{name}`"),
            "a name that no other recipe or arm has",
        )
    }

    fn check_objectives(&self) -> Result<(), ProtocolError> {
        let names = self.objectives.iter().map(|objective| objective.name());
        require(
            !self.objectives.is_empty(),
            "objectives",
            "none",
            "at least one objective",
        )?;
        unique("objectives", names)?;
        require(
            self.objectives.contains(&self.required),
            "required",
            format!("`{}`", self.required.name()),
            "one of the declared objectives",
        )
    }

    fn check_calibration(&self) -> Result<(), ProtocolError> {
        let plan = &self.calibration;
        if plan.source == CalibrationSource::Checkpoint {
            let found = plan.documents.max(u32::from(!plan.lengths.is_empty()));
            let expected = "none beside the checkpoint's own scales";
            require(found == 0, "calibration.documents", found, expected)?;
            return self.check_checkpoint_formats();
        }
        let fixed = self.candidates.iter().find(|candidate| {
            Recipe::parse(&candidate.spec).is_ok_and(|recipe| recipe.needs_calibration())
        });
        if let Some(candidate) = fixed {
            let expected = format!("at least one, for the fixed scales of {}", candidate.name);
            require(plan.documents > 0, "calibration.documents", 0, &expected)?;
            require(
                !plan.lengths.is_empty(),
                "calibration.lengths",
                "none",
                &expected,
            )?;
        }
        let labels: Vec<String> = plan.lengths.iter().map(u32::to_string).collect();
        unique("calibration.lengths", labels.iter().map(String::as_str))?;
        require(
            !plan.lengths.contains(&0),
            "calibration.lengths",
            0,
            "positive lengths",
        )
    }

    /// Scales that a checkpoint brings are made for E4M3: another format has another largest number.
    fn check_checkpoint_formats(&self) -> Result<(), ProtocolError> {
        let is_foreign = |component: &Component| {
            component.scale == Some(ScalePolicy::Fixed) && component.format != Format::E4m3
        };
        for (i, candidate) in self.candidates.iter().enumerate() {
            let Ok(recipe) = Recipe::parse(&candidate.spec) else {
                continue;
            };
            if [recipe.k, recipe.v].iter().any(is_foreign) {
                let field = format!("candidates[{i}].spec");
                let expected = "fixed scales for e4m3 alone: those of a checkpoint are made for it";
                return require(false, &field, &candidate.spec, expected);
            }
        }
        Ok(())
    }

    fn check_panels(&self) -> Result<(), ProtocolError> {
        require(
            !self.panels.is_empty(),
            "panels",
            "none",
            "at least one panel",
        )?;
        let names: Vec<String> = self.panels.iter().map(PanelPlan::panel_name).collect();
        unique("panels", names.iter().map(String::as_str))?;
        for (name, panel) in names.iter().zip(&self.panels) {
            check_panel(name, panel)?;
        }
        Ok(())
    }

    fn check_rules(&self) -> Result<(), ProtocolError> {
        for rule in RuleName::ALL {
            let found = self.divisor(rule);
            let least = self.least_divisor(rule);
            let factors = match rule {
                RuleName::GrossLoss | RuleName::NetChange => "models x candidates x objectives",
                RuleName::Nll | RuleName::Retrieval => "models x candidates",
            };
            require(
                u64::from(found) >= least,
                &format!("rules.{}.divisor", rule.name()),
                found,
                format!("at least {least} ({factors})"),
            )?;
        }
        for rule in [
            RuleName::GrossLoss,
            RuleName::Retrieval,
            RuleName::NetChange,
            RuleName::Nll,
        ] {
            let limit = self.limit(rule);
            if let Some(expected) = rule.limit_fault(limit) {
                let field = format!("rules.{}.limit", rule.name());
                return require(false, &field, limit, expected);
            }
        }
        self.check_nll_rule()
    }

    fn check_nll_rule(&self) -> Result<(), ProtocolError> {
        let nll = &self.rules.nll;
        require(
            nll.resamples <= MAX_RESAMPLES,
            "rules.nll.resamples",
            nll.resamples,
            format!("at most {MAX_RESAMPLES}"),
        )?;
        // Fewer, and the quantile of the bound lies outside the resamples.
        let least = least_resamples(self.alpha(RuleName::Nll));
        require(
            u64::from(nll.resamples) >= least,
            "rules.nll.resamples",
            nll.resamples,
            format!("at least 1/alpha = {least}"),
        )
    }

    fn check_assay(&self) -> Result<(), ProtocolError> {
        let assay = &self.assay_sensitivity;
        for (field, found) in [("math", assay.math), ("retrieval", assay.retrieval)] {
            check_proportion(&format!("assay_sensitivity.{field}"), found)?;
        }
        Ok(())
    }

    fn check_resource_limits(&self) -> Result<(), ProtocolError> {
        let Some(limits) = &self.resource_limits else {
            return Ok(());
        };
        let fields = [
            ("peak_device_bytes", limits.peak_device_bytes),
            ("largest_sample_gap_ms", limits.largest_sample_gap_ms),
        ];
        let expected = "peak_device_bytes, largest_sample_gap_ms or both";
        let any = fields.iter().any(|(_, limit)| limit.is_some());
        require(any, "resource_limits", "none", expected)?;
        // TOML holds no larger number.
        let most = i64::MAX as u64;
        for (name, limit) in fields {
            let Some(limit) = limit else { continue };
            require(
                (1..=most).contains(&limit),
                &format!("resource_limits.{name}"),
                limit,
                format!("1 to {most}"),
            )?;
        }
        Ok(())
    }

    fn check_contrasts(&self) -> Result<(), ProtocolError> {
        let mut seen = BTreeSet::new();
        for (i, text) in self.contrasts.iter().enumerate() {
            let field = format!("contrasts[{i}]");
            let found = format!("`{text}`");
            let Some((first, second)) = self.contrast(text) else {
                let expected = "FIRST-SECOND, two different declared candidates";
                return require(false, &field, found, expected);
            };
            let readings = self.contrast_readings(text).count();
            let expected = "a contrast that can be read in one way only";
            require(readings == 1, &field, &found, expected)?;
            let mut pair = [&first.name, &second.name];
            pair.sort();
            require(
                seen.insert(pair),
                &field,
                found,
                "each pair of candidates once",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
