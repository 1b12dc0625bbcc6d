//! Matrix products of cuBLASLt: `out[rows, columns] = x[rows, inner] * weight[columns, inner]^T`
//! (plus `out` itself), sums in f32, by algorithms that never split a sum.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};

use super::Shape;
use crate::backend::BackendError;
use crate::backend::cuda::device::{Buffer, Device, Purpose};
use crate::backend::cuda::library::{self, Needed};
use crate::backend::cuda::recording::beside_no_recording;
use crate::backend::cuda::tensor::Format;

/// Bytes that algorithms may use beside their operands.
pub const WORKSPACE: usize = 32 << 20;

/// The library on one device.
pub struct Library {
    device: Rc<Device>,
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
}

/// An algorithm of the library.
#[derive(Clone, Copy, PartialEq)]
pub struct Algorithm(sys::cublasLtMatmulAlgo_t);

/// Addresses of a product.
#[derive(Clone, Copy)]
pub struct Operands {
    /// `[rows, inner]` in the weight's format.
    pub x: u64,
    /// `[columns, inner]`.
    pub weight: u64,
    /// `[rows, columns]` in the output's format.
    pub out: u64,
}

impl Operands {
    /// From row `first` on.
    pub fn behind(self, first: usize, shape: Shape) -> Self {
        Operands {
            x: self.x + (first * shape.inner * shape.format.bytes()) as u64,
            out: self.out + (first * shape.columns * shape.out.bytes()) as u64,
            ..self
        }
    }
}

impl Library {
    /// Opens the library; `None` where it is missing or does not start, as under a driver that is older
    /// than it.
    ///
    /// # Errors
    /// [`BackendError::Device`] where the device has no room for its workspace.
    pub fn new(device: &Rc<Device>) -> Result<Option<Self>, BackendError> {
        if library::open(Needed::Products).is_err() {
            return Ok(None);
        }
        let workspace = device.allocate(WORKSPACE, Purpose::Staging)?;
        Ok(result::create_handle().ok().map(|handle| Library {
            device: Rc::clone(device),
            handle,
            workspace,
        }))
    }

    /// At most `count` algorithms for `rows`, in the order in which the library ranks them; none
    /// where it has none.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn ranked(
        &self,
        shape: Shape,
        rows: usize,
        count: usize,
    ) -> Result<Vec<Algorithm>, BackendError> {
        let problem = Problem::new(shape, rows)?;
        let preference = Preference::without_split_sums()?;
        // SAFETY: zeroes are valid results to be overwritten.
        let empty: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut found = vec![empty; count];
        let (asked, mut answered) = (i32::try_from(count).unwrap_or(i32::MAX), 0);
        // SAFETY: every descriptor is alive, `found` has room for as many as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                problem.product,
                problem.weight,
                problem.x,
                problem.out,
                problem.out,
                preference.0,
                asked,
                found.as_mut_ptr(),
                &mut answered,
            )
        };
        // No algorithm is not an error: other kernels take over.
        let answered = status.result().map_or(0, |()| answered);
        found.truncate(usize::try_from(answered).unwrap_or(0));
        found.retain(|result| result.state.result().is_ok());
        Ok(found.iter().map(|found| Algorithm(found.algo)).collect())
    }

    /// Whether `algorithm` can do `rows`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn accepts(
        &self,
        shape: Shape,
        rows: usize,
        algorithm: &Algorithm,
    ) -> Result<bool, BackendError> {
        let problem = Problem::new(shape, rows)?;
        let mut found = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: every descriptor is alive; zeroes are a valid result to be overwritten.
        let (status, found) = unsafe {
            let status = sys::cublasLtMatmulAlgoCheck(
                self.handle,
                problem.product,
                problem.weight,
                problem.x,
                problem.out,
                problem.out,
                &algorithm.0,
                found.as_mut_ptr(),
            );
            (status, found.assume_init())
        };
        Ok(status.result().is_ok() && found.workspaceSize <= WORKSPACE)
    }

    /// Starts a product; `add` adds to what `out` holds.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn start(
        &self,
        problem: &Problem,
        algorithm: &Algorithm,
        operands: Operands,
        add: bool,
    ) -> Result<(), BackendError> {
        let (one, beta) = (1.0_f32, if add { 1.0_f32 } else { 0.0 });
        // SAFETY: descriptors are alive and say how large the operands are.
        unsafe {
            result::matmul(
                self.handle,
                problem.product,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                operands.weight as *const c_void,
                problem.weight,
                operands.x as *const c_void,
                problem.x,
                operands.out as *const c_void,
                problem.out,
                operands.out as *mut c_void,
                problem.out,
                &algorithm.0,
                self.workspace.pointer() as *mut c_void,
                WORKSPACE,
                self.device.stream().cu_stream().cast(),
            )
        }
        .map_err(failed("a product"))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It waits for the device. SAFETY: created by `new` and destroyed once. What fails leaks memory only.
        let _ = beside_no_recording(|| unsafe { result::destroy_handle(self.handle) });
    }
}

/// Descriptors of a product: the library counts columns first, so the weight comes first.
pub struct Problem {
    product: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Problem {
    /// Describes a product of `rows`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(shape: Shape, rows: usize) -> Result<Self, BackendError> {
        let f32 = sys::cudaDataType_t::CUDA_R_32F;
        let type_of = |format| match format {
            Format::F16 => sys::cudaDataType_t::CUDA_R_16F,
            Format::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            _ => f32,
        };
        let (format, out) = (type_of(shape.format), type_of(shape.out));
        let (columns, inner, rows) = (shape.columns as u64, shape.inner as u64, rows as u64);
        let layout = |format, rows, columns| {
            result::create_matrix_layout(format, rows, columns, rows as i64)
                .map_err(failed("layout"))
        };
        let product = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32)
            .map_err(failed("descriptor"))?;
        let problem = Problem {
            product,
            weight: layout(format, inner, columns)?,
            x: layout(format, inner, rows)?,
            out: layout(out, columns, rows)?,
        };
        let transposed = 1_i32;
        // SAFETY: the descriptor is alive, the attribute is a 32-bit number.
        unsafe {
            result::set_matmul_desc_attribute(
                product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of::<i32>(),
            )
        }
        .map_err(failed("descriptor"))?;
        Ok(problem)
    }
}

impl Drop for Problem {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed once. What fails leaks memory only.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in [self.weight, self.x, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn without_split_sums() -> Result<Self, BackendError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref().map_err(failed("preference"))?);
        let none = 0_u32;
        // SAFETY: the preference is alive, the attributes have these sizes.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            )
            .map_err(failed("preference"))?;
            result::set_matmul_pref_attribute(
                preference.0,
                Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                (&raw const none).cast(),
                size_of::<u32>(),
            )
            .map_err(failed("preference"))?;
        }
        Ok(preference)
    }
}

static WORKSPACE_BYTES: usize = WORKSPACE;

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once. What fails leaks memory only.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Version of the library, and where it was found.
///
/// # Errors
/// [`BackendError::Device`] where it is missing.
pub fn version() -> Result<(String, std::path::PathBuf), BackendError> {
    let path = library::open(Needed::Products)?;
    // SAFETY: the symbol exists: the library was opened.
    let version = unsafe { sys::cublasLtGetVersion() };
    let (major, rest) = (version / 10_000, version % 10_000);
    Ok((format!("{major}.{}.{}", rest / 100, rest % 100), path))
}

fn failed(what: &'static str) -> impl Fn(CublasError) -> BackendError {
    move |error| BackendError::Device(format!("cublasLt: {what}: {error:?}"))
}
