//! Opening a model: a folder or a GGUF file.

#[cfg(test)]
mod tests;
mod text;

use std::path::Path;

use crate::schema::{FileDigest, ModelIdentity, sha256_hex, weights_sha256};

use super::demo::DemoModel;
use super::file_bytes::{FileBytes, file_name};
use super::hf_config::{parse_config, penalties, read_config, suppressed};
use super::quantised::{self, Quantisation};
use super::regular::read_optional;
use super::safetensors::{INDEX_FILE, SINGLE_FILE, SafetensorsWeights};
use super::tokenizer::FolderTokenizer;
use super::{GgufWeights, ModelConfig, ModelError, Tokenizer, WeightSource, gguf};

pub use text::ModelText;

/// An opened model: everything is checked, no weight is loaded yet. Weight files are being hashed.
pub struct ModelFiles {
    /// The folder's name, or the file's without its extension.
    pub name: String,
    /// Config.
    pub config: ModelConfig,
    /// Tokenizer with chat template.
    pub tokenizer: Tokenizer,
    /// Weights.
    pub weights: Box<dyn WeightSource + Send + Sync>,
    /// Every file that was read beside those of weights.
    small: Vec<FileDigest>,
}

/// Opens the model at `path`: a folder with `config.json`, `tokenizer.json` and safetensors files,
/// or a `.gguf` file.
///
/// # Errors
/// Names the file and what is missing, wrong, or asks for what is not applied.
pub fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path.display(), e))?;
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let mut files = if metadata.is_dir() {
        open_folder(path)?
    } else if is_gguf {
        open_gguf(path)?
    } else {
        let expected = "a folder with config.json, or a .gguf file";
        return Err(ModelError::invalid(
            path.display(),
            "model",
            "another file",
            expected,
        ));
    };
    files.tokenizer.check_ids(files.config.vocab_size)?;
    Ok(files)
}

/// Reads the config of the model at `path` as [`open`] does, and nothing else of it.
///
/// # Errors
/// As [`open`], for the file that holds the config.
pub(super) fn open_config(path: &Path) -> Result<ModelConfig, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path.display(), e))?;
    if metadata.is_dir() {
        return read_config(&path.join("config.json"));
    }
    let file = FileBytes::open(path)?;
    let header = gguf::parse(file.path(), file.bytes())?;
    gguf::config(&file, &header)
}

/// The config of a model of the binary itself.
pub(super) fn open_demo_config(model: DemoModel) -> Result<ModelConfig, ModelError> {
    let mut files = model.files().iter();
    let text = files.find(|(name, _)| *name == "config.json");
    let path = format!("{}/config.json", model.name());
    parse_config(&path, text.map_or(&[][..], |(_, bytes)| bytes))
}

impl ModelFiles {
    /// Every file that was read, sorted by path, once weights are hashed.
    pub fn files(&self) -> Vec<FileDigest> {
        let mut files = [&self.small, self.weights.files()].concat();
        files.sort();
        files
    }

    /// Name, digests and shape, as certificates state them, once weights are hashed.
    pub fn identity(&self) -> ModelIdentity {
        ModelIdentity {
            name: self.name.clone(),
            family: self.config.family.name().to_owned(),
            files: self.files(),
            weights_sha256: weights_sha256(self.weights.files().iter()),
            tokenizer_sha256: self.tokenizer.sha256().to_owned(),
            geometry: self.config.geometry(),
            quantised: self.weights.quantised(),
            penalties: self.config.penalties.clone(),
        }
    }
}

/// Small files of a folder, with the digests of those that are there.
struct SmallFiles<R> {
    read: R,
    digests: Vec<FileDigest>,
}

impl<R: Fn(&str) -> Result<Option<Vec<u8>>, ModelError>> SmallFiles<R> {
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
        let bytes = (self.read)(name)?;
        if let Some(bytes) = &bytes {
            self.digests.push(FileDigest {
                path: name.to_owned(),
                sha256: sha256_hex(bytes),
            });
        }
        Ok(bytes)
    }
}

