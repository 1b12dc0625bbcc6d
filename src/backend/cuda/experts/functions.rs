//! Products of rows and their experts' weights by tensor cores: which kernels there are.

use cudarc::driver::CudaFunction;

use super::super::compile::Unit;
use super::super::device::{Buffer, Device, Purpose, launch};
use super::super::functions::{Kernels, Source};
use super::super::tensor::{Format, blocks, int};
use crate::backend::BackendError;

/// Terms of a line that are copied to shared memory at a time, in bytes.
const LINE_BYTES: usize = 128;

/// A pair of kernels: of gates and ups, and of downs.
pub struct Tile {
    pub names: [&'static str; 2],
    /// Rows of a tile.
    pub rows: usize,
    /// Lines of weights of a block: gates and ups together, or downs.
    pub outs: usize,
    pub threads: u32,
    /// Steps of terms in shared memory.
    pub stages: usize,
    /// Rows of an expert on average up to which it is used.
    pub up_to: usize,
}

/// Kernels with tensor cores: the first that is there serves.
const TILES: [Tile; 4] = [
    Tile {
        names: ["expert_32_gated", "expert_32_plain"],
        rows: 32,
        outs: 128,
        threads: 128,
        stages: 4,
        up_to: 24,
    },
    Tile {
        names: ["expert_64_gated", "expert_64_plain"],
        rows: 64,
        outs: 128,
        threads: 128,
        stages: 4,
        up_to: 64,
    },
    Tile {
        names: ["expert_many_gated", "expert_many_plain"],
        rows: 192,
        outs: 256,
        threads: 384,
        stages: 4,
        up_to: usize::MAX,
    },
    Tile {
        names: ["expert_128_gated", "expert_128_plain"],
        rows: 128,
        outs: 256,
        threads: 256,
        stages: 3,
        up_to: usize::MAX,
    },
];

/// Which of them is for compute capability 9.0 only, and gives the bits of which other one.
const MANY: usize = 2;
const PLAIN_MANY: usize = 3;

impl Tile {
    /// Shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        self.stages * (self.rows + self.outs) * LINE_BYTES
    }
}

/// Kernels for weights of one 16-bit format, by [`TILES`]; `None` where a block has not enough
/// shared memory.
pub struct ExpertFunctions([Option<[CudaFunction; 2]>; TILES.len()]);

impl ExpertFunctions {
    /// Source and definitions for weights of `format` on `device`; what `source` embeds is for every
    /// device.
    pub fn unit(device: &Device, source: Source, format: Format) -> Unit {
        let hopper = source == Source::Compiler && device.capability() == (9, 0);
        Unit::experts(format == Format::Bf16, hopper)
    }

    /// Loads `binary`, which was compiled from the unit of `format`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(
        kernels: &Kernels,
        format: Format,
        (unit, binary): (&Unit, Vec<u8>),
    ) -> Result<Self, BackendError> {
        let device = &kernels.device;
        let module = device.load(binary)?;
        let mut found = [const { None }; TILES.len()];
        for (number, (tile, found)) in TILES.iter().zip(&mut found).enumerate() {
            let shared = tile.shared();
            if shared > device.shared_limit() || number == MANY && !unit.is_specific() {
                continue;
            }
            let [gated, plain] = tile.names;
            *found = Some([
                device.function(&module, gated, shared)?,
                device.function(&module, plain, shared)?,
            ]);
        }
        if let (Some([_, many]), Some([_, plain])) = (&found[MANY], &found[PLAIN_MANY])
            && !alike(kernels, format, [many, plain])?
        {
            found[MANY] = None;
        }
        Ok(ExpertFunctions(found))
    }

    /// The tile for experts of so many rows on average: the largest that there is, where those for
    /// more are not.
    pub fn tile(&self, average: usize) -> Option<(&'static Tile, &[CudaFunction; 2])> {
        let there = TILES.iter().zip(&self.0);
        let mut there = there.filter_map(|(tile, functions)| Some((tile, functions.as_ref()?)));
        there
            .clone()
            .find(|(tile, _)| average <= tile.up_to)
            .or(there.next_back())
    }
}

