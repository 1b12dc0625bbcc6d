//! Writes the training text of the demo models as JSON lines: `demo_corpus SEED DOCUMENTS`.

use std::io::{BufWriter, Write};

use kvassay::panel::demo::{SplitMix, document};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, seed, documents] = args.as_slice() else {
        return Err("usage: demo_corpus SEED DOCUMENTS".into());
    };
    let mut draw = SplitMix::new(seed.parse()?);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for _ in 0..documents.parse::<u64>()? {
        writeln!(out, "{}", document(&mut draw).to_json())?;
    }
    Ok(out.flush()?)
}
