//! What a cache budget holds, for people.

use std::io::Write;

use super::Report;
use crate::cli::output;
use crate::cli::size::Size;

/// Writes the report.
pub(super) fn write(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let model = &report.model;
    match (model.kv_heads, model.head_dim) {
        (Some(kv_heads), Some(head_dim)) => writeln!(
            out,
            "{}: {} layers, {kv_heads} KV heads, head_dim {head_dim}",
            model.name, model.layers
        )?,
        _ => {
            writeln!(out, "{}: {} layers", model.name, model.layers)?;
            for kind in &model.kinds {
                writeln!(out, "  {kind}")?;
            }
        }
    }
    if let Some(assumption) = &model.assumption {
        writeln!(out, "  {assumption}")?;
    }
    writeln!(
        out,
        "budget {}, reserve {}, pages of {} tokens",
        Size(report.budget_bytes),
        Size(report.reserve_bytes),
        report.page_tokens
    )?;
    if report.equal_slots_blocks.is_some() {
        writeln!(out)?;
        write_pages(out, report)?;
    }
    if let Some(tokens) = report.sequence_tokens {
        writeln!(out, "\na sequence of {tokens} tokens")?;
        write_sequence(out, report)?;
        write_stored(out, report)?;
    }
    let beside = report.recipes.iter().filter(|row| row.sink_bytes > 0);
    for (i, row) in beside.enumerate() {
        let lead = if i == 0 { "\n" } else { "" };
        writeln!(
            out,
            "{lead}{}: every sequence takes {} bytes beside its pages, for its first tokens",
            row.name, row.sink_bytes
        )?;
    }
    writeln!(
        out,
        "\nElements and inline scales; an allocator may round up. Not a statement on quality."
    )
}

/// What pages hold, where every page holds tokens of all layers.
fn write_pages(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let equal = report.equal_slots_blocks.unwrap_or_default();
    let equal = format!("GiB for {equal} blocks");
    let header = [
        "recipe",
        "bytes/token",
        "saved",
        "blocks",
        "token slots",
        &equal,
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    rows.extend(report.recipes.iter().map(|row| {
        let gib = |bytes: u64| format!("{:.3}", bytes as f64 / (1u64 << 30) as f64);
        vec![
            row.name.clone(),
            row.bytes_per_token.to_string(),
            format!("{:.4}%", 100.0 * row.saved),
            count(row.blocks),
            count(row.token_slots),
            row.equal_slots_bytes.map_or("-".to_owned(), gib),
        ]
    }));
    output::write_table(out, &rows)
}

/// What a sequence stored that it no longer keeps, by native.
fn write_stored(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let native = report.recipes.first().and_then(|row| row.sequence.as_ref());
    let Some(sequence) = native.filter(|of| of.stored_bytes > of.cache_bytes) else {
        return Ok(());
    };
    writeln!(
        out,
        "\nLayers with a window keep the last tokens; stored were {:.3} MiB by native, which is what \
         `bytes_per_token` of certificates counts.",
        sequence.stored_bytes as f64 / (1u64 << 20) as f64
    )
}

/// What one sequence keeps.
fn write_sequence(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let header = [
        "recipe",
        "bytes/token",
        "cache MiB",
        "pages MiB",
        "recurrent MiB",
        "persistent MiB",
        "state saved",
        "sequences",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.recipes.iter().filter_map(|row| {
        let sequence = row.sequence.as_ref()?;
        let mib = |bytes: u64| format!("{:.3}", bytes as f64 / (1u64 << 20) as f64);
        Some(vec![
            row.name.clone(),
            row.bytes_per_token.to_string(),
            mib(sequence.cache_bytes),
            mib(sequence.page_bytes),
            mib(sequence.recurrent_bytes),
            mib(sequence.persistent_bytes),
            format!("{:.4}%", 100.0 * sequence.saved),
            sequence.sequences.to_string(),
        ])
    }));
    output::write_table(out, &rows)
}
