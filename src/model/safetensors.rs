//! Weights of a Hugging Face folder: one safetensors file, or shards with an index.

mod damaged;
mod experts;
mod index;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ::safetensors::tensor::{Dtype, Metadata, SafeTensors};

use crate::backend::{Codes, StoredNumbers, TensorData};
use crate::schema::{FileDigest, QuantisedCheckpoint};

use super::file_bytes::{Digests, FileBytes};
use super::quantised::{self, CacheScales, Found, NumberType, Quantisation, Stored};
use super::regular::read_optional;
use super::tensors::{self, Shapes};
use super::{ModelConfig, ModelError, WeightSource};
use index::{check_file_set, check_listing, check_single, parse_index, present_files};
use names::with_asked_names;

/// Index of a sharded checkpoint.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// A checkpoint in one file.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// Weights read from memory-mapped safetensors files.
pub struct SafetensorsWeights {
    folder: String,
    shards: Vec<Shard>,
    shard_of: BTreeMap<String, usize>,
    /// Experts that are stored together, by the names of single ones.
    experts: BTreeMap<String, experts::Part>,
    digests: Digests,
    quantisation: Option<Quantisation>,
    codes: Found,
    cache_scales: CacheScales,
}

/// One file with its parsed header.
struct Shard {
    file: FileBytes,
    metadata: Metadata,
    data_start: usize,
}

