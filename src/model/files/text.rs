//! Config and tokenizer of a model whose weights somebody else runs.

use std::path::Path;

use crate::schema::{FileDigest, ModelIdentity};

use super::super::demo::DemoModel;
use super::super::file_bytes::{FileBytes, file_name};
use super::super::regular::read_optional;
use super::super::{ModelConfig, ModelError, Tokenizer, gguf};
use super::{FolderText, SmallFiles, folder_text};

/// Digest of weights that were not read.
const UNKNOWN: &str = "unknown";

/// A model without its weights.
pub struct ModelText {
    /// The folder's name, or the file's without its extension.
    pub name: String,
    /// Config.
    pub config: ModelConfig,
    /// Tokenizer with chat template.
    pub tokenizer: Tokenizer,
    /// Small files that were read, sorted by path; none for a GGUF file, which is not hashed.
    pub files: Vec<FileDigest>,
}

impl ModelText {
    /// Reads config and tokenizer of a folder, where no weights need be, or of a GGUF file.
    ///
    /// # Errors
    /// Names the file and what is missing, wrong, or asks for what is not applied.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path.display(), e))?;
        let mut text = if metadata.is_dir() {
            let folder = path
                .canonicalize()
                .map_err(|e| ModelError::io(path.display(), e))?;
            let shown = path.display().to_string();
            of_small_files(file_name(&folder), &shown, |name| {
                read_optional(&path.join(name))
            })?
        } else {
            of_gguf(path)?
        };
        text.tokenizer.check_ids(text.config.vocab_size)?;
        Ok(text)
    }

    /// Config and tokenizer of a model of the binary itself.
    ///
    /// # Errors
    /// As [`ModelText::open`].
    pub fn of_demo(model: DemoModel) -> Result<Self, ModelError> {
        let read = |wanted: &str| {
            let mut files = model.files().iter();
            let found = files.find(|(name, _)| *name == wanted);
            Ok(found.map(|(_, bytes)| bytes.to_vec()))
        };
        of_small_files(model.name().to_owned(), model.name(), read)
    }

    /// Name, digests and shape. The weights are unknown.
    pub fn identity(&self) -> ModelIdentity {
        ModelIdentity {
            name: self.name.clone(),
            family: self.config.family.name().to_owned(),
            files: self.files.clone(),
            weights_sha256: UNKNOWN.to_owned(),
            tokenizer_sha256: self.tokenizer.sha256().to_owned(),
            geometry: self.config.geometry(),
            quantised: None,
            penalties: self.config.penalties.clone(),
        }
    }
}

fn of_small_files(
    name: String,
    shown: &str,
    read: impl Fn(&str) -> Result<Option<Vec<u8>>, ModelError>,
) -> Result<ModelText, ModelError> {
    let mut small = SmallFiles {
        read,
        digests: Vec::new(),
    };
    let FolderText {
        config, tokenizer, ..
    } = folder_text(shown, &mut small)?;
    let mut files = small.digests;
    files.sort();
    Ok(ModelText {
        name,
        config,
        tokenizer,
        files,
    })
}

fn of_gguf(path: &Path) -> Result<ModelText, ModelError> {
    let file = FileBytes::open(path)?;
    let header = gguf::parse(file.path(), file.bytes())?;
    let stem = path.file_stem();
    Ok(ModelText {
        name: stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        config: gguf::config(&file, &header)?,
        tokenizer: gguf::tokenizer(&header.metadata)?,
        files: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;

    #[test]
    fn the_same_text_as_with_the_weights() {
        let source = ModelSource::Demo(DemoModel::Tolerant);
        let (text, whole) = (source.open_text().unwrap(), source.open().unwrap());
        assert_eq!(text.tokenizer.sha256(), whole.tokenizer.sha256());
        assert_eq!(text.config, whole.config);
        let identity = text.identity();
        assert_eq!(identity.weights_sha256, "unknown");
        assert_eq!(identity.geometry, whole.identity().geometry);
        assert!(
            identity
                .files
                .iter()
                .all(|file| whole.files().contains(file) && !file.path.contains("safetensors"))
        );
        let missing = ModelText::open(Path::new("no such folder"));
        assert!(missing.is_err());
    }
}
