//! Kernels from source: NVRTC to a binary for the exact architecture, kept on disk.
//!
//! A kept file begins with the digest of what follows: one that is damaged is built again.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::{result, sys};

use super::library::{self, Needed};
use super::parts::Part;
use crate::backend::BackendError;
use crate::schema::sha256_hex;

const COMMON: &str = include_str!("kernels/common.cu");
const MLP: &str = include_str!("kernels/mlp.cu");
const TENSOR_CORES: &str = include_str!("kernels/tensor_cores.cu");
const EXPERTS: &str = include_str!("kernels/experts.cu");
const EXPERTS_HOPPER: &str = include_str!("kernels/experts_hopper.cu");
const ATTENTION: [&str; 3] = [
    include_str!("kernels/attention.cu"),
    include_str!("kernels/attention_few.cu"),
    include_str!("kernels/attention_many.cu"),
];
const ATTENTION_HOPPER: &str = include_str!("kernels/attention_hopper.cu");

/// Options of every compilation. Without contraction an expression has the same bits wherever it
/// is inlined.
const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "-default-device",
    "--fmad=false",
    "-diag-suppress=177",
];

/// A piece of source with what is defined for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Source text.
    source: String,
    /// Definitions, `NAME=VALUE`.
    defines: Vec<String>,
    /// Whether it has instructions of one architecture only.
    specific: bool,
    /// What it is for.
    purpose: &'static str,
}

impl Unit {
    /// Kernels beside attention and experts.
    pub fn part(part: &Part) -> Self {
        Unit {
            source: [&[COMMON], part.sources].concat().join("\n"),
            defines: Vec::new(),
            specific: false,
            purpose: part.name,
        }
    }

    /// Products of experts by tensor cores, of BF16 or F16 weights. `hopper` adds the blocks of
    /// compute capability 9.0.
    pub fn experts(bf16: bool, hopper: bool) -> Self {
        let mut source = vec![COMMON, MLP, TENSOR_CORES, EXPERTS];
        if hopper {
            source.push(EXPERTS_HOPPER);
        }
        Unit {
            source: source.join("\n"),
            defines: vec![format!("BF16={}", u8::from(bf16))],
            specific: hopper,
            purpose: "experts",
        }
    }

    /// Whether it has instructions of one architecture only.
    pub fn is_specific(&self) -> bool {
        self.specific
    }

    /// Digest of source, definitions and options.
    pub fn sha256(&self) -> String {
        let options = [&OPTIONS.map(str::to_owned)[..], &self.defines].concat();
        sha256_hex(format!("{}\n{}", options.join("\n"), self.source).as_bytes())
    }

    /// What it is for, in messages.
    pub fn describe(&self) -> String {
        match self.defines.as_slice() {
            [] => self.purpose.to_owned(),
            defines => format!("{} with {}", self.purpose, defines.join(", ")),
        }
    }

    /// The same in the words of those who run models.
    pub fn brief(&self) -> String {
        let mut defines = self.defines.iter();
        match defines.find_map(|define| define.strip_prefix("HD=")) {
            Some(size) => format!("{} of heads of {size} elements", self.purpose),
            None => self.purpose.to_owned(),
        }
    }

    /// Attention; definitions say for what. `hopper` adds the blocks of compute capability 9.0.
    pub fn attention(defines: Vec<String>, hopper: bool) -> Self {
        let mut source = [&[COMMON, TENSOR_CORES], &ATTENTION[..]].concat();
        if hopper {
            source.push(ATTENTION_HOPPER);
        }
        Unit {
            source: source.join("\n"),
            defines,
            specific: hopper,
            purpose: "attention",
        }
    }
}

/// Version of the run-time compiler, as (major, minor), and where it was found.
///
/// # Errors
/// [`BackendError::Device`] where it is missing.
pub fn version() -> Result<((i32, i32), PathBuf), BackendError> {
    let path = library::open(Needed::Compiler)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the symbol exists (the library was opened), the pointers are valid.
    let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    status.result().map_err(failed("version"))?;
    Ok(((major, minor), path))
}

/// Where kernels come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Compiled now.
    Compiled,
    /// Compiled earlier, and kept on disk.
    Kept,
    /// PTX of the binary, translated by the driver.
    Embedded,
}

impl Delivery {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Delivery::Compiled => "compiled by NVRTC",
            Delivery::Kept => "compiled by NVRTC earlier",
            Delivery::Embedded => "embedded PTX",
        }
    }
}

/// PTX of `unit` for compute capability `major.minor` and newer.
///
/// # Errors
/// [`BackendError::Device`] where the compiler is missing or refuses the source.
pub fn ptx(unit: &Unit, (major, minor): (i32, i32)) -> Result<String, BackendError> {
    version()?;
    let options = options(unit, format!("compute_{major}{minor}"));
    let text = compile(&unit.source, &options)?.ptx()?;
    String::from_utf8(text).map_err(|error| BackendError::Device(format!("nvrtc: PTX: {error}")))
}

