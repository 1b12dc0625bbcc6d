//! Recurrent layers: states of all slots, and the kernels that advance them.

use std::rc::Rc;

use super::CudaBackend;
use super::device::{Buffer, Device, Purpose, launch};
use super::tensor::{CudaTensor, Format, Target, blocks, int};
use crate::backend::{
    BackendError, CacheLayout, DeltaRule, Destination, LENGTH_EPSILON, RecurrentLayer,
};

/// Longest key head vectors of each kernel.
const KERNELS: [(usize, &str); 3] = [
    (32, "delta_rule_32"),
    (128, "delta_rule_128"),
    (256, "delta_rule_256"),
];
/// Elements of the output that a block of these advances, and its threads.
const COLUMNS: usize = 16;
const DELTA_THREADS: u32 = 128;

// The kernels have it as a constant.
const _: () = assert!(LENGTH_EPSILON == 1e-6);

/// States of all slots of the layers that have some.
pub struct States {
    layers: Vec<Option<LayerStates>>,
    /// Where the runs of a pass begin, `[slots]`.
    runs: Buffer,
    slots: usize,
}

struct LayerStates {
    shape: RecurrentLayer,
    /// `[slots][value_heads][value_dim][key_dim]` in f32.
    matrices: Buffer,
    /// `[slots][kernel - 1][channels]` in the native format.
    inputs: Buffer,
}

/// What all kernels of a layer work on; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    packed: u64,
    factors: u64,
    decay: u64,
    bias: u64,
    norm: u64,
    rows: u64,
    runs: u64,
    matrices: u64,
    inputs: u64,
    y: u64,
    out: u64,
    row_count: i32,
    slots: i32,
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
    kernel: i32,
    native: i32,
    out_format: i32,
    eps: f32,
}

impl States {
    /// Room for the states of all slots.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for key head vectors that no kernel holds;
    /// [`BackendError::Device`] where memory is out.
    pub fn new(device: &Rc<Device>, layout: &CacheLayout) -> Result<Self, BackendError> {
        let room = |shape: RecurrentLayer| {
            delta_kernel(&shape)?;
            let [matrices, inputs] = shape.bytes().map(|bytes| layout.slots * bytes as usize);
            Ok(LayerStates {
                shape,
                matrices: device.allocate(matrices, Purpose::States)?,
                inputs: device.allocate(inputs, Purpose::States)?,
            })
        };
        let layers = layout.layers.iter();
        let layers = layers.map(|layer| layer.recurrent.map(room).transpose());
        Ok(States {
            layers: layers.collect::<Result<_, BackendError>>()?,
            runs: device.allocate(layout.slots * size_of::<i32>(), Purpose::Staging)?,
            slots: layout.slots,
        })
    }

    /// Whether any layer has a state.
    pub fn exist(&self) -> bool {
        self.layers.iter().any(Option::is_some)
    }
}

/// Bytes of the states of all slots.
pub fn state_bytes(layout: &CacheLayout) -> usize {
    let shapes = layout.layers.iter().filter_map(|layer| layer.recurrent);
    let bytes: u64 = shapes.flat_map(|shape| shape.bytes()).sum();
    layout.slots.saturating_mul(bytes as usize)
}

/// The kernel that holds a layer's key head vectors.
fn delta_kernel(shape: &RecurrentLayer) -> Result<&'static str, BackendError> {
    let mut kernels = KERNELS.iter();
    match kernels.find(|(longest, _)| shape.key_dim <= *longest) {
        Some((_, name)) => Ok(name),
        None => Err(BackendError::Unsupported(format!(
            "recurrent layers with key heads of {} elements: the cuda worker has up to 256",
            shape.key_dim
        ))),
    }
}

