//! What of a GPU worker this machine has, for people who wonder why there is none.

use super::device::{self, Device};
use super::{CudaBackend, compile, product};
use crate::backend::{Backend, BackendError, TensorData};

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
    /// Whether kernels compile, run and are right on the first GPU.
    pub self_test: Found<()>,
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
    let count = gpu_count();
    Survey {
        driver: device::driver_version().map(|(major, minor)| format!("CUDA {major}.{minor}")),
        gpus: (0..count).map(gpu).collect(),
        compiler: compile::version()
            .map(|((major, minor), path)| format!("NVRTC {major}.{minor} ({})", path.display())),
        products: product::lt::version()
            .map(|(version, path)| format!("cuBLASLt {version} ({})", path.display())),
        self_test: self_test(),
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

/// A product of whole numbers, which every arithmetic here computes exactly.
fn self_test() -> Found<()> {
    const SIDE: usize = 64;
    let backend = CudaBackend::new(0)?;
    let number = |i: usize, by: usize| (i * by % 7) as f32 - 3.0;
    let x: Vec<f32> = (0..SIDE * SIDE).map(|i| number(i, 5)).collect();
    let w: Vec<f32> = (0..SIDE * SIDE).map(|i| number(i, 3)).collect();
    let table = backend.weight(TensorData::F32(x.clone()), SIDE, SIDE)?;
    let half = w.iter().map(|&w| half::f16::from_f32(w)).collect();
    let weight = backend.weight(TensorData::F16(half), SIDE, SIDE)?;
    let (mut input, mut out) = (backend.tensor(SIDE, SIDE)?, backend.tensor(SIDE, SIDE)?);
    let ids: Vec<u32> = (0..SIDE as u32).collect();
    backend.embed(&table, &ids, &mut input)?;
    backend.matmul(&input, &weight, None, &mut out)?;
    let found = backend.to_host(&out)?;
    for (i, &found) in found.iter().enumerate() {
        let (row, column) = (i / SIDE, i % SIDE);
        let terms = (0..SIDE).map(|k| x[row * SIDE + k] * w[column * SIDE + k]);
        let expected: f32 = terms.sum();
        if found != expected {
            return Err(BackendError::Device(format!(
                "kernel self-test: element {i} of a product is {found}, expected {expected}"
            )));
        }
    }
    Ok(())
}
