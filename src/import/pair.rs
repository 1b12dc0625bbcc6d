//! Samples of two arms matched by content: a pure function, whatever their order.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{FaultKind, ImportFault, Pairing, sha256_hex};

use super::sample::{Logs, Sample, Score};
use super::{Content, ImportError};

/// Digits of a content digest that tell cases with the same id apart.
const SHORT: usize = 16;
/// Most places named in one clause.
const PLACES_SHOWN: usize = 3;

/// Both arms, case by case.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired {
    /// What pairs them.
    pub pairing: Pairing,
    /// Cases of either arm, in the order of their ids.
    pub cases: Vec<Case>,
    /// Everything that is wrong, by case.
    pub faults: Vec<ImportFault>,
    /// SHA-256 over the sorted contents or ids of the native and the candidate arm.
    pub case_set_sha256: [String; 2],
}

/// One case with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name: the harness's id, with a part of the content's digest where the id is not unique.
    pub name: String,
    /// Question and gold answer; absent where ids pair.
    pub content: Option<Content>,
    /// Samples of the native and the candidate arm; one of each where all is well.
    pub samples: [Vec<Sample>; 2],
    /// Why nothing may be concluded from the case, if it means two things.
    pub conflict: Option<String>,
}

impl Case {
    /// Whether both arms have one verdict.
    pub fn is_pair(&self) -> bool {
        let scored = |samples: &Vec<Sample>| matches!(samples.as_slice(), [one] if matches!(one.score, Score::Correct(_)));
        self.conflict.is_none() && self.samples.iter().all(scored)
    }
}

/// Pairs the samples of both arms. Duplicates, conflicts, unscored, errored and missing cases are
/// faults; nothing is dropped.
///
/// # Errors
/// [`ImportError::Input`] where an arm has no samples, or only some of the samples have content.
pub fn pair(logs: &Logs) -> Result<Paired, ImportError> {
    let arms = [&logs.native.samples, &logs.candidate.samples];
    if let Some(empty) = [&logs.native, &logs.candidate]
        .into_iter()
        .find(|arm| arm.samples.is_empty())
    {
        return Err(empty.empty());
    }
    let pairing = pairing(arms)?;
    let mut slots: BTreeMap<String, [Vec<Sample>; 2]> = BTreeMap::new();
    let mut sets = [BTreeSet::new(), BTreeSet::new()];
    for (arm, samples) in arms.into_iter().enumerate() {
        for sample in samples {
            let key = key(sample);
            sets[arm].insert(key.clone());
            slots.entry(key).or_default()[arm].push(sample.clone());
        }
    }
    let conflicts = Conflicts::find(&slots);
    let mut cases: Vec<(SortKey, Case)> = slots
        .into_iter()
        .map(|(key, samples)| case(key, samples, &conflicts))
        .collect();
    cases.sort_by(|(a, _), (b, _)| a.cmp(b));
    let cases: Vec<Case> = cases.into_iter().map(|(_, case)| case).collect();
    let mut faults: Vec<ImportFault> = cases.iter().flat_map(faults).collect();
    faults.sort();
    Ok(Paired {
        pairing,
        cases,
        faults,
        case_set_sha256: sets.map(|set| {
            let lines: Vec<String> = set.into_iter().collect();
            sha256_hex(lines.join("\n").as_bytes())
        }),
    })
}

/// Content where every sample has it, ids where none has.
fn pairing(arms: [&Vec<Sample>; 2]) -> Result<Pairing, ImportError> {
    let all = || arms.into_iter().flatten();
    let without = all().find(|sample| sample.content.is_none());
    let with = all().find(|sample| sample.content.is_some());
    match (with, without) {
        (Some(_), None) => Ok(Pairing::Content),
        (None, _) => Ok(Pairing::Ids),
        (Some(with), Some(without)) => Err(ImportError::input(
            &without.place,
            "a case without content",
            format!("content, as at {}: cases are paired by it", with.place),
        )),
    }
}

fn key(sample: &Sample) -> String {
    match (&sample.content, &sample.id) {
        (Some(content), _) => content.sha256(),
        // Ids pair only where no sample has content, and then each has an id.
        (None, id) => id.clone().unwrap_or_default(),
    }
}

/// Ids with several contents and questions with several gold answers.
struct Conflicts {
    keys_of_id: BTreeMap<String, BTreeSet<String>>,
    golds_of_question: BTreeMap<String, BTreeSet<Option<String>>>,
}

impl Conflicts {
    fn find(slots: &BTreeMap<String, [Vec<Sample>; 2]>) -> Self {
        let mut found = Conflicts {
            keys_of_id: BTreeMap::new(),
            golds_of_question: BTreeMap::new(),
        };
        for (key, samples) in slots {
            for sample in samples.iter().flatten() {
                if let Some(id) = &sample.id {
                    let keys = found.keys_of_id.entry(id.clone()).or_default();
                    keys.insert(key.clone());
                }
                if let Some(content) = &sample.content {
                    let question = content.question_sha256.clone();
                    let golds = found.golds_of_question.entry(question).or_default();
                    golds.insert(content.gold.clone());
                }
            }
        }
        found
    }

