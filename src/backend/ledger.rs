//! Bytes that a backend holds, by purpose, with the most that it ever held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights, norms, biases.
    Weights = 0,
    /// Stored keys, values and inline scales.
    Cache = 1,
    /// Counters beside the cache: what saturated or changed.
    Counters = 2,
    /// Activations, tables, workspaces.
    Staging = 3,
    /// Recorded graphs of kernels.
    Graphs = 4,
    /// States of recurrent layers.
    States = 5,
}

/// Every purpose, with its name.
pub const PURPOSES: [(Purpose, &str); 6] = [
    (Purpose::Weights, "weights"),
    (Purpose::Cache, "cache"),
    (Purpose::Counters, "counters"),
    (Purpose::Staging, "staging"),
    (Purpose::Graphs, "graphs"),
    (Purpose::States, "states"),
];

/// Bytes by purpose: held now, and the most since the last [`Ledger::restart`]. Shared between the
/// thread that allocates and whoever looks.
#[derive(Debug, Default)]
pub struct Ledger {
    held: [AtomicU64; PURPOSES.len()],
    peak: [AtomicU64; PURPOSES.len()],
}

impl Ledger {
    /// Notes that so many bytes were allocated.
    pub fn add(&self, purpose: Purpose, bytes: u64) {
        let at = purpose as usize;
        let held = self.held[at].fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak[at].fetch_max(held, Ordering::Relaxed);
    }

    /// Notes that so many bytes were freed.
    pub fn remove(&self, purpose: Purpose, bytes: u64) {
        self.held[purpose as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes held now.
    pub fn held(&self, purpose: Purpose) -> u64 {
        self.held[purpose as usize].load(Ordering::Relaxed)
    }

    /// Most bytes held since the last restart.
    pub fn peak(&self, purpose: Purpose) -> u64 {
        self.peak[purpose as usize].load(Ordering::Relaxed)
    }

    /// Lets the peaks begin at what is held now.
    pub fn restart(&self) {
        for (purpose, _) in PURPOSES {
            let held = self.held(purpose);
            self.peak[purpose as usize].store(held, Ordering::Relaxed);
        }
    }
}

/// Bytes in a ledger for as long as they are held.
#[derive(Debug, Default)]
pub struct Held {
    entry: Option<(Arc<Ledger>, Purpose)>,
    bytes: u64,
}

impl Held {
    /// Enters `bytes`.
    pub fn new(ledger: &Arc<Ledger>, purpose: Purpose, bytes: u64) -> Self {
        ledger.add(purpose, bytes);
        Held {
            entry: Some((Arc::clone(ledger), purpose)),
            bytes,
        }
    }

    /// Enters that the bytes are now `bytes`.
    pub fn set(&mut self, bytes: u64) {
        if let Some((ledger, purpose)) = &self.entry {
            match bytes.checked_sub(self.bytes) {
                Some(more) => ledger.add(*purpose, more),
                None => ledger.remove(*purpose, self.bytes - bytes),
            }
        }
        self.bytes = bytes;
    }
}

impl Clone for Held {
    /// What is copied is held twice.
    fn clone(&self) -> Self {
        match &self.entry {
            Some((ledger, purpose)) => Held::new(ledger, *purpose, self.bytes),
            None => Held::default(),
        }
    }
}

impl PartialEq for Held {
    /// Where something is held is no part of its value.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_stand_until_the_next_restart() {
        let ledger = Ledger::default();
        ledger.add(Purpose::Weights, 100);
        ledger.add(Purpose::Cache, 30);
        ledger.remove(Purpose::Cache, 20);
        ledger.add(Purpose::Cache, 5);
        assert_eq!(ledger.held(Purpose::Cache), 15);
        assert_eq!(ledger.peak(Purpose::Cache), 30);
        ledger.restart();
        assert_eq!(ledger.peak(Purpose::Cache), 15);
        assert_eq!(ledger.peak(Purpose::Weights), 100);
        assert_eq!(ledger.peak(Purpose::Graphs), 0);
    }

    #[test]
    fn what_is_dropped_is_no_longer_held() {
        let ledger = Arc::new(Ledger::default());
        let mut first = Held::new(&ledger, Purpose::Staging, 10);
        let second = first.clone();
        first.set(25);
        assert_eq!(ledger.held(Purpose::Staging), 35);
        first.set(5);
        drop(second);
        assert_eq!(ledger.held(Purpose::Staging), 5);
        drop(first);
        assert_eq!(ledger.held(Purpose::Staging), 0);
        assert_eq!(ledger.peak(Purpose::Staging), 35);
        let mut nowhere = Held::default();
        nowhere.set(7);
    }

    #[test]
    fn purposes_are_listed_in_their_own_order() {
        for (at, (purpose, _)) in PURPOSES.iter().enumerate() {
            assert_eq!(*purpose as usize, at);
        }
    }
}
