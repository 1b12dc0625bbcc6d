//! Tensor types and infos.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::ModelError;
use super::cursor::Cursor;

/// Most dimensions of a tensor in the format.
const MAX_DIMENSIONS: u32 = 4;

/// Element types that are read. Elements stand in blocks that share scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgmlType {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// bfloat16.
    Bf16,
    /// 4 bits, one scale.
    Q4_0,
    /// 4 bits, scale and minimum.
    Q4_1,
    /// 5 bits, one scale.
    Q5_0,
    /// 5 bits, scale and minimum.
    Q5_1,
    /// 8 bits, one scale.
    Q8_0,
    /// 4 bits in super-blocks.
    Q4K,
    /// 5 bits in super-blocks.
    Q5K,
    /// 6 bits in super-blocks.
    Q6K,
}

impl GgmlType {
    /// The type of a number in the format, where it is read.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => GgmlType::F32,
            1 => GgmlType::F16,
            2 => GgmlType::Q4_0,
            3 => GgmlType::Q4_1,
            6 => GgmlType::Q5_0,
            7 => GgmlType::Q5_1,
            8 => GgmlType::Q8_0,
            12 => GgmlType::Q4K,
            13 => GgmlType::Q5K,
            14 => GgmlType::Q6K,
            30 => GgmlType::Bf16,
            _ => return None,
        })
    }

    /// Elements per block.
    pub(crate) fn block_elements(self) -> usize {
        match self {
            GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 => 1,
            GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q8_0 => {
                32
            }
            GgmlType::Q4K | GgmlType::Q5K | GgmlType::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            GgmlType::F32 => 4,
            GgmlType::F16 | GgmlType::Bf16 => 2,
            GgmlType::Q4_0 => 18,
            GgmlType::Q4_1 => 20,
            GgmlType::Q5_0 => 22,
            GgmlType::Q5_1 => 24,
            GgmlType::Q8_0 => 34,
            GgmlType::Q4K => 144,
            GgmlType::Q5K => 176,
            GgmlType::Q6K => 210,
        }
    }
}

/// Names of types that other tools write and this one does not read.
fn other_type_name(number: u32) -> &'static str {
    match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 | 29 => "an IQ type",
        24..=27 => "integers",
        28 => "F64",
        34 | 35 => "a ternary type",
        39 => "MXFP4",
        _ => "unknown",
    }
}

/// One tensor whose bytes lie within the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorInfo {
    /// Row-major shape, slowest dimension first (the reverse of the order in the file).
    pub shape: Vec<usize>,
    /// Element type.
    pub kind: GgmlType,
    /// Bytes in the file.
    pub range: Range<usize>,
}

/// A tensor info before its offset is checked.
pub(super) struct RawInfo {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    bytes: u64,
    offset: u64,
}

/// Reads `count` tensor infos.
pub(super) fn read_infos(
    cursor: &mut Cursor<'_>,
    count: usize,
) -> Result<Vec<RawInfo>, ModelError> {
    (0..count).map(|_| read_info(cursor)).collect()
}

fn read_info(cursor: &mut Cursor<'_>) -> Result<RawInfo, ModelError> {
    let name = cursor.string("tensor name")?.to_owned();
    let dimensions = cursor.u32(&name)?;
    if dimensions == 0 || dimensions > MAX_DIMENSIONS {
        let what = format!("dimensions of tensor `{name}`");
        return Err(cursor.invalid(&what, dimensions, "1 to 4"));
    }
    let mut sizes = Vec::new();
    for _ in 0..dimensions {
        sizes.push(cursor.u64(&name)?);
    }
    let number = cursor.u32(&name)?;
    let offset = cursor.u64(&name)?;
    let kind = GgmlType::from_number(number).ok_or_else(|| {
        let type_name = other_type_name(number);
        let what = format!("type {number} ({type_name}) of tensor `{name}`");
        ModelError::unsupported(cursor.path(), what)
    })?;
    let bytes = byte_size(&sizes, kind).ok_or_else(|| {
        let what = format!("shape of tensor `{name}`");
        let block = kind.block_elements();
        let expected = format!("sizes above 0, the first a multiple of {block}, within 2^63 bytes");
        cursor.invalid(&what, format!("{sizes:?} of {kind:?}"), expected)
    })?;
    let shape = sizes.iter().rev().map(|size| *size as usize).collect();
    Ok(RawInfo {
        name,
        shape,
        kind,
        bytes,
        offset,
    })
}

/// Bytes of a tensor; none where sizes are 0, overflow, or do not fill whole blocks per row.
fn byte_size(sizes: &[u64], kind: GgmlType) -> Option<u64> {
    let block = kind.block_elements() as u64;
    if sizes.contains(&0) || !sizes.first()?.is_multiple_of(block) {
        return None;
    }
    let elements = sizes
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size))?;
    let bytes = (elements / block).checked_mul(kind.block_bytes() as u64)?;
    (bytes < 1 << 63 && elements < 1 << 63).then_some(bytes)
}

/// Checks names, alignment and extents, and gives every tensor its bytes.
pub(super) fn place(
    path: &str,
    infos: Vec<RawInfo>,
    data_start: u64,
    alignment: u64,
    file_length: u64,
) -> Result<BTreeMap<String, TensorInfo>, ModelError> {
    let mut tensors = BTreeMap::new();
    for info in infos {
        let range = extent(path, &info, data_start, alignment, file_length)?;
        let placed = TensorInfo {
            shape: info.shape,
            kind: info.kind,
            range,
        };
        if tensors.insert(info.name.clone(), placed).is_some() {
            let what = format!("tensor `{}`", info.name);
            return Err(ModelError::invalid(
                path,
                what,
                "it twice",
                "each name once",
            ));
        }
    }
    refuse_overlap(path, &tensors)?;
    Ok(tensors)
}

fn extent(
    path: &str,
    info: &RawInfo,
    data_start: u64,
    alignment: u64,
    file_length: u64,
) -> Result<Range<usize>, ModelError> {
    let what = || format!("offset of tensor `{}`", info.name);
    if !info.offset.is_multiple_of(alignment) {
        let expected = format!("a multiple of {alignment}");
        return Err(ModelError::invalid(path, what(), info.offset, expected));
    }
    let start = data_start.checked_add(info.offset);
    let end = start.and_then(|start| start.checked_add(info.bytes));
    match (start, end) {
        (Some(start), Some(end)) if end <= file_length => Ok(start as usize..end as usize),
        _ => {
            let found = format!("{} with {} bytes", info.offset, info.bytes);
            let room = file_length.saturating_sub(data_start);
            let expected = format!("an end within the {room} bytes of tensor data");
            Err(ModelError::invalid(path, what(), found, expected))
        }
    }
}

fn refuse_overlap(path: &str, tensors: &BTreeMap<String, TensorInfo>) -> Result<(), ModelError> {
    let mut by_start: Vec<_> = tensors.iter().collect();
    by_start.sort_by_key(|(_, info)| info.range.start);
    for pair in by_start.windows(2) {
        let [(first, before), (second, after)] = pair else {
            continue;
        };
        if after.range.start < before.range.end {
            let what = format!("data of tensor `{second}`");
            let found = format!("an overlap with `{first}`");
            return Err(ModelError::invalid(path, what, found, "bytes of its own"));
        }
    }
    Ok(())
}
