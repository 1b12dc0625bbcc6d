//! Rules of a protocol by name: their alphas, limits, panels and contrasts.

use super::{FrozenPanel, ObjectiveName, PanelPlan, Protocol, ProtocolCandidate, canonical_sha256};

/// Largest family alpha, and so the largest alpha of a rule.
pub const LARGEST_ALPHA: f64 = 0.5;

/// The four rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleName {
    /// Upper bound of lost/pairs on math.
    GrossLoss,
    /// Lower bound of (gained - lost)/pairs on math.
    NetChange,
    /// Upper bound of the relative increase of mean NLL, per length.
    Nll,
    /// Upper bound of lost/pairs, per length.
    Retrieval,
}

impl RuleName {
    /// Every rule, in the order of certificates.
    pub const ALL: [RuleName; 4] = [
        RuleName::GrossLoss,
        RuleName::NetChange,
        RuleName::Nll,
        RuleName::Retrieval,
    ];

    /// Name as in protocols and certificates.
    pub fn name(self) -> &'static str {
        match self {
            RuleName::GrossLoss => "gross_loss",
            RuleName::NetChange => "net_change",
            RuleName::Nll => "nll",
            RuleName::Retrieval => "retrieval",
        }
    }

    /// What a limit of this rule must be, where `limit` is another.
    pub fn limit_fault(self, limit: f64) -> Option<&'static str> {
        let (holds, expected) = match self {
            // Zero with a sign is another number in JSON, hence in the digest.
            RuleName::NetChange => (
                limit > -1.0 && limit <= 0.0 && !(limit == 0.0 && limit.is_sign_negative()),
                "-1 < limit <= 0",
            ),
            RuleName::GrossLoss | RuleName::Nll | RuleName::Retrieval => {
                (limit > 0.0 && limit < 1.0, "0 < limit < 1")
            }
        };
        (!holds).then_some(expected)
    }

    /// Whether an objective rests on this rule.
    pub fn serves(self, objective: ObjectiveName) -> bool {
        match self {
            RuleName::GrossLoss => objective == ObjectiveName::Preservation,
            RuleName::NetChange => objective == ObjectiveName::Aggregate,
            RuleName::Nll | RuleName::Retrieval => true,
        }
    }
}

impl ObjectiveName {
    /// Name as in protocols and certificates.
    pub fn name(self) -> &'static str {
        match self {
            ObjectiveName::Preservation => "preservation",
            ObjectiveName::Aggregate => "aggregate",
        }
    }
}

impl Protocol {
    /// One-sided alpha of a rule: `family_alpha / divisor`.
    pub fn alpha(&self, rule: RuleName) -> f64 {
        self.family_alpha / f64::from(self.divisor(rule))
    }

    /// Declared divisor of a rule.
    pub fn divisor(&self, rule: RuleName) -> u32 {
        match rule {
            RuleName::GrossLoss => self.rules.gross_loss.divisor,
            RuleName::NetChange => self.rules.net_change.divisor,
            RuleName::Nll => self.rules.nll.divisor,
            RuleName::Retrieval => self.rules.retrieval.divisor,
        }
    }

    /// Declared limit of a rule.
    pub fn limit(&self, rule: RuleName) -> f64 {
        match rule {
            RuleName::GrossLoss => self.rules.gross_loss.limit,
            RuleName::NetChange => self.rules.net_change.limit,
            RuleName::Nll => self.rules.nll.limit,
            RuleName::Retrieval => self.rules.retrieval.limit,
        }
    }

    /// Declares limit and divisor of a rule.
    pub fn set_rule(&mut self, rule: RuleName, limit: f64, divisor: u32) {
        let rules = &mut self.rules;
        let counted = match rule {
            RuleName::GrossLoss => &mut rules.gross_loss,
            RuleName::NetChange => &mut rules.net_change,
            RuleName::Retrieval => &mut rules.retrieval,
            RuleName::Nll => {
                (rules.nll.limit, rules.nll.divisor) = (limit, divisor);
                return;
            }
        };
        (counted.limit, counted.divisor) = (limit, divisor);
    }

    /// Least divisor of a rule: models x candidates x objectives for `gross_loss` and
    /// `net_change`, models x candidates for `nll` and `retrieval`.
    pub fn least_divisor(&self, rule: RuleName) -> u64 {
        let arms = self.models.len() as u64 * self.candidates.len() as u64;
        match rule {
            RuleName::GrossLoss | RuleName::NetChange => arms * self.objectives.len() as u64,
            RuleName::Nll | RuleName::Retrieval => arms,
        }
    }

    /// Alpha per degradation endpoint: `family_alpha / (models x candidates x panels)`.
    pub fn degradation_alpha(&self) -> f64 {
        let endpoints = self.models.len() * self.candidates.len() * self.panels.len();
        self.family_alpha / endpoints as f64
    }

    /// Panels that a rule is evaluated on.
    pub fn panels_of(&self, rule: RuleName) -> impl Iterator<Item = &PanelPlan> {
        self.panels.iter().filter(move |panel| {
            matches!(
                (panel, rule),
                (
                    PanelPlan::Math { .. },
                    RuleName::GrossLoss | RuleName::NetChange
                ) | (PanelPlan::Nll { .. }, RuleName::Nll)
                    | (PanelPlan::Retrieval { .. }, RuleName::Retrieval)
            )
        })
    }

    /// Digest that the protocol froze for the panel `name`, or for `calibration`, under this
    /// tokenizer.
    pub fn frozen_sha256(&self, name: &str, tokenizer_sha256: &str) -> Option<&str> {
        let mut frozen = self.frozen_panels.iter();
        let named = |it: &&FrozenPanel| it.panel == name && it.tokenizer_sha256 == tokenizer_sha256;
        frozen.find(named).map(|frozen| frozen.sha256.as_str())
    }

    /// The two candidates of a contrast written `FIRST-SECOND`; `None` unless both are declared
    /// and differ. Candidate names may themselves hold a hyphen.
    pub fn contrast(&self, text: &str) -> Option<(&ProtocolCandidate, &ProtocolCandidate)> {
        self.contrast_readings(text).next()
    }

    /// Every way to read a contrast, a hyphen in candidate names being what makes several.
    pub(super) fn contrast_readings(
        &self,
        text: &str,
    ) -> impl Iterator<Item = (&ProtocolCandidate, &ProtocolCandidate)> {
        let named = |name: &str| self.candidates.iter().find(|c| c.name == name);
        text.match_indices('-')
            .filter_map(move |(at, _)| named(&text[..at]).zip(named(&text[at + 1..])))
            .filter(|(first, second)| first.name != second.name)
    }

    /// SHA-256 of the protocol's canonical JSON, in lower-case hexadecimal.
    ///
    /// # Errors
    /// As [`canonical_sha256`].
    pub fn sha256(&self) -> Result<String, serde_json::Error> {
        canonical_sha256(self)
    }
}
