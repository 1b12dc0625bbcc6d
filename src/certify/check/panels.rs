//! Panels against the protocol and the manifest.

use serde::Serialize;

use crate::schema::{
    CaseTask, HaystackKind, Manifest, PanelHeader, PanelPlan, Protocol, Task, TaskKind,
};

use super::super::CertifyError;
use super::super::evidence::{Evidence, PanelGold};

/// Checks every panel of the run.
///
/// # Errors
/// [`CertifyError::Panel`].
pub(super) fn check(evidence: &Evidence) -> Result<(), CertifyError> {
    for plan in &evidence.manifest.protocol.panels {
        if let Some(gold) = evidence.panels.get(&plan.panel_name()) {
            check_frozen(&evidence.manifest, plan)?;
            // Other harnesses have tasks and tokenizers of their own.
            if !evidence.is_imported() {
                check_header(&evidence.manifest, plan, &gold.header)?;
            }
            check_count(&evidence.manifest, &gold.header)?;
            check_panel(plan, gold, evidence.is_imported())?;
        }
    }
    Ok(())
}

/// A panel that the protocol froze for this tokenizer is the one that it froze.
fn check_frozen(manifest: &Manifest, plan: &PanelPlan) -> Result<(), CertifyError> {
    let name = plan.panel_name();
    let protocol = &manifest.protocol;
    match (
        digest_of(manifest, &name),
        frozen(protocol, manifest, &name),
    ) {
        (Some((path, found)), Some(expected)) if found != expected => Err(CertifyError::Panel {
            place: path.to_owned(),
            found: format!("SHA-256 {found}"),
            expected: format!("{expected}, which protocol {} froze", protocol.name),
        }),
        _ => Ok(()),
    }
}

/// Whether `protocol` froze another panel of this name than the run has.
pub(in crate::certify) fn is_frozen_otherwise(
    protocol: &Protocol,
    manifest: &Manifest,
    name: &str,
) -> bool {
    let found = digest_of(manifest, name).map(|(_, digest)| digest);
    frozen(protocol, manifest, name).is_some_and(|expected| found != Some(expected))
}

fn frozen<'a>(protocol: &'a Protocol, manifest: &Manifest, name: &str) -> Option<&'a str> {
    protocol.frozen_sha256(name, &manifest.model.tokenizer_sha256)
}

/// Path and digest of the run's panel of this name.
fn digest_of<'a>(manifest: &'a Manifest, name: &str) -> Option<(&'a str, &'a str)> {
    let mut panels = manifest.panels.iter();
    let file = panels.find(|it| it.panel == name)?.file.as_ref()?;
    Some((&file.path, &file.sha256))
}

/// Number of cases in the manifest, from which regenerated cases are drawn, and in the file.
fn check_count(manifest: &Manifest, header: &PanelHeader) -> Result<(), CertifyError> {
    let mut panels = manifest.panels.iter().enumerate();
    match panels.find(|(_, it)| it.panel == header.panel) {
        Some((at, named)) if named.cases != header.cases => Err(CertifyError::Contradiction {
            place: format!("run.json: panels[{at}].cases"),
            found: named.cases.to_string(),
            expected: format!("{} from panel {}", header.cases, header.panel),
        }),
        _ => Ok(()),
    }
}

/// A panel's header names the protocol's task, what it is made from, and the run's tokenizer.
fn check_header(
    manifest: &Manifest,
    plan: &PanelPlan,
    header: &PanelHeader,
) -> Result<(), CertifyError> {
    let name = plan.panel_name();
    let path = digest_of(manifest, &name).map_or(name.as_str(), |(path, _)| path);
    let wrong = |field: &str, found: &str, expected: String| {
        Err(CertifyError::Panel {
            place: format!("{path}:1: {field}"),
            found: found.to_owned(),
            expected,
        })
    };
    let Some(task) = plan.builtin_task() else {
        let (kind, found) = (plan.kind().name(), plan.task());
        let place = format!("run.json: protocol.panels.{name}.task");
        return Err(CertifyError::Panel {
            place,
            found: format!("`{found}`"),
            expected: format!("a task of kind {kind} that this version has"),
        });
    };
    if header.task != task.id() {
        return wrong(
            "task",
            &header.task,
            format!("{}, the protocol's", task.id()),
        );
    }
    if header.parser != task.parser {
        let found = format!("`{}`", header.parser);
        let expected = format!("`{}` of task {}", task.parser, task.id());
        return wrong("parser", &found, expected);
    }
    let tokenizer = &manifest.model.tokenizer_sha256;
    if header.tokenizer_sha256 != *tokenizer {
        let expected = format!("{tokenizer} from run.json");
        return wrong("tokenizer_sha256", &header.tokenizer_sha256, expected);
    }
    match fault_of_sources(&manifest.protocol, plan, (&task, header)) {
        None => Ok(()),
        Some((found, expected)) => wrong("sources", &found, expected),
    }
}

