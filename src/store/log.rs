//! Record files: append a batch, sync, and pick up again after any interruption.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::schema::Record;

use super::file::{Disk, RunFile, write_synced};
use super::record::{outcome_fault, parse, push_line, whole_lines};
use super::resume::{CaseKey, first_of_each, remaining};
use super::{PlanFault, StoreError};

/// The records of one arm on one panel, open for appending.
pub struct RecordLog {
    path: PathBuf,
    file: Box<dyn RunFile>,
    plan: Vec<CaseKey>,
    done: usize,
    failed: bool,
}

impl std::fmt::Debug for RecordLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordLog")
            .field("path", &self.path)
            .field("planned", &self.plan.len())
            .field("done", &self.done)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl RecordLog {
    /// Opens or creates the file at `path`: drops a torn last line and checks that every other
    /// line is a final record and the one which the plan has there. Those lines are on the disk
    /// when this returns: a killed run may have written them and not come to syncing.
    pub(super) fn open(disk: &dyn Disk, path: &Path, plan: &[CaseKey]) -> Result<Self, StoreError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::io(path, "read")(error)),
        };
        let whole = whole_lines(&bytes);
        let done = check(path, &bytes[..whole], plan)?;
        let mut file = disk.append(path).map_err(StoreError::io(path, "open"))?;
        if whole < bytes.len() {
            disk.cut(path, whole as u64)
                .map_err(StoreError::io(path, "drop the torn last line of"))?;
        } else if whole > 0 {
            file.sync().map_err(StoreError::io(path, "sync"))?;
        }
        Ok(RecordLog::on(path, file, plan, done))
    }

    fn on(path: &Path, file: Box<dyn RunFile>, plan: &[CaseKey], done: usize) -> Self {
        RecordLog {
            path: path.to_owned(),
            file,
            plan: plan.to_vec(),
            done,
            failed: false,
        }
    }

    /// Stored records: this many cases of the plan, from its beginning, are done.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Appends `records`, which go on where the plan stands, and returns when they are on the
    /// disk. Nothing is written unless all of them are in order.
    ///
    /// # Errors
    /// [`StoreError::Plan`] or [`StoreError::Record`] for records that the plan does not have
    /// here or that are not final, [`StoreError::NotFinite`]; [`StoreError::Io`], after which the
    /// file may end with a torn line and takes no more records until the run is resumed.
    pub fn append(&mut self, records: &[Record]) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::FailedBefore {
                path: self.path.clone(),
            });
        }
        if records.is_empty() {
            return Ok(());
        }
        let bytes = self.lines(records)?;
        if let Err(error) = write_synced(self.file.as_mut(), &bytes) {
            self.failed = true;
            return Err(StoreError::io(&self.path, "append to")(error));
        }
        self.done += records.len();
        Ok(())
    }

    fn lines(&self, records: &[Record]) -> Result<Vec<u8>, StoreError> {
        remaining(&self.plan[self.done..], records)
            .map_err(|fault| plan_error(&self.path, fault, self.done))?;
        check_outcomes(&self.path, records, self.done)?;
        let mut bytes = Vec::new();
        for record in records {
            push_line(&self.path, record, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Number of cases with a record in `bytes`, all of them good. A record that is doubled stays where it
/// is and is judged with the evidence.
fn check(path: &Path, bytes: &[u8], plan: &[CaseKey]) -> Result<usize, StoreError> {
    let records = parse(path, bytes)?;
    let places = first_of_each(&records);
    let firsts: Vec<Record> = places.iter().map(|&at| records[at].clone()).collect();
    let line = |line: usize| places.get(line - 1).map_or(line, |at| at + 1);
    remaining(plan, &firsts).map_err(|fault| plan_error(path, fault.in_lines(line), 0))?;
    check_outcomes(path, &records, 0)?;
    Ok(firsts.len())
}

fn check_outcomes(path: &Path, records: &[Record], before: usize) -> Result<(), StoreError> {
    let fault = records
        .iter()
        .enumerate()
        .find_map(|(at, record)| outcome_fault(record).map(|what| (at, what)));
    match fault {
        None => Ok(()),
        Some((at, what)) => Err(StoreError::Record {
            path: path.to_owned(),
            line: before + at + 1,
            what: what.to_owned(),
        }),
    }
}

/// A fault found `before` lines into the file.
fn plan_error(path: &Path, fault: PlanFault, before: usize) -> StoreError {
    let fault = match fault {
        PlanFault::Beyond {
            line,
            case,
            planned,
        } => PlanFault::Beyond {
            line,
            case,
            planned: planned + before,
        },
        other => other,
    };
    StoreError::Plan {
        path: path.to_owned(),
        fault: fault.in_lines(|line| line + before),
    }
}

#[cfg(test)]
mod tests;
