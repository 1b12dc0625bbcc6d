//! Whether and how a checkpoint would run here.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::super::geometry::{self, Kind, kinds, layers_of};
use super::super::output::write_table;
use super::super::prepare::model_failure;
use super::super::resolve::model_source;
use super::super::{Exit, Failure};
use crate::backend::cuda::{Gpu, LARGEST_HEAD_DIM, has_head_dim};
use crate::model::{ModelConfig, ModelError, ModelFiles, ModelSource, read_config, weight_bytes};
use crate::recipe::{self, LayerState, NAMED, Recipe};
use crate::schema::{LayerScales, QuantisedWeights};

/// Tokens of the sequence whose bytes are given, where the model's context holds as many.
const SEQUENCE_TOKENS: u64 = 8192;

/// A tensor of the layers of Qwen3.5 that predict tokens beyond the next one.
const DRAFT_TENSOR: &str = "mtp.fc.weight";

/// What is found of a checkpoint.
#[derive(Serialize)]
pub(super) struct ModelReport {
    /// Whether a built-in worker runs it.
    pub runs: bool,
    /// What is asked and not applied, with its file; absent where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<usize>,
    /// Format of the native cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    native_dtype: Option<&'static str>,
    /// Layers by what they keep; empty where the config does not tell.
    layers: Vec<Kind>,
    /// Absent where weights were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Weights>,
    /// Tokens that `sequence_bytes` speaks of.
    sequence_tokens: u64,
    recipes: Vec<Row>,
    /// What is left on each GPU beside the weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<Fit>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Weights {
    /// Bytes of the files.
    stored_bytes: u64,
    /// Bytes on a device, codes turned into numbers.
    loaded_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantised: Option<QuantisedWeights>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    spec: String,
    /// Bytes that one more token takes; beyond every window.
    bytes_per_token: u64,
    /// Keys and values that one sequence keeps.
    cache_bytes: u64,
    /// The same in whole pages, as the built-in workers allocate them.
    page_bytes: u64,
    /// Recurrent state of one sequence, which no recipe changes.
    recurrent_bytes: u64,
}

#[derive(Serialize)]
struct Fit {
    gpu: usize,
    free_bytes: u64,
    /// Whether the weights fit into what is free.
    weights_fit: bool,
    /// Sequences of `sequence_tokens` tokens beside the weights, by recipe; activations take some.
    sequences: Vec<u64>,
}

/// Looks at the checkpoint at `path`: a model, or a `config.json` alone, under any name.
///
/// # Errors
/// Exit 2 for what cannot be read. What is refused is a report.
pub(super) fn look(path: &Path, gpus: &[Option<Gpu>]) -> Result<ModelReport, Failure> {
    let source = model_source(path)?;
    let is_config = path.is_file() && path.extension().is_some_and(|end| end == "json");
    let found = if is_config {
        read_config(path).map(|config| (config, None))
    } else {
        source
            .open()
            .map(|files| (files.config.clone(), Some(files)))
    };
    match found {
        Ok((config, files)) => Ok(accepted(path, &config, files.as_ref(), gpus)),
        Err(error @ ModelError::Unsupported { .. }) => Ok(refused(path, &error)),
        Err(error) => Err(model_failure(error)),
    }
}

fn accepted(
    path: &Path,
    config: &ModelConfig,
    files: Option<&ModelFiles>,
    gpus: &[Option<Gpu>],
) -> ModelReport {
    let layers = layers_of(config);
    let tokens = SEQUENCE_TOKENS.min(config.context as u64);
    let weights = files.map(|files| Weights {
        stored_bytes: files.weights.stored_bytes(),
        loaded_bytes: weight_bytes(config, files.weights.as_ref()),
        quantised: files.weights.quantised().and_then(|found| found.weights),
    });
    let recipes = rows(&layers, tokens);
    let fits = weights.as_ref().map_or(Vec::new(), |weights| {
        let gpus = gpus.iter().enumerate();
        gpus.filter_map(|(number, gpu)| Some(fit(number, gpu.as_ref()?, weights, &recipes)))
            .collect()
    });
    ModelReport {
        runs: true,
        refused: None,
        name: files.map_or_else(|| shown_name(path), |files| files.name.clone()),
        family: Some(config.family.name()),
        context: Some(config.context),
        native_dtype: Some(config.native_dtype.name()),
        layers: kinds(&layers),
        notes: notes(config, files, weights.as_ref()),
        weights,
        sequence_tokens: tokens,
        recipes,
        gpus: fits,
    }
}

