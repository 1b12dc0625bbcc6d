//! `kvassay memory`: what a cache budget holds under each recipe.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args as ClapArgs;
use serde::Serialize;

use crate::recipe::{self, CacheShape, NAMED, PAGE_TOKENS, Recipe};

use super::geometry::{self, GeometryError, ModelShape};
use super::output::{self, Format};
use super::prepare::model_failure;
use super::size::Size;
use super::{Exit, Failure};

/// Schema name of the JSON document.
const MEMORY_SCHEMA: &str = "kvassay.memory/1";

/// Arguments of `kvassay memory`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A config.json or a folder with one, a GGUF file, or one of the built-in models demo-tolerant
    /// and demo-sensitive.
    model: PathBuf,
    /// Bytes that the cache may take, such as 40GiB.
    #[arg(long, value_name = "SIZE")]
    budget: Size,
    /// Bytes of the budget that stay free.
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    reserve: Size,
    /// Recipe to compare with native, repeatable [default: the six named FP8 recipes].
    #[arg(long = "recipe", value_name = "RECIPE")]
    recipes: Vec<String>,
    /// Pages whose size is given under every recipe [default: as many as native gets].
    #[arg(long, value_name = "N")]
    blocks: Option<u64>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What is asked, with the model and the recipes read.
struct Settings {
    model: ModelShape,
    recipes: Vec<Recipe>,
    budget: u64,
    reserve: u64,
    blocks: Option<u64>,
}

/// The JSON document.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    model: Model,
    budget_bytes: u64,
    reserve_bytes: u64,
    page_tokens: u64,
    /// Pages that `equal_slots_bytes` speaks of.
    equal_slots_blocks: u64,
    recipes: Vec<Row>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    layers: u32,
    kv_heads: u32,
    head_dim: u32,
}

#[derive(Serialize)]
struct Row {
    name: String,
    spec: String,
    bytes_per_token: u64,
    /// Bytes of a sequence beside its pages, for first tokens that stay native.
    #[serde(skip_serializing_if = "is_zero")]
    sink_bytes: u64,
    /// Proportion of native bytes.
    saved: f64,
    blocks: u64,
    token_slots: u64,
    /// Bytes of `equal_slots_blocks` pages; absent beyond 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    equal_slots_bytes: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for a recipe, size or model config that is refused, 3 for a GGUF file of a model that no
/// worker runs.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let report = report(&resolve(args)?);
    match args.format {
        Format::Json => output::write_json(out, &report)?,
        Format::Text => write_text(out, &report)?,
    }
    Ok(Exit::Holds)
}

fn resolve(args: &Args) -> Result<Settings, Failure> {
    let model = geometry::read(&args.model).map_err(|error| match error {
        GeometryError::Model(error) => model_failure(error),
        other => Failure::input(other),
    })?;
    if args.reserve > args.budget {
        return Err(Failure::input(anyhow!(
            "--reserve: found {}, expected no more than the budget of {}",
            args.reserve,
            args.budget
        )));
    }
    Ok(Settings {
        recipes: recipes(&args.recipes, &model.shape)?,
        model,
        budget: args.budget.0,
        reserve: args.reserve.0,
        blocks: args.blocks,
    })
}

/// Native first, then what was named, each recipe once.
fn recipes(named: &[String], shape: &CacheShape) -> Result<Vec<Recipe>, Failure> {
    let named: Vec<&str> = if named.is_empty() {
        NAMED.iter().map(|(name, _)| *name).collect()
    } else {
        named.iter().map(String::as_str).collect()
    };
    let mut recipes = vec![Recipe::native()];
    for text in named {
        let recipe = Recipe::parse(text).map_err(Failure::input)?;
        recipe
            .check_layers(shape.layers as usize)
            .and_then(|()| recipe.check_heads(shape.head_dim as usize))
            .map_err(|error| {
                Failure::input(anyhow::Error::new(error).context(format!("recipe `{text}`")))
            })?;
        if !recipes.contains(&recipe) {
            recipes.push(recipe);
        }
    }
    Ok(recipes)
}

fn report(settings: &Settings) -> Report {
    let shape = settings.model.shape;
    let native = recipe::bytes_per_token(&Recipe::native(), &shape);
    let capacity = |bytes| recipe::capacity(settings.budget, settings.reserve, bytes);
    let equal = settings.blocks.unwrap_or(capacity(native).blocks);
    let row = |recipe: &Recipe| {
        let bytes_per_token = recipe::bytes_per_token(recipe, &shape);
        let capacity = capacity(bytes_per_token);
        Row {
            name: recipe.name.clone(),
            spec: recipe.spec(),
            bytes_per_token,
            sink_bytes: recipe::sink_bytes(recipe, &shape),
            saved: recipe::saved(bytes_per_token, native),
            blocks: capacity.blocks,
            token_slots: capacity.token_slots,
            equal_slots_bytes: recipe::cache_bytes(equal, bytes_per_token),
        }
    };
    Report {
        schema: MEMORY_SCHEMA,
        model: Model {
            name: settings.model.name.clone(),
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        },
        budget_bytes: settings.budget,
        reserve_bytes: settings.reserve,
        page_tokens: PAGE_TOKENS,
        equal_slots_blocks: equal,
        recipes: settings.recipes.iter().map(row).collect(),
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

fn write_text(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let model = &report.model;
    writeln!(
        out,
        "{}: {} layers, {} KV heads, head_dim {}",
        model.name, model.layers, model.kv_heads, model.head_dim
    )?;
    writeln!(
        out,
        "budget {}, reserve {}, pages of {} tokens\n",
        Size(report.budget_bytes),
        Size(report.reserve_bytes),
        report.page_tokens
    )?;
    let equal = format!("GiB for {} blocks", report.equal_slots_blocks);
    let header = [
        "recipe",
        "bytes/token",
        "saved",
        "blocks",
        "token slots",
        &equal,
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.recipes.iter().map(|row| {
        let gib = |bytes: u64| format!("{:.3}", bytes as f64 / (1u64 << 30) as f64);
        vec![
            row.name.clone(),
            row.bytes_per_token.to_string(),
            format!("{:.4}%", 100.0 * row.saved),
            row.blocks.to_string(),
            row.token_slots.to_string(),
            row.equal_slots_bytes.map_or("-".to_owned(), gib),
        ]
    }));
    output::write_table(out, &rows)?;
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
