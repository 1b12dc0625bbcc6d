//! The cache shape of a model: from its Hugging Face `config.json`, whatever its family, or as it is
//! loaded from a GGUF file or from the binary.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::model::{ModelConfig, ModelError, ModelSource};
use crate::recipe::CacheShape;

/// More layers than any model has; keeps sums over layers small.
const MOST_LAYERS: u32 = 10_000;

/// Why a model's cache shape cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum GeometryError {
    /// Not readable.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A GGUF file that cannot be read or loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// JSON of another form.
    #[error("{path}: expected a model config")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why, with line and column.
        source: serde_json::Error,
    },
    /// A field is missing or makes no sense.
    #[error("{path}: {field}: found {found}, expected {expected}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What is expected.
        expected: &'static str,
    },
}

impl GeometryError {
    fn read(path: &Path, source: std::io::Error) -> Self {
        GeometryError::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// A model's name and cache shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Name of the folder, or of the file without its extension where it is not `config.json`.
    pub name: String,
    /// Shape.
    pub shape: CacheShape,
}

/// Reads the cache shape of a model: a `config.json` (under any name) or a folder with one, a GGUF
/// file, or a demo model by its name.
///
/// # Errors
/// [`GeometryError`] names the file and the field.
pub fn read(model: &Path) -> Result<ModelShape, GeometryError> {
    let source = ModelSource::parse(model);
    let is_gguf = model
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if is_gguf || matches!(source, ModelSource::Demo(_)) {
        if let ModelSource::Path(path) = &source {
            let readable = std::fs::File::open(path);
            readable.map_err(|error| GeometryError::read(path, error))?;
        }
        let config = source.config()?;
        return Ok(ModelShape {
            name: model_name(model),
            shape: shape_of(&config),
        });
    }
    let path = if model.is_dir() {
        model.join("config.json")
    } else {
        model.to_owned()
    };
    let bytes = std::fs::read(&path).map_err(|error| GeometryError::read(&path, error))?;
    let shape = parse(&bytes).map_err(|problem| problem.at(&path))?;
    Ok(ModelShape {
        name: model_name(&path),
        shape,
    })
}

/// Config dimensions are read as 32-bit numbers.
fn shape_of(config: &ModelConfig) -> CacheShape {
    let u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    CacheShape {
        layers: u32(config.layers.len()),
        kv_heads: u32(config.widest(|layer| layer.kv_heads)),
        head_dim: u32(config.widest(|layer| layer.head_dim)),
    }
}

fn model_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let named = if absolute
        .file_name()
        .is_some_and(|name| name == "config.json")
    {
        absolute.parent().and_then(Path::file_name)
    } else {
        absolute.file_stem()
    };
    named.map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// The fields that the cache depends on. Multimodal configs hold them in `text_config`.
#[derive(Deserialize)]
struct Config {
    num_hidden_layers: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    hidden_size: Option<u32>,
    kv_lora_rank: Option<u32>,
    num_kv_shared_layers: Option<u32>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    text_config: Option<Box<Config>>,
}

/// What is wrong, before the file is known.
#[derive(Debug)]
enum Problem {
    Json(serde_json::Error),
    Field(&'static str, String, &'static str),
}

impl Problem {
    fn at(self, path: &Path) -> GeometryError {
        let path = path.to_owned();
        match self {
            Problem::Json(source) => GeometryError::Json { path, source },
            Problem::Field(field, found, expected) => GeometryError::Field {
                path,
                field,
                found,
                expected,
            },
        }
    }
}

fn parse(bytes: &[u8]) -> Result<CacheShape, Problem> {
    let mut config: Config = serde_json::from_slice(bytes).map_err(Problem::Json)?;
    if let (None, Some(text)) = (config.num_hidden_layers, config.text_config.take()) {
        config = *text;
    }
    config.refuse_other_caches()?;
    let layers = positive("num_hidden_layers", config.num_hidden_layers)?;
    if layers > MOST_LAYERS {
        let found = layers.to_string();
        return Err(Problem::Field(
            "num_hidden_layers",
            found,
            "at most 10,000 layers",
        ));
    }
    Ok(CacheShape {
        layers,
        kv_heads: config.kv_heads()?,
        head_dim: config.head_dim()?,
    })
}

impl Config {
    fn kv_heads(&self) -> Result<u32, Problem> {
        if self.num_key_value_heads.is_none() {
            return positive("num_attention_heads", self.num_attention_heads);
        }
        let kv_heads = positive("num_key_value_heads", self.num_key_value_heads)?;
        match self.num_attention_heads {
            Some(heads) if heads == 0 || !heads.is_multiple_of(kv_heads) => Err(Problem::Field(
                "num_key_value_heads",
                format!("{kv_heads} for {heads} query heads"),
                "a divisor of num_attention_heads",
            )),
            _ => Ok(kv_heads),
        }
    }

    fn head_dim(&self) -> Result<u32, Problem> {
        if self.head_dim.is_some() {
            return positive("head_dim", self.head_dim);
        }
        let hidden = positive("hidden_size", self.hidden_size)?;
        let heads = positive("num_attention_heads", self.num_attention_heads)?;
        if !hidden.is_multiple_of(heads) {
            return Err(Problem::Field(
                "hidden_size",
                format!("{hidden} for {heads} heads"),
                "a multiple of num_attention_heads where head_dim is absent",
            ));
        }
        Ok(hidden / heads)
    }

    /// Refuses models whose cache does not hold one key and one value vector per token, layer and
    /// KV head: bytes per token would be wrong for them.
    fn refuse_other_caches(&self) -> Result<(), Problem> {
        const EVERY_TOKEN: &str = "a cache that holds every token in every layer";
        if let Some(rank) = self.kv_lora_rank {
            let found = format!("{rank} (latent attention)");
            let expected = "keys and values per KV head";
            return Err(Problem::Field("kv_lora_rank", found, expected));
        }
        if let Some(shared) = self.num_kv_shared_layers.filter(|&shared| shared > 0) {
            let expected = "keys and values of its own in every layer";
            return Err(Problem::Field(
                "num_kv_shared_layers",
                shared.to_string(),
                expected,
            ));
        }
        if let Some(types) = &self.layer_types {
            return match types.iter().find(|kind| *kind != "full_attention") {
                Some(kind) => Err(Problem::Field(
                    "layer_types",
                    format!("`{kind}`"),
                    EVERY_TOKEN,
                )),
                None => Ok(()),
            };
        }
        match self.sliding_window {
            Some(window) if self.use_sliding_window != Some(false) => Err(Problem::Field(
                "sliding_window",
                window.to_string(),
                EVERY_TOKEN,
            )),
            _ => Ok(()),
        }
    }
}

fn positive(field: &'static str, value: Option<u32>) -> Result<u32, Problem> {
    const EXPECTED: &str = "a positive whole number";
    match value {
        Some(0) => Err(Problem::Field(field, "0".to_owned(), EXPECTED)),
        Some(value) => Ok(value),
        None => Err(Problem::Field(field, "nothing".to_owned(), EXPECTED)),
    }
}

#[cfg(test)]
mod tests;
