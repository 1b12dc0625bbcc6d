//! The demo models, which are part of the binary (`fixtures/demo/README.md` says how they were
//! made), and names of models in general.

use std::path::{Path, PathBuf};

use super::files::{self, ModelFiles, ModelText};
use super::{ModelConfig, ModelError};

/// A model that is part of the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoModel {
    /// Qwen3 architecture: no recipe moves it.
    Tolerant,
    /// Qwen2 architecture whose key bias has large constant channels: its keys do not survive
    /// three mantissa bits.
    Sensitive,
}

/// Names and contents of files.
type Files = [(&'static str, &'static [u8]); 5];

macro_rules! demo_files {
    ($folder:literal) => {
        demo_files!(
            $folder,
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        )
    };
    ($folder:literal, $($file:literal),+) => {
        [$((
            $file,
            include_bytes!(concat!("../../fixtures/demo/", $folder, "/", $file)).as_slice(),
        )),+]
    };
}

static TOLERANT: Files = demo_files!("tolerant");
static SENSITIVE: Files = demo_files!("sensitive");

impl DemoModel {
    /// Every demo model.
    pub const ALL: [DemoModel; 2] = [DemoModel::Tolerant, DemoModel::Sensitive];

    /// Name on the command line and in certificates.
    pub fn name(self) -> &'static str {
        match self {
            DemoModel::Tolerant => "demo-tolerant",
            DemoModel::Sensitive => "demo-sensitive",
        }
    }

    pub(super) fn files(self) -> &'static Files {
        match self {
            DemoModel::Tolerant => &TOLERANT,
            DemoModel::Sensitive => &SENSITIVE,
        }
    }
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// In the binary.
    Demo(DemoModel),
    /// A folder or a GGUF file.
    Path(PathBuf),
}

impl ModelSource {
    /// A demo model by its name, else a path. A folder of that name is `./demo-tolerant`.
    pub fn parse(text: &Path) -> Self {
        let demo = DemoModel::ALL
            .into_iter()
            .find(|model| text == Path::new(model.name()));
        demo.map_or_else(|| ModelSource::Path(text.to_owned()), ModelSource::Demo)
    }

    /// Opens the model: everything is checked, no weight is loaded yet, and weight files are being hashed.
    ///
    /// # Errors
    /// As [`open`](super::open).
    pub fn open(&self) -> Result<ModelFiles, ModelError> {
        match self {
            ModelSource::Demo(model) => files::open_demo(*model),
            ModelSource::Path(path) => files::open(path),
        }
    }

    /// Opens config and tokenizer alone: what a server runs is not looked for.
    ///
    /// # Errors
    /// As [`open`](super::open), for the files that are read.
    pub fn open_text(&self) -> Result<ModelText, ModelError> {
        match self {
            ModelSource::Demo(model) => ModelText::of_demo(*model),
            ModelSource::Path(path) => ModelText::open(path),
        }
    }

    /// Reads the config alone: no file is hashed.
    ///
    /// # Errors
    /// As [`open`](super::open), for the file that holds the config.
    pub fn config(&self) -> Result<ModelConfig, ModelError> {
        match self {
            ModelSource::Demo(model) => files::open_demo_config(*model),
            ModelSource::Path(path) => files::open_config(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::open;

    #[test]
    fn embedded_models_are_the_files_of_the_repository() {
        for (model, folder) in [
            (DemoModel::Tolerant, "tolerant"),
            (DemoModel::Sensitive, "sensitive"),
        ] {
            let source = ModelSource::Demo(model);
            let embedded = source.open().unwrap();
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo");
            let path = path.join(folder);
            let on_disk = open(&path).unwrap().identity();
            assert_eq!(source.config().unwrap(), embedded.config);
            let from_folder = ModelSource::Path(path).config().unwrap();
            assert_eq!(from_folder, embedded.config);
            let embedded = embedded.identity();
            assert_eq!(embedded.files, on_disk.files);
            assert_eq!(embedded.weights_sha256, on_disk.weights_sha256);
            assert_eq!(embedded.geometry, on_disk.geometry);
            assert_eq!(embedded.name, model.name());
            let bytes: usize = model.files().iter().map(|(_, bytes)| bytes.len()).sum();
            assert!(bytes <= 6_000_000, "{bytes}");
        }
    }

    #[test]
    fn a_path_may_look_like_a_name() {
        let parse = |text: &str| ModelSource::parse(Path::new(text));
        assert_eq!(
            parse("demo-sensitive"),
            ModelSource::Demo(DemoModel::Sensitive)
        );
        assert_eq!(
            parse("./demo-sensitive"),
            ModelSource::Path("./demo-sensitive".into())
        );
        assert_eq!(parse("demo"), ModelSource::Path("demo".into()));
    }
}
