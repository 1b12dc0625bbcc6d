//! Which arm runs next, on whichever worker is free. Pure: knows no engine and no thread.

use crate::schema::ArmRole;

/// An arm as far as its place in the schedule depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    /// What it is for.
    pub role: ArmRole,
    /// Whether its recipe needs the run's calibration.
    pub is_calibrated: bool,
    /// Whether nothing of it is left.
    pub is_finished: bool,
}

/// Something to do. Arms are named by their place in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Runs what is left of an arm, if anything is, and looks at what it stored.
    Arm(usize),
    /// Compares an A/A arm with the control.
    Compare(usize),
    /// Measures the fixed scales, which this arm is the first to need.
    Calibrate(usize),
}

/// What a free worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This; [`Schedule::finish`] takes the number.
    Job(usize, Job),
    /// Nothing yet: what is left waits for what others do.
    Wait,
    /// Nothing any more.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
}

struct Entry {
    job: Job,
    /// Numbers of the jobs that must be done before.
    needs: Vec<usize>,
    state: State,
}

/// The jobs of a run in the order in which one worker does them.
///
/// Controls and A/A arms need nothing. Candidates need every control (whose answers they may
/// verify), every comparison of an A/A arm, and the calibration where their scales are fixed.
pub(super) struct Schedule {
    entries: Vec<Entry>,
    arms_left: usize,
    stopped: bool,
}

impl Schedule {
    /// The jobs of arms in the order of the manifest.
    pub fn new(arms: &[Planned]) -> Self {
        let mut schedule = Schedule {
            entries: Vec::new(),
            arms_left: 0,
            stopped: false,
        };
        let mut before_candidates = Vec::new();
        for (at, arm) in arms.iter().enumerate() {
            match arm.role {
                ArmRole::Control => before_candidates.push(schedule.arm(at, arm, Vec::new())),
                ArmRole::Aa => {
                    let mut needs = before_candidates.clone();
                    needs.push(schedule.arm(at, arm, Vec::new()));
                    before_candidates.push(schedule.add(Job::Compare(at), needs));
                }
                ArmRole::Candidate => {}
            }
        }
        let mut calibration = None;
        for (at, arm) in arms.iter().enumerate() {
            if arm.role != ArmRole::Candidate {
                continue;
            }
            let mut needs = before_candidates.clone();
            if arm.is_calibrated && !arm.is_finished {
                let add = || schedule.add(Job::Calibrate(at), Vec::new());
                needs.push(*calibration.get_or_insert_with(add));
            }
            schedule.arm(at, arm, needs);
        }
        schedule
    }

    fn arm(&mut self, at: usize, arm: &Planned, needs: Vec<usize>) -> usize {
        self.arms_left += usize::from(!arm.is_finished);
        self.add(Job::Arm(at), needs)
    }

    fn add(&mut self, job: Job, needs: Vec<usize>) -> usize {
        self.entries.push(Entry {
            job,
            needs,
            state: State::Waiting,
        });
        self.entries.len() - 1
    }

    /// The first job that waits for nothing.
    pub fn next(&mut self) -> Next {
        let done = |number: &usize| self.entries[*number].state == State::Done;
        let waits = |entry: &Entry| entry.state == State::Waiting;
        let is_ready = |entry: &Entry| waits(entry) && entry.needs.iter().all(done);
        if self.stopped || !self.entries.iter().any(waits) {
            return Next::End;
        }
        let Some(number) = self.entries.iter().position(is_ready) else {
            return Next::Wait;
        };
        self.entries[number].state = State::Running;
        Next::Job(number, self.entries[number].job)
    }

    /// A job is done.
    pub fn finish(&mut self, number: usize) {
        self.entries[number].state = State::Done;
    }

    /// Nothing more is begun.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether every job is done.
    pub fn is_complete(&self) -> bool {
        let done = |entry: &Entry| entry.state == State::Done;
        self.entries.iter().all(done)
    }

    /// Arms that were not finished at first: more workers than that would have nothing to do.
    pub fn arms_left(&self) -> usize {
        self.arms_left
    }
}

#[cfg(test)]
mod tests;
