//! What of a GPU worker this machine has, for people who wonder why there is none.

use super::device::{self, Device};
use super::functions::Source;
use super::{compile, product, self_test};
use crate::backend::BackendError;

/// Something that was looked for: what was found, or what is missing.
pub type Found<T> = Result<T, BackendError>;

/// Everything that was looked for.
#[derive(Debug)]
pub struct Survey {
    /// CUDA version of the driver.
    pub driver: Found<String>,
    /// Every GPU.
    pub gpus: Vec<Found<Gpu>>,
    /// Version and place of the run-time compiler.
    pub compiler: Found<String>,
    /// Version and place of cuBLASLt; without it products are slower.
    pub products: Found<String>,
    /// Whether kernels run and are right on the first GPU that is new enough, and where they came from.
    pub self_test: Found<String>,
    /// The same for those of the binary, which run where there is no compiler.
    pub embedded_self_test: Found<String>,
}

/// One GPU.
#[derive(Debug)]
pub struct Gpu {
    /// Name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Free bytes.
    pub free: usize,
    /// All bytes.
    pub total: usize,
}

/// Looks for everything; nothing is an error of the survey itself.
pub fn survey() -> Survey {
    let gpus: Vec<Found<Gpu>> = (0..gpu_count()).map(gpu).collect();
    let first = gpus.iter().position(Result::is_ok).unwrap_or(0);
    Survey {
        driver: device::driver_version().map(|(major, minor)| format!("CUDA {major}.{minor}")),
        gpus,
        compiler: compile::version()
            .map(|((major, minor), path)| format!("NVRTC {major}.{minor} ({})", path.display())),
        products: product::lt::version()
            .map(|(version, path)| format!("cuBLASLt {version} ({})", path.display())),
        self_test: self_test::run(first, Source::Compiler),
        embedded_self_test: self_test::run(first, Source::Embedded),
    }
}

/// GPUs that the driver sees; none where there is no driver.
pub fn gpu_count() -> usize {
    device::count().unwrap_or(0)
}

fn gpu(ordinal: usize) -> Found<Gpu> {
    let device = Device::open(ordinal)?;
    let (free, total) = device.memory()?;
    Ok(Gpu {
        name: device.name().to_owned(),
        capability: device.capability(),
        free,
        total,
    })
}
