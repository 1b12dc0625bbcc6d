//! Progress on stderr: a bar per worker and its panel on a terminal, plain lines elsewhere, or
//! nothing.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::DraftUse;
use crate::panel::runner::Event;

/// Least time between two plain lines of one panel.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// A sink for [`Event`]s that shows how far the run is, how fast, and how long it may take.
pub struct Progress<W: Write> {
    out: W,
    /// Say nothing at all.
    quiet: bool,
    /// `None` for plain lines.
    bars: Option<MultiProgress>,
    workers: Vec<WorkerProgress>,
}

/// What one worker is at.
struct WorkerProgress {
    bar: Option<ProgressBar>,
    panel: PanelProgress,
}

impl WorkerProgress {
    fn new() -> Self {
        WorkerProgress {
            bar: None,
            panel: PanelProgress::new(String::new(), 0, 0),
        }
    }
}

/// Figures of the panel that is running.
struct PanelProgress {
    label: String,
    total: usize,
    before: usize,
    done: usize,
    tokens: u64,
    drafts: DraftUse,
    started: Instant,
    last_line: Instant,
}

impl PanelProgress {
    fn new(label: String, total: usize, done: usize) -> Self {
        let now = Instant::now();
        PanelProgress {
            label,
            total,
            before: done,
            done,
            tokens: 0,
            drafts: DraftUse::default(),
            started: now,
            last_line: now,
        }
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-3)
    }

    /// From the cases finished so far; `None` before the first.
    fn time_left(&self) -> Option<Duration> {
        let finished = self
            .done
            .checked_sub(self.before)
            .filter(|&finished| finished > 0)?;
        let left = self.total.saturating_sub(self.done) as f64;
        Some(self.started.elapsed().mul_f64(left / finished as f64))
    }
}

impl Progress<std::io::Stderr> {
    /// Progress on stderr; bars only where it is a terminal that can move its cursor. `quiet` says
    /// nothing.
    pub fn stderr(quiet: bool) -> Self {
        let stderr = std::io::stderr();
        let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let bars = !quiet && !is_dumb && stderr.is_terminal();
        Progress {
            quiet,
            ..Progress::new(stderr, bars)
        }
    }
}

impl<W: Write> Progress<W> {
    /// Progress on `out`; bars, which are drawn on stderr, replace the plain lines of a panel.
    pub fn new(out: W, bars: bool) -> Self {
        let target = ProgressDrawTarget::stderr();
        Progress {
            out,
            quiet: false,
            bars: bars.then(|| MultiProgress::with_draw_target(target)),
            workers: Vec::new(),
        }
    }

    /// Takes one event of the only worker.
    pub fn event(&mut self, event: &Event<'_>) {
        self.event_of(0, event);
    }

    /// Takes one event of worker number `worker`. Progress that cannot be written is not worth
    /// ending a run for.
    pub fn event_of(&mut self, worker: usize, event: &Event<'_>) {
        while self.workers.len() <= worker {
            self.workers.push(WorkerProgress::new());
        }
        match event {
            Event::RunStarted { run, cases, done } => {
                self.line(&format!(
                    "run {}: {done} of {cases} cases done",
                    run.display()
                ));
            }
            Event::WorkerMissing { reason } => {
                self.line(&format!("one worker less: {reason}"));
            }
            Event::ArmUnsupported { arm, reason } => {
                self.line(&format!("{arm}: unsupported: {reason}"));
            }
            Event::CalibrationStarted { documents, tokens } => {
                self.line(&format!(
                    "calibrating on {documents} documents, {tokens} tokens"
                ));
                let total = usize::try_from(*tokens).unwrap_or(usize::MAX);
                self.start(worker, "calibration".to_owned(), total, 0);
            }
            Event::PanelStarted {
                arm,
                panel,
                total,
                done,
            } => {
                self.start(worker, format!("{arm} {panel}"), *total, *done);
            }
            Event::TokensProcessed(tokens) => self.tokens(worker, *tokens),
            Event::Drafted(draft) => {
                let drafts = &mut self.workers[worker].panel.drafts;
                drafts.fed += draft.fed;
                drafts.taken += draft.taken;
            }
            Event::CaseFinished { .. } => self.case(worker),
            Event::CalibrationFinished | Event::PanelFinished { .. } => self.finish(worker),
            Event::Interrupted => {
                for worker in 0..self.workers.len() {
                    self.clear(worker);
                }
                self.line("interrupted; what was finished is stored");
            }
            Event::ArmStarted { .. } | Event::ArmFinished { .. } | Event::RunFinished => {}
        }
    }

