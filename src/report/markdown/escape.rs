//! Text from anywhere within Markdown that GitHub and GitLab render.

/// Text as it stands: no markup, no links, no mentions, on one line.
pub(super) fn text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let after = rest.peek().copied().unwrap_or(' ');
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // An entity where a backslash would not do: in tables, and against automatic links.
            '|' | '\\' | '`' => escaped.push_str(&entity(c)),
            '.' if before == 'w' || before == 'W' => escaped.push_str(&entity(c)),
            ':' if after == ' ' => escaped.push(c),
            '_' if before.is_alphanumeric() && after.is_alphanumeric() => escaped.push(c),
            // A comment keeps mentions, references, links and emoji from being one word.
            '@' | '#' | ':' => {
                escaped.push_str(&entity(c));
                escaped.push_str("<!-- -->");
            }
            '*' | '_' | '[' | ']' | '~' | '!' | '$' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
        before = c;
    }
    escaped
}

/// A name in code type.
pub(super) fn code(name: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '`' | '|' | '\\') || c == ' ';
    let inner = !name.is_empty() && name.trim() == name && name.chars().all(plain);
    if inner {
        return format!("`{name}`");
    }
    let escaped: String = name
        .chars()
        .map(|c| match c {
            c if c.is_control() => " ".to_owned(),
            c if c.is_alphanumeric() || c == ' ' => c.to_string(),
            c => entity(c),
        })
        .collect();
    format!("<code>{escaped}</code>")
}

fn entity(c: char) -> String {
    format!("&#{};", u32::from(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_stay_readable() {
        let sentence = "AF: bound_exceeds_limit, +1.00% against control-a (1 of 2)";
        assert_eq!(text(sentence), sentence);
    }

    #[test]
    fn markup_links_and_mentions_are_text() {
        assert_eq!(
            text("a|b *c* <i> `x` @who #12 http://h/ www.h \\\n| _d_ [e](f) $1$"),
            "a&#124;b \\*c\\* &lt;i&gt; &#96;x&#96; &#64;<!-- -->who &#35;<!-- -->12 \
             http&#58;<!-- -->//h/ www&#46;h &#92; &#124; \\_d\\_ \\[e\\](f) \\$1\\$"
        );
    }

    #[test]
    fn code_that_a_code_span_cannot_hold_is_an_element() {
        assert_eq!(code("k=native,v=e4m3:dynamic"), "`k=native,v=e4m3:dynamic`");
        assert_eq!(code("@who #1 <b>"), "`@who #1 <b>`");
        assert_eq!(code("a|b`c\n*"), "<code>a&#124;b&#96;c &#42;</code>");
        assert_eq!(code(""), "<code></code>");
        assert_eq!(code(" x "), "<code> x </code>");
    }
}