/// What is wrong with the sources: found and expected. All text of a protocol comes from the
/// sources of its first task that is not math.
fn fault_of_sources(
    protocol: &Protocol,
    plan: &PanelPlan,
    (task, header): (&Task, &PanelHeader),
) -> Option<(String, String)> {
    let mut plans = protocol.panels.iter();
    let text = plans.find(|other| other.kind() != TaskKind::Math);
    let of = match plan.kind() {
        TaskKind::Math => task.clone(),
        TaskKind::Nll | TaskKind::Retrieval => text.and_then(PanelPlan::builtin_task)?,
    };
    // Needles among codes alone need no text.
    if header.sources.is_empty() && task.haystack != HaystackKind::Codes {
        return Some(("none".to_owned(), format!("those of task {}", of.id())));
    }
    header
        .sources
        .iter()
        .find_map(|file| match of.source_at(&file.path) {
            None => Some((
                file.path.clone(),
                format!("a source file of task {}", of.id()),
            )),
            Some(source) => {
                let pinned = source.sha256.filter(|pinned| *pinned != file.sha256)?;
                let found = format!("{} with SHA-256 {}", file.path, file.sha256);
                Some((
                    found,
                    format!("{pinned}, to which task {} pins it", of.id()),
                ))
            }
        })
}

fn check_panel(plan: &PanelPlan, gold: &PanelGold, imported: bool) -> Result<(), CertifyError> {
    let name = plan.panel_name();
    let most = plan.case_count() as usize;
    // An import brings what it has: too many cases are a finding there.
    if gold.cases.len() > most && !imported {
        return Err(CertifyError::Panel {
            place: format!("panel {name}"),
            found: format!("{} cases", gold.cases.len()),
            expected: format!("at most the {most} that the protocol names"),
        });
    }
    let strange = gold.cases.iter().find(|case| match imported {
        true => !fits_import(plan, &case.task),
        false => !fits(plan, &case.task),
    });
    match strange {
        None => Ok(()),
        Some(case) => Err(CertifyError::Panel {
            place: format!("panel {name}, case {}", case.case),
            found: in_words(&case.task),
            expected: match imported {
                true => "an imported case of a panel with answers".to_owned(),
                false => format!("a case of {}", in_words(plan)),
            },
        }),
    }
}

/// A stored value as its file has it.
fn in_words(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

fn fits_import(plan: &PanelPlan, task: &CaseTask) -> bool {
    matches!(task, CaseTask::Imported { .. }) && !matches!(plan, PanelPlan::Nll { .. })
}

fn fits(plan: &PanelPlan, task: &CaseTask) -> bool {
    match (plan, task) {
        (
            PanelPlan::Math { max_new_tokens, .. },
            CaseTask::Math {
                max_new_tokens: found,
                ..
            },
        )
        | (
            PanelPlan::Retrieval { max_new_tokens, .. },
            CaseTask::Retrieval {
                max_new_tokens: found,
                ..
            },
        ) => max_new_tokens == found,
        (PanelPlan::Nll { targets, .. }, CaseTask::Nll { targets: found, .. }) => targets == found,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_of_another_panel_is_said_as_files_have_both() {
        let plan = PanelPlan::Math {
            task: "gsm8k".to_owned(),
            cases: 1,
            max_new_tokens: 8,
        };
        let plan = in_words(&plan);
        let expected = r#"{"kind":"math","task":"gsm8k","cases":1,"max_new_tokens":8}"#;
        assert_eq!(plan, expected);
        let task = CaseTask::Imported {
            gold: None,
            content_sha256: None,
        };
        assert_eq!(in_words(&task), r#"{"kind":"imported"}"#);
    }
}
