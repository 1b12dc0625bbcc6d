//! Progress on stderr: a bar per panel on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::DraftUse;
use crate::panel::runner::Event;

/// Least time between two plain lines of one panel.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// A sink for [`Event`]s that shows how far the run is, how fast, and how long it may take.
pub struct Progress<W: Write> {
    out: W,
    bars: bool,
    bar: Option<ProgressBar>,
    panel: PanelProgress,
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
    /// Progress on stderr; bars only where it is a terminal.
    pub fn stderr() -> Self {
        let stderr = std::io::stderr();
        let bars = stderr.is_terminal();
        Progress::new(stderr, bars)
    }
}

impl<W: Write> Progress<W> {
    /// Progress on `out`; bars, which are drawn on stderr, replace the plain lines of a panel.
    pub fn new(out: W, bars: bool) -> Self {
        Progress {
            out,
            bars,
            bar: None,
            panel: PanelProgress::new(String::new(), 0, 0),
        }
    }

    /// Takes one event. Progress that cannot be written is not worth ending a run for.
    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::RunStarted { run, cases, done } => {
                self.line(&format!(
                    "run {}: {done} of {cases} cases done",
                    run.display()
                ));
            }
            Event::ArmUnsupported { arm, reason } => {
                self.line(&format!("{arm}: unsupported: {reason}"));
            }
            Event::CalibrationStarted { documents, tokens } => {
                self.line(&format!(
                    "calibrating on {documents} documents, {tokens} tokens"
                ));
                let total = usize::try_from(*tokens).unwrap_or(usize::MAX);
                self.start("calibration".to_owned(), total, 0);
            }
            Event::PanelStarted {
                arm,
                panel,
                total,
                done,
            } => {
                self.start(format!("{arm} {panel}"), *total, *done);
            }
            Event::TokensProcessed(tokens) => self.tokens(*tokens),
            Event::Drafted(draft) => {
                self.panel.drafts.fed += draft.fed;
                self.panel.drafts.taken += draft.taken;
            }
            Event::CaseFinished { .. } => self.case(),
            Event::CalibrationFinished | Event::PanelFinished { .. } => self.finish(),
            Event::Interrupted => {
                self.clear();
                self.line("interrupted; what was finished is stored");
            }
            Event::ArmStarted { .. } | Event::ArmFinished { .. } | Event::RunFinished => {}
        }
    }

    fn start(&mut self, label: String, total: usize, done: usize) {
        self.panel = PanelProgress::new(label, total, done);
        if self.bars {
            let bar =
                ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
            bar.set_style(style());
            bar.set_prefix(self.panel.label.clone());
            bar.set_position(done as u64);
            bar.reset_eta();
            self.bar = Some(bar);
        }
    }

    fn tokens(&mut self, tokens: u64) {
        self.panel.tokens += tokens;
        let rate = self.panel.tokens_per_second();
        if self.panel.label == "calibration" {
            self.panel.done = usize::try_from(self.panel.tokens).unwrap_or(usize::MAX);
        }
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{rate:.0} tok/s"));
                bar.set_position(self.panel.done as u64);
            }
            None => self.periodic_line(),
        }
    }

    fn case(&mut self) {
        self.panel.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.panel.done as u64);
        }
    }

    fn periodic_line(&mut self) {
        if self.panel.last_line.elapsed() >= LINE_INTERVAL {
            self.panel.last_line = Instant::now();
            let left = self.panel.time_left().map_or_else(String::new, |left| {
                format!(", about {} left", minutes(left))
            });
            let panel = &self.panel;
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

    fn finish(&mut self) {
        self.clear();
        let panel = &self.panel;
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

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&mut self, text: &str) {
        // See `event`.
        let _ = writeln!(self.out, "{text}");
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
    fn time_left_follows_the_cases_of_this_run() {
        let mut panel = PanelProgress::new(String::new(), 10, 4);
        assert_eq!(panel.time_left(), None);
        panel.started = Instant::now().checked_sub(Duration::from_secs(30)).unwrap();
        panel.done = 7;
        let left = panel.time_left().unwrap().as_secs_f64();
        assert!((29.0..32.0).contains(&left), "{left}");
    }
}