/// What can be told of a checkpoint that no worker runs.
fn refused(path: &Path, error: &ModelError) -> ModelReport {
    let (layers, assumption) = match geometry::read(path) {
        Ok(shape) => (shape.layers, shape.assumption),
        Err(_) => (Vec::new(), None),
    };
    ModelReport {
        runs: false,
        refused: Some(error.to_string()),
        name: shown_name(path),
        family: None,
        context: None,
        native_dtype: None,
        layers: kinds(&layers),
        weights: None,
        sequence_tokens: SEQUENCE_TOKENS,
        recipes: match layers.as_slice() {
            [] => Vec::new(),
            layers => rows(layers, SEQUENCE_TOKENS),
        },
        gpus: Vec::new(),
        notes: assumption.into_iter().collect(),
    }
}

fn shown_name(path: &Path) -> String {
    match ModelSource::parse(path) {
        ModelSource::Demo(model) => model.name().to_owned(),
        ModelSource::Path(path) => path.display().to_string(),
    }
}

/// Native and the named recipes.
fn rows(layers: &[LayerState], tokens: u64) -> Vec<Row> {
    let named = NAMED
        .iter()
        .filter_map(|(name, _)| Recipe::parse(name).ok());
    let recipes = std::iter::once(Recipe::native()).chain(named);
    recipes
        .map(|recipe| {
            let bytes = recipe::sequence_bytes(&recipe, layers, tokens);
            Row {
                name: recipe.name.clone(),
                spec: recipe.spec(),
                bytes_per_token: recipe::growth_bytes(&recipe, layers),
                cache_bytes: bytes.cache,
                page_bytes: recipe::paged_bytes(&recipe, layers, tokens),
                recurrent_bytes: bytes.recurrent,
            }
        })
        .collect()
}

fn fit(number: usize, gpu: &Gpu, weights: &Weights, recipes: &[Row]) -> Fit {
    let free = gpu.free as u64;
    let left = free.saturating_sub(weights.loaded_bytes);
    let sequences = |row: &Row| {
        let bytes = row.page_bytes.saturating_add(row.recurrent_bytes);
        left.checked_div(bytes).unwrap_or(0)
    };
    Fit {
        gpu: number,
        free_bytes: free,
        weights_fit: weights.loaded_bytes <= free,
        sequences: recipes.iter().map(sequences).collect(),
    }
}

fn notes(
    config: &ModelConfig,
    files: Option<&ModelFiles>,
    weights: Option<&Weights>,
) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(match files {
        None => "The config alone was read: no weights, no tokenizer.".to_owned(),
        Some(_) => {
            "Values of weights were not read: a run refuses weights that are NaN or infinite."
                .to_owned()
        }
    });
    notes.extend(config.notes());
    if config.layers.iter().any(|layer| layer.window.is_some()) {
        notes.push(
            "Cache bytes of a sequence count what lies within the windows: the built-in workers keep \
             no more than that, in whole pages, beside the rows of a pass. `bytes_per_token` of \
             certificates counts what a sequence stores, every token in every layer."
                .to_owned(),
        );
    }
    if files.is_some_and(|files| files.weights.contains(DRAFT_TENSOR)) {
        notes
            .push("layers that predict tokens beyond the next one (mtp) are not loaded".to_owned());
    }
    let with_heads = config
        .layers
        .iter()
        .filter(|layer| layer.recurrent.is_none());
    let mut head_dims = with_heads.map(|layer| layer.head_dim);
    if let Some(head_dim) = head_dims.find(|&dim| !has_head_dim(dim)) {
        notes.push(format!(
            "Runs on the CPU worker only: the CUDA worker has heads of multiples of 8 up to \
             {LARGEST_HEAD_DIM} elements, not {head_dim}."
        ));
    }
    let quantised = weights.and_then(|weights| weights.quantised.as_ref());
    if let Some(activations) = quantised.and_then(|found| found.activations.as_ref()) {
        notes.push(format!(
            "The checkpoint asks for activations of {activations}; here they stay native, and \
             certificates say so."
        ));
    }
    let found = files.and_then(|files| files.weights.quantised());
    let declares_cache = found.as_ref().is_some_and(|found| found.declares_cache);
    let scales = found.map_or(Vec::new(), |found| found.cache_scales);
    if declares_cache && scales.is_empty() {
        notes.push(
            "The checkpoint declares a cache in E4M3 and brings no scales for it: servers that \
             take it over use unit scales (1.0) or measure their own."
                .to_owned(),
        );
    }
    if !scales.is_empty() {
        let is_unit = |scales: &LayerScales| scales.k == 1.0 && scales.v == 1.0;
        let unit = if scales.iter().all(is_unit) {
            ", all of them unit scales (1.0)"
        } else {
            ""
        };
        notes.push(format!(
            "The checkpoint brings scales for its cache{unit}: a protocol takes them as fixed \
             scales with --calibration checkpoint."
        ));
    }
    notes
}

