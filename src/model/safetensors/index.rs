//! Which files make up a checkpoint: those of its index, or one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::super::ModelError;
use super::super::fields::{Fields, parse_object};
use super::super::file_bytes::file_name;
use super::names::asked_name;
use super::{INDEX_FILE, SINGLE_FILE, SafetensorsWeights, Shard};

/// Names of the checkpoint's files in `folder`, sorted: `model*.safetensors`. Other safetensors
/// files (adapters, expected outputs) are no part of a checkpoint unless an index lists them.
pub(super) fn present_files(
    folder: &Path,
    listed: Option<&BTreeMap<String, String>>,
) -> Result<BTreeSet<String>, ModelError> {
    let io = |e| ModelError::io(folder.display(), e);
    let is_listed = |name: &String| listed.is_some_and(|map| map.values().any(|own| own == name));
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = file_name(&entry.map_err(io)?.path());
        let is_model = name.starts_with("model") && name.ends_with(".safetensors");
        if is_model || is_listed(&name) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Tensor names with their files, from the text of an index.
pub(super) fn parse_index(path: &str, text: &[u8]) -> Result<BTreeMap<String, String>, ModelError> {
    let map = parse_object(path, text)?;
    let fields = Fields::new(path, &map);
    let Some(Value::Object(listed)) = fields.get("weight_map") else {
        return Err(fields.missing("weight_map", "an object of tensor and file names"));
    };
    let mut files = BTreeMap::new();
    for (tensor, file) in listed {
        match file.as_str() {
            Some(file) if is_plain(file) => files.insert(asked_name(tensor), file.to_owned()),
            _ => {
                let what = format!("file of tensor `{tensor}`");
                let expected = "the name of a .safetensors file in the same folder";
                return Err(ModelError::invalid(path, what, file, expected));
            }
        };
    }
    if files.is_empty() {
        return Err(fields.wrong("weight_map", "no tensor", "at least one"));
    }
    Ok(files)
}

fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\'])
}

pub(super) fn check_file_set(
    index_path: &str,
    listed: &BTreeMap<String, String>,
    present: &BTreeSet<String>,
) -> Result<(), ModelError> {
    let listed: BTreeSet<&String> = listed.values().collect();
    if let Some(missing) = listed.iter().find(|name| !present.contains(**name)) {
        let what = format!("shard `{missing}`");
        return Err(ModelError::invalid(
            index_path,
            what,
            "no such file",
            "the listed shard",
        ));
    }
    if let Some(extra) = present.iter().find(|name| !listed.contains(name)) {
        let what = format!("file `{extra}`");
        let expected = "only the shards that the index lists";
        return Err(ModelError::invalid(
            index_path,
            what,
            "a file outside the index",
            expected,
        ));
    }
    Ok(())
}

pub(super) fn check_single(folder: &str, present: &BTreeSet<String>) -> Result<(), ModelError> {
    let names: Vec<&str> = present.iter().map(String::as_str).collect();
    if names == [SINGLE_FILE] {
        return Ok(());
    }
    let found = match names.as_slice() {
        [] => "none".to_owned(),
        names => format!("{} without an index", names.join(", ")),
    };
    let expected = format!("{SINGLE_FILE} alone, or shards with {INDEX_FILE}");
    Err(ModelError::invalid(
        folder,
        "safetensors files",
        found,
        expected,
    ))
}

/// Every listed tensor stands in its shard, and every stored tensor is listed.
pub(super) fn check_listing(
    weights: &SafetensorsWeights,
    listed: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let SafetensorsWeights {
        folder,
        shards,
        shard_of,
        ..
    } = weights;
    for (tensor, file) in listed {
        let shard = shards.iter().find(|shard| file_of(shard) == *file);
        let holds = |shard: &Shard| shard.metadata.info(tensor).is_some();
        if !shard.is_some_and(holds) {
            let path = Path::new(folder).join(file);
            let what = format!("tensor `{tensor}`");
            let expected = format!("the tensor, as {INDEX_FILE} lists it");
            return Err(ModelError::invalid(
                path.display(),
                what,
                "nothing",
                expected,
            ));
        }
    }
    match shard_of
        .iter()
        .find(|(name, _)| !listed.contains_key(*name))
    {
        None => Ok(()),
        Some((name, &shard)) => {
            let what = format!("tensor `{name}`");
            let expected = format!("only tensors that {INDEX_FILE} lists");
            let path = shards[shard].file.path();
            Err(ModelError::invalid(
                path,
                what,
                "a tensor outside the index",
                expected,
            ))
        }
    }
}

fn file_of(shard: &Shard) -> String {
    file_name(Path::new(shard.file.path()))
}
