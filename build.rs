//! Hashes the sources that the binary is built from, so that certificates can name them.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn main() -> std::io::Result<()> {
    let mut files = Vec::new();
    for root in ["src", "tasks", "protocols", "docs/schemas"] {
        println!("cargo::rerun-if-changed={root}");
        collect(Path::new(root), &mut files)?;
    }
    for file in ["build.rs", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={file}");
        files.push(PathBuf::from(file));
    }
    files.sort();
    let mut hasher = Sha256::new();
    for file in &files {
        let bytes = fs::read(file)?;
        // Name and length make the encoding injective.
        hasher.update(file.to_string_lossy().replace('\\', "/").as_bytes());
        hasher.update([0]);
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(&bytes);
    }
    let digest: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("cargo::rustc-env=KVASSAY_SOURCE_SHA256={digest}");
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
