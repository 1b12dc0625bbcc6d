//! What stands against an objective, and which of it decides.

use crate::schema::{ObjectiveName, RuleName, Verdict};

/// Why an objective is not passed, the gravest first: the order of the variants decides which
/// verdict and reason a certificate states when several apply.
///
/// *Unsupported* comes first: without an arm or panel there is no evidence to speak of.
/// *Descriptive* comes next: what was not declared cannot be certified however complete it is. Where
/// it is incomplete as well, the certificate says so beside the verdict, for exit codes.
/// *Incomplete* precedes *not established*: a bound over partial evidence may move either way.
/// Among reasons of *not established*, doubts about the experiment itself precede its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The worker cannot run the candidate or a control.
    ArmUnsupported,
    /// A panel does not fit the model.
    PanelUnsupported,
    /// The protocol is not the one that stood before the first record.
    ProtocolChanged,
    /// Nothing shows which protocol stood before the first record.
    ProtocolUnproved,
    /// The records are judged under a protocol that is not their run's.
    ProtocolAfterRecords,
    /// The protocol does not declare this model.
    ModelUndeclared,
    /// The protocol does not declare this recipe.
    RecipeUndeclared,
    /// Imported records do not carry the protocol's digest: it may not have stood before them.
    PostHoc,
    /// An import has cases that the protocol's panel cannot have.
    PanelUndeclared,
    /// The protocol's family does not include this objective.
    ObjectiveUndeclared,
    /// A case failed in either arm.
    ErroredRecords,
    /// A case has several records in either arm.
    DuplicateRecords,
    /// A likelihood is missing or not finite in either arm.
    NonFiniteRecords,
    /// A record belongs to no case of the panel.
    UnknownRecords,
    /// A case, a panel or a whole control has no record.
    MissingRecords,
    /// The panel has fewer cases than the protocol names.
    FewerCases,
    /// `--limit` cut the panel short.
    Limit,
    /// The protocol has no panel of a kind that the objective rests on.
    NoPanel,
    /// An arm took more of the machine than the protocol allows.
    ResourceLimit,
    /// Nothing says what an arm took of the machine, which the protocol limits.
    ResourcesUnknown,
    /// A file that every arm leaves behind is absent.
    MissingFiles,
    /// The control differs from itself as much as a candidate may.
    ControlNoise,
    /// Nothing proves that the recipe was engaged.
    EngagementUnproved,
    /// The control answers too little to lose anything.
    ControlTooWeak,
    /// A bound is not defined on this evidence.
    BoundUndefined,
    /// A bound crosses its limit.
    BoundExceedsLimit,
}

impl Reason {
    /// Every reason, the gravest first.
    pub const ALL: [Reason; 26] = [
        Reason::ArmUnsupported,
        Reason::PanelUnsupported,
        Reason::ProtocolChanged,
        Reason::ProtocolUnproved,
        Reason::ProtocolAfterRecords,
        Reason::ModelUndeclared,
        Reason::RecipeUndeclared,
        Reason::PostHoc,
        Reason::PanelUndeclared,
        Reason::ObjectiveUndeclared,
        Reason::ErroredRecords,
        Reason::DuplicateRecords,
        Reason::NonFiniteRecords,
        Reason::UnknownRecords,
        Reason::MissingRecords,
        Reason::FewerCases,
        Reason::Limit,
        Reason::NoPanel,
        Reason::ResourceLimit,
        Reason::ResourcesUnknown,
        Reason::MissingFiles,
        Reason::ControlNoise,
        Reason::EngagementUnproved,
        Reason::ControlTooWeak,
        Reason::BoundUndefined,
        Reason::BoundExceedsLimit,
    ];

    /// The reason of this name, if this version has it.
    pub fn from_name(name: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The verdict that this reason leads to.
    pub fn verdict(self) -> Verdict {
        match self {
            Reason::ArmUnsupported | Reason::PanelUnsupported => Verdict::Unsupported,
            Reason::ProtocolChanged
            | Reason::ProtocolUnproved
            | Reason::ProtocolAfterRecords
            | Reason::ModelUndeclared
            | Reason::RecipeUndeclared
            | Reason::PostHoc
            | Reason::PanelUndeclared
            | Reason::ObjectiveUndeclared => Verdict::Descriptive,
            Reason::ErroredRecords
            | Reason::DuplicateRecords
            | Reason::NonFiniteRecords
            | Reason::UnknownRecords
            | Reason::MissingRecords
            | Reason::FewerCases
            | Reason::Limit
            | Reason::NoPanel
            | Reason::ResourceLimit
            | Reason::ResourcesUnknown
            | Reason::MissingFiles => Verdict::Incomplete,
            Reason::ControlNoise
            | Reason::EngagementUnproved
            | Reason::ControlTooWeak
            | Reason::BoundUndefined
            | Reason::BoundExceedsLimit => Verdict::NotEstablished,
        }
    }

    /// Name as in certificates.
    pub fn name(self) -> &'static str {
        match self {
            Reason::ArmUnsupported => "arm_unsupported",
            Reason::PanelUnsupported => "panel_unsupported",
            Reason::ProtocolChanged => "protocol_changed",
            Reason::ProtocolUnproved => "protocol_unproved",
            Reason::ProtocolAfterRecords => "protocol_after_records",
            Reason::ModelUndeclared => "model_undeclared",
            Reason::RecipeUndeclared => "recipe_undeclared",
            Reason::PostHoc => "post_hoc",
            Reason::PanelUndeclared => "panel_undeclared",
            Reason::ObjectiveUndeclared => "objective_undeclared",
            Reason::ErroredRecords => "errored_records",
            Reason::DuplicateRecords => "duplicate_records",
            Reason::NonFiniteRecords => "non_finite_records",
            Reason::UnknownRecords => "unknown_records",
            Reason::MissingRecords => "missing_records",
            Reason::FewerCases => "fewer_cases",
            Reason::Limit => "limit",
            Reason::NoPanel => "no_panel",
            Reason::ResourceLimit => "resource_limit",
            Reason::ResourcesUnknown => "resources_unknown",
            Reason::MissingFiles => "missing_files",
            Reason::ControlNoise => "control_noise",
            Reason::EngagementUnproved => "engagement_unproved",
            Reason::ControlTooWeak => "control_too_weak",
            Reason::BoundUndefined => "bound_undefined",
            Reason::BoundExceedsLimit => "bound_exceeds_limit",
        }
    }
}

