//! Pre-tokenizers by the names that GGUF files give them.

use serde_json::{Value, json};

/// Splits words with their leading space, contractions, runs of digits up to the given length,
/// punctuation and white space.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// How text is prepared before byte-pair merges.
pub(super) struct Pre {
    /// Unicode normalisation.
    pub normalizer: Value,
    /// Splitting and mapping of bytes to characters.
    pub pre_tokenizer: Value,
    /// Whether a word that is a token as a whole is taken without merging.
    pub ignore_merges: bool,
    /// Whether sequences start with the beginning-of-sequence token where the file does not say.
    pub adds_bos: bool,
}

impl Pre {
    /// Every known name.
    pub(super) const NAMES: [&str; 8] = [
        "gpt-2",
        "smollm",
        "starcoder",
        "llama-bpe",
        "llama3",
        "llama-v3",
        "qwen2",
        "deepseek-r1-qwen",
    ];

    /// The pre-tokenizer of that name, where it is known.
    ///
    /// `default` is not: it stands for files whose converter did not know the model's own.
    pub(super) fn named(name: &str) -> Option<Pre> {
        let plain = Pre {
            normalizer: Value::Null,
            pre_tokenizer: byte_level(true),
            ignore_merges: false,
            adds_bos: false,
        };
        match name {
            "gpt-2" => Some(plain),
            "smollm" | "starcoder" => Some(Pre {
                pre_tokenizer: sequence(json!({"type": "Digits", "individual_digits": true}), true),
                ..plain
            }),
            "llama-bpe" | "llama3" | "llama-v3" => Some(Pre {
                pre_tokenizer: sequence(split(words!(r"\p{N}{1,3}")), false),
                ignore_merges: true,
                adds_bos: true,
                ..plain
            }),
            "qwen2" | "deepseek-r1-qwen" => Some(Pre {
                normalizer: json!({"type": "NFC"}),
                pre_tokenizer: sequence(split(words!(r"\p{N}")), false),
                ..plain
            }),
            _ => None,
        }
    }
}

/// Bytes as printable characters; with `splits`, also the splitting rule of GPT-2.
pub(super) fn byte_level(splits: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": splits,
    })
}

fn sequence(first: Value, splits: bool) -> Value {
    json!({"type": "Sequence", "pretokenizers": [first, byte_level(splits)]})
}

fn split(regex: &str) -> Value {
    json!({
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use tokenizers::{
        NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
        PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    };

    use super::*;

    #[test]
    fn every_name_is_known_and_no_other() {
        for name in Pre::NAMES {
            assert!(Pre::named(name).is_some(), "{name}");
        }
        assert!(Pre::named("default").is_none());
    }

    fn pieces(pre: &Pre, text: &str) -> Vec<String> {
        let mut normal = NormalizedString::from(text);
        if !pre.normalizer.is_null() {
            let normalizer: NormalizerWrapper =
                serde_json::from_value(pre.normalizer.clone()).unwrap();
            normalizer.normalize(&mut normal).unwrap();
        }
        let text = normal.get().to_owned();
        let splitter: PreTokenizerWrapper =
            serde_json::from_value(pre.pre_tokenizer.clone()).unwrap();
        let mut split = PreTokenizedString::from(text.as_str());
        splitter.pre_tokenize(&mut split).unwrap();
        split
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(_, (start, end), _)| text[start..end].to_owned())
            .collect()
    }

    #[test]
    fn every_pre_tokenizer_splits_like_its_definition() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizer/splits.json");
        let text = std::fs::read_to_string(path).unwrap();
        let golden: BTreeMap<String, Vec<(String, Vec<String>)>> =
            serde_json::from_str(&text).unwrap();
        assert_eq!(golden.len(), 4);
        for (name, cases) in golden {
            let pre = Pre::named(&name).unwrap();
            for (text, expected) in cases {
                assert_eq!(pieces(&pre, &text), expected, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn unknown_names_are_not_guessed() {
        assert!(Pre::named("default").is_none());
        assert!(Pre::named("").is_none());
    }
}
