//! What a backend takes of its device, readable from any thread while it works.

use std::sync::Arc;

use super::ledger::Ledger;
use crate::schema::SampleScope;

/// The device's memory as a whole.
pub trait Gauge: Send + Sync {
    /// Whose memory is read.
    fn scope(&self) -> SampleScope;

    /// Bytes in use now; `None` where they cannot be read.
    fn in_use(&self) -> Option<u64>;
}

/// What a backend takes of its device.
#[derive(Clone)]
pub struct Meter {
    /// Name of the device.
    pub device: String,
    /// All memory of the device in bytes, where it is known.
    pub total_bytes: Option<u64>,
    /// What the backend allocated.
    pub ledger: Arc<Ledger>,
    /// The device's memory; `None` where nothing can be read.
    pub gauge: Option<Arc<dyn Gauge>>,
}

/// This process on the processor: its resident set, where the system has `/proc`.
pub struct Process;

impl Process {
    /// The gauge, where it reads something.
    pub fn gauge() -> Option<Arc<dyn Gauge>> {
        Process
            .in_use()
            .map(|_| Arc::new(Process) as Arc<dyn Gauge>)
    }

    /// All memory of the machine in bytes.
    pub fn total_bytes() -> Option<u64> {
        field_of("/proc/meminfo", "MemTotal:")
    }

    /// Memory of the machine that a process can have without others being pushed out, in bytes.
    pub fn free_bytes() -> Option<u64> {
        field_of("/proc/meminfo", "MemAvailable:")
    }
}

impl Gauge for Process {
    fn scope(&self) -> SampleScope {
        SampleScope::Process
    }

    fn in_use(&self) -> Option<u64> {
        field_of("/proc/self/status", "VmRSS:")
    }
}

/// A size of `/proc`, where it stands as `NAME: 123 kB`.
fn field_of(path: &str, name: &str) -> Option<u64> {
    kibibytes(&std::fs::read_to_string(path).ok()?, name)
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = rest.trim().strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        let text = "Name:\tkvassay\nVmRSS:\t    2048 kB\nVmData:\t 1 kB\n";
        assert_eq!(kibibytes(text, "VmRSS:"), Some(2 << 20));
        assert_eq!(kibibytes(text, "VmSize:"), None);
        assert_eq!(kibibytes("VmRSS: 12 MB\n", "VmRSS:"), None);
        assert_eq!(kibibytes("VmRSS: x kB\n", "VmRSS:"), None);
        let huge = format!("VmRSS: {} kB\n", u64::MAX);
        assert_eq!(kibibytes(&huge, "VmRSS:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_touched_is_in_use() {
        let gauge = Process::gauge().unwrap();
        let before = gauge.in_use().unwrap();
        let held = vec![1_u8; 64 << 20];
        let grown = gauge.in_use().unwrap().saturating_sub(before);
        assert!(held.iter().all(|&byte| byte == 1));
        assert!(grown > 32 << 20, "{grown}");
        assert!(Process::total_bytes().unwrap() > before);
        assert!(Process::free_bytes().unwrap() < Process::total_bytes().unwrap());
    }
}