impl ModelReport {
    /// 0 where it runs, 3 where it is refused.
    pub fn exit(&self) -> Exit {
        if self.runs {
            Exit::Holds
        } else {
            Exit::Incomplete
        }
    }

    /// Writes the report for people.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let verdict = if self.runs { "runs" } else { "unsupported" };
        writeln!(out, "\nmodel {}: {verdict}", self.name)?;
        if let Some(refused) = &self.refused {
            writeln!(out, "  {refused}")?;
        }
        if let (Some(family), Some(context)) = (self.family, self.context) {
            let dtype = self.native_dtype.unwrap_or("unknown");
            writeln!(
                out,
                "  family {family}, context {context}, native cache {dtype}"
            )?;
        }
        let layers: Vec<String> = self.layers.iter().map(Kind::to_string).collect();
        if !layers.is_empty() {
            writeln!(out, "  layers: {}", layers.join("; "))?;
        }
        if let Some(weights) = &self.weights {
            write_weights(out, weights)?;
        }
        for note in &self.notes {
            writeln!(out, "  {note}")?;
        }
        if self.recipes.is_empty() {
            return Ok(());
        }
        writeln!(out, "\na sequence of {} tokens", self.sequence_tokens)?;
        self.write_recipes(out)
    }

    fn write_recipes(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut header = vec![
            "recipe",
            "bytes/token",
            "cache MiB",
            "pages MiB",
            "recurrent MiB",
        ];
        let fits: Vec<String> = self
            .gpus
            .iter()
            .map(|fit| format!("sequences on GPU {}", fit.gpu))
            .collect();
        header.extend(fits.iter().map(String::as_str));
        let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let mib = |bytes: u64| format!("{:.3}", bytes as f64 / (1u64 << 20) as f64);
        for (number, row) in self.recipes.iter().enumerate() {
            let mut cells = vec![
                row.name.clone(),
                row.bytes_per_token.to_string(),
                mib(row.cache_bytes),
                mib(row.page_bytes),
                mib(row.recurrent_bytes),
            ];
            cells.extend(self.gpus.iter().map(|fit| match fit.weights_fit {
                true => fit.sequences[number].to_string(),
                false => "none".to_owned(),
            }));
            rows.push(cells);
        }
        write_table(out, &rows)?;
        if !self.gpus.is_empty() {
            writeln!(
                out,
                "Pages and states beside weights, without activations and the rows of a pass, which take \
                 some of it."
            )?;
        }
        Ok(())
    }
}

fn write_weights(out: &mut dyn Write, weights: &Weights) -> std::io::Result<()> {
    let gib = |bytes: u64| format!("{:.3} GiB", bytes as f64 / (1u64 << 30) as f64);
    let (stored, loaded) = (gib(weights.stored_bytes), gib(weights.loaded_bytes));
    match &weights.quantised {
        None => writeln!(out, "  weights: {stored} in files, {loaded} on a device"),
        Some(found) => writeln!(
            out,
            "  weights: {} ({}), {stored} in files, {loaded} as {} numbers on a device",
            found.method,
            found.forms.join("; "),
            found.numbers
        ),
    }
}

#[cfg(test)]
mod tests;
