//! Finding NVIDIA's libraries at run time, without a panic where they are missing.
//!
//! The bindings open libraries by their plain names and panic where one, or a symbol of it, is
//! absent. So each library is opened here first, also from well-known folders that the loader does
//! not search, and its symbols are looked up; the bindings then find it loaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::backend::BackendError;

/// Folders (a colon-separated list) that are searched first, but for what the loader itself finds under
/// a plain name such as `libnvrtc.so`.
pub const SEARCH_VARIABLE: &str = "KVASSAY_CUDA_LIBS";

const FOLDERS: [&str; 5] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/wsl/lib",
];

/// A library of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// The driver.
    Driver,
    /// What of the driver times the device, which is newer than the rest.
    Timing,
    /// The run-time compiler.
    Compiler,
    /// Matrix products; optional.
    Products,
}

impl Needed {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Needed::Driver | Needed::Timing => "libcuda (the NVIDIA driver)",
            Needed::Compiler => "libnvrtc",
            Needed::Products => "libcublasLt",
        }
    }

    fn file_names(self) -> &'static [&'static str] {
        match self {
            Needed::Driver | Needed::Timing => &["libcuda.so.1", "libcuda.so"],
            Needed::Compiler => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Needed::Products => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
        }
    }

    /// The name that the bindings try first.
    fn plain_name(self) -> &'static str {
        match self {
            Needed::Driver | Needed::Timing => "libcuda.so",
            Needed::Compiler => "libnvrtc.so",
            Needed::Products => "libcublasLt.so",
        }
    }

    /// Every symbol that is called.
    fn symbols(self) -> &'static [&'static str] {
        match self {
            Needed::Driver => &[
                "cuInit",
                "cuDriverGetVersion",
                "cuDeviceGet",
                "cuDeviceGetCount",
                "cuDeviceGetName",
                "cuDeviceTotalMem_v2",
                "cuDeviceGetAttribute",
                "cuDevicePrimaryCtxRetain",
                "cuDevicePrimaryCtxRelease_v2",
                "cuCtxSetCurrent",
                "cuCtxGetCurrent",
                "cuStreamCreate",
                "cuStreamDestroy_v2",
                "cuStreamSynchronize",
                "cuMemAlloc_v2",
                "cuMemFree_v2",
                "cuMemAllocAsync",
                "cuMemFreeAsync",
                "cuDeviceGetDefaultMemPool",
                "cuMemPoolSetAttribute",
                "cuMemGetInfo_v2",
                "cuMemHostAlloc",
                "cuMemFreeHost",
                "cuMemcpyHtoDAsync_v2",
                "cuMemcpyDtoHAsync_v2",
                "cuMemcpyDtoDAsync_v2",
                "cuMemsetD8Async",
                "cuEventCreate",
                "cuEventDestroy_v2",
                "cuEventRecord",
                "cuEventSynchronize",
                "cuModuleLoadData",
                "cuModuleUnload",
                "cuModuleGetFunction",
                "cuFuncSetAttribute",
                "cuLaunchKernel",
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                "cuStreamBeginCapture_v2",
                "cuStreamEndCapture",
                "cuGraphInstantiateWithFlags",
                "cuGraphUpload",
                "cuGraphLaunch",
                "cuGraphExecDestroy",
                "cuGraphDestroy",
                "cuGetErrorName",
                "cuGetErrorString",
            ],
            Needed::Timing => &["cuEventElapsedTime_v2"],
            Needed::Compiler => &[
                "nvrtcVersion",
                "nvrtcCreateProgram",
                "nvrtcCompileProgram",
                "nvrtcDestroyProgram",
                "nvrtcGetCUBIN",
                "nvrtcGetCUBINSize",
                "nvrtcGetPTX",
                "nvrtcGetPTXSize",
                "nvrtcGetProgramLog",
                "nvrtcGetProgramLogSize",
            ],
            Needed::Products => &[
                "cublasLtGetVersion",
                "cublasLtCreate",
                "cublasLtDestroy",
                "cublasLtMatmul",
                "cublasLtMatmulAlgoCheck",
                "cublasLtMatmulAlgoGetHeuristic",
                "cublasLtMatmulDescCreate",
                "cublasLtMatmulDescDestroy",
                "cublasLtMatmulDescSetAttribute",
                "cublasLtMatmulPreferenceCreate",
                "cublasLtMatmulPreferenceDestroy",
                "cublasLtMatmulPreferenceSetAttribute",
                "cublasLtMatrixLayoutCreate",
                "cublasLtMatrixLayoutDestroy",
            ],
        }
    }

    /// Whether the bindings find the library, which they open by name.
    fn is_visible(self) -> bool {
        // SAFETY: opens the library by name and closes it again; NVIDIA's libraries allow that.
        unsafe {
            match self {
                Needed::Driver | Needed::Timing => cudarc::driver::sys::is_culib_present(),
                Needed::Compiler => cudarc::nvrtc::sys::is_culib_present(),
                Needed::Products => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }
}

/// Opens a library for the rest of the process and returns where it was found.
///
/// # Errors
/// [`BackendError::Device`] names what is missing and where it was looked for.
pub fn open(needed: Needed) -> Result<PathBuf, BackendError> {
    let (library, path) = find(needed)?;
    for symbol in needed.symbols() {
        // SAFETY: the symbol is only looked up, never called through this type.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        if found.is_err() {
            return Err(missing(
                needed,
                &format!("{} is too old: it has no {symbol}", path.display()),
            ));
        }
    }
    // Kept for good: functions of it are called until the process ends.
    std::mem::forget(library);
    if needed.is_visible() {
        Ok(path)
    } else {
        Err(missing(needed, "the loader does not know it by its name"))
    }
}

