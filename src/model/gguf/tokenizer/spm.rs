//! The SentencePiece kind of tokenizer, whose merges follow from the scores of its pieces.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Vocabulary, kind};
use crate::model::ModelError;

/// What pieces have in place of a space.
const SPACE: &str = "\u{2581}";

/// Longest piece in bytes whose splits are looked up; those of published vocabularies have below
/// 200, and the work grows with the square.
const LONGEST_PIECE: usize = 1024;

/// The content of an equivalent `tokenizer.json`: byte-pair merges whose order is that of the
/// scores, bytes where a character is no piece.
///
/// # Errors
/// [`ModelError::Unsupported`] for a space before every text and for white space that is removed;
/// [`ModelError::Invalid`] for scores that do not fit the vocabulary.
pub(super) fn definition(vocabulary: &Vocabulary<'_>) -> Result<Value, ModelError> {
    let metadata = vocabulary.metadata;
    // A file that says nothing means that there is one.
    let key = "tokenizer.ggml.add_space_prefix";
    if metadata.bool(key)? != Some(false) {
        return Err(metadata.unsupported_beside(key, "false"));
    }
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    if metadata.bool(key)? == Some(true) {
        return Err(metadata.unsupported_beside(key, "false"));
    }
    let unknown = vocabulary.token("tokenizer.ggml.unknown_token_id")?;
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary.table()?,
            "merges": merges(vocabulary)?,
        },
    }))
}

/// Every pair of pieces that make up a piece, by descending score of the latter.
fn merges(vocabulary: &Vocabulary<'_>) -> Result<Vec<Value>, ModelError> {
    let (metadata, key) = (vocabulary.metadata, "tokenizer.ggml.scores");
    let count = vocabulary.tokens.len();
    let expected = || format!("a score for each of the {count} tokens");
    let scores = metadata
        .floats(key)?
        .ok_or_else(|| metadata.wrong(key, "nothing", expected()))?;
    if scores.len() != count {
        return Err(metadata.wrong(key, scores.len(), expected()));
    }
    if let Some(score) = scores.iter().find(|score| score.is_nan()) {
        return Err(metadata.wrong(key, score, "numbers"));
    }
    let is_piece = |id: &usize| matches!(vocabulary.kind(*id), kind::NORMAL | kind::USER_DEFINED);
    let pieces: Vec<usize> = (0..count).filter(is_piece).collect();
    let ids: HashMap<&str, usize> = pieces
        .iter()
        .map(|&id| (vocabulary.tokens[id].as_str(), id))
        .collect();
    if let Some(id) = pieces
        .iter()
        .find(|&&id| vocabulary.tokens[id].len() > LONGEST_PIECE)
    {
        let bytes = vocabulary.tokens[*id].len();
        let what = format!("tokenizer.ggml.tokens: piece {id} of {bytes} bytes");
        return Err(ModelError::unsupported(metadata.path(), what));
    }
    let mut merges = Vec::new();
    for &id in &pieces {
        let piece = vocabulary.tokens[id].as_str();
        let splits = piece.char_indices().skip(1).filter_map(|(at, _)| {
            let (left, right) = piece.split_at(at);
            Some((id, *ids.get(left)?, *ids.get(right)?))
        });
        merges.extend(splits);
    }
    merges.sort_by(|a, b| {
        let by_score = scores[b.0].total_cmp(&scores[a.0]);
        by_score.then(a.cmp(b))
    });
    let token = |id: usize| vocabulary.tokens[id].as_str();
    let pairs = merges.into_iter();
    Ok(pairs
        .map(|(_, left, right)| json!([token(left), token(right)]))
        .collect())
}

#[cfg(test)]
mod tests {
    use crate::model::ModelError;
    use crate::model::gguf::testing::Builder;
    use crate::model::gguf::{parse, tokenizer};
    use crate::model::tokenizer::Tokenizer;

    const FIRST_BYTE: u32 = 4;
    const FIRST_PIECE: u32 = FIRST_BYTE + 256;
    /// Pieces by id, of descending score but for single characters.
    const PIECES: [(&str, f32); 11] = [
        ("\u{2581}", -900.0),
        ("a", -900.0),
        ("b", -900.0),
        ("c", -900.0),
        ("bc", -1.0),
        ("ab", -2.0),
        ("\u{2581}a", -3.0),
        ("abc", -4.0),
        ("\u{2581}abc", -5.0),
        ("\n\n", -1000.0),
        ("\u{2581}\u{2581}", -6.0),
    ];