impl CudaBackend {
    /// See [`crate::backend::Backend::recur`].
    pub(super) fn start_recur(
        &self,
        packed: &mut CudaTensor,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        room: &mut CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let Destination { cache, layer, rows } = to;
        cache.reserve(&self.kernels, layer..layer + 1, rows)?;
        let native = Format::from(cache.native());
        let states = cache.states();
        let Some(LayerStates {
            shape,
            matrices,
            inputs,
        }) = &states.layers[layer]
        else {
            panic!("layer {layer} is recurrent");
        };
        let (count, channels) = (rows.len(), shape.channels());
        for (tensor, width) in [
            (&*packed, shape.projected()),
            (&*room, channels),
            (&*out, shape.values()),
        ] {
            assert!(
                tensor.rows == count && tensor.width == width,
                "shape of a recurrent layer"
            );
        }
        for (vector, width) in [
            (rule.convolution, channels * shape.kernel),
            (rule.decay, shape.value_heads),
            (rule.step_bias, shape.value_heads),
            (rule.norm, shape.value_dim),
        ] {
            assert_eq!(vector.width, width, "width of a vector");
        }
        let kernels = &self.kernels;
        let places = self.kept.rows(&kernels.device, rows)?;
        let operand = packed.operand;
        let target = out.written_for_products(operand)?;
        let arguments = Arguments {
            packed: packed.changed(kernels)?,
            factors: rule.convolution.data.pointer(),
            decay: rule.decay.data.pointer(),
            bias: rule.step_bias.data.pointer(),
            norm: rule.norm.data.pointer(),
            rows: places.places(),
            runs: states.runs.pointer(),
            matrices: matrices.pointer(),
            inputs: inputs.pointer(),
            y: room.written(operand)?,
            out: target.pointer,
            row_count: int(count),
            slots: int(states.slots),
            key_heads: int(shape.key_heads),
            value_heads: int(shape.value_heads),
            key_dim: int(shape.key_dim),
            value_dim: int(shape.value_dim),
            kernel: int(shape.kernel),
            native: native as i32,
            out_format: target.format as i32,
            eps: rule.eps,
        };
        if count == 0 {
            return Ok(());
        }
        kernels.start("find_runs", 1, |function, grid| {
            // SAFETY: there are at most as many runs as slots; tensors, vectors and states have the
            // shapes that the kernels state, here and below.
            unsafe { launch!(kernels.device, function, grid, 1024, 0; arguments) }
        })?;
        let by_row = |name: &str, parts: usize| {
            let across = int(parts);
            kernels.start(name, blocks(count * parts, 1), |function, grid| {
                // SAFETY: as above.
                unsafe { launch!(kernels.device, function, grid, 256, 0; arguments, across) }
            })
        };
        let channel_parts = channels.div_ceil(256);
        by_row("convolve", channel_parts)?;
        by_row("keep_inputs", channel_parts)?;
        let warps = 2 * shape.key_heads + shape.value_heads.div_ceil(32);
        by_row("prepare_heads", warps.div_ceil(8))?;
        let runs = count.min(states.slots);
        let parts = shape.value_dim.div_ceil(COLUMNS);
        let delta = blocks(runs * shape.value_heads * parts, 1);
        kernels.start(delta_kernel(shape)?, delta, |function, grid| {
            // SAFETY: as above; every run has a slot of its own.
            unsafe { launch!(kernels.device, function, grid, DELTA_THREADS, 0; arguments) }
        })?;
        by_row("norm_and_gate", shape.value_heads.div_ceil(8))
    }

    /// See [`crate::backend::Backend::gate_output`].
    pub(super) fn start_gate_output(
        &self,
        gate: &CudaTensor,
        x: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            gate.rows == x.rows && gate.width == x.width,
            "shape of a gate"
        );
        let held = x.held()?;
        let Target { pointer, format } = match held.format {
            Format::F32 => Target {
                pointer: x.changed(&self.kernels)?,
                ..held
            },
            _ => held,
        };
        let (from, format) = (gate.float(&self.kernels)?, format as i32);
        let (count, elements) = (x.elements(), x.elements() as i64);
        let kernels = &self.kernels;
        kernels.start("gate_output", blocks(count, 256), |function, grid| {
            // SAFETY: both tensors have `elements` elements.
            unsafe {
                launch!(kernels.device, function, grid, 256, 0; from, pointer, format, elements)
            }
        })
    }
}
