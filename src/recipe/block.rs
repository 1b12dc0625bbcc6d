//! Formats that only servers store: blocks of 32 elements with their scales, as llama.cpp has them.

use super::Format;

/// Elements of a block.
const BLOCK_ELEMENTS: u64 = 32;

/// A block format of llama.cpp's cache (`-ctk`, `-ctv`). Scales are part of each block, so that there
/// is no policy to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockFormat {
    /// 8 bits and an FP16 scale.
    Q8_0,
    /// 5 bits, an FP16 scale and an FP16 minimum.
    Q5_1,
    /// 5 bits and an FP16 scale.
    Q5_0,
    /// 4 bits, an FP16 scale and an FP16 minimum.
    Q4_1,
    /// 4 bits and an FP16 scale.
    Q4_0,
    /// 4 bits that choose from a table, and an FP16 scale.
    Iq4Nl,
}

impl BlockFormat {
    /// Every block format.
    pub const ALL: [BlockFormat; 6] = [
        BlockFormat::Q8_0,
        BlockFormat::Q5_1,
        BlockFormat::Q5_0,
        BlockFormat::Q4_1,
        BlockFormat::Q4_0,
        BlockFormat::Iq4Nl,
    ];

    /// Name as llama.cpp has it.
    pub fn name(self) -> &'static str {
        match self {
            BlockFormat::Q8_0 => "q8_0",
            BlockFormat::Q5_1 => "q5_1",
            BlockFormat::Q5_0 => "q5_0",
            BlockFormat::Q4_1 => "q4_1",
            BlockFormat::Q4_0 => "q4_0",
            BlockFormat::Iq4Nl => "iq4_nl",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        BlockFormat::ALL
            .into_iter()
            .find(|format| format.name() == name)
    }

    /// Stored bytes of so many elements, whole blocks.
    pub fn stored_bytes(self, elements: u64) -> u64 {
        let block = match self {
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q4_0 | BlockFormat::Iq4Nl => 18,
        };
        elements.div_ceil(BLOCK_ELEMENTS).saturating_mul(block)
    }
}

/// The format that a server's word for its cache stands for; `None` for `auto` and words that are
/// not known here, which tell nothing.
pub fn format_of_server(word: &str) -> Option<Format> {
    let word = word.trim().to_ascii_lowercase();
    let word = word.rsplit('.').next().unwrap_or_default();
    match word {
        "f16" | "fp16" | "float16" | "half" | "bf16" | "bfloat16" | "f32" | "fp32" | "float32"
        | "native" => Some(Format::Native),
        "fp8" | "fp8_e4m3" | "e4m3" | "float8_e4m3fn" | "float8_e4m3" => Some(Format::E4m3),
        "fp8_e5m2" | "e5m2" | "float8_e5m2" => Some(Format::E5m2),
        "int8" => Some(Format::Int8),
        _ => BlockFormat::from_name(word).map(Format::Block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_whole_blocks() {
        let bits = |format: BlockFormat| format.stored_bytes(64) as f64 * 8.0 / 64.0;
        let found = BlockFormat::ALL.map(bits);
        assert_eq!(found, [8.5, 6.0, 5.5, 5.0, 4.5, 4.5]);
        assert_eq!(BlockFormat::Q8_0.stored_bytes(33), 68);
        assert_eq!(BlockFormat::Q8_0.stored_bytes(0), 0);
    }

    #[test]
    fn words_of_servers() {
        assert_eq!(format_of_server("torch.bfloat16"), Some(Format::Native));
        assert_eq!(format_of_server("fp8"), Some(Format::E4m3));
        assert_eq!(format_of_server("FP8_E5M2"), Some(Format::E5m2));
        let block = Format::Block(BlockFormat::Q4_0);
        assert_eq!(format_of_server("q4_0"), Some(block));
        assert_eq!(format_of_server("auto"), None);
        assert_eq!(format_of_server("nvfp4"), None);
    }
}
