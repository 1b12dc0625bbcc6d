//! Writes the training text of the demo models as JSON lines: `demo_corpus SEED DOCUMENTS`.
//!
//! Each line is `{"kind": …, "turns": [[user, assistant], …]}` or `{"kind": "prose", "text": …}`.

use std::io::{BufWriter, Write};

use kvassay::panel::demo::{self, Draw};

/// SplitMix64: small, seeded and good enough to draw text.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Draw for SplitMix {
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, seed, documents] = args.as_slice() else {
        return Err("usage: demo_corpus SEED DOCUMENTS".into());
    };
    let mut draw = SplitMix(seed.parse()?);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for _ in 0..documents.parse::<u64>()? {
        let line = match draw.below(10) {
            0..=4 => math(&mut draw),
            5..=8 => retrieval(&mut draw),
            _ => {
                let sentences = 4 + draw.below(60) as usize;
                serde_json::json!({"kind": "prose", "text": demo::article(&mut draw, sentences).text})
            }
        };
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

fn math(draw: &mut SplitMix) -> serde_json::Value {
    let problem = demo::problem(draw);
    serde_json::json!({"kind": "math", "turns": [[problem.question, problem.solution]]})
}

/// A haystack with needles, then several questions about it: more to learn per document.
fn retrieval(draw: &mut SplitMix) -> serde_json::Value {
    // Short contexts are frequent, long ones are seen often enough.
    let most = [4, 8, 16, 32, 64, 96][draw.below(6) as usize];
    let count = 1 + draw.below(most) as usize;
    let keys = demo::keys(draw, count);
    let prose = draw.below(3);
    let mut haystack = String::new();
    let mut values = Vec::new();
    for key in &keys {
        if draw.below(4) < prose {
            let text = demo::article(draw, 1).text;
            haystack.push_str(text.trim_end());
            haystack.push(' ');
        }
        let (sentence, value) = demo::needle(draw, key);
        haystack.push_str(&sentence);
        haystack.push(' ');
        values.push(value);
    }
    let mut turns = Vec::new();
    for turn in 0..8 {
        let asked = draw.below(keys.len() as u64) as usize;
        let question = demo::needle_question(keys[asked]);
        let user = if turn == 0 {
            format!("{haystack}\n{question}")
        } else {
            question
        };
        turns.push([user, values[asked].clone()]);
    }
    serde_json::json!({"kind": "retrieval", "turns": turns})
}
