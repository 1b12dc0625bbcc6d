//! Kernels as PTX, part of the binary: what runs where there is no run-time compiler.
//!
//! The driver translates PTX of compute capability 8.0 for its device. An archive holds the PTX of
//! every unit of source behind a digest of that unit, so PTX of other sources is never found:
//! `cargo run --example ptx` makes it anew.

use std::sync::OnceLock;

use super::attention;
use super::compile::{self, Unit};
use super::parts::PARTS;
use crate::backend::BackendError;

/// Made by [`archive`].
static ARCHIVE: &[u8] = include_bytes!("kernels/ptx.zst");

/// Sizes of heads that attention is embedded for: those of the models that are part of the binary, and
/// of published ones.
const HEAD_DIMS: [usize; 6] = [32, 64, 96, 128, 256, 512];
/// Compute capability that the driver translates from.
const CAPABILITY: (i32, i32) = (8, 0);
/// What the kernels use has stood in PTX since this version, which drivers of CUDA 11.8 know.
const VERSION: &str = "7.8";
/// Compression: slow, but done once.
const LEVEL: i32 = 19;
/// Everything is within reach of everything else, as variants hardly differ.
const WINDOW_LOG: u32 = 24;

/// The embedded PTX of `unit`, ended by NUL as the driver wants it.
///
/// # Errors
/// [`BackendError::Unsupported`] where there is none.
pub fn embedded(unit: &Unit) -> Result<Vec<u8>, BackendError> {
    let text = unpacked(ARCHIVE)?;
    let found = entries(text).find(|(digest, _)| *digest == unit.sha256());
    let (_, ptx) = found.ok_or_else(|| {
        BackendError::Unsupported(format!(
            "found no NVRTC and no embedded PTX for {}, expected NVRTC (libnvrtc), or heads of {} \
             elements that are stored natively or in FP8",
            unit.brief(),
            HEAD_DIMS.map(|size| size.to_string()).join(", ")
        ))
    })?;
    Ok([ptx.as_bytes(), &[0]].concat())
}

/// Compiles every unit and packs the PTX; the same bytes from the same compiler.
///
/// # Errors
/// [`BackendError::Device`] where the compiler is missing or refuses a source.
pub fn archive() -> Result<Vec<u8>, BackendError> {
    let mut text = String::new();
    for unit in embedded_units() {
        let ptx = lowered(&compile::ptx(&unit, CAPABILITY)?)?;
        text.push_str(&format!("{} {}\n{ptx}", unit.sha256(), ptx.len()));
    }
    pack(&text).map_err(|error| BackendError::Device(format!("packing PTX: {error}")))
}

/// Every unit of the archive.
fn embedded_units() -> Vec<Unit> {
    let experts = [false, true].map(|bf16| Unit::experts(bf16, false));
    let mut units: Vec<Unit> = PARTS.iter().map(Unit::part).chain(experts).collect();
    units.extend(attention::embedded_units(&HEAD_DIMS));
    units
}

/// In the version that older drivers know: without comments, and without hints about bytes of a
/// load that nothing reads, which that version lacks.
fn lowered(ptx: &str) -> Result<String, BackendError> {
    let is_version = |line: &&str| line.starts_with(".version ");
    if ptx.lines().filter(is_version).count() != 1 {
        let what = "PTX: expected one line with its version";
        return Err(BackendError::Device(what.to_owned()));
    }
    let is_hint = |line: &str| line.trim_start().starts_with(".pragma \"used_bytes_mask ");
    let says_nothing = |line: &str| line.is_empty() || line.starts_with("//") || is_hint(line);
    let mut text = String::with_capacity(ptx.len());
    for line in ptx.lines().filter(|line| !says_nothing(line)) {
        if is_version(&line) {
            text.push_str(&format!(".version {VERSION}\n"));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    Ok(text)
}

fn pack(text: &str) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
    encoder.window_log(WINDOW_LOG)?;
    encoder.long_distance_matching(true)?;
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

/// The archive's text, unpacked once.
fn unpacked(archive: &[u8]) -> Result<&'static str, BackendError> {
    static TEXT: OnceLock<Result<String, String>> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let bytes = zstd::decode_all(archive).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|error| error.to_string())
    });
    let damaged = |error: &String| BackendError::Device(format!("embedded PTX: {error}"));
    text.as_deref().map_err(damaged)
}

