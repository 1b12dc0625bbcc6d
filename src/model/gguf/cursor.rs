//! Bounded reading of little-endian fields.

use super::super::ModelError;

/// A position in the bytes of one file.
pub(super) struct Cursor<'a> {
    path: &'a str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    pub(super) fn new(path: &'a str, bytes: &'a [u8]) -> Self {
        Cursor {
            path,
            bytes,
            position: 0,
        }
    }

    /// The file, for messages.
    pub(super) fn path(&self) -> &'a str {
        self.path
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `length` bytes, which hold `what`.
    pub(super) fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], ModelError> {
        if length > self.left() {
            let found = format!("{} bytes to the end of the file", self.left());
            return Err(self.invalid(what, found, format!("{length} bytes")));
        }
        let start = self.position;
        self.position += length;
        Ok(&self.bytes[start..self.position])
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let bytes = self.take(N, what)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    /// A 32-bit number.
    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A 64-bit number.
    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number of items of at least `least_bytes` each, all of which must still fit.
    pub(super) fn count(&mut self, least_bytes: u64, what: &str) -> Result<usize, ModelError> {
        let count = self.u64(what)?;
        let left = self.left() as u64;
        if count
            .checked_mul(least_bytes)
            .is_none_or(|need| need > left)
        {
            let expected = format!("at most what fits into {left} bytes");
            return Err(self.invalid(what, count, expected));
        }
        Ok(count as usize)
    }

    /// A length-prefixed UTF-8 string.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, ModelError> {
        let length = self.count(1, what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|e| self.invalid(what, e, "UTF-8"))
    }

    /// Error about `what`, with the position.
    pub(super) fn invalid(
        &self,
        what: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> ModelError {
        let what = format!("{what} before byte {}", self.position);
        ModelError::invalid(self.path, what, found, expected)
    }
}
