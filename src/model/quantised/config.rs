//! `quantization_config`: how a checkpoint says that its weights are stored.

mod compressed;
mod ignored;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::super::ModelError;
use super::super::fields::{Fields, short, whole};
use super::super::hf_config::dtype;
use super::find::Found;
use super::form::{AwqOrder, ByteKind, Form, Granularity, NumberType};
use crate::schema::QuantisedWeights;
pub(in super::super) use ignored::Ignored;

/// Names of the object in `config.json`; the second one is that of older compressed-tensors.
const OBJECTS: [&str; 2] = ["quantization_config", "compression_config"];

/// Side of a block of DeepSeek's FP8 where the config names none.
const FP8_BLOCK: usize = 128;

/// Elements of a group of AWQ where the config names none.
const AWQ_GROUP: usize = 128;

/// How weights are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantisation {
    /// `quant_method`, in lower case.
    pub method: String,
    /// What codes become: the type that the config names for its numbers.
    pub numbers: NumberType,
    /// Forms in which a matrix may be stored; the tensors tell which one it is.
    pub forms: Vec<Form>,
    /// What a module's name must not match if it is stored so.
    pub ignored: Vec<Ignored>,
    /// How servers would store activations; these workers keep them native.
    pub activations: Option<String>,
    /// The checkpoint asks for a cache in E4M3.
    pub kv_cache: bool,
}

/// One object within `quantization_config`, with its place for messages.
struct Section<'a> {
    path: &'a str,
    place: String,
    fields: Fields<'a>,
}

/// Reads how weights are stored; `None` where the config says nothing of it.
///
/// # Errors
/// [`ModelError::Unsupported`] names a method or setting that is not applied.
pub(crate) fn of_config(fields: Fields<'_>) -> Result<Option<Quantisation>, ModelError> {
    let parts = [fields.object("text_config")?, Some(fields)];
    let parts: Vec<Fields<'_>> = parts.into_iter().flatten().collect();
    for part in parts.iter().rev() {
        for name in OBJECTS {
            let Some(object) = part.object(name)? else {
                continue;
            };
            if object.is_empty() {
                continue;
            }
            let section = Section {
                path: object.path(),
                place: name.to_owned(),
                fields: object,
            };
            return section.quantisation(dtype(&parts)?).map(Some);
        }
    }
    Ok(None)
}