    fn start(&mut self, worker: usize, label: String, total: usize, done: usize) {
        self.clear(worker);
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(total as u64));
            bar.set_style(style());
            bar.set_prefix(label.clone());
            bar.set_position(done as u64);
            bar.reset_eta();
            bar
        });
        self.workers[worker] = WorkerProgress {
            bar,
            panel: PanelProgress::new(label, total, done),
        };
    }

    fn tokens(&mut self, worker: usize, tokens: u64) {
        let WorkerProgress { bar, panel } = &mut self.workers[worker];
        panel.tokens += tokens;
        let rate = panel.tokens_per_second();
        if panel.label == "calibration" {
            panel.done = usize::try_from(panel.tokens).unwrap_or(usize::MAX);
        }
        match bar {
            Some(bar) => {
                bar.set_message(format!("{rate:.0} tok/s"));
                bar.set_position(panel.done as u64);
            }
            None => self.periodic_line(worker),
        }
    }

    fn case(&mut self, worker: usize) {
        let WorkerProgress { bar, panel } = &mut self.workers[worker];
        panel.done += 1;
        if let Some(bar) = bar {
            bar.set_position(panel.done as u64);
        }
    }

    fn periodic_line(&mut self, worker: usize) {
        let panel = &mut self.workers[worker].panel;
        if panel.last_line.elapsed() >= LINE_INTERVAL {
            panel.last_line = Instant::now();
            let left = panel.time_left().map_or_else(String::new, |left| {
                format!(", about {} left", minutes(left))
            });
            let line = format!(
                "{}: {}/{} ({:.0} tok/s{left})",
                panel.label,
                panel.done,
                panel.total,
                panel.tokens_per_second()
            );
            self.line(&line);
        }
    }

    fn finish(&mut self, worker: usize) {
        self.clear(worker);
        let panel = &self.workers[worker].panel;
        let saved = match panel.drafts {
            DraftUse { fed: 0, .. } => String::new(),
            DraftUse { fed, taken } => {
                format!(", {taken} decoding steps saved by {fed} tokens of the control")
            }
        };
        let line = format!(
            "{}: {} done in {} ({:.0} tok/s{saved})",
            panel.label,
            panel.done - panel.before,
            minutes(panel.started.elapsed()),
            panel.tokens_per_second()
        );
        self.line(&line);
    }

    fn clear(&mut self, worker: usize) {
        if let Some(bar) = self.workers[worker].bar.take() {
            bar.finish_and_clear();
            if let Some(bars) = &self.bars {
                bars.remove(&bar);
            }
        }
    }

    fn line(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let out = &mut self.out;
        // See `event_of`.
        let mut write = || {
            let _ = writeln!(out, "{text}");
        };
        match &self.bars {
            // Bars of other workers are drawn again below the line.
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{prefix:24} {bar:32} {pos}/{len}  {msg}  {elapsed} elapsed, {eta} left",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// `m:ss`.
fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::schema::Record;

    use super::*;

    #[test]
    fn plain_lines_for_a_log() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, false);
        let record = Record::default();
        let (arm, panel) = ("AF", "math");
        progress.event(&Event::RunStarted {
            run: Path::new("r"),
            cases: 4,
            done: 1,
        });
        progress.event(&Event::PanelStarted {
            arm,
            panel,
            total: 2,
            done: 1,
        });
        progress.event(&Event::TokensProcessed(100));
        progress.event(&Event::CaseFinished {
            arm,
            panel,
            record: &record,
        });
        progress.event(&Event::PanelFinished { arm, panel });
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("run r: 1 of 4 cases done\nAF math: 1 done in 0:00 ("),
            "{text}"
        );
    }

    #[test]
    fn lines_of_workers_side_by_side_name_their_own_arm_and_count_their_own_cases() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, false);
        let record = Record::default();
        let panel = "math";
        for (worker, arm) in [(0, "AF"), (2, "SD")] {
            let (total, done) = (5, 0);
            progress.event_of(
                worker,
                &Event::PanelStarted {
                    arm,
                    panel,
                    total,
                    done,
                },
            );
        }
        for (worker, arm) in [(2, "SD"), (0, "AF"), (2, "SD")] {
            progress.event_of(
                worker,
                &Event::CaseFinished {
                    arm,
                    panel,
                    record: &record,
                },
            );
        }
        for (worker, arm) in [(2, "SD"), (0, "AF")] {
            progress.event_of(worker, &Event::PanelFinished { arm, panel });
        }
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("SD math: 2 done in 0:00 ("), "{text}");
        assert!(text.contains("\nAF math: 1 done in 0:00 ("), "{text}");
    }

    #[test]
    fn quiet_says_nothing() {
        let mut out = Vec::new();
        let mut progress = Progress {
            quiet: true,
            ..Progress::new(&mut out, false)
        };
        let run = Path::new("r");
        progress.event(&Event::RunStarted {
            run,
            cases: 4,
            done: 1,
        });
        progress.event(&Event::Interrupted);
        assert!(out.is_empty());
    }

    #[test]
    fn time_left_follows_the_cases_of_this_run() {
        let mut panel = PanelProgress::new(String::new(), 10, 4);
        assert_eq!(panel.time_left(), None);
        panel.started = Instant::now().checked_sub(Duration::from_secs(30)).unwrap();
        panel.done = 7;
        let left = panel.time_left().unwrap().as_secs_f64();
        assert!((29.0..32.0).contains(&left), "{left}");
    }
}
