//! GGUF files, versions 2 and 3: header, metadata, tensor infos, and the weights behind them.
//!
//! Every count and length of the file is checked against the bytes that are left before anything
//! is allocated for it.

mod config;
mod cursor;
mod dequantize;
mod tensor;
mod tokenizer;
mod value;
mod weights;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::ModelError;
use cursor::Cursor;
pub(crate) use tensor::{GgmlType, TensorInfo};
pub(crate) use tokenizer::tokenizer;
pub use weights::GgufWeights;
pub(crate) use {config::config, value::Metadata};

/// First four bytes.
const MAGIC: &[u8] = b"GGUF";

/// Alignment of tensor data where the metadata names none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Fewest bytes that a metadata entry can take: key length, value type, one byte of value.
const LEAST_ENTRY_BYTES: u64 = 13;

/// Fewest bytes that a tensor info can take: name length, dimension count, type, offset.
const LEAST_TENSOR_BYTES: u64 = 24;

/// The parsed head of a GGUF file.
#[derive(Debug)]
pub(crate) struct Header {
    /// Key-value pairs.
    pub metadata: Metadata,
    /// Tensors by their names in the file, with byte ranges that lie within the file.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Parses the head of a file given as a whole; `path` is for messages.
///
/// # Errors
/// [`ModelError::Invalid`] for anything malformed, [`ModelError::Unsupported`] for other versions
/// and tensor types; nothing panics, whatever the bytes.
pub(crate) fn parse(path: &str, bytes: &[u8]) -> Result<Header, ModelError> {
    let mut cursor = Cursor::new(path, bytes);
    let magic = cursor.take(MAGIC.len(), "magic")?;
    if magic != MAGIC {
        let found = format!("{:?}", String::from_utf8_lossy(magic));
        return Err(ModelError::invalid(path, "magic", found, "\"GGUF\""));
    }
    match cursor.u32("version")? {
        2 | 3 => {}
        version => {
            let what = format!("GGUF version {version} (2 and 3 are read)");
            return Err(ModelError::unsupported(path, what));
        }
    }
    let tensor_count = cursor.count(LEAST_TENSOR_BYTES, "tensor count")?;
    let entry_count = cursor.count(LEAST_ENTRY_BYTES, "metadata count")?;
    let metadata = value::read_metadata(&mut cursor, entry_count)?;
    let alignment = alignment(&metadata)?;
    let infos = tensor::read_infos(&mut cursor, tensor_count)?;
    let data_start = cursor.position().next_multiple_of(alignment);
    let tensors = tensor::place(path, infos, data_start, alignment, bytes.len() as u64)?;
    Ok(Header { metadata, tensors })
}

fn alignment(metadata: &Metadata) -> Result<u64, ModelError> {
    let key = "general.alignment";
    match metadata.u64(key)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(number) if number.is_power_of_two() && number <= 1 << 20 => Ok(number),
        Some(number) => Err(metadata.wrong(key, number, "a power of two up to 1 MiB")),
    }
}
