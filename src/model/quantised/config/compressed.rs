//! `quantization_config` of compressed-tensors: groups of modules, each with a scheme.

use serde_json::{Value, json};

use super::super::super::ModelError;
use super::super::form::{ByteKind, Form, Granularity};
use super::{Section, e4m3};

impl Section<'_> {
    /// Forms of all groups, and how servers would store activations.
    pub(super) fn compressed_tensors(&self) -> Result<(Vec<Form>, Option<String>), ModelError> {
        self.only("quantization_status", &["compressed", "frozen"])?;
        if let Some(sparsity) = self.fields.object("sparsity_config")? {
            let dense = sparsity
                .str("format")?
                .is_none_or(|format| format == "dense");
            if !sparsity.is_empty() && !dense {
                return Err(self.unsupported_beside("sparsity_config", "format dense"));
            }
        }
        if self
            .fields
            .object("transform_config")?
            .is_some_and(|transform| !transform.is_empty())
        {
            return Err(self.unsupported("transform_config"));
        }
        // A scheme of the cache may stand alone, or beside groups of attention, which store no weights.
        let is_of_cache = self.fields.object("kv_cache_scheme")?.is_some();
        let Some(groups) = self.fields.object("config_groups")? else {
            return match is_of_cache {
                true => Ok((Vec::new(), None)),
                false => Err(self.wrong("config_groups", "nothing", "an object of groups")),
            };
        };
        let format = self.fields.str("format")?;
        let (mut forms, mut activations) = (Vec::new(), None);
        for name in groups.names() {
            let group = groups.object(name)?;
            let Some(fields) = group else { continue };
            let section = Section {
                path: self.path,
                place: format!("{}.config_groups.{name}", self.place),
                fields,
            };
            if is_of_cache && fields.get("weights").is_none() {
                continue;
            }
            let own = fields.str("format")?;
            forms.push(section.group_form(own.or(format))?);
            activations = activations.or(section.input_activations()?);
        }
        if forms.is_empty() && !is_of_cache {
            return Err(self.wrong("config_groups", "no group", "at least one"));
        }
        Ok((forms, activations))
    }

    /// The form of a group's weights.
    fn group_form(&self, format: Option<&str>) -> Result<Form, ModelError> {
        let Some(weights) = self.fields.object("weights")? else {
            return Err(self.wrong("weights", "nothing", "how weights are stored"));
        };
        if self.fields.get("output_activations").is_some() {
            return Err(self.unsupported("output_activations"));
        }
        let section = Section {
            path: self.path,
            place: format!("{}.weights", self.place),
            fields: weights,
        };
        // Both have flags and names for values.
        let off = json!(false);
        let is_off = |name, known: &[&str]| match weights.get(name) {
            None => true,
            Some(value) => *value == off || known.iter().any(|known| value == known),
        };
        if !is_off("dynamic", &[]) {
            return Err(section.unsupported_beside("dynamic", "false"));
        }
        if !is_off("actorder", &["static", "weight"]) {
            return Err(section.unsupported_beside("actorder", "false, static, weight"));
        }
        let bits = section.count("num_bits")?.unwrap_or(8);
        let kind = weights.str("type")?.unwrap_or("int");
        let symmetric = weights.bool("symmetric")?.unwrap_or(true);
        let scale = section.granularity()?;
        match (format, kind, bits) {
            (Some("pack-quantized"), "int", 4 | 8) => {
                let group = match scale {
                    Granularity::Group(group) => Some(group),
                    Granularity::Channel => None,
                    Granularity::Tensor | Granularity::Block(_) => {
                        return Err(section.unsupported_beside("strategy", "group, channel"));
                    }
                };
                let bits = bits as u32;
                Ok(Form::Packed {
                    bits,
                    group,
                    symmetric,
                })
            }
            (Some("float-quantized" | "naive-quantized") | None, "float", 8) if symmetric => {
                Ok(e4m3(scale))
            }
            (Some("int-quantized" | "naive-quantized") | None, "int", 8) if symmetric => {
                Ok(Form::Bytes {
                    kind: ByteKind::Int8,
                    scale,
                })
            }
            _ => {
                let format = format.unwrap_or("none");
                let order = if symmetric { "symmetric" } else { "asymmetric" };
                let what = format!(
                    "{}: weights of {bits} bits, type {kind}, {order}, format {format}",
                    self.place
                );
                Err(ModelError::unsupported(self.path, what))
            }
        }
    }

    fn granularity(&self) -> Result<Granularity, ModelError> {
        let group = self.group("group_size", None)?;
        match (self.fields.str("strategy")?, group) {
            (Some("tensor"), _) => Ok(Granularity::Tensor),
            (Some("channel"), _) | (None, None) => Ok(Granularity::Channel),
            (Some("group") | None, Some(group)) => Ok(Granularity::Group(group)),
            (Some("block"), _) => match self.fields.get("block_structure") {
                Some(sides) => Ok(Granularity::Block(self.sides("block_structure", sides)?)),
                None => {
                    Err(self.wrong("block_structure", "nothing", "rows and columns of a block"))
                }
            },
            (Some("group"), None) => {
                Err(self.wrong("group_size", "nothing", "elements of a group"))
            }
            (Some(_), _) => {
                Err(self.unsupported_beside("strategy", "tensor, channel, group, block"))
            }
        }
    }

    /// How servers would store activations of the group.
    fn input_activations(&self) -> Result<Option<String>, ModelError> {
        let Some(fields) = self.fields.object("input_activations")? else {
            return Ok(None);
        };
        let bits = fields.usize("num_bits")?.unwrap_or(8);
        let kind = fields.str("type")?.unwrap_or("int");
        let dynamic = fields
            .get("dynamic")
            .is_some_and(|value| *value != Value::Bool(false));
        let scales = if dynamic { "dynamic" } else { "static" };
        Ok(Some(format!("{bits} bits, type {kind}, {scales} scales")))
    }
}
