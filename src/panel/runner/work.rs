//! One panel on one arm: requests, and the records that their outcomes become.

use std::collections::{BTreeMap, HashMap};

use crate::certify::regenerated_name;
use crate::engine::{CaseError, GenerateRequest, Generation, Score, ScoreRequest};
use crate::panel::Panel;
use crate::schema::{CaseTask, Extent, Finish, PanelCase, Record};
use crate::score::{self, Decimal, Parser};
use crate::store::CaseKey;

use super::RunError;

/// The cases of a panel that an arm runs, with what scoring needs.
pub(super) struct PanelWork<'a> {
    /// Arm.
    pub arm: &'a str,
    /// Panel.
    pub panel: &'a str,
    /// Name under which the records are stored; the panel's own, or that of cases which are
    /// generated plainly as well.
    pub stored_as: String,
    /// Cases in plan order, already cut to what the run asks.
    pub cases: Vec<&'a PanelCase>,
    /// Place of the first of them in the panel.
    first: usize,
    /// Digest of each case's line.
    pub hashes: Vec<&'a str>,
    /// What the answer to each case may begin with; none at all where answers come about plainly.
    pub drafts: Vec<Vec<u32>>,
    /// Parser that decides; absent for panels without numeric answers.
    pub parser: Option<Parser>,
}

/// Requests of one batch: a panel has cases of one kind only.
pub(super) enum Requests {
    /// Math and retrieval.
    Generate(Vec<GenerateRequest>),
    /// NLL.
    Score(Vec<ScoreRequest>),
}

impl<'a> PanelWork<'a> {
    /// The cases of a panel that an arm runs.
    ///
    /// # Errors
    /// [`RunError::Parser`].
    pub fn new(
        arm: &'a str,
        panel: &'a str,
        built: &'a Panel,
        extent: Extent,
    ) -> Result<Self, RunError> {
        let range = extent.of(built.cases.len());
        Ok(PanelWork {
            arm,
            panel,
            stored_as: panel.to_owned(),
            first: range.start,
            cases: built.cases[range.clone()].iter().collect(),
            hashes: built.case_sha256s[range]
                .iter()
                .map(String::as_str)
                .collect(),
            drafts: Vec::new(),
            parser: parser(panel, &built.header.parser, &built.cases)?,
        })
    }

    /// The same panel with those of its cases alone that stand at `places` in the panel, which are
    /// generated plainly once more.
    pub fn regenerated(&self, places: &[usize]) -> Self {
        let own = places.iter().filter_map(|at| at.checked_sub(self.first));
        let indices: Vec<usize> = own.filter(|&at| at < self.cases.len()).collect();
        PanelWork {
            arm: self.arm,
            panel: self.panel,
            stored_as: regenerated_name(self.panel),
            first: self.first,
            cases: indices.iter().map(|&at| self.cases[at]).collect(),
            hashes: indices.iter().map(|&at| self.hashes[at]).collect(),
            drafts: Vec::new(),
            parser: self.parser,
        }
    }

    /// Whether these are cases that are generated plainly once more.
    pub fn is_regenerated(&self) -> bool {
        self.stored_as != self.panel
    }

    /// Names and digests of the cases, as records have them.
    pub fn keys(&self) -> Vec<CaseKey> {
        self.cases
            .iter()
            .zip(&self.hashes)
            .map(|(case, &hash)| CaseKey {
                case: case.case.clone(),
                case_sha256: hash.to_owned(),
            })
            .collect()
    }

    /// Takes the answers among a control's `records` as drafts.
    pub fn take_drafts(&mut self, records: Vec<Record>) {
        let mut answers: HashMap<String, Vec<u32>> = records
            .into_iter()
            .filter_map(|record| Some((record.case_sha256, record.output_ids?)))
            .collect();
        self.drafts = self
            .hashes
            .iter()
            .map(|&hash| answers.remove(hash).unwrap_or_default())
            .collect();
    }

    /// Requests for the cases at `order`, in that order.
    pub fn requests(&self, order: &[usize]) -> Result<Requests, RunError> {
        let scores: Vec<_> = order
            .iter()
            .filter_map(|&i| score_request(self.cases[i]))
            .collect();
        if scores.len() == order.len() {
            return Ok(Requests::Score(scores));
        }
        if scores.is_empty() {
            let requests = order
                .iter()
                .filter_map(|&i| generate_request(self.cases[i], self.draft(i)));
            return Ok(Requests::Generate(requests.collect()));
        }
        Err(RunError::MixedPanel {
            panel: self.panel.to_owned(),
        })
    }