impl SafetensorsWeights {
    /// Opens the safetensors files of `folder` and starts to hash them. Its `config.json`, where there is
    /// one, says whether weights are stored as codes.
    ///
    /// # Errors
    /// When the files present are not exactly those of the index, a shard lacks a listed tensor or
    /// holds an unlisted one, a header does not fit its file, or codes are stored in a way that the
    /// config does not name.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let index = read_optional(&folder.join(INDEX_FILE))?;
        let path = folder.join("config.json");
        let quantisation = match read_optional(&path)? {
            Some(text) => quantised::of_text(&path.display().to_string(), &text)?,
            None => None,
        };
        Self::from_folder(folder, index.as_deref(), quantisation)
    }

    /// As [`SafetensorsWeights::open`], with index and config already read.
    pub(crate) fn from_folder(
        folder: &Path,
        index: Option<&[u8]>,
        quantisation: Option<Quantisation>,
    ) -> Result<Self, ModelError> {
        let shown = folder.display().to_string();
        let index_path = folder.join(INDEX_FILE).display().to_string();
        let listed = index
            .map(|text| parse_index(&index_path, text))
            .transpose()?;
        let present = present_files(folder, listed.as_ref())?;
        match &listed {
            Some(listed) => check_file_set(&index_path, listed, &present)?,
            None => check_single(&shown, &present)?,
        }
        let shards = present
            .iter()
            .map(|name| FileBytes::open(&folder.join(name)).and_then(Shard::new))
            .collect::<Result<Vec<_>, _>>()?;
        let weights = Self::from_shards(shown, shards, quantisation)?;
        if let Some(listed) = &listed {
            check_listing(&weights, listed)?;
        }
        Ok(weights)
    }

    /// The only file of a checkpoint in `folder`.
    pub(crate) fn from_single(folder: &str, file: FileBytes) -> Result<Self, ModelError> {
        Self::from_shards(folder.to_owned(), vec![Shard::new(file)?], None)
    }

    fn from_shards(
        folder: String,
        shards: Vec<Shard>,
        quantisation: Option<Quantisation>,
    ) -> Result<Self, ModelError> {
        let shard_of = assign(&shards)?;
        let mut weights = SafetensorsWeights {
            digests: Digests::of(shards.iter().map(|shard| &shard.file)),
            folder,
            shards,
            shard_of,
            experts: BTreeMap::new(),
            quantisation,
            codes: Found::default(),
            cache_scales: CacheScales::default(),
        };
        for name in weights.shard_of.keys() {
            let shape = weights.stored(name).map_or(&[][..], |stored| stored.shape);
            let parts = experts::parts(name, shape);
            // Of experts that are stored twice none is taken: the tensor is left over.
            if !parts.keys().any(|part| weights.shard_of.contains_key(part)) {
                weights.experts.extend(parts);
            }
        }
        let lookup = |name: &str| weights.stored(name);
        let names = || weights.shard_of.keys().map(String::as_str);
        let scales = quantised::find_cache_scales(names(), &lookup)?;
        let codes = match &weights.quantisation {
            Some(quantisation) => quantised::find(quantisation, names(), &lookup)?,
            None => Found::default(),
        };
        // Nor of those that are stored as codes as well.
        experts::leave_out(&mut weights.experts, |name| {
            codes.matrices.contains_key(name)
        });
        (weights.codes, weights.cache_scales) = (codes, scales);
        Ok(weights)
    }

    /// A tensor as its file holds it.
    fn stored(&self, name: &str) -> Option<Stored<'_>> {
        if let Some(part) = self.experts.get(name) {
            let whole = self.stored(&part.whole)?;
            return Some(Stored {
                shape: &part.shape,
                bytes: part.of(whole.bytes, whole.shape.iter().product()),
                ..whole
            });
        }
        let shard = &self.shards[*self.shard_of.get(name)?];
        let info = shard.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        Some(Stored {
            path: shard.file.path(),
            dtype: info.dtype,
            shape: &info.shape,
            bytes: &shard.file.bytes()[shard.data_start + start..shard.data_start + end],
        })
    }

    /// The file of a tensor for messages: where it is stored as codes, that of its scales.
    fn path_of(&self, name: &str) -> &str {
        let matrix = self.codes.matrices.get(name);
        let part = self.experts.get(name);
        let stored = part.map_or(name, |part| part.whole.as_str());
        let stored = matrix.map_or(stored, |matrix| matrix.scales.as_str());
        match self.shard_of.get(stored) {
            Some(&shard) => self.shards[shard].file.path(),
            None => &self.folder,
        }
    }

    /// Shapes of the weights as they are loaded.
    fn shapes(&self) -> Shapes {
        let mut shapes = Shapes::new();
        let parts = self.experts.iter();
        let wholes: BTreeSet<&str> = parts.clone().map(|(_, part)| part.whole.as_str()).collect();
        shapes.extend(parts.map(|(name, part)| (name.clone(), part.shape.to_vec())));
        for name in self.shard_of.keys() {
            let is_part = self.codes.parts.contains(name)
                || self.cache_scales.parts.contains(name)
                || wholes.contains(name.as_str());
            if let (false, Some(stored)) = (is_part, self.stored(name)) {
                shapes.insert(name.clone(), stored.shape.to_vec());
            }
        }
        let matrices = self.codes.matrices.iter();
        shapes.extend(matrices.map(|(name, matrix)| (name.clone(), matrix.shape.to_vec())));
        shapes
    }

    /// Checks that the files hold exactly the tensors that `config` implies.
    ///
    /// # Errors
    /// Names the file and the tensor that is missing, has another shape or dtype, or would be left
    /// unapplied.
    pub fn check(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let path_of = |name: &str| self.path_of(name).to_owned();
        tensors::check(config, &self.shapes(), &self.folder, path_of)?;
        let layers = config.layers.iter();
        let attends = layers
            .map(|layer| layer.recurrent.is_none())
            .collect::<Vec<_>>();
        self.cache_scales.check(&self.folder, &attends)?;
        for name in tensors::expected(config).keys() {
            if self.codes.matrices.contains_key(name) {
                continue;
            }
            if let Some(stored) = self.stored(name) {
                float_type(&stored, name)?;
            }
        }
        Ok(())
    }
}

