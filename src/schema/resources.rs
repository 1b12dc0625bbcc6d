//! What an arm took of the machine, and what a protocol allows it to take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Schema name of [`Resources`] documents.
pub const RESOURCES_SCHEMA: &str = "kvassay.resources/1";

/// `arms/<arm>/resources.json`: what an arm of a built-in worker took of its device. Written when
/// the arm begins, about once a second while it runs, and when it ends or stops: of a process that
/// was killed, what came after the last write may be missing; one write follows a forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Always [`RESOURCES_SCHEMA`].
    #[schemars(extend("const" = RESOURCES_SCHEMA))]
    pub schema: String,
    /// One part per process that worked on the arm, in order; an arm that was never interrupted
    /// has one.
    pub parts: Vec<ResourcePart>,
}

/// What one process took for an arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourcePart {
    /// Name of the device.
    pub device: String,
    /// All memory of the device in bytes; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// What the worker allocated, by purpose.
    pub allocations: Allocations,
    /// Memory in use, sampled; absent where nothing on this machine can be sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<MemorySamples>,
}

/// Most bytes that the worker held at once, each purpose by itself, as it asked for them: what an
/// allocator rounds up, and what a driver takes for itself, is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allocations {
    /// Weights, norms, biases.
    pub weights: u64,
    /// Stored keys, values and inline scales.
    pub cache: u64,
    /// Counters beside the cache.
    pub counters: u64,
    /// Activations, tables, workspaces.
    pub staging: u64,
    /// Recorded graphs of kernels.
    pub graphs: u64,
    /// States of recurrent layers; absent where a model has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub states: u64,
}

/// Memory in use, read every 20 ms by a thread of its own while the arm was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySamples {
    /// Whose memory it is.
    pub scope: SampleScope,
    /// Largest sample in bytes.
    pub peak_bytes: u64,
    /// Number of samples.
    pub samples: u64,
    /// Largest time between two samples, or from the last one to the end, in milliseconds, rounded
    /// up.
    pub largest_gap_ms: u64,
}

/// Whose memory is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SampleScope {
    /// Device memory in use, other processes included.
    Device,
    /// The resident set of the process, mapped weight files included (the CPU worker).
    Process,
}

/// The parts of an arm as one: largest figures, and sums of counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceSummary {
    /// Name of every device that a part ran on.
    pub devices: Vec<String>,
    /// All memory of the smallest device in bytes; absent where one is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Largest allocations of any part, each purpose by itself.
    pub allocations: Allocations,
    /// Largest sample and gap of any part, all samples; absent where a part was not sampled. The
    /// time between two parts is no gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<MemorySamples>,
    /// Number of parts: one more than the times at which the arm was interrupted.
    pub parts: u32,
}

/// What an arm may take. Crossing a limit, or no evidence about it, makes a certificate incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimits {
    /// Largest sample of memory in use, in bytes: of the device, or of the process on the CPU
    /// worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_device_bytes: Option<u64>,
    /// Largest time between two samples, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_sample_gap_ms: Option<u64>,
}

impl Resources {
    /// Nothing yet.
    pub fn empty() -> Self {
        Resources {
            schema: RESOURCES_SCHEMA.to_owned(),
            parts: Vec::new(),
        }
    }

    /// What an earlier process took and did not leave, or what was lost since.
    pub fn unknown() -> Self {
        Resources {
            parts: vec![ResourcePart {
                device: "unknown".to_owned(),
                total_bytes: None,
                allocations: Allocations::default(),
                sampled: None,
            }],
            ..Resources::empty()
        }
    }

    /// All parts as one; `None` where there is none.
    pub fn summary(&self) -> Option<ResourceSummary> {
        let first = self.parts.first()?;
        let mut summary = ResourceSummary {
            devices: Vec::new(),
            total_bytes: first.total_bytes,
            allocations: Allocations::default(),
            sampled: first.sampled.map(|samples| MemorySamples {
                samples: 0,
                ..samples
            }),
            parts: u32::try_from(self.parts.len()).unwrap_or(u32::MAX),
        };
        for part in &self.parts {
            if !summary.devices.contains(&part.device) {
                summary.devices.push(part.device.clone());
            }
            let totals = summary.total_bytes.zip(part.total_bytes);
            summary.total_bytes = totals.map(|(one, other)| one.min(other));
            summary.allocations = summary.allocations.largest(part.allocations);
            summary.sampled = summary
                .sampled
                .zip(part.sampled)
                .and_then(|(one, other)| one.with(other));
        }
        Some(summary)
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Allocations {
    fn largest(self, other: Allocations) -> Allocations {
        Allocations {
            weights: self.weights.max(other.weights),
            cache: self.cache.max(other.cache),
            counters: self.counters.max(other.counters),
            staging: self.staging.max(other.staging),
            graphs: self.graphs.max(other.graphs),
            states: self.states.max(other.states),
        }
    }
}

impl MemorySamples {
    /// Samples of two parts as one; `None` where they are of different memories.
    fn with(self, other: MemorySamples) -> Option<MemorySamples> {
        (self.scope == other.scope).then(|| MemorySamples {
            scope: self.scope,
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            samples: self.samples.saturating_add(other.samples),
            largest_gap_ms: self.largest_gap_ms.max(other.largest_gap_ms),
        })
    }
}

impl ResourceLimits {
    /// The first limit that `summary` crosses or says nothing about, as one clause with what was
    /// found and the limit; `None` where all are kept.
    pub fn crossed(&self, summary: Option<&ResourceSummary>) -> Option<Crossed> {
        let Some(summary) = summary else {
            return Some(Crossed::Unknown("has no resource evidence".to_owned()));
        };
        let Some(sampled) = &summary.sampled else {
            let what = "ran where memory in use is not sampled";
            return Some(Crossed::Unknown(what.to_owned()));
        };
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let (peak, gap) = (sampled.peak_bytes, sampled.largest_gap_ms);
        let beyond = |found: u64, limit: Option<u64>| limit.filter(|limit| found > *limit);
        if let Some(limit) = beyond(peak, self.peak_device_bytes) {
            return Some(Crossed::Limit(format!(
                "had {peak} bytes ({:.2} GiB) of memory in use, peak_device_bytes allows {limit} \
                 ({:.2} GiB)",
                gib(peak),
                gib(limit)
            )));
        }
        beyond(gap, self.largest_sample_gap_ms).map(|limit| {
            Crossed::Limit(format!(
                "had {gap} ms between two samples of memory, largest_sample_gap_ms allows {limit}"
            ))
        })
    }
}

/// Why resource limits are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Crossed {
    /// A figure lies beyond its limit.
    Limit(String),
    /// Nothing is known about a figure.
    Unknown(String),
}

#[cfg(test)]
mod tests;