    /// What a case's samples contradict, other samples included.
    fn of(&self, samples: &[Vec<Sample>; 2]) -> Option<String> {
        let all = || samples.iter().flatten();
        let mut clauses = BTreeSet::new();
        for sample in all() {
            let several =
                |id: &&String| self.keys_of_id.get(*id).is_some_and(|keys| keys.len() > 1);
            if let Some(id) = sample.id.as_ref().filter(several) {
                clauses.insert(format!("id {id} stands for several contents"));
            }
            let question = sample
                .content
                .as_ref()
                .map(|content| &content.question_sha256);
            let golds = question.and_then(|question| self.golds_of_question.get(question));
            if let Some(golds) = golds.filter(|golds| golds.len() > 1) {
                let what = match golds.contains(&None) {
                    true => "the question has a gold answer in some samples only",
                    false => "the question has several gold answers",
                };
                clauses.insert(what.to_owned());
            }
        }
        let prompts: BTreeSet<&String> = all()
            .filter_map(|sample| sample.prompt_sha256.as_ref())
            .collect();
        if prompts.len() > 1 {
            clauses.insert("the prompts differ".to_owned());
        }
        if samples.iter().any(|arm| scores(arm).len() > 1) {
            clauses.insert("the outcomes differ within an arm".to_owned());
        }
        let clauses: Vec<String> = clauses.into_iter().collect();
        (!clauses.is_empty()).then(|| clauses.join(", "))
    }

    /// The harness's id where it is unique, else the id and a part of the content's digest.
    fn name(&self, id: Option<&str>, key: &str) -> String {
        let short = key.get(..SHORT).unwrap_or(key);
        match id {
            None => short.to_owned(),
            Some(id) if self.keys_of_id.get(id).is_some_and(|keys| keys.len() > 1) => {
                format!("{id}-{short}")
            }
            Some(id) => id.to_owned(),
        }
    }
}

fn scores(samples: &[Sample]) -> BTreeSet<&Score> {
    samples.iter().map(|sample| &sample.score).collect()
}

/// Numbers by value, other ids by text, contents without an id last.
type SortKey = (u64, String, String);

fn case(key: String, mut samples: [Vec<Sample>; 2], conflicts: &Conflicts) -> (SortKey, Case) {
    for arm in &mut samples {
        arm.sort_by(|a, b| (&a.score, &a.output).cmp(&(&b.score, &b.output)));
    }
    let ids = samples
        .iter()
        .flatten()
        .filter_map(|sample| sample.id.clone());
    let first = ids.map(|id| (id.parse().unwrap_or(u64::MAX), id)).min();
    let id = first.as_ref().map(|(_, id)| id.as_str());
    let case = Case {
        name: conflicts.name(id, &key),
        content: content(&samples).cloned(),
        conflict: conflicts.of(&samples),
        samples,
    };
    let (number, id) = first.unwrap_or((u64::MAX, "\u{10ffff}".to_owned()));
    ((number, id, key), case)
}

/// Of contents that are the same, one that has the question's text and not its digest alone.
fn content(samples: &[Vec<Sample>; 2]) -> Option<&Content> {
    let contents = || {
        samples
            .iter()
            .flatten()
            .filter_map(|sample| sample.content.as_ref())
    };
    let with_text = contents().find(|content| content.question.is_some());
    with_text.or_else(|| contents().next())
}

fn faults(case: &Case) -> Vec<ImportFault> {
    let fault = |kind, detail| ImportFault {
        case: case.name.clone(),
        kind,
        detail,
    };
    let mut found = Vec::new();
    if let Some(conflict) = &case.conflict {
        let all = case.samples.iter().flatten();
        let detail = format!("{conflict} ({})", places(all));
        found.push(fault(FaultKind::Conflict, detail));
    }
    for (arm, samples) in ["native", "candidate"].into_iter().zip(&case.samples) {
        if samples.is_empty() {
            let other = places(case.samples.iter().flatten());
            let detail = format!("not in the {arm} files ({other})");
            found.push(fault(FaultKind::Missing, detail));
        }
        if samples.len() > 1 {
            let detail = format!(
                "{} times in the {arm} files ({})",
                samples.len(),
                places(samples)
            );
            found.push(fault(FaultKind::Duplicate, detail));
        }
        for sample in samples {
            let (kind, what) = match &sample.score {
                Score::Correct(_) => continue,
                Score::Unscored(what) => (
                    FaultKind::Unscored,
                    format!("{what} is neither right nor wrong"),
                ),
                Score::Errored(why) => (FaultKind::Errored, why.clone()),
            };
            found.push(fault(kind, format!("{}: {what}", sample.place)));
        }
    }
    found
}

fn places<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> String {
    let mut all: Vec<&str> = samples
        .into_iter()
        .map(|sample| sample.place.as_str())
        .collect();
    all.sort_unstable();
    let more = if all.len() > PLACES_SHOWN {
        ", …"
    } else {
        ""
    };
    all.truncate(PLACES_SHOWN);
    all.join(", ") + more
}
