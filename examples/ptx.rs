//! Makes the embedded PTX of the kernels anew, as `src/backend/cuda/kernels/ptx.zst`; to be run
//! after a kernel was changed. Needs NVRTC, no GPU: `.ci/run` fetches it, and
//! `KVASSAY_CUDA_LIBS` names its folder.

#![allow(clippy::print_stdout)] // A program that prints.

use kvassay::backend::cuda;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = cuda::ptx_archive()?;
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/backend/cuda/kernels/ptx.zst"
    );
    std::fs::write(path, &archive)?;
    println!("{path}: {} bytes", archive.len());
    Ok(())
}
