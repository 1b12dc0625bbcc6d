//! Bytes of single tokens, which need not be whole characters.

use super::Tokenizer;

impl Tokenizer {
    /// Bytes of one token by itself, where the vocabulary shows them: in the characters of a
    /// byte-level vocabulary, or as `<0xE2>`. `None` where they do not make [`Tokenizer::piece`].
    pub(crate) fn piece_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.rendered.id_to_token(id)?;
        let bytes = match fallback(&token) {
            Some(byte) => vec![byte],
            None => token.chars().map(byte).collect::<Option<_>>()?,
        };
        (String::from_utf8_lossy(&bytes) == self.piece(id)).then_some(bytes)
    }
}

/// The byte of a token of byte fallback.
fn fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

/// The byte for which a character of a byte-level vocabulary stands: printable characters of Latin-1
/// stand for themselves, those from U+0100 on for the remaining bytes in order.
fn byte(c: char) -> Option<u8> {
    let is_own = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(u32::from(c)) {
        Ok(byte) => Some(byte).filter(is_own),
        Err(_) => {
            let at = (u32::from(c) - 0x100) as usize;
            (0..=u8::MAX).filter(|byte| !is_own(byte)).nth(at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_a_vocabulary_stand_for_bytes() {
        assert_eq!(byte('a'), Some(b'a'));
        assert_eq!(
            (byte('\u{120}'), byte('\u{10a}')),
            (Some(b' '), Some(b'\n'))
        );
        assert_eq!((byte('\u{f0}'), byte('\u{13d}')), (Some(0xf0), Some(0x9b)));
        assert_eq!((byte('\u{143}'), byte('\u{144}')), (Some(0xad), None));
        assert_eq!((byte(' '), byte('\u{2581}')), (None, None));
        assert_eq!((fallback("<0xE2>"), fallback("<s>")), (Some(0xe2), None));
    }
}