/// Something that stands against one or both objectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Reason.
    pub reason: Reason,
    /// One clause for people, with panel, arm and figures.
    pub detail: String,
    /// The rule that it concerns; `None` concerns every objective.
    pub rule: Option<RuleName>,
    /// Every import is so, as it brings one panel, one control and what cases there are: beside a
    /// descriptive verdict it is no fault of the evidence.
    pub by_nature: bool,
}

impl Finding {
    /// A finding against every objective.
    pub fn new(reason: Reason, detail: String) -> Self {
        Finding {
            reason,
            detail,
            rule: None,
            by_nature: false,
        }
    }

    /// A finding against the objectives that rest on `rule`.
    pub fn of_rule(reason: Reason, rule: RuleName, detail: String) -> Self {
        Finding {
            rule: Some(rule),
            ..Finding::new(reason, detail)
        }
    }

    /// Whether it stands against `objective`.
    pub fn concerns(&self, objective: ObjectiveName) -> bool {
        self.rule.is_none_or(|rule| rule.serves(objective))
    }
}

/// Verdict, reason and detail of one objective.
pub(super) struct Decision {
    /// Verdict.
    pub verdict: Verdict,
    /// Reason; absent for a pass.
    pub reason: Option<String>,
    /// Clauses of the findings that matter, the gravest first; absent for a pass.
    pub detail: Option<String>,
    /// The gravest reason for which the evidence is incomplete, beside a descriptive verdict.
    pub incomplete: Option<String>,
}

/// Decides by the gravest finding. Bounds that cross limits are left out of the detail where the
/// evidence is not fit for a verdict anyway, and records that are not there where an arm could not run.
pub(super) fn decide(findings: &[&Finding]) -> Decision {
    let mut sorted = findings.to_vec();
    sorted.sort_by_key(|finding| finding.reason);
    let Some(gravest) = sorted.first() else {
        return Decision {
            verdict: Verdict::Pass,
            reason: None,
            detail: None,
            incomplete: None,
        };
    };
    let verdict = gravest.reason.verdict();
    let matters = |finding: &&&Finding| match finding.reason.verdict() {
        Verdict::NotEstablished => verdict == Verdict::NotEstablished,
        _ => (gravest.reason, finding.reason) != (Reason::ArmUnsupported, Reason::MissingRecords),
    };
    let clauses: Vec<&str> = sorted
        .iter()
        .filter(matters)
        .map(|finding| finding.detail.as_str())
        .collect();
    let is_incomplete =
        |finding: &&&Finding| finding.reason.verdict() == Verdict::Incomplete && !finding.by_nature;
    let incomplete = sorted.iter().find(is_incomplete);
    Decision {
        verdict,
        incomplete: incomplete
            .filter(|_| verdict == Verdict::Descriptive)
            .map(|finding| finding.reason.name().to_owned()),
        reason: Some(gravest.reason.name().to_owned()),
        detail: Some(clauses.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_that_is_noise_comes_before_what_is_not_proved_of_the_recipe() {
        let of = |reason: Reason| Finding::new(reason, reason.name().to_owned());
        let (noise, unproved) = (of(Reason::ControlNoise), of(Reason::EngagementUnproved));
        let found = decide(&[&unproved, &noise]);
        assert_eq!(found.verdict, Verdict::NotEstablished);
        assert_eq!(found.reason.as_deref(), Some("control_noise"));
        let detail = found.detail.as_deref();
        assert_eq!(detail, Some("control_noise; engagement_unproved"));
    }

    #[test]
    fn reasons_stand_in_the_order_of_their_gravity() {
        assert!(Reason::ALL.is_sorted());
        let names = Reason::ALL.map(Reason::name);
        assert_eq!(names.map(Reason::from_name), Reason::ALL.map(Some));
    }
}
