//! Haystack text, word by word, and needles put between its sentences.

/// A word and what ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    text: Box<str>,
    ends_sentence: bool,
    ends_paragraph: bool,
}

/// The words of the haystack's articles, one after the other, read in a circle.
#[derive(Clone, Debug, Default)]
pub(super) struct Haystack {
    words: Vec<Word>,
}

/// A sentence and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Insert {
    /// Sentence.
    pub text: String,
    /// Proportion of the haystack before it, 0 to 1.
    pub depth: f64,
}

impl Haystack {
    /// Adds an article's words.
    pub fn push(&mut self, article: &str) {
        for paragraph in article.lines() {
            let mut words = paragraph.split_whitespace().peekable();
            while let Some(word) = words.next() {
                let ends_paragraph = words.peek().is_none();
                self.words.push(Word {
                    text: word.into(),
                    ends_sentence: ends_paragraph || ends_sentence(word),
                    ends_paragraph,
                });
            }
        }
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The first word of the sentence that holds word `at`; 0 where none begins before it.
    pub fn sentence_start(&self, at: usize) -> usize {
        (1..=at)
            .rev()
            .find(|&start| self.words[start - 1].ends_sentence)
            .unwrap_or(0)
    }

    /// `words` words from word `start` on, with the sentences of `inserts` (sorted by depth) put
    /// where a sentence ends that is nearest to their depth.
    pub fn text(&self, start: usize, words: usize, inserts: &[Insert]) -> String {
        let mut out = String::new();
        let mut places: Vec<usize> = inserts
            .iter()
            .map(|insert| self.place(start, words, insert.depth))
            .collect();
        places.reverse();
        let mut inserts = inserts.iter();
        for at in 0..=words {
            while places.last() == Some(&at) {
                places.pop();
                if let Some(insert) = inserts.next() {
                    append(&mut out, &insert.text);
                }
            }
            if at < words {
                let word = self.word(start + at);
                append(&mut out, &word.text);
                if word.ends_paragraph && at + 1 < words {
                    out.push('\n');
                }
            }
        }
        out
    }

    /// Number of words before the sentence boundary nearest to `depth`; the earlier of two.
    fn place(&self, start: usize, words: usize, depth: f64) -> usize {
        let target = (depth * words as f64).round() as usize;
        let target = target.min(words);
        let boundary =
            |at: usize| at == 0 || at == words || self.word(start + at - 1).ends_sentence;
        (0..=words)
            .find_map(|distance| {
                let below = target.checked_sub(distance).filter(|&at| boundary(at));
                below.or_else(|| Some(target + distance).filter(|&at| at <= words && boundary(at)))
            })
            .unwrap_or(words)
    }

    fn word(&self, at: usize) -> &Word {
        &self.words[at % self.words.len()]
    }
}

/// A word that ends with a full stop, a question or an exclamation mark, quotes and brackets aside.
fn ends_sentence(word: &str) -> bool {
    word.trim_end_matches(['"', '\'', '”', '’', ')', ']'])
        .ends_with(['.', '!', '?'])
}

fn append(out: &mut String, text: &str) {
    if !out.is_empty() && !out.ends_with('\n') {
        out.push(' ');
    }
    out.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn haystack() -> Haystack {
        let mut haystack = Haystack::default();
        haystack.push("One two three. Four five.\n\n  Six seven? \"Eight.\" nine ten");
        haystack
    }

    fn insert(depth: f64) -> Insert {
        Insert {
            text: format!("<{depth}>"),
            depth,
        }
    }

    #[test]
    fn words_keep_their_order_and_paragraphs() {
        let haystack = haystack();
        assert_eq!(haystack.len(), 10);
        assert_eq!(
            haystack.text(0, 10, &[]),
            "One two three. Four five.\nSix seven? \"Eight.\" nine ten"
        );
        assert_eq!(haystack.text(8, 4, &[]), "nine ten\nOne two");
        assert_eq!(haystack.text(3, 2, &[]), "Four five.");
        assert_eq!(haystack.sentence_start(4), 3);
        assert_eq!(haystack.sentence_start(2), 0);
        assert_eq!(haystack.sentence_start(9), 8);
    }

    #[test]
    fn needles_stand_between_sentences() {
        let haystack = haystack();
        assert_eq!(
            haystack.text(0, 10, &[insert(0.0), insert(0.4), insert(1.0)]),
            "<0> One two three. <0.4> Four five.\nSix seven? \"Eight.\" nine ten <1>"
        );
        // 0.5 of ten words is a boundary itself; a paragraph's end stays one.
        assert_eq!(
            haystack.text(0, 10, &[insert(0.5)]),
            "One two three. Four five.\n<0.5> Six seven? \"Eight.\" nine ten"
        );
        assert_eq!(
            haystack.text(0, 0, &[insert(0.3), insert(0.6)]),
            "<0.3> <0.6>"
        );
    }
}
