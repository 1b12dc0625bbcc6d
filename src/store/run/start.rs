//! What stood before an arm's first record.

use std::fs;
use std::io;

use super::{RunDir, check_name};
use crate::schema::{ARM_START_SCHEMA, AnswerMode, ArmStart};
use crate::store::StoreError;

/// Name of the document inside an arm's folder.
const START_FILE: &str = "start.json";

impl RunDir {
    /// Writes down, before the arm's first record, which protocol stands and how the arm's answers
    /// come about. Records that are there
    /// already were written without it: they are left as they are, and nothing can prove any more
    /// what stood before them.
    ///
    /// # Errors
    /// [`StoreError::OtherProtocol`] where the arm began under another protocol,
    /// [`StoreError::OtherAnswers`] where its answers came about otherwise; else as
    /// [`RunDir::write_engagement`].
    pub fn start_arm(&self, arm: &str, answers: AnswerMode) -> Result<(), StoreError> {
        let stands = ArmStart {
            schema: ARM_START_SCHEMA.to_owned(),
            protocol: self.manifest.protocol.name.clone(),
            protocol_sha256: self.manifest.protocol_sha256.clone(),
            answers: Some(answers),
        };
        match self.arm_start(arm)? {
            Some(began) if began.protocol_sha256 != stands.protocol_sha256 => {
                Err(StoreError::OtherProtocol {
                    path: self.path.join(start_path(arm)),
                    found: format!("{} {}", began.protocol, began.protocol_sha256),
                    expected: format!("{} {}", stands.protocol, stands.protocol_sha256),
                })
            }
            Some(began) if began.answers != stands.answers => Err(StoreError::OtherAnswers {
                path: self.path.join(start_path(arm)),
                found: began.answers.map_or("nothing", AnswerMode::name),
                expected: answers.name(),
            }),
            Some(_) => Ok(()),
            None if self.has_records(arm)? => Ok(()),
            None => self.write(&["arms", arm], START_FILE, ARM_START_SCHEMA, &stands),
        }
    }

    /// What stood before the first record of `arm`; `None` where nothing was written down.
    ///
    /// # Errors
    /// As [`RunDir::open`], for this file.
    pub fn arm_start(&self, arm: &str) -> Result<Option<ArmStart>, StoreError> {
        check_name(arm)?;
        self.read(&start_path(arm), ARM_START_SCHEMA)
    }

    /// Whether any record file of `arm` holds anything.
    fn has_records(&self, arm: &str) -> Result<bool, StoreError> {
        let dir = self.path.join("arms").join(arm);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StoreError::io(&dir, "list")(error)),
        };
        for entry in entries {
            let path = entry.map_err(StoreError::io(&dir, "list"))?.path();
            let name = path.to_string_lossy();
            // Failed attempts are no records.
            let is_log = name.ends_with(".jsonl") && !name.ends_with(".attempts.jsonl");
            if is_log
                && fs::metadata(&path)
                    .map_err(StoreError::io(&path, "read"))?
                    .len()
                    > 0
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Path of what stood before the first record of `arm`, below the run directory.
pub fn start_path(arm: &str) -> String {
    format!("arms/{arm}/{START_FILE}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::samples::{manifest, protocol};

    #[test]
    fn what_stood_is_written_once_and_before_the_records() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &manifest(protocol())).unwrap();
        assert_eq!(run.arm_start("AD").unwrap(), None);
        run.start_arm("AD", AnswerMode::Plain).unwrap();
        let path = root.path().join("arms/AD/start.json");
        let bytes = fs::read(&path).unwrap();
        let start = run.arm_start("AD").unwrap().unwrap();
        assert_eq!(start.protocol_sha256, run.manifest().protocol_sha256);
        assert_eq!(start.protocol, "sample");
        assert_eq!(start.answers, Some(AnswerMode::Plain));
        fs::write(root.path().join("arms/AD/math.jsonl"), "{}\n").unwrap();
        run.start_arm("AD", AnswerMode::Plain).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert!(run.start_arm("../AD", AnswerMode::Plain).is_err());
    }

    #[test]
    fn an_arm_that_began_in_another_way_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &manifest(protocol())).unwrap();
        run.start_arm("AD", AnswerMode::Verified).unwrap();
        run.start_arm("AD", AnswerMode::Verified).unwrap();
        let error = run.start_arm("AD", AnswerMode::Plain).unwrap_err();
        assert!(!error.is_system());
        let message = error.to_string();
        for word in ["arms/AD/start.json", "found verified", "expected plain"] {
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn records_that_were_there_before_stay_without_proof() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &manifest(protocol())).unwrap();
        let arm = root.path().join("arms/AD");
        fs::create_dir_all(&arm).unwrap();
        // An empty file holds no record: the run was killed before its first one.
        fs::write(arm.join("math.jsonl"), "").unwrap();
        fs::write(arm.join("nll-1k.jsonl"), "{}\n").unwrap();
        run.start_arm("AD", AnswerMode::Plain).unwrap();
        assert_eq!(run.arm_start("AD").unwrap(), None);
        fs::write(arm.join("nll-1k.jsonl"), "").unwrap();
        run.start_arm("AD", AnswerMode::Plain).unwrap();
        assert!(run.arm_start("AD").unwrap().is_some());
    }

    #[test]
    fn an_arm_that_began_under_another_protocol_is_refused_with_both_digests() {
        let root = tempfile::tempdir().unwrap();
        let first = manifest(protocol());
        RunDir::create(root.path(), &first)
            .unwrap()
            .start_arm("AD", AnswerMode::Plain)
            .unwrap();
        let mut changed = protocol();
        changed.rules.gross_loss.limit = 0.03;
        let second = manifest(changed);
        let text = serde_json::to_string(&second).unwrap();
        fs::write(root.path().join("run.json"), text).unwrap();
        let error = RunDir::open(root.path())
            .unwrap()
            .start_arm("AD", AnswerMode::Plain)
            .unwrap_err();
        let message = error.to_string();
        assert!(message.contains("arms/AD/start.json"), "{message}");
        assert!(message.contains(&first.protocol_sha256), "{message}");
        assert!(message.contains(&second.protocol_sha256), "{message}");
        assert!(!error.is_system());
    }
}