fn open_folder(path: &Path) -> Result<ModelFiles, ModelError> {
    let folder = path
        .canonicalize()
        .map_err(|e| ModelError::io(path.display(), e))?;
    folder_model(
        file_name(&folder),
        &path.display().to_string(),
        |name| read_optional(&path.join(name)),
        |index, quantisation| SafetensorsWeights::from_folder(path, index, quantisation),
    )
}

/// A model of the binary itself.
pub(super) fn open_demo(model: DemoModel) -> Result<ModelFiles, ModelError> {
    let file = |wanted: &str| {
        let mut files = model.files().iter();
        files
            .find(|(name, _)| *name == wanted)
            .map(|(_, bytes)| *bytes)
    };
    let mut files = folder_model(
        model.name().to_owned(),
        model.name(),
        |name| Ok(file(name).map(<[u8]>::to_vec)),
        |_, _| {
            let bytes = file(SINGLE_FILE).unwrap_or_default();
            let bytes = FileBytes::embedded(model.name(), SINGLE_FILE, bytes);
            SafetensorsWeights::from_single(model.name(), bytes)
        },
    )?;
    files.tokenizer.check_ids(files.config.vocab_size)?;
    Ok(files)
}

/// What the small files of a folder say.
struct FolderText {
    config: ModelConfig,
    tokenizer: Tokenizer,
    quantisation: Option<Quantisation>,
}

/// Config and tokenizer of a model of small files.
fn folder_text<R: Fn(&str) -> Result<Option<Vec<u8>>, ModelError>>(
    shown: &str,
    small: &mut SmallFiles<R>,
) -> Result<FolderText, ModelError> {
    let config_path = Path::new(shown).join("config.json").display().to_string();
    let config_text = small.read("config.json")?.ok_or_else(|| {
        ModelError::invalid(&config_path, "file", "nothing", "the model's config")
    })?;
    let mut config = parse_config(&config_path, &config_text)?;
    let generation_config = small.read("generation_config.json")?;
    let tokenizer = FolderTokenizer {
        folder: shown,
        tokenizer: small.read("tokenizer.json")?.as_deref(),
        tokenizer_config: small.read("tokenizer_config.json")?.as_deref(),
        chat_template: small.read("chat_template.jinja")?.as_deref(),
        generation_config: generation_config.as_deref(),
        config: &config_text,
        vocab_size: config.vocab_size,
    }
    .build()?;
    let generation_path = Path::new(shown).join("generation_config.json");
    let generation_path = generation_path.display().to_string();
    config.penalties = penalties(&generation_path, generation_config.as_deref())?;
    config.suppressed = suppressed(
        [
            (&generation_path, generation_config.as_deref()),
            (&config_path, Some(&config_text)),
        ],
        config.vocab_size,
    )?;
    Ok(FolderText {
        config,
        tokenizer,
        quantisation: quantised::of_text(&config_path, &config_text)?,
    })
}

/// A model of small files and safetensors, wherever `read` finds them; `shown` stands for the
/// folder in messages.
fn folder_model(
    name: String,
    shown: &str,
    read: impl Fn(&str) -> Result<Option<Vec<u8>>, ModelError>,
    weights: impl FnOnce(Option<&[u8]>, Option<Quantisation>) -> Result<SafetensorsWeights, ModelError>,
) -> Result<ModelFiles, ModelError> {
    let mut small = SmallFiles {
        read,
        digests: Vec::new(),
    };
    let FolderText {
        config,
        tokenizer,
        quantisation,
    } = folder_text(shown, &mut small)?;
    let index = small.read(INDEX_FILE)?;
    let weights = weights(index.as_deref(), quantisation)?;
    weights.check(&config)?;
    Ok(ModelFiles {
        name,
        config,
        tokenizer,
        weights: Box::new(weights),
        small: small.digests,
    })
}

fn open_gguf(path: &Path) -> Result<ModelFiles, ModelError> {
    let file = FileBytes::open(path)?;
    let header = gguf::parse(file.path(), file.bytes())?;
    let config = gguf::config(&file, &header)?;
    let tokenizer = gguf::tokenizer(&header.metadata)?;
    let weights = GgufWeights::new(file, header, &config)?;
    let name = path
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    Ok(ModelFiles {
        name,
        config,
        tokenizer,
        small: Vec::new(),
        weights: Box::new(weights),
    })
}
