//! Run directories: append, sync, lock, resume, atomic replace.
//!
//! `run.json` is written before the first record and never changed. Records are appended per arm
//! and panel in plan order and synced per batch, so what a killed run leaves behind is always a
//! prefix of the plan and perhaps one torn line. Other documents are replaced atomically. One
//! process writes at a time.

mod atomic;
mod certificate;
mod document;
mod error;
#[cfg(test)]
pub(crate) mod faulty;
mod file;
mod import;
mod lock;
mod log;
mod manifest;
mod merge;
mod record;
mod resume;
mod run;
#[cfg(test)]
pub(crate) mod samples;
mod target;

pub use atomic::{write_atomic, write_json_atomic};
pub use document::{read_certificate, read_limited, read_tree};
pub use error::StoreError;
pub use file::RunFile;
#[cfg(test)]
pub(crate) use file::{Disk, SystemDisk};
pub use import::IMPORT_FILE;
pub use log::RecordLog;
pub use manifest::{Difference, differences};
pub use merge::{MergeError, Merged, merge};
pub use resume::{CaseKey, PlanFault, first_of_each, remaining};
pub use run::{
    AttemptLog, CALIBRATION_FILE, LOCK_FILE, MANIFEST_FILE, PANELS_DIR, RunDir, StoredRecords,
    engagement_path, resources_path, start_path,
};
pub use target::Target;