fn find(needed: Needed) -> Result<(Library, PathBuf), BackendError> {
    // Where the loader knows the plain name, the bindings call that library, whatever else is open.
    let plain = Path::new(needed.plain_name());
    if let Ok(library) = load(plain.as_os_str()) {
        return Ok((library, plain.to_owned()));
    }
    let mut reasons = Vec::new();
    for folder in folders() {
        for name in needed.file_names() {
            let path = folder.join(name);
            if folder.as_os_str().is_empty() || path.exists() {
                if needed == Needed::Compiler {
                    open_beside(&folder);
                }
                match load(path.as_os_str()) {
                    Ok(library) => return Ok((library, path)),
                    Err(reason) => reasons.push(reason),
                }
            }
        }
    }
    // The first reason is that of the loader's own search.
    let reason = reasons.into_iter().next().unwrap_or_default();
    Err(missing(needed, &reason))
}

/// Chosen folders, the loader's own search (an empty path), well-known folders.
fn folders() -> Vec<PathBuf> {
    let chosen = std::env::var_os(SEARCH_VARIABLE).unwrap_or_default();
    let chosen: Vec<PathBuf> = std::env::split_paths(&chosen)
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect();
    let known = FOLDERS.iter().map(PathBuf::from);
    chosen
        .into_iter()
        .chain([PathBuf::new()])
        .chain(known)
        .collect()
}

/// Some builds of the compiler find their builtins only where those are loaded already.
fn open_beside(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libnvrtc-builtins.so.")
            && let Ok(library) = load(entry.path().as_os_str())
        {
            std::mem::forget(library);
        }
    }
}

fn load(path: &OsStr) -> Result<Library, String> {
    // SAFETY: NVIDIA's libraries have no requirements on when their initialisers run.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // The loader's own words stand behind the error.
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        cause.unwrap_or_else(|| error.to_string())
    })
}

fn missing(needed: Needed, reason: &str) -> BackendError {
    BackendError::Device(format!(
        "{} not found: {reason}; expected one of {} on the loader's path, in the folders of \
         {SEARCH_VARIABLE} or in {}",
        needed.name(),
        needed.file_names().join(", "),
        FOLDERS[0]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever this machine has, asking is safe and an error says what is missing.
    #[test]
    fn probing_never_panics() {
        for needed in [
            Needed::Driver,
            Needed::Timing,
            Needed::Compiler,
            Needed::Products,
        ] {
            if let Err(error) = open(needed) {
                let message = error.to_string();
                assert!(message.contains(needed.name()), "{message}");
                assert!(message.contains(needed.file_names()[0]), "{message}");
            }
        }
    }
}