    fn builder() -> Builder {
        let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"]
            .map(str::to_owned)
            .to_vec();
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        tokens.extend(PIECES.map(|(piece, _)| piece.to_owned()));
        let kind = |id: usize| match id {
            0..3 => 3,
            3 => 2,
            4..260 => 6,
            id if tokens[id] == "\n\n" => 4,
            _ => 1,
        };
        let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
        let mut scores = vec![-1000.0; FIRST_PIECE as usize];
        scores.extend(PIECES.map(|(_, score)| score));
        let bytes = scores
            .iter()
            .flat_map(|score| score.to_le_bytes())
            .collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        Builder::new()
            .text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .array("tokenizer.ggml.scores", 6, scores.len() as u64, bytes)
            .u32("tokenizer.ggml.bos_token_id", 2)
            .u32("tokenizer.ggml.eos_token_id", 1)
            .u32("tokenizer.ggml.unknown_token_id", 3)
            .bool("tokenizer.ggml.add_space_prefix", false)
    }

    fn read(builder: &Builder) -> Result<Tokenizer, ModelError> {
        tokenizer(&parse("a.gguf", &builder.bytes())?.metadata)
    }

    #[test]
    fn merges_follow_the_scores() {
        let tokenizer = read(&builder()).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos_ids()), (Some(2), &[1][..]));
        let ids = |text: &str| {
            let ids = tokenizer.encode_text(text).unwrap();
            let ids = ids.strip_prefix(&[2]).unwrap_or(&ids);
            ids.iter()
                .map(|id| id.wrapping_sub(FIRST_PIECE))
                .collect::<Vec<_>>()
        };
        let byte = |byte: u32| (FIRST_BYTE + byte).wrapping_sub(FIRST_PIECE);
        // "bc" before "ab": what is left of "abc" then makes up the whole.
        assert_eq!(ids("abc"), [7]);
        assert_eq!(ids("abab"), [5, 5]);
        assert_eq!(ids(" abc"), [8]);
        assert_eq!(ids("a  b"), [1, 10, 2]);
        assert_eq!(ids("a\n\nb"), [1, 9, 2]);
        // Two bytes of a character that is no piece.
        assert_eq!(ids("é"), [byte(0xC3), byte(0xA9)]);
        for text in [" abc a  é\n\n\nb", "", "\t"] {
            let encoded = tokenizer.encode_text(text).unwrap();
            let decoded = tokenizer.decode(encoded.strip_prefix(&[2]).unwrap_or(&encoded));
            assert_eq!(decoded, text);
        }
    }

    #[test]
    fn a_piece_too_long_to_split_is_named() {
        let metadata = |length: usize| {
            let piece = "a".repeat(length);
            let builder = Builder::new()
                .text("tokenizer.ggml.model", "llama")
                .texts("tokenizer.ggml.tokens", &["<unk>", &piece])
                .i32s("tokenizer.ggml.token_type", &[2, 1])
                .array("tokenizer.ggml.scores", 6, 2, vec![0; 8])
                .u32("tokenizer.ggml.bos_token_id", 0)
                .u32("tokenizer.ggml.eos_token_id", 0)
                .u32("tokenizer.ggml.unknown_token_id", 0)
                .bool("tokenizer.ggml.add_space_prefix", false);
            read(&builder).err().map(|error| error.to_string())
        };
        let named = metadata(1 << 20).unwrap();
        assert!(named.ends_with("piece 1 of 1048576 bytes"), "{named}");
        let fits = metadata(1024);
        assert!(fits.is_none_or(|text| !text.contains("piece 1 of")));
    }

    #[test]
    fn what_is_not_applied_or_does_not_fit_is_named() {
        let some = |bytes: &[f32]| bytes.iter().flat_map(|x| x.to_le_bytes()).collect();
        for (builder, part) in [
            (
                builder().without("tokenizer.ggml.add_space_prefix"),
                "tokenizer.ggml.add_space_prefix",
            ),
            (
                builder().bool("tokenizer.ggml.remove_extra_whitespaces", true),
                "remove_extra_whitespaces = true",
            ),
            (
                builder().array("tokenizer.ggml.scores", 6, 2, some(&[1.0, 2.0])),
                "found 2, expected a score for each of the 271 tokens",
            ),
            (
                builder().array("tokenizer.ggml.scores", 6, 271, some(&[f32::NAN; 271])),
                "found NaN",
            ),
        ] {
            let text = read(&builder).err().unwrap().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}