impl Section<'_> {
    fn quantisation(&self, numbers: NumberType) -> Result<Quantisation, ModelError> {
        let method = match self.fields.str("quant_method")? {
            Some(method) => method.to_ascii_lowercase(),
            None if self.place == OBJECTS[1] => "compressed-tensors".to_owned(),
            None => {
                return Err(self.wrong("quant_method", "nothing", "the name of a method"));
            }
        };
        let (forms, activations) = match method.as_str() {
            "awq" => (vec![self.awq()?], None),
            "fp8" => self.fp8()?,
            "compressed-tensors" => self.compressed_tensors()?,
            "modelopt" => self.modelopt()?,
            _ => {
                let known = "awq, fp8, compressed-tensors, modelopt";
                return Err(self.unsupported_beside("quant_method", known));
            }
        };
        Ok(Quantisation {
            method,
            numbers,
            forms,
            ignored: self.ignored()?,
            activations,
            kv_cache: self.kv_cache()?,
        })
    }

    fn awq(&self) -> Result<Form, ModelError> {
        if self.count("bits")?.or(self.count("w_bit")?) != Some(4) {
            return Err(self.unsupported_beside("bits", "4"));
        }
        if self.fields.bool("zero_point")? == Some(false) {
            return Err(self.unsupported_beside("zero_point", "true"));
        }
        let version = match self.fields.str("version")? {
            Some(version) => Some(("version", version)),
            None => self.fields.str("format")?.map(|format| ("format", format)),
        };
        let order = match version.map(|(name, value)| (name, value.to_ascii_lowercase())) {
            None => AwqOrder::Gemm,
            Some((_, value)) if value == "gemm" => AwqOrder::Gemm,
            Some((_, value)) if value == "gemv" => AwqOrder::Gemv,
            Some((name, _)) => return Err(self.unsupported_beside(name, "gemm, gemv")),
        };
        let name = match self.fields.get("q_group_size") {
            Some(_) => "q_group_size",
            None => "group_size",
        };
        Ok(Form::Awq {
            order,
            group: self.group(name, Some(AWQ_GROUP))?,
        })
    }

    /// FP8 of DeepSeek and Qwen (blocks), of Mistral and AutoFP8 (one scale per tensor).
    fn fp8(&self) -> Result<(Vec<Form>, Option<String>), ModelError> {
        self.only("fmt", &["e4m3", "float8_e4m3fn"])?;
        self.only("scale_fmt", &["float", "ue8m0"])?;
        let mut forms = vec![Granularity::Tensor, Granularity::Channel];
        match self.fields.get("weight_block_size") {
            Some(sides) => forms.push(Granularity::Block(self.sides("weight_block_size", sides)?)),
            None if self.fields.str("activation_scheme")? == Some("dynamic") => {
                forms.push(Granularity::Block([FP8_BLOCK; 2]));
            }
            None => {}
        }
        let scheme = self.fields.str("activation_scheme")?.unwrap_or("dynamic");
        let activations = format!("e4m3, {scheme} scales");
        Ok((forms.into_iter().map(e4m3).collect(), Some(activations)))
    }

    fn modelopt(&self) -> Result<(Vec<Form>, Option<String>), ModelError> {
        self.only("quant_algo", &["fp8"])?;
        if self.fields.get("quant_algo").is_none() {
            return Err(self.wrong("quant_algo", "nothing", "`FP8`"));
        }
        let forms = [Granularity::Tensor, Granularity::Channel].map(e4m3);
        Ok((forms.to_vec(), Some("e4m3, static scales".to_owned())))
    }

    /// Whether a cache in E4M3 is declared; another one is refused, since scales that come along
    /// would be of it.
    fn kv_cache(&self) -> Result<bool, ModelError> {
        self.only("kv_cache_quant_algo", &["fp8"])?;
        if let Some(scheme) = self.fields.object("kv_cache_scheme")? {
            let bits = scheme.usize("num_bits")?.unwrap_or(8);
            let kind = scheme.str("type")?.unwrap_or("int");
            if bits != 8 || kind != "float" {
                let known = "num_bits 8 with type float";
                return Err(self.unsupported_beside("kv_cache_scheme", known));
            }
            return Ok(true);
        }
        Ok(self.fields.get("kv_cache_quant_algo").is_some())
    }

    fn ignored(&self) -> Result<Vec<Ignored>, ModelError> {
        for name in [
            "modules_to_not_convert",
            "ignored_layers",
            "ignore",
            "exclude_modules",
        ] {
            let Some(value) = self.fields.get(name) else {
                continue;
            };
            let list = value
                .as_array()
                .map(|list| list.iter().map(Value::as_str).collect());
            return match list {
                Some(Some::<Vec<&str>>(names)) => {
                    let read = |one: &str| {
                        Ignored::new(one)
                            .map_err(|_| self.wrong(name, one, "an expression behind `re:`"))
                    };
                    names.into_iter().map(read).collect()
                }
                _ => Err(self.wrong(name, short(value), "a list of module names")),
            };
        }
        Ok(Vec::new())
    }

    /// Elements of a group, `None` for whole rows (-1).
    fn group(&self, name: &str, default: Option<usize>) -> Result<Option<usize>, ModelError> {
        match self.fields.get(name) {
            None => Ok(default),
            Some(value) if value.as_i64() == Some(-1) => Ok(None),
            Some(_) => match self.count(name)? {
                Some(group) if group > 0 && group % 8 == 0 => Ok(Some(group)),
                _ => Err(self.unsupported_beside(name, "-1 and multiples of 8")),
            },
        }
    }

    fn sides(&self, name: &str, value: &Value) -> Result<[usize; 2], ModelError> {
        let side = |value: &Value| value.as_u64().filter(|side| (1..=1 << 16).contains(side));
        let wrong = || self.wrong(name, short(value), "two positive sides of a block");
        // A string such as `128x128` names the same.
        let list: Vec<Value> = match value {
            Value::Array(list) => list.clone(),
            Value::String(text) => text
                .split('x')
                .map(|side| side.parse::<u64>().map_or(Value::Null, Value::from))
                .collect(),
            _ => Vec::new(),
        };
        match list.as_slice() {
            [rows, columns] => match (side(rows), side(columns)) {
                (Some(rows), Some(columns)) => Ok([rows as usize, columns as usize]),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    fn count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(value) => match whole(value) {
                Ok(number) => Ok(Some(number)),
                Err(expected) => Err(self.wrong(name, short(value), &expected)),
            },
        }
    }

    /// Refuses a setting with another value than these, whatever the case; absent is fine.
    fn only(&self, name: &str, known: &[&str]) -> Result<(), ModelError> {
        match self.fields.str(name)? {
            Some(value) if !known.iter().any(|one| one.eq_ignore_ascii_case(value)) => {
                Err(self.unsupported_beside(name, &known.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn unsupported(&self, name: &str) -> ModelError {
        ModelError::unsupported(self.path, self.setting(name))
    }

    /// The same, with the values that are applied.
    fn unsupported_beside(&self, name: &str, supported: &str) -> ModelError {
        let what = format!("{} (supported: {supported})", self.setting(name));
        ModelError::unsupported(self.path, what)
    }

    fn setting(&self, name: &str) -> String {
        let value = self
            .fields
            .get(name)
            .map_or_else(|| "nothing".to_owned(), short);
        format!("{}.{name} = {value}", self.place)
    }

    fn wrong(&self, name: &str, found: impl fmt::Display, expected: &str) -> ModelError {
        let what = format!("field `{}.{name}`", self.place);
        ModelError::invalid(self.path, what, found, expected)
    }
}

fn e4m3(scale: Granularity) -> Form {
    let kind = ByteKind::E4m3;
    Form::Bytes { kind, scale }
}

impl Quantisation {
    /// How the matrices of `found` are stored, as certificates state it.
    pub(crate) fn stored(&self, found: &Found) -> QuantisedWeights {
        let forms = found
            .matrices
            .values()
            .map(|matrix| matrix.form.to_string());
        let forms: BTreeSet<String> = forms.collect();
        QuantisedWeights {
            method: self.method.clone(),
            forms: forms.into_iter().collect(),
            numbers: self.numbers.name().to_owned(),
            activations: self.activations.clone(),
        }
    }

    /// Whether the config says that the module stays as it is, in the spelling of any checkpoint:
    /// those of a multimodal one have a prefix before or behind `model`.
    pub(crate) fn ignores(&self, module: &str) -> bool {
        let before = format!("language_model.{module}");
        let behind = match module.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => module.to_owned(),
        };
        let spellings = [module, &before, &behind];
        let mut ignored = self.ignored.iter();
        ignored.any(|one| spellings.iter().any(|module| one.matches(module)))
    }
}
