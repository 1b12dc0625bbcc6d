//! One GPU: context, stream, memory, copies and launches.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute_enum, CUmemPool_attribute};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;

use super::library::{self, Needed};
pub use super::memory::Buffer;
use super::recording;
pub use crate::backend::ledger::{PURPOSES, Purpose};
use crate::backend::{BackendError, Gauge, Ledger, Meter};
use crate::schema::SampleScope;

/// Least compute capability: 16-bit matrix instructions on BF16, asynchronous copies.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// Freed bytes that stay with the process.
const KEPT_BYTES: u64 = 1 << 30;

/// A GPU with one stream, in whose order everything happens. Belongs to one thread.
pub struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    name: String,
    capability: (i32, i32),
    shared_limit: Cell<usize>,
    multiprocessors: usize,
    pub(super) ledger: Arc<Ledger>,
    pub(super) recordings: recording::State,
}

/// Grid of a launch.
pub type Grid = (u32, u32, u32);

impl Device {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`BackendError::Device`] says what is missing: driver, GPU, compute capability.
    pub fn open(ordinal: usize) -> Result<Rc<Self>, BackendError> {
        let count = count()?;
        if ordinal >= count {
            return Err(BackendError::Device(format!(
                "GPU {ordinal}: the driver sees {count} GPUs, numbered from 0"
            )));
        }
        let context = CudaContext::new(ordinal).map_err(failed("context"))?;
        // SAFETY: all buffers live on one stream of this device, so nothing has to be tracked.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("stream"))?;
        let capability = context
            .compute_capability()
            .map_err(failed("compute capability"))?;
        let name = context.name().map_err(failed("name"))?;
        if capability < LEAST_CAPABILITY {
            return Err(BackendError::Device(format!(
                "GPU {ordinal} ({name}): compute capability {}.{}, expected at least {}.{}",
                capability.0, capability.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1
            )));
        }
        keep_freed_memory(&context)?;
        let shared_limit = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(failed("shared memory"))?;
        let multiprocessors = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(failed("multiprocessors"))?;
        Ok(Rc::new(Device {
            context,
            stream,
            name,
            capability,
            shared_limit: Cell::new(usize::try_from(shared_limit).unwrap_or(0)),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
            ledger: Arc::default(),
            recordings: recording::State::default(),
        }))
    }

    /// Name of the GPU.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Most shared memory of a block, in bytes.
    pub fn shared_limit(&self) -> usize {
        self.shared_limit.get()
    }

    /// Takes the device for one whose blocks have less.
    #[cfg(test)]
    pub fn limit_shared(&self, bytes: usize) {
        self.shared_limit.set(bytes.min(self.shared_limit()));
    }

    /// Multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Free and total memory in bytes.
    pub fn memory(&self) -> Result<(usize, usize), BackendError> {
        self.context.mem_get_info().map_err(failed("memory"))
    }

    /// Bytes that are allocated for a purpose.
    pub fn allocated(&self, purpose: Purpose) -> u64 {
        self.ledger.held(purpose)
    }

    /// What is allocated, for other threads.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// The memory of the whole GPU, for other threads.
    pub fn gauge(&self) -> Arc<dyn Gauge> {
        Arc::new(InUse(Arc::clone(&self.context)))
    }

    /// What is taken of it, now and from then on; `device` is how reports name it.
    pub fn meter(&self, device: String) -> Meter {
        Meter {
            device,
            total_bytes: self.memory().ok().map(|(_, total)| total as u64),
            ledger: self.ledger(),
            gauge: Some(self.gauge()),
        }
    }

    pub(super) fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Allocates bytes, contents unspecified.
    ///
    /// # Errors
    /// [`BackendError::Device`] says how much was asked for and how much is free.
    pub fn allocate(
        self: &Rc<Self>,
        bytes: usize,
        purpose: Purpose,
    ) -> Result<Buffer, BackendError> {
        self.recordings.refuse("an allocation")?;
        let size = bytes.max(1);
        // SAFETY: the context is current on this thread; the pointer is freed once, by Buffer, and
        // used on this stream only.
        let pointer = unsafe {
            if self.in_stream_order(purpose) {
                result::malloc_async(self.stream.cu_stream(), size)
            } else {
                result::malloc_sync(size)
            }
        }
        .map_err(|error| self.out_of_memory(bytes, purpose, error))?;
        self.ledger.add(purpose, bytes as u64);
        Ok(Buffer::new(Rc::clone(self), pointer, bytes, purpose))
    }

    /// What comes and goes with every pass must not wait for the device.
    pub(super) fn in_stream_order(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Staging && self.context.has_async_alloc()
    }

    fn out_of_memory(&self, bytes: usize, purpose: Purpose, error: DriverError) -> BackendError {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let free = self.memory().map_or(0, |(free, _)| free as u64);
        let name = PURPOSES[purpose as usize].1;
        let hint = match purpose {
            Purpose::Cache | Purpose::Counters | Purpose::States => "; fewer slots need less",
            Purpose::Staging => "; shorter prefill chunks need less",
            Purpose::Weights | Purpose::Graphs => {
                "; end what else runs on it, or name another GPU by --device"
            }
        };
        BackendError::Device(format!(
            "{name}: {} more on {} beside {} held for {name}: {} free ({}){hint}",
            mib(bytes as u64),
            self.name,
            mib(self.allocated(purpose)),
            mib(free),
            describe(error)
        ))
    }

    /// Allocates and fills.
    ///
    /// # Errors
    /// As [`Device::allocate`], or where the copy fails.
    pub fn upload<T: Copy>(
        self: &Rc<Self>,
        data: &[T],
        purpose: Purpose,
    ) -> Result<Buffer, BackendError> {
        let mut buffer = self.allocate(size_of_val(data), purpose)?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Waits for everything that was started; reports what failed since.
    ///
    /// # Errors
    /// [`BackendError::Device`]: nothing that was computed since can be trusted.
    pub fn synchronize(&self) -> Result<(), BackendError> {
        self.recordings.refuse("waiting")?;
        self.stream.synchronize().map_err(failed("a kernel"))?;
        self.context.check_err().map_err(failed("a release"))
    }

    /// Loads a compiled module.
    pub(super) fn load(&self, cubin: Vec<u8>) -> Result<Arc<CudaModule>, BackendError> {
        self.context
            .load_module(Ptx::from_binary(cubin))
            .map_err(failed("loading kernels"))
    }

    /// A function of a module that may use `shared` bytes of dynamic shared memory.
    pub(super) fn function(
        &self,
        module: &Arc<CudaModule>,
        name: &str,
        shared: usize,
    ) -> Result<CudaFunction, BackendError> {
        let function = module.load_function(name).map_err(failed(name))?;
        if shared > 48 << 10 {
            function
                .set_attribute(
                    CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    i32::try_from(shared).unwrap_or(i32::MAX),
                )
                .map_err(failed(name))?;
        }
        Ok(function)
    }

    /// Blocks of a function that run at a time: what a kernel starts whose blocks stay.
    pub(super) fn resident(
        &self,
        function: &CudaFunction,
        threads: u32,
        shared: usize,
    ) -> Result<u32, BackendError> {
        let each = function
            .occupancy_max_active_blocks_per_multiprocessor(threads, shared, None)
            .map_err(failed("blocks of a multiprocessor"))?;
        Ok(each.max(1) * self.multiprocessors as u32)
    }

    /// Starts a kernel. [`launch!`](super::launch) builds `arguments`.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel declares, and what those point to
    /// on the device is as large as the kernel assumes.
    pub(super) unsafe fn launch(
        &self,
        function: &CudaFunction,
        grid: Grid,
        threads: u32,
        shared: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), BackendError> {
        let shared = u32::try_from(shared).unwrap_or(u32::MAX);
        // SAFETY: passed on to the caller.
        unsafe {
            result::launch_kernel(
                function.cu_function(),
                grid,
                (threads, 1, 1),
                shared,
                self.stream.cu_stream(),
                arguments,
            )
        }
        .map_err(failed("starting a kernel"))
    }
}

