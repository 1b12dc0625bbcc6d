//! XML for JUnit reports and badges: elements through `quick-xml`, text from anywhere made fit.

use std::borrow::Cow;
use std::io::{self, Write};

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

/// Stands for characters that XML 1.0 cannot hold, escaped or not.
const REPLACEMENT: char = '\u{fffd}';

/// An XML document that is being written.
pub(super) struct Document<'a> {
    writer: Writer<&'a mut dyn Write>,
}

impl<'a> Document<'a> {
    /// A document that starts with an XML declaration.
    pub fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut document = Document {
            writer: Writer::new_with_indent(out, b' ', 2),
        };
        let declaration = BytesDecl::new("1.0", Some("UTF-8"), None);
        document.event(Event::Decl(declaration))?;
        Ok(document)
    }

    /// A document fragment without declaration and indentation, for pages that embed it.
    pub fn fragment(out: &'a mut dyn Write) -> Self {
        Document {
            writer: Writer::new(out),
        }
    }

    /// Opens an element.
    pub fn open(&mut self, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
        self.event(Event::Start(start(name, attributes)))
    }

    /// Closes the element of this name.
    pub fn close(&mut self, name: &str) -> io::Result<()> {
        self.event(Event::End(BytesEnd::new(name)))
    }

    /// An element without content.
    pub fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
        self.event(Event::Empty(start(name, attributes)))
    }

    /// An element with text and nothing else.
    pub fn text(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) -> io::Result<()> {
        self.open(name, attributes)?;
        let fit = fit(text);
        self.event(Event::Text(BytesText::new(&fit)))?;
        self.close(name)
    }

    /// Ends the document with a line feed.
    pub fn finish(self) -> io::Result<()> {
        writeln!(self.writer.into_inner())
    }

    fn event(&mut self, event: Event<'_>) -> io::Result<()> {
        self.writer.write_event(event)
    }
}

fn start<'n>(name: &'n str, attributes: &[(&str, &str)]) -> BytesStart<'n> {
    let mut start = BytesStart::new(name);
    for (name, value) in attributes {
        start.push_attribute((*name, fit(value).as_ref()));
    }
    start
}

/// Text with the characters that XML 1.0 forbids replaced. Line breaks other than a line feed
/// would not survive a parser either and become one.
fn fit(text: &str) -> Cow<'_, str> {
    if !text.contains(|c: char| is_forbidden(c) || c == '\r') {
        return Cow::Borrowed(text);
    }
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    Cow::Owned(text.replace(is_forbidden, &REPLACEMENT.to_string()))
}

fn is_forbidden(c: char) -> bool {
    let allowed = matches!(c,
        '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    // The C1 controls are allowed and make nothing but trouble in terminals.
    !allowed || matches!(c, '\u{7f}'..='\u{9f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quick_xml::Reader;
    use quick_xml::XmlVersion;

    use super::*;

    /// Attribute and text of the only element.
    fn read(bytes: &[u8]) -> (String, String) {
        let mut reader = Reader::from_reader(bytes);
        let (mut attribute, mut text) = (String::new(), String::new());
        loop {
            match reader.read_event().unwrap() {
                Event::Start(element) => {
                    let found = element.attributes().next().unwrap().unwrap();
                    attribute = found
                        .normalized_value(XmlVersion::Implicit1_0)
                        .unwrap()
                        .into_owned();
                }
                Event::Text(part) => text.push_str(&part),
                Event::GeneralRef(reference) => {
                    let name: &str = &reference;
                    let resolved = match reference.resolve_char_ref().unwrap() {
                        Some(c) => c.to_string(),
                        None => quick_xml::escape::resolve_predefined_entity(name)
                            .unwrap()
                            .to_owned(),
                    };
                    text.push_str(&resolved);
                }
                Event::Eof => return (attribute, text),
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_reads_back_but_for_what_xml_cannot_hold(value in any::<String>()) {
            let mut out = Vec::new();
            let mut document = Document::fragment(&mut out);
            document.text("a", &[("b", &value)], &value).unwrap();
            let (attribute, text) = read(&out);
            prop_assert_eq!(&text, &*fit(&value));
            prop_assert_eq!(attribute, text);
            prop_assert!(fit(&value).chars().all(|c| !is_forbidden(c)));
        }
    }

    #[test]
    fn forbidden_characters_are_replaced_and_markup_is_escaped() {
        assert_eq!(
            fit("a\u{0}b\u{1b}[31m\u{fffe}\r\nc\td"),
            "a\u{fffd}b\u{fffd}[31m\u{fffd}\nc\td"
        );
        assert_eq!(fit("<é & 数 🙂>"), "<é & 数 🙂>");
        let mut out = Vec::new();
        let mut document = Document::fragment(&mut out);
        document
            .text("a", &[("b", "\"<&'>\n")], "]]> <x/>")
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "<a b=\"&quot;&lt;&amp;&apos;&gt;&#10;\">]]&gt; &lt;x/&gt;</a>"
        );
    }
}