/// Whether the kernels of downs of [`MANY`] and [`PLAIN_MANY`] give the same bits on this device: on
/// noise over one power of two, where all terms count, and over many, where alignment cuts bits off.
fn alike(
    kernels: &Kernels,
    format: Format,
    functions: [&CudaFunction; 2],
) -> Result<bool, BackendError> {
    const TERMS: usize = 1024;
    let (rows, outs) = (TILES[MANY].rows, TILES[MANY].outs);
    let device = &kernels.device;
    let upload = |words: &[i32]| device.upload(words, Purpose::Staging);
    let order: Vec<i32> = (0..int(rows)).collect();
    let order = upload(&order)?;
    let differing = upload(&[0])?;
    for spread in [1_u32, 6, 14] {
        let mut state = 1 + spread;
        let mut noise = |count: usize| -> Vec<u16> {
            let number = |_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                let x = state as i32 as f32 / (1_u32 << 31) as f32;
                let x = x / (1_u32 << (state % spread)) as f32;
                match format {
                    Format::Bf16 => half::bf16::from_f32(x).to_bits(),
                    _ => half::f16::from_f32(x).to_bits(),
                }
            };
            (0..count).map(number).collect()
        };
        let x = device.upload(&noise(rows * TERMS), Purpose::Staging)?;
        let weight = device.upload(&noise(outs * TERMS), Purpose::Staging)?;
        let out = || device.allocate(4 * rows * outs, Purpose::Staging);
        let outs_of = [out()?, out()?];
        for (number, function, out) in [
            (MANY, functions[0], &outs_of[0]),
            (PLAIN_MANY, functions[1], &outs_of[1]),
        ] {
            let tile = &TILES[number];
            let tiles: Vec<i32> = (0..rows)
                .step_by(tile.rows)
                .flat_map(|first| [0, int(first), int(tile.rows.min(rows - first)), 0])
                .collect();
            let count = tiles.len() / 4;
            let (tiles, tile_count) = (upload(&tiles)?, upload(&[int(count)])?);
            let (grid, threads, shared) = (blocks(count, 1), tile.threads, tile.shared());
            let arguments = Arguments {
                x: x.pointer(),
                weight: weight.pointer(),
                out: out.pointer(),
                tiles: tiles.pointer(),
                tile_count: tile_count.pointer(),
                order: order.pointer(),
                inner: int(TERMS),
                columns: int(outs),
                chosen: 1,
                format: format as i32,
                activation: 0,
                by_pair: 1,
                column_blocks: 1,
            };
            // SAFETY: tiles of one expert, of as many rows and outputs as there are.
            unsafe { launch!(device, function, (grid, 1, 1), threads, shared; arguments) }?;
        }
        let [a, b] = outs_of.each_ref().map(Buffer::pointer);
        let (elements, count) = ((rows * outs) as i64, differing.pointer());
        kernels.start("compare", blocks(rows * outs, 256), |function, grid| {
            // SAFETY: both outputs have `elements` elements; the counter is one number.
            unsafe { launch!(device, function, grid, 256, 0; a, b, elements, count) }
        })?;
    }
    Ok(differing.read::<u32>(1)? == [0])
}

/// As the kernels take it; see `ExpertProduct` there.
#[repr(C)]
pub struct Arguments {
    pub x: u64,
    pub weight: u64,
    pub out: u64,
    pub tiles: u64,
    pub tile_count: u64,
    pub order: u64,
    pub inner: i32,
    pub columns: i32,
    pub chosen: i32,
    pub format: i32,
    pub activation: i32,
    pub by_pair: i32,
    pub column_blocks: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::compile::testing::GENERATIONS;

    #[test]
    fn every_generation_has_a_tile_for_few_rows_and_for_many() {
        for (capability, shared_limit) in GENERATIONS {
            let fits = |tile: &Tile| tile.shared() <= shared_limit;
            assert!(TILES.iter().take(MANY).all(fits), "{capability:?}");
            assert!(fits(&TILES[PLAIN_MANY]), "{capability:?}");
            assert!(capability != (9, 0) || fits(&TILES[MANY]));
        }
        // What cards of compute capability 8.6 and 8.9 have.
        let small = TILES.iter().filter(|tile| tile.shared() <= 99 << 10);
        assert_eq!(small.count(), 2);
    }

    #[test]
    fn kernels_are_named_after_their_tiles() {
        for tile in &TILES {
            for name in tile.names {
                let rows = name.contains(&format!("_{}_", tile.rows));
                assert!(rows || name.contains("_many_"), "{name}");
            }
        }
        let [many, plain] = [MANY, PLAIN_MANY].map(|number| &TILES[number]);
        assert_eq!(many.outs, plain.outs);
        assert!(TILES.is_sorted_by_key(|tile| tile.up_to));
    }
}
