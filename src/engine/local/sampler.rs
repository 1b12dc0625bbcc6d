//! Samples the memory in use while an arm is open.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::backend::{Gauge, Ledger, Meter, Purpose};
use crate::engine::Watch;
use crate::schema::{Allocations, MemorySamples, ResourcePart};

/// Time from one sample to the next.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// What the open arm takes: a thread of its own reads the memory in use until this is dropped.
pub(super) struct Sampler {
    watch: Arc<Watched>,
    /// Ends the thread when it is dropped, and that at once.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is read so far. It stays readable when the thread has ended.
struct Watched {
    meter: Meter,
    seen: Mutex<Seen>,
}

/// Samples so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    peak_bytes: u64,
    samples: u64,
    largest_gap: Duration,
    last: Option<Instant>,
    /// Nothing is sampled any more.
    ended: bool,
}

impl Seen {
    /// Takes a sample of `bytes` at `now`.
    fn take(&mut self, bytes: u64, now: Instant) {
        self.largest_gap = self.gap_at(now);
        self.last = Some(now);
        self.peak_bytes = self.peak_bytes.max(bytes);
        self.samples += 1;
    }

    /// The largest gap where the last one goes on to `now`.
    fn gap_at(&self, now: Instant) -> Duration {
        let since = self
            .last
            .map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.largest_gap.max(since)
    }
}

impl Sampler {
    /// Takes the first sample and goes on every `interval`; peaks of allocations begin here.
    pub fn start(meter: Meter, interval: Duration) -> Self {
        meter.ledger.restart();
        let gauge = meter.gauge.clone();
        let watch = Arc::new(Watched {
            meter,
            // A memory that cannot be read from the start is a gap from the start.
            seen: Mutex::new(Seen {
                last: Some(Instant::now()),
                ..Seen::default()
            }),
        });
        let (stop, stopped) = channel();
        let thread = gauge.map(|gauge| {
            sample(&watch, gauge.as_ref());
            let watch = Arc::clone(&watch);
            thread::spawn(move || run(&watch, gauge.as_ref(), interval, &stopped))
        });
        Sampler {
            watch,
            stop: Some(stop),
            thread,
        }
    }

    /// What was read, for whoever writes it down.
    pub fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.watch) as Arc<dyn Watch>
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A sampler that panicked leaves a gap, which is what is reported then.
            let _ = thread.join();
        }
        let mut seen = self.watch.seen();
        seen.largest_gap = seen.gap_at(Instant::now());
        seen.ended = true;
    }
}

fn run(watch: &Watched, gauge: &dyn Gauge, interval: Duration, stopped: &Receiver<()>) {
    let mut next = Instant::now() + interval;
    loop {
        let wait = next.saturating_duration_since(Instant::now());
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        sample(watch, gauge);
        // Samples that are late are not made up for.
        next = (next + interval).max(Instant::now());
    }
}