/// Digests and PTX: `DIGEST LENGTH`, a line feed, and that many bytes.
fn entries(mut text: &str) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let (head, rest) = text.split_once('\n')?;
        let (digest, length) = head.split_once(' ')?;
        let (ptx, rest) = rest.split_at_checked(length.parse().ok()?)?;
        text = rest;
        Some((digest, ptx))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where a kernel was changed and `cargo run --example ptx` was not run since.
    #[test]
    fn the_archive_holds_every_unit_of_these_sources() {
        let text = unpacked(ARCHIVE).unwrap();
        let units = embedded_units();
        assert_eq!(entries(text).count(), units.len());
        for unit in units {
            let ptx = embedded(&unit).unwrap();
            let ptx = std::str::from_utf8(&ptx).unwrap();
            assert!(
                ptx.starts_with(".version 7.8\n.target sm_80\n"),
                "{ptx:.80}"
            );
            assert!(ptx.contains(".visible .entry ") && ptx.ends_with("}\n\0"));
            assert!(!ptx.contains("used_bytes_mask"), "unknown to PTX 7.8");
        }
    }

    /// What is embedded is what the compiler makes of the sources, where the same one is at hand.
    #[test]
    fn the_archive_is_what_the_compiler_makes() {
        if !compile::testing::has_compiler() || compile::version().unwrap().0 != (13, 0) {
            return;
        }
        for unit in embedded_units().into_iter().take(PARTS.len() + 1) {
            let made = lowered(&compile::ptx(&unit, CAPABILITY).unwrap()).unwrap();
            let kept = embedded(&unit).unwrap();
            assert!(
                kept == [made.as_bytes(), &[0]].concat(),
                "{}",
                unit.describe()
            );
        }
    }

    #[test]
    fn what_is_not_embedded_is_named() {
        let [unit, ..] = &attention::embedded_units(&[80])[..] else {
            panic!("expected attention of head_dim 80");
        };
        let message = embedded(unit).unwrap_err().to_string();
        assert!(
            message.contains("attention of heads of 80 elements, expected NVRTC"),
            "{message}"
        );
        assert!(message.contains("heads of 32, 64, 96, 128, 256, 512 elements"));
    }

    /// The first command that a newcomer runs needs no compiler.
    #[test]
    fn models_of_the_binary_are_embedded() {
        for config in [
            include_str!("../../../fixtures/demo/tolerant/config.json"),
            include_str!("../../../fixtures/demo/sensitive/config.json"),
        ] {
            let config: serde_json::Value = serde_json::from_str(config).unwrap();
            let size = config["head_dim"].as_u64().unwrap() as usize;
            assert!(HEAD_DIMS.contains(&size), "{size}");
        }
    }

    #[test]
    fn an_archive_survives_packing_and_damage_ends_it() {
        let text = "aa 3\nx\nyb 0\nbb 2\nzz";
        assert_eq!(
            zstd::decode_all(&pack(text).unwrap()[..]).unwrap(),
            text.as_bytes()
        );
        let found: Vec<_> = entries(text).collect();
        assert_eq!(found, [("aa", "x\ny"), ("b", ""), ("bb", "zz")]);
        assert_eq!(entries("aa 9\nx").count(), 0);
        assert_eq!(entries("aa x\nx").count(), 0);
    }

    #[test]
    fn versions_are_lowered_and_comments_left_out() {
        let ptx = "//\n// by a compiler\n\n.version 9.0\n.target sm_80\n\t.pragma \"nounroll\";\n\
                   \t.pragma \"used_bytes_mask 15\";\nret;\n";
        let expected = ".version 7.8\n.target sm_80\n\t.pragma \"nounroll\";\nret;\n";
        assert_eq!(lowered(ptx).unwrap(), expected);
        assert!(lowered("ret;\n").is_err());
    }
}
