//! Names of tensors as they are asked for.

use std::collections::BTreeMap;

use ::safetensors::tensor::Metadata;

use crate::model::ModelError;
use crate::model::file_bytes::FileBytes;

/// The header with the names by which tensors are asked for.
pub(super) fn with_asked_names(
    file: &FileBytes,
    metadata: Metadata,
) -> Result<Metadata, ModelError> {
    let (mut tensors, mut names) = (Vec::new(), BTreeMap::new());
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else {
            continue;
        };
        let asked = asked_name(&name);
        tensors.push((asked.clone(), info.clone()));
        if let Some(other) = names.insert(asked, name.clone()) {
            let found = format!("`{other}` and `{name}`");
            let expected = "one name of a tensor of the text part";
            return Err(ModelError::invalid(file.path(), "header", found, expected));
        }
    }
    let expected = "a safetensors header that fits the file";
    Metadata::new(metadata.metadata().clone(), tensors)
        .map_err(|e| ModelError::invalid(file.path(), "header", e, expected))
}

/// The name by which a tensor is asked for: in a multimodal checkpoint those of the text part have
/// a prefix before or behind `model`.
pub(super) fn asked_name(name: &str) -> String {
    if let Some(own) = name.strip_prefix("language_model.") {
        return own.to_owned();
    }
    match name.strip_prefix("model.language_model.") {
        Some(own) => format!("model.{own}"),
        None => name.to_owned(),
    }
}