impl WeightSource for SafetensorsWeights {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let missing = || tensors::missing(&self.folder, name, shape);
        let (path, data) = match (self.codes.matrices.get(name), &self.quantisation) {
            (Some(matrix), Some(quantisation)) => {
                let path = self.path_of(name);
                tensors::check_shape(path, name, &matrix.shape, shape)?;
                let codes = matrix.codes(quantisation.numbers, &|part| self.stored(part))?;
                (path, codes.decode())
            }
            _ => {
                let stored = self.stored(name).ok_or_else(missing)?;
                tensors::check_shape(stored.path, name, stored.shape, shape)?;
                (stored.path, numbers(&stored, name)?.read())
            }
        };
        check_finite(path, name, &data)?;
        Ok(data)
    }

    fn codes(&self, name: &str, shape: &[usize]) -> Result<Option<Codes<'_>>, ModelError> {
        let (Some(matrix), Some(quantisation)) =
            (self.codes.matrices.get(name), &self.quantisation)
        else {
            return Ok(None);
        };
        tensors::check_shape(self.path_of(name), name, &matrix.shape, shape)?;
        let codes = matrix.codes(quantisation.numbers, &|part| self.stored(part))?;
        Ok(Some(codes))
    }

    fn numbers(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<StoredNumbers<'_>>, ModelError> {
        let found = self.stored(name);
        let Some(stored) = found.filter(|_| !self.codes.matrices.contains_key(name)) else {
            return Ok(None);
        };
        tensors::check_shape(stored.path, name, stored.shape, shape)?;
        numbers(&stored, name).map(Some)
    }

    fn contains(&self, name: &str) -> bool {
        self.stored(name).is_some() || self.codes.matrices.contains_key(name)
    }

    fn element_bytes(&self, name: &str) -> u64 {
        let numbers = match (self.codes.matrices.get(name), &self.quantisation) {
            (Some(_), Some(quantisation)) => Some(quantisation.numbers),
            _ => self
                .stored(name)
                .and_then(|stored| float_type(&stored, name).ok()),
        };
        match numbers {
            Some(NumberType::F16 | NumberType::Bf16) => 2,
            Some(NumberType::F32) | None => 4,
        }
    }

    fn stored_bytes(&self) -> u64 {
        let shards = self.shards.iter();
        shards.map(|shard| shard.file.bytes().len() as u64).sum()
    }

    fn quantised(&self) -> Option<QuantisedCheckpoint> {
        let quantisation = self.quantisation.as_ref();
        let of_weights = quantisation.filter(|found| !found.forms.is_empty());
        let weights = of_weights.map(|found| found.stored(&self.codes));
        let cache_scales = self.cache_scales.of_layers();
        let declares_cache = quantisation.is_some_and(|found| found.kv_cache);
        let any = weights.is_some() || declares_cache || !cache_scales.is_empty();
        any.then_some(QuantisedCheckpoint {
            weights,
            declares_cache,
            cache_scales,
        })
    }

    fn files(&self) -> &[FileDigest] {
        self.digests.all()
    }
}

impl Shard {
    fn new(file: FileBytes) -> Result<Self, ModelError> {
        let (header, metadata) = SafeTensors::read_metadata(file.bytes())
            .map_err(|e| damaged::damaged(file.path(), file.bytes(), &e))?;
        let metadata = with_asked_names(&file, metadata)?;
        Ok(Shard {
            file,
            metadata,
            data_start: LENGTH_BYTES + header,
        })
    }
}

/// The type of a tensor of floats.
pub(crate) fn float_type(stored: &Stored<'_>, name: &str) -> Result<NumberType, ModelError> {
    match stored.dtype {
        Dtype::F32 => Ok(NumberType::F32),
        Dtype::F16 => Ok(NumberType::F16),
        Dtype::BF16 => Ok(NumberType::Bf16),
        other => {
            let what = format!("dtype {other} of tensor `{name}` (F32, F16 and BF16 are read)");
            Err(ModelError::unsupported(stored.path, what))
        }
    }
}

/// The numbers of a tensor of floats.
pub(crate) fn numbers<'a>(
    stored: &Stored<'a>,
    name: &str,
) -> Result<StoredNumbers<'a>, ModelError> {
    Ok(StoredNumbers {
        numbers: float_type(stored, name)?,
        bytes: stored.bytes,
    })
}

/// Refuses a tensor with an element that is NaN or infinite.
pub(crate) fn check_finite(path: &str, name: &str, data: &TensorData) -> Result<(), ModelError> {
    match data.first_non_finite() {
        None => Ok(()),
        Some((index, value)) => Err(ModelError::invalid(
            path,
            format!("element {index} of tensor `{name}`"),
            value,
            "a finite number",
        )),
    }
}

/// The shard of every tensor.
fn assign(shards: &[Shard]) -> Result<BTreeMap<String, usize>, ModelError> {
    let mut shard_of = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        for name in shard.metadata.tensors().into_keys() {
            if let Some(other) = shard_of.insert(name.clone(), number) {
                let found = format!("also in {}", shards[other].file.path());
                let what = format!("tensor `{name}`");
                return Err(ModelError::invalid(
                    shard.file.path(),
                    what,
                    found,
                    "one copy",
                ));
            }
        }
    }
    Ok(shard_of)
}
