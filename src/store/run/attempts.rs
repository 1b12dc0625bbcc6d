//! Failed attempts at cases on servers: kept to look at, and no evidence of anything.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::StoreError;
use super::super::file::{Disk, RunFile, write_whole};
use super::super::record::whole_lines;
use super::{RunDir, check_name};
use crate::schema::Attempt;

/// `arms/<arm>/<panel>.attempts.jsonl`, which exists once there is something to write. Lines are not
/// synced: a power cut may lose the last ones.
pub struct AttemptLog {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    file: Option<Box<dyn RunFile>>,
}

impl RunDir {
    /// The log of failed attempts of one arm on one panel. The arm must have a record log.
    ///
    /// # Errors
    /// [`StoreError::Name`].
    pub fn attempt_log(&self, arm: &str, panel: &str) -> Result<AttemptLog, StoreError> {
        check_name(arm)?;
        check_name(panel)?;
        let dir = self.path.join("arms").join(arm);
        Ok(AttemptLog {
            path: dir.join(format!("{panel}.attempts.jsonl")),
            disk: Arc::clone(&self.disk),
            file: None,
        })
    }
}

impl AttemptLog {
    /// Appends a line; drops a torn last one of an earlier process.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Json`].
    pub fn append(&mut self, attempt: &Attempt) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(attempt).map_err(StoreError::json(&self.path))?;
        line.push(b'\n');
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        write_whole(file.as_mut(), &line).map_err(StoreError::io(&self.path, "append to"))
    }

    fn open(&self) -> Result<Box<dyn RunFile>, StoreError> {
        let path = &self.path;
        match fs::read(path) {
            Ok(bytes) if whole_lines(&bytes) < bytes.len() => self
                .disk
                .cut(path, whole_lines(&bytes) as u64)
                .map_err(StoreError::io(path, "drop the torn last line of"))?,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io(path, "read")(error)),
        }
        self.disk.append(path).map_err(StoreError::io(path, "open"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::samples::{manifest, protocol};

    #[test]
    fn lines_follow_each_other_and_a_torn_one_is_dropped() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &manifest(protocol())).unwrap();
        run.record_log("AD", "math", &[]).unwrap();
        let path = root.path().join("arms/AD/math.attempts.jsonl");
        let attempt = |number| Attempt {
            case: "math-0".to_owned(),
            attempt: number,
            status: Some(429),
            error: "busy".to_owned(),
            wait_ms: None,
        };
        let mut log = run.attempt_log("AD", "math").unwrap();
        assert!(!path.exists());
        log.append(&attempt(1)).unwrap();
        log.append(&attempt(2)).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"case\"")).unwrap();
        let mut log = run.attempt_log("AD", "math").unwrap();
        log.append(&attempt(3)).unwrap();
        let lines = fs::read_to_string(&path).unwrap();
        let read: Vec<Attempt> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read, [attempt(1), attempt(2), attempt(3)]);
        assert!(run.attempt_log("../AD", "math").is_err());
    }
}