    /// Record of a generated answer.
    pub fn generated(&self, index: usize, outcome: Result<Generation, CaseError>) -> Record {
        let record = self.blank(index);
        match outcome {
            Err(error) => Record {
                finish: Some(Finish::Error),
                error: Some(error.0),
                ..record
            },
            Ok(generation) => self.scored_answer(index, generation, record),
        }
    }

    /// Record of a scored window.
    pub fn scored(&self, index: usize, outcome: Result<Score, CaseError>) -> Record {
        let mut record = self.blank(index);
        match outcome {
            Err(error) => record.error = Some(error.0),
            Ok(score) => {
                if let CaseTask::Nll { targets, .. } = self.cases[index].task {
                    record.targets = Some(targets);
                }
                // JSON holds no NaN: what is not finite is an error of this case, not a number.
                if score.nll_sum.is_finite() {
                    record.nll_sum = Some(score.nll_sum);
                } else {
                    record.error = Some(format!("NLL sum is {}, not finite", score.nll_sum));
                }
                record.kv = score.kv;
            }
        }
        record
    }

    fn draft(&self, index: usize) -> Vec<u32> {
        self.drafts.get(index).cloned().unwrap_or_default()
    }

    fn blank(&self, index: usize) -> Record {
        let case = self.cases[index];
        Record {
            case: case.case.clone(),
            case_sha256: self.hashes[index].to_owned(),
            prompt_tokens: u32::try_from(case.prompt_ids.len()).unwrap_or(u32::MAX),
            depth: match case.task {
                CaseTask::Retrieval { depth, .. } => Some(depth),
                CaseTask::Math { .. } | CaseTask::Nll { .. } | CaseTask::Imported { .. } => None,
            },
            ..Record::default()
        }
    }

    fn scored_answer(&self, index: usize, generation: Generation, record: Record) -> Record {
        let truncated = generation.finish == Finish::Length;
        let mut record = Record {
            output_tokens: generation.output_tokens,
            finish: Some(generation.finish),
            kv: generation.kv,
            ..record
        };
        match &self.cases[index].task {
            CaseTask::Math { gold, .. } => {
                self.score_math(&generation.text, gold, truncated, &mut record);
            }
            CaseTask::Retrieval { gold, .. } => {
                record.correct = Some(score::retrieval_correct(&generation.text, gold, truncated));
            }
            CaseTask::Nll { .. } | CaseTask::Imported { .. } => {}
        }
        record.output = Some(generation.text);
        record.output_ids = (!generation.ids.is_empty()).then_some(generation.ids);
        record
    }

    fn score_math(&self, text: &str, gold: &str, truncated: bool, record: &mut Record) {
        let gold = Decimal::parse(gold);
        let correct = |answer: Option<&Decimal>| {
            gold.as_ref()
                .is_some_and(|gold| score::math_correct(answer, gold, truncated))
        };
        let answer = self
            .parser
            .and_then(|parser| score::parse_answer(parser, text));
        record.correct = Some(correct(answer.as_ref()));
        record.answer = Some(answer.map(|answer| answer.to_string()));
        record.secondary = Parser::secondary()
            .iter()
            .map(|&parser| {
                let answer = score::parse_answer(parser, text);
                (parser.name().to_owned(), correct(answer.as_ref()))
            })
            .collect::<BTreeMap<_, _>>();
    }
}

/// The decisive parser of a panel with numeric answers.
fn parser(panel: &str, name: &str, cases: &[PanelCase]) -> Result<Option<Parser>, RunError> {
    let first = cases.first().map(|case| &case.task);
    let math = matches!(first, Some(CaseTask::Math { .. }));
    if !math {
        return Ok(None);
    }
    match Parser::from_name(name) {
        Some(parser) => Ok(Some(parser)),
        None => Err(RunError::Parser {
            panel: panel.to_owned(),
            found: name.to_owned(),
        }),
    }
}

pub(super) fn generate_request(case: &PanelCase, draft: Vec<u32>) -> Option<GenerateRequest> {
    match case.task {
        CaseTask::Math { max_new_tokens, .. } | CaseTask::Retrieval { max_new_tokens, .. } => {
            Some(GenerateRequest {
                prompt_ids: case.prompt_ids.clone(),
                messages: case.messages.clone(),
                max_new_tokens,
                draft,
            })
        }
        CaseTask::Nll { .. } | CaseTask::Imported { .. } => None,
    }
}

pub(super) fn score_request(case: &PanelCase) -> Option<ScoreRequest> {
    match case.task {
        CaseTask::Nll { targets, .. } => Some(ScoreRequest {
            ids: case.prompt_ids.clone(),
            targets,
        }),
        CaseTask::Math { .. } | CaseTask::Retrieval { .. } | CaseTask::Imported { .. } => None,
    }
}