/// The binary of `unit` for a compute capability, from `folder` where it is kept.
///
/// # Errors
/// [`BackendError::Device`] where the compiler is missing or refuses the source. A folder that
/// cannot be written only means that nothing is kept.
pub fn binary(
    unit: &Unit,
    capability: (i32, i32),
    folder: Option<&Path>,
) -> Result<(Vec<u8>, Delivery), BackendError> {
    let (version, _) = version()?;
    let options = binary_options(unit, capability);
    let key = format!("{version:?}\n{}\n{}", options.join("\n"), unit.source);
    let path = folder.map(|folder| folder.join(format!("{}.cubin", sha256_hex(key.as_bytes()))));
    if let Some(kept) = path.as_deref().and_then(read_kept) {
        return Ok((kept, Delivery::Kept));
    }
    let binary = compile(&unit.source, &options)?.binary()?;
    if let Some(path) = path {
        // Compiling again next time is the only consequence of a failure.
        let _ = keep(&path, &binary);
    }
    Ok((binary, Delivery::Compiled))
}

fn binary_options(unit: &Unit, (major, minor): (i32, i32)) -> Vec<String> {
    let suffix = if unit.specific { "a" } else { "" };
    options(unit, format!("sm_{major}{minor}{suffix}"))
}

fn options(unit: &Unit, architecture: String) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    options.extend(OPTIONS.map(str::to_owned));
    options.extend(unit.defines.iter().map(|define| format!("-D{define}")));
    options
}

/// Where binaries are kept: the user's cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = folder("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| folder("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("kvassay").join("kernels"))
}

fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (digest, binary) = bytes.split_at_checked(64)?;
    (digest == sha256_hex(binary).as_bytes()).then(|| binary.to_vec())
}

/// Writes beside and renames, so that no reader sees half a file.
fn keep(path: &Path, binary: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let thread = std::thread::current().id();
    let beside = path.with_extension(format!("{}-{thread:?}.tmp", std::process::id()));
    let bytes = [sha256_hex(binary).as_bytes(), binary].concat();
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn compile(source: &str, options: &[String]) -> Result<Program, BackendError> {
    let text = CString::new(source)
        .map_err(|_| BackendError::Device("nvrtc: source with a NUL byte".to_owned()))?;
    let program = Program(result::create_program(&text, None).map_err(failed("source"))?);
    // SAFETY: the program is alive.
    let compiled = unsafe { result::compile_program(program.0, options) };
    compiled.map_err(|error| {
        let log = program.log();
        BackendError::Device(format!(
            "nvrtc: {error:?} with {}: {log}",
            options.join(" ")
        ))
    })?;
    Ok(program)
}

/// A program of the compiler, destroyed at the end.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&c| c as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
        text.unwrap_or_default().into_owned()
    }

    fn binary(&self) -> Result<Vec<u8>, BackendError> {
        let mut size = 0;
        // SAFETY: the program is alive and compiled, the pointer is valid.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }
            .result()
            .map_err(failed("size of the binary"))?;
        let mut binary = vec![0; size];
        // SAFETY: as above; the buffer has the size that was asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, binary.as_mut_ptr().cast()) }
            .result()
            .map_err(failed("binary"))?;
        Ok(binary)
    }

    /// Without the NUL at its end.
    fn ptx(&self) -> Result<Vec<u8>, BackendError> {
        // SAFETY: the program is alive and compiled.
        let text = unsafe { result::get_ptx(self.0) }.map_err(failed("PTX"))?;
        let bytes = text.into_iter().map(|c| c as u8);
        Ok(bytes.take_while(|byte| *byte != 0).collect())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program` and destroyed once. What fails leaks memory only.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn failed(what: &'static str) -> impl Fn(NvrtcError) -> BackendError {
    move |error| BackendError::Device(format!("nvrtc: {what}: {error:?}"))
}

#[cfg(test)]
pub mod testing {
    use std::io::Write;

    use super::{library, version};

    /// Compute capabilities with the shared memory of a block, in bytes.
    pub const GENERATIONS: [((i32, i32), usize); 3] = [
        ((8, 0), 163 << 10),
        ((9, 0), 227 << 10),
        ((10, 0), 227 << 10),
    ];

    /// The compiler. Where folders to search were named it must be there: a machine that is meant
    /// to compile kernels never skips that.
    pub fn has_compiler() -> bool {
        match version() {
            Ok(_) => true,
            Err(error) if std::env::var_os(library::SEARCH_VARIABLE).is_some() => panic!("{error}"),
            Err(error) => {
                // Straight to the terminal: the harness shows only what failing tests print.
                let _ = writeln!(std::io::stderr(), "no kernel was compiled: {error}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
