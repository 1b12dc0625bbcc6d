//! `kvassay memory`: what a cache budget holds under each recipe.

mod text;

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args as ClapArgs;
use serde::Serialize;

use crate::recipe::{self, CacheShape, LayerState, NAMED, PAGE_TOKENS, Recipe};

use super::geometry::{self, GeometryError, Kind, ModelShape, kinds};
use super::output::{self, Format};
use super::prepare::model_failure;
use super::size::Size;
use super::{Exit, Failure};

/// Schema name of the JSON document.
const MEMORY_SCHEMA: &str = "kvassay.memory/1";

/// Tokens of a sequence where none are given.
const SEQUENCE_TOKENS: u64 = 8192;

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
    /// Pages whose size is given under every recipe [default: as many as native gets]; of models
    /// that keep every token in every layer alike.
    #[arg(long, value_name = "N")]
    blocks: Option<u64>,
    /// Tokens of a sequence whose bytes are given; 8192 for models of which layers differ, keep a
    /// window only, or keep a recurrent state.
    #[arg(long, value_name = "N", value_parser = parse_tokens)]
    tokens: Option<u64>,
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
    tokens: Option<u64>,
}

/// The JSON document.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    model: Model,
    budget_bytes: u64,
    reserve_bytes: u64,
    page_tokens: u64,
    /// Pages that `equal_slots_bytes` speaks of; absent where no page holds a token of all layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    equal_slots_blocks: Option<u64>,
    /// Tokens of the sequence that `sequence` of each recipe speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_tokens: Option<u64>,
    recipes: Vec<Row>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    layers: u32,
    /// Absent where layers differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_heads: Option<u32>,
    /// Absent where layers differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dim: Option<u32>,
    /// Layers of each kind, where they differ, keep a window only, or keep a recurrent state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kinds: Vec<Kind>,
    /// What the figures take for granted, where the family is none that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    assumption: Option<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    spec: String,
    /// Bytes that one more token takes; beyond every window.
    bytes_per_token: u64,
    /// Bytes of a sequence beside its pages, for first tokens that stay native.
    #[serde(skip_serializing_if = "is_zero")]
    sink_bytes: u64,
    /// Proportion of native bytes: of a token where layers are alike, else of a sequence, states
    /// that no recipe changes included.
    saved: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_slots: Option<u64>,
    /// Bytes of `equal_slots_blocks` pages; absent beyond 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    equal_slots_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<Sequence>,
}

/// What one sequence keeps.
#[derive(Serialize)]
struct Sequence {
    /// Keys and values that it keeps: of a layer with a window those of its last tokens.
    cache_bytes: u64,
    /// The same in whole pages, as the built-in workers allocate them; a chunk of a prompt takes more
    /// while it is computed.
    page_bytes: u64,
    /// Keys and values that it stored to get there: what certificates count.
    stored_bytes: u64,
    /// Recurrent states.
    recurrent_bytes: u64,
    /// Both.
    persistent_bytes: u64,
    /// Proportion of native's persistent bytes.
    saved: f64,
    /// Sequences that the budget holds.
    sequences: u64,
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
        Format::Text => text::write(out, &report)?,
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
    let shape = model.uniform();
    if let (None, Some(blocks)) = (shape, args.blocks) {
        return Err(Failure::input(anyhow!(
            "--blocks: found {blocks}, expected --tokens for {}: its layers keep different tokens",
            model.name
        )));
    }
    let usual = shape.is_none().then_some(SEQUENCE_TOKENS);
    Ok(Settings {
        recipes: recipes(&args.recipes, &model.layers)?,
        model,
        budget: args.budget.0,
        reserve: args.reserve.0,
        blocks: args.blocks,
        tokens: args.tokens.or(usual),
    })
}

/// Most tokens of a sequence: bytes of all its layers stay far below 2^64.
const MOST_TOKENS: u64 = 1 << 32;

/// A positive number of tokens.
fn parse_tokens(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(tokens) if (1..=MOST_TOKENS).contains(&tokens) => Ok(tokens),
        _ => Err(format!(
            "found `{text}`, expected a whole number from 1 to {MOST_TOKENS}"
        )),
    }
}