/// Memory in use on a GPU, whoever uses it.
struct InUse(Arc<CudaContext>);

impl Gauge for InUse {
    fn scope(&self) -> SampleScope {
        SampleScope::Device
    }

    fn in_use(&self) -> Option<u64> {
        // Through the driver itself: the context's own call would take away an error that waits for
        // the thread that computes.
        // SAFETY: the context lives as long as this does.
        unsafe { result::ctx::set_current(self.0.cu_ctx()) }.ok()?;
        let (free, total) = result::mem_get_info().ok()?;
        Some(total.saturating_sub(free) as u64)
    }
}

/// Lets the stream-ordered allocator keep some memory between passes.
fn keep_freed_memory(context: &CudaContext) -> Result<(), BackendError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let threshold = KEPT_BYTES;
    // SAFETY: the device exists; the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())
            .map_err(failed("memory pool"))?;
        result::mem_pool::set_attribute(
            pool,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw const threshold).cast_mut().cast(),
        )
        .map_err(failed("memory pool"))
    }
}

/// Starts a kernel: device, function, grid, threads, dynamic shared memory; arguments.
macro_rules! launch {
    ($device:expr, $function:expr, $grid:expr, $threads:expr, $shared:expr; $($argument:expr),* $(,)?) => {
        $device.launch(
            $function,
            $grid,
            $threads,
            $shared,
            &mut [$(std::ptr::from_ref(&$argument).cast::<std::ffi::c_void>().cast_mut()),*],
        )
    };
}
pub(super) use launch;

/// How many GPUs the driver sees.
///
/// # Errors
/// [`BackendError::Device`] where there is no driver, or it fails.
pub fn count() -> Result<usize, BackendError> {
    library::open(Needed::Driver)?;
    result::init().map_err(failed("initialising the driver"))?;
    let count = result::device::get_count().map_err(failed("counting GPUs"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// CUDA version that the driver supports, as (major, minor).
///
/// # Errors
/// As [`count`].
pub fn driver_version() -> Result<(i32, i32), BackendError> {
    library::open(Needed::Driver)?;
    let mut version = 0;
    // SAFETY: the symbol exists (the library was opened), the pointer is valid.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(failed("driver version"))?;
    Ok((version / 1000, version % 1000 / 10))
}

fn describe(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy());
    let text = error.error_string().map(|text| text.to_string_lossy());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("{:?}", error.0),
    }
}

/// Turns a driver error into a message about what was being done.
pub(super) fn failed(what: impl Display) -> impl FnOnce(DriverError) -> BackendError {
    move |error| BackendError::Device(format!("cuda: {what}: {}", describe(error)))
}
