//! What a model keeps of a sequence: from its Hugging Face `config.json`, whatever its family, or as
//! it is loaded from a GGUF file or from the binary.

mod config;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::model::{LayerConfig, ModelConfig, ModelError, ModelSource, layer_geometry, read_file};
use crate::recipe::{CacheShape, LayerState};
use config::parse;

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

/// A model's name and what its layers keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Name of the folder, or of the file without its extension where it is not `config.json`.
    pub name: String,
    /// Layers, the first one first.
    pub layers: Vec<LayerState>,
    /// What the figures take for granted, where the family is none that is known.
    pub assumption: Option<String>,
}

impl ModelShape {
    /// The shape of a cache that keeps every token in every layer alike; `None` where layers differ
    /// or forget.
    pub fn uniform(&self) -> Option<CacheShape> {
        let first = *self.layers.first()?;
        let LayerState::Attention {
            kv_heads,
            head_dim,
            window: None,
        } = first
        else {
            return None;
        };
        let is_uniform = self.layers.iter().all(|layer| *layer == first);
        is_uniform.then_some(CacheShape {
            layers: u32::try_from(self.layers.len()).unwrap_or(u32::MAX),
            kv_heads,
            head_dim,
        })
    }
}

/// Reads what the layers of a model keep: a `config.json` (under any name) or a folder with one, a GGUF
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
            // Absence is said as it is of a config.
            let found = std::fs::metadata(path);
            found.map_err(|error| GeometryError::read(path, error))?;
        }
        let config = source.config()?;
        return Ok(ModelShape {
            name: model_name(model),
            layers: layers_of(&config),
            assumption: None,
        });
    }
    let path = if model.is_dir() {
        model.join("config.json")
    } else {
        model.to_owned()
    };
    let bytes = read_file(&path).map_err(|error| match error {
        ModelError::Io { source, .. } => GeometryError::read(&path, source),
        other => other.into(),
    })?;
    let (layers, assumption) = layers_of_text(&path, &bytes)?;
    Ok(ModelShape {
        name: model_name(&path),
        layers,
        assumption,
    })
}

/// What layers keep by the text of the config at `path`: as loading reads it where the family is
/// one that loads, else by the fields that most families share, with what that takes for granted.
fn layers_of_text(
    path: &Path,
    text: &[u8],
) -> Result<(Vec<LayerState>, Option<String>), GeometryError> {
    if let Some(layers) = layer_geometry(&path.display().to_string(), text)? {
        return Ok((states(&layers), None));
    }
    let layers = parse(text).map_err(|problem| problem.at(path))?;
    Ok((layers, Some(assumption(text))))
}

/// What figures of a family that is not known take for granted.
fn assumption(text: &[u8]) -> String {
    let config: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let family = match config["model_type"].as_str() {
        Some(name) => format!("model_type {name:?} is not known here"),
        None => "the config names no model_type".to_owned(),
    };
    format!(
        "{family}: its layers are taken to keep keys and values as the usual fields say, and nothing else"
    )
}

/// The layers of a loaded model. Config dimensions are read as 32-bit numbers.
pub(super) fn layers_of(config: &ModelConfig) -> Vec<LayerState> {
    states(&config.layers)
}

fn states(layers: &[LayerConfig]) -> Vec<LayerState> {
    let u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let layers = layers.iter();
    let state = |layer: &LayerConfig| match layer.recurrent {
        None => LayerState::Attention {
            kv_heads: u32(layer.kv_heads),
            head_dim: u32(layer.head_dim),
            window: layer.window.map(u32),
        },
        Some(shape) => {
            let [matrix_bytes, convolution_bytes] = shape.bytes();
            LayerState::Recurrent {
                matrix_bytes,
                convolution_bytes,
            }
        }
    };
    layers.map(state).collect()
}

/// Layers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// Keys and values of all tokens.
    FullAttention {
        /// Layers.
        layers: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Elements per head vector.
        head_dim: u32,
    },
    /// Keys and values of the last tokens.
    SlidingAttention {
        /// Layers.
        layers: u32,
        /// Key/value heads.
        kv_heads: u32,
        /// Elements per head vector.
        head_dim: u32,
        /// Tokens kept.
        window: u32,
    },
    /// A state of one size.
    Recurrent {
        /// Layers.
        layers: u32,
        /// Bytes of a layer's matrix.
        matrix_bytes: u64,
        /// Bytes of what a layer's convolution looks back to.
        convolution_bytes: u64,
    },
}

/// Layers counted by their kind, in the order in which kinds appear first.
pub(super) fn kinds(layers: &[LayerState]) -> Vec<Kind> {
    let mut seen: Vec<(LayerState, u32)> = Vec::new();
    for layer in layers {
        match seen.iter_mut().find(|(kind, _)| kind == layer) {
            Some((_, count)) => *count += 1,
            None => seen.push((*layer, 1)),
        }
    }
    let kind = |(state, layers)| match state {
        LayerState::Attention {
            kv_heads,
            head_dim,
            window: None,
        } => Kind::FullAttention {
            layers,
            kv_heads,
            head_dim,
        },
        LayerState::Attention {
            kv_heads,
            head_dim,
            window: Some(window),
        } => Kind::SlidingAttention {
            layers,
            kv_heads,
            head_dim,
            window,
        },
        LayerState::Recurrent {
            matrix_bytes,
            convolution_bytes,
        } => Kind::Recurrent {
            layers,
            matrix_bytes,
            convolution_bytes,
        },
    };
    seen.into_iter().map(kind).collect()
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::FullAttention {
                layers,
                kv_heads,
                head_dim,
            } => write!(
                f,
                "{layers} of attention to all tokens: {kv_heads} KV heads, head_dim {head_dim}"
            ),
            Kind::SlidingAttention {
                layers,
                kv_heads,
                head_dim,
                window,
            } => write!(
                f,
                "{layers} of attention to the last {window} tokens: {kv_heads} KV heads, head_dim {head_dim}"
            ),
            Kind::Recurrent {
                layers,
                matrix_bytes,
                convolution_bytes,
            } => write!(
                f,
                "{layers} recurrent: {matrix_bytes} bytes of state in FP32 and {convolution_bytes} of convolution each"
            ),
        }
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

#[cfg(test)]
mod tests;