/// Native first, then what was named, each recipe once.
fn recipes(named: &[String], layers: &[LayerState]) -> Result<Vec<Recipe>, Failure> {
    let named: Vec<&str> = if named.is_empty() {
        NAMED.iter().map(|(name, _)| *name).collect()
    } else {
        named.iter().map(String::as_str).collect()
    };
    let head_dims: Vec<usize> = layers
        .iter()
        .map(|layer| layer.head_dim().map_or(0, |head_dim| head_dim as usize))
        .collect();
    let mut recipes = vec![Recipe::native()];
    for text in named {
        let recipe = Recipe::parse(text).map_err(Failure::input)?;
        recipe.check(&head_dims).map_err(|error| {
            Failure::input(anyhow::Error::new(error).context(format!("recipe `{text}`")))
        })?;
        if !recipes.contains(&recipe) {
            recipes.push(recipe);
        }
    }
    Ok(recipes)
}

fn report(settings: &Settings) -> Report {
    let layers = &settings.model.layers;
    let shape = settings.model.uniform();
    let native = Recipe::native();
    let capacity = |recipe: &Recipe, shape: &CacheShape| {
        let bytes = recipe::bytes_per_token(recipe, shape);
        recipe::capacity(settings.budget, settings.reserve, bytes)
    };
    let equal = shape.map(|shape| {
        let native = capacity(&native, &shape).blocks;
        settings.blocks.unwrap_or(native)
    });
    let native_growth = recipe::growth_bytes(&native, layers);
    let row = |recipe: &Recipe| {
        let bytes_per_token = recipe::growth_bytes(recipe, layers);
        let capacity = shape.map(|shape| capacity(recipe, &shape));
        let sequence = settings
            .tokens
            .map(|tokens| sequence(settings, recipe, tokens));
        let saved = match (&sequence, shape) {
            (Some(sequence), None) => sequence.saved,
            _ => recipe::saved(bytes_per_token, native_growth),
        };
        Row {
            name: recipe.name.clone(),
            spec: recipe.spec(),
            bytes_per_token,
            sink_bytes: recipe::sink_bytes_of_layers(recipe, layers),
            saved,
            blocks: capacity.map(|capacity| capacity.blocks),
            token_slots: capacity.map(|capacity| capacity.token_slots),
            equal_slots_bytes: equal.and_then(|equal| recipe::cache_bytes(equal, bytes_per_token)),
            sequence,
        }
    };
    Report {
        schema: MEMORY_SCHEMA,
        model: Model {
            name: settings.model.name.clone(),
            layers: u32::try_from(layers.len()).unwrap_or(u32::MAX),
            kv_heads: shape.map(|shape| shape.kv_heads),
            head_dim: shape.map(|shape| shape.head_dim),
            kinds: match shape {
                Some(_) => Vec::new(),
                None => kinds(layers),
            },
            assumption: settings.model.assumption.clone(),
        },
        budget_bytes: settings.budget,
        reserve_bytes: settings.reserve,
        page_tokens: PAGE_TOKENS,
        equal_slots_blocks: equal,
        sequence_tokens: settings.tokens,
        recipes: settings.recipes.iter().map(row).collect(),
    }
}

fn sequence(settings: &Settings, recipe: &Recipe, tokens: u64) -> Sequence {
    let layers = &settings.model.layers;
    let bytes = recipe::sequence_bytes(recipe, layers, tokens);
    let native = recipe::sequence_bytes(&Recipe::native(), layers, tokens);
    let usable = settings.budget - settings.reserve;
    let page_bytes = recipe::paged_bytes(recipe, layers, tokens);
    Sequence {
        cache_bytes: bytes.cache,
        page_bytes,
        stored_bytes: recipe::stored_bytes(recipe, layers, tokens),
        recurrent_bytes: bytes.recurrent,
        persistent_bytes: bytes.total(),
        saved: recipe::saved(bytes.total(), native.total()),
        sequences: usable
            .checked_div(page_bytes.saturating_add(bytes.recurrent))
            .unwrap_or(0),
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}
