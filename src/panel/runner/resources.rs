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
    /// Reads what earlier processes left and writes the first figures of this one.
    pub fn open(
        dir: &'a RunDir,
        arm: &'a str,
        watch: Option<Arc<dyn Watch>>,
    ) -> Result<Self, RunError> {
        let mut log = ResourceLog {
            earlier: dir.resources(arm)?.unwrap_or_else(Resources::empty),
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
