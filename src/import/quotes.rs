//! Quotes and lines of tables of comma-separated values, of which the reader of `csv` says nothing.

use ::csv::Position;

/// A quote that stands where none can. The reader takes whatever follows for one field, up to the next
/// quote or the end of the file, and loses the rows in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuoteFault {
    /// Line on which the quoted field begins.
    pub line: u64,
    /// What was found.
    pub found: &'static str,
    /// What was expected.
    pub expected: &'static str,
}

#[derive(Clone, Copy)]
enum Place {
    /// A field begins.
    Start,
    /// In a field without quotes, in which quotes are text.
    Plain,
    /// In a quoted field.
    Quoted,
    /// Behind a quote, which is doubled or ends its field.
    Quote,
    /// Behind a quoted field.
    Behind,
}

/// The first quoted field of `text` that does not end, or behind whose end something else stands than
/// blanks, a comma or the end of the line.
pub fn quote_fault(text: &[u8]) -> Option<QuoteFault> {
    let (mut place, mut line, mut opened) = (Place::Start, 1, 1);
    for (at, &byte) in text.iter().enumerate() {
        let ends = byte == b',' || is_line_end(byte);
        place = match (place, byte) {
            (Place::Start, b'"') => {
                opened = line;
                Place::Quoted
            }
            (Place::Quoted, b'"') => Place::Quote,
            (Place::Quote, b'"') | (Place::Quoted, _) => Place::Quoted,
            (Place::Quote | Place::Behind, b' ' | b'\t') => Place::Behind,
            _ if ends => Place::Start,
            (Place::Quote | Place::Behind, _) => {
                return Some(QuoteFault {
                    line: opened,
                    found: "text behind the closing quote of a field",
                    expected: "a comma or the end of the line: a quote within a quoted field is doubled",
                });
            }
            (Place::Start | Place::Plain, _) => Place::Plain,
        };
        line += u64::from(ends_line(text, at));
    }
    matches!(place, Place::Quoted).then_some(QuoteFault {
        line: opened,
        found: "a quoted field without an end",
        expected: "a closing quote",
    })
}

/// Lines on which records begin, which are asked for in order. The reader's own count stands before
/// blank lines that it skips, hence the count from the text.
#[derive(Debug)]
pub struct Lines<'a> {
    text: &'a [u8],
    counted: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    /// Those of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Lines {
            text,
            counted: 0,
            line: 1,
        }
    }

    /// The line of the record at `position`, or of the first.
    pub fn of(&mut self, position: Option<&Position>) -> u64 {
        let start = position.map_or(0, |position| position.byte() as usize);
        let start = start.min(self.text.len());
        let rest = self.text[start..].iter();
        let end = start + rest.take_while(|&&byte| is_line_end(byte)).count();
        let ends = (self.counted..end).filter(|&at| ends_line(self.text, at));
        self.line += ends.count() as u64;
        self.counted = self.counted.max(end);
        self.line
    }
}

fn is_line_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

/// CRLF ends one line: its LF counts, and CR where it stands alone.
fn ends_line(text: &[u8], at: usize) -> bool {
    text[at] == b'\n' || text[at] == b'\r' && text.get(at + 1) != Some(&b'\n')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(text: &str) -> Option<(u64, &'static str)> {
        quote_fault(text.as_bytes()).map(|fault| (fault.line, fault.found))
    }

    #[test]
    fn open_and_stray_quotes_are_found_with_their_line() {
        for sound in [
            "",
            "a,b\n1,2",
            "a,b\n\"1\",\"2\n3\"\n",
            "\"say \"\"hi\"\"\",x\r\n\"\"\n",
            "\"a\" ,b\n\"\"\"\"\n",
            "5\" pipe,a\"b\n x \"y\",z\n",
        ] {
            assert_eq!(fault(sound), None, "{sound}");
        }
        let open = "a quoted field without an end";
        assert_eq!(fault("a,b\r\n1,\"to be\r\n2,3\r\n"), Some((2, open)));
        assert_eq!(fault("a\r\"b\"\"\r"), Some((2, open)));
        assert_eq!(fault("\""), Some((1, open)));
        let stray = "text behind the closing quote of a field";
        assert_eq!(
            fault("a,b\n1,\"to be\n2,What is \"3\"?\n"),
            Some((2, stray))
        );
        assert_eq!(fault("\"a\"b"), Some((1, stray)));
        assert_eq!(fault("\"a\" \"b\""), Some((1, stray)));
    }

    proptest! {
        /// What a writer writes has no fault, and cut anywhere it has none or says where the last
        /// field begins.
        #[test]
        fn what_is_written_is_sound(
            rows in prop::collection::vec(prop::collection::vec("[a,\"\r\n ]{0,5}", 2), 1..6),
            cut in 0_usize..80,
        ) {
            let mut writer = ::csv::Writer::from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let text = writer.into_inner().unwrap();
            prop_assert_eq!(quote_fault(&text), None);
            let cut = &text[..cut.min(text.len())];
            let mut reader = ::csv::ReaderBuilder::new();
            let mut reader = reader.has_headers(false).flexible(true).from_reader(cut);
            let read: Vec<_> = reader.records().map(Result::unwrap).collect();
            if quote_fault(cut).is_none() {
                for (found, row) in read.iter().zip(&rows) {
                    for (found, field) in found.iter().zip(row) {
                        prop_assert!(field.starts_with(found), "{:?} {:?}", found, field);
                    }
                }
            }
        }
    }
}
