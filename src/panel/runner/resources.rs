//! What an arm takes of the machine, written down while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Watch;
use crate::schema::Resources;
use crate::store::RunDir;

use super::RunError;

/// Longest time that goes by between two writes while the arm runs.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// The resource evidence of one arm: parts of earlier processes, and this one's.
pub(super) struct ResourceLog<'a> {
    dir: &'a RunDir,
    arm: &'a str,
    earlier: Resources,
    /// `None` where the worker is not at hand.
    watch: Option<Arc<dyn Watch>>,
    written: Instant,
}

impl<'a> ResourceLog<'a> {
    /// Reads what earlier processes left and writes the first figures of this one. Where the arm
    /// `has_records` already and nothing is left of what it took then, that part is unknown.
    pub fn open(
        dir: &'a RunDir,
        arm: &'a str,
        has_records: bool,
        watch: Option<Arc<dyn Watch>>,
    ) -> Result<Self, RunError> {
        let earlier = match dir.resources(arm)? {
            Some(resources) => resources,
            None if has_records => Resources::unknown(),
            None => Resources::empty(),
        };
        let mut log = ResourceLog {
            earlier,
            dir,
            arm,
            watch,
            written: Instant::now(),
        };
        log.write()?;
        Ok(log)
    }

    /// Writes where the last time is long enough ago.
    pub fn tick(&mut self) -> Result<(), RunError> {
        if self.written.elapsed() < WRITTEN_EVERY {
            return Ok(());
        }
        self.write()
    }

    /// Writes the figures so far.
    pub fn write(&mut self) -> Result<(), RunError> {
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        let mut resources = self.earlier.clone();
        resources.parts.push(watch.part());
        self.dir.write_resources(self.arm, &resources)?;
        self.written = Instant::now();
        Ok(())
    }
}