/// A memory that cannot be read leaves a gap.
fn sample(watch: &Watched, gauge: &dyn Gauge) {
    if let Some(bytes) = gauge.in_use() {
        watch.seen().take(bytes, Instant::now());
    }
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Plain numbers: nothing that a panicking thread could have left half done.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Watched {
    fn part(&self) -> ResourcePart {
        let seen = *self.seen();
        let gap = match seen.ended {
            true => seen.largest_gap,
            false => seen.gap_at(Instant::now()),
        };
        let sampled = self.meter.gauge.as_ref().filter(|_| seen.samples > 0);
        ResourcePart {
            device: self.meter.device.clone(),
            total_bytes: self.meter.total_bytes,
            allocations: allocations(&self.meter.ledger),
            sampled: sampled.map(|gauge| MemorySamples {
                scope: gauge.scope(),
                peak_bytes: seen.peak_bytes,
                samples: seen.samples,
                largest_gap_ms: milliseconds(gap),
            }),
        }
    }
}

/// Rounded up.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn allocations(ledger: &Ledger) -> Allocations {
    Allocations {
        weights: ledger.peak(Purpose::Weights),
        cache: ledger.peak(Purpose::Cache),
        counters: ledger.peak(Purpose::Counters),
        staging: ledger.peak(Purpose::Staging),
        graphs: ledger.peak(Purpose::Graphs),
        states: ledger.peak(Purpose::States),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::schema::SampleScope;

    /// Returns what it is told, and may stop to be readable.
    struct Told(AtomicU64);

    const UNREADABLE: u64 = u64::MAX;

    impl Gauge for Told {
        fn scope(&self) -> SampleScope {
            SampleScope::Device
        }

        fn in_use(&self) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed)).filter(|&bytes| bytes != UNREADABLE)
        }
    }

    fn meter(gauge: Option<Arc<dyn Gauge>>) -> Meter {
        Meter {
            device: "a device".to_owned(),
            total_bytes: Some(1 << 40),
            ledger: Arc::default(),
            gauge,
        }
    }

    fn until(what: impl Fn() -> bool) {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing came");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn samples(watch: &dyn Watch) -> u64 {
        watch.part().sampled.map_or(0, |sampled| sampled.samples)
    }

    #[test]
    fn peaks_are_seen_counted_and_kept_when_the_arm_closes() {
        let told = Arc::new(Told(AtomicU64::new(5)));
        let meter = meter(Some(told.clone()));
        let ledger = Arc::clone(&meter.ledger);
        ledger.add(Purpose::Cache, 900);
        ledger.remove(Purpose::Cache, 900);
        let sampler = Sampler::start(meter, Duration::from_millis(1));
        let watch = sampler.watch();
        assert!(
            samples(watch.as_ref()) >= 1,
            "the first sample is taken at once"
        );
        told.0.store(70, Ordering::Relaxed);
        let before = samples(watch.as_ref());
        until(|| samples(watch.as_ref()) > before + 1);
        told.0.store(6, Ordering::Relaxed);
        ledger.add(Purpose::Cache, 30);
        drop(sampler);
        let part = watch.part();
        let sampled = part.sampled.unwrap();
        assert_eq!(
            (sampled.peak_bytes, sampled.scope),
            (70, SampleScope::Device)
        );
        assert_eq!(part.allocations.cache, 30, "peaks begin with the arm");
        thread::sleep(Duration::from_millis(30));
        assert_eq!(watch.part().sampled, Some(sampled), "no gap after the end");
    }

    #[test]
    fn a_memory_that_cannot_be_read_is_a_gap() {
        let told = Arc::new(Told(AtomicU64::new(5)));
        let sampler = Sampler::start(meter(Some(told.clone())), Duration::from_millis(1));
        told.0.store(UNREADABLE, Ordering::Relaxed);
        let watch = sampler.watch();
        until(|| watch.part().sampled.is_some_and(|s| s.largest_gap_ms >= 40));
        drop(sampler);
        assert!(watch.part().sampled.unwrap().largest_gap_ms >= 40);
    }

    #[test]
    fn a_memory_that_cannot_be_read_at_first_is_a_gap() {
        let told = Arc::new(Told(AtomicU64::new(UNREADABLE)));
        let sampler = Sampler::start(meter(Some(told.clone())), Duration::from_millis(1));
        thread::sleep(Duration::from_millis(40));
        told.0.store(5, Ordering::Relaxed);
        let watch = sampler.watch();
        until(|| watch.part().sampled.is_some());
        assert!(watch.part().sampled.unwrap().largest_gap_ms >= 40);
    }

    #[test]
    fn without_a_gauge_nothing_is_said_to_be_sampled() {
        let sampler = Sampler::start(meter(None), Duration::from_millis(1));
        let part = sampler.watch().part();
        assert_eq!((part.sampled, part.device.as_str()), (None, "a device"));
        let mute = Arc::new(Told(AtomicU64::new(UNREADABLE)));
        let sampler = Sampler::start(meter(Some(mute)), Duration::from_millis(1));
        assert_eq!(sampler.watch().part().sampled, None);
    }

    #[test]
    fn gaps_are_rounded_up() {
        assert_eq!(milliseconds(Duration::from_micros(20_001)), 21);
        assert_eq!(milliseconds(Duration::from_millis(20)), 20);
        let mut seen = Seen::default();
        let start = Instant::now();
        for (at, bytes) in [(0, 3), (20, 9), (70, 1)] {
            seen.take(bytes, start + Duration::from_millis(at));
        }
        assert_eq!((seen.peak_bytes, seen.samples), (9, 3));
        assert_eq!(seen.largest_gap, Duration::from_millis(50));
        let later = start + Duration::from_millis(200);
        assert_eq!(seen.gap_at(later), Duration::from_millis(130));
    }
}
