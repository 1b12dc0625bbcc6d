//! JSON Schemas of the stored documents: generated from the types, kept in `docs/schemas/`, and
//! embedded so that documents of strangers can be validated.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::{
    ARM_START_SCHEMA, ArmStart, CALIBRATION_SCHEMA, CERTIFICATE_SCHEMA, Calibration, Certificate,
    ENGAGEMENT_SCHEMA, Engagement, IMPORT_SCHEMA, ImportReport, MANIFEST_SCHEMA, Manifest,
    PANEL_SCHEMA, PROTOCOL_SCHEMA, PanelCase, PanelHeader, Protocol, RESOURCES_SCHEMA, Record,
    Resources,
};

/// One kind of stored document, or of line in a JSONL file.
#[derive(Clone, Copy, Debug)]
pub struct StoredDocument {
    /// What it is; its JSON Schema is `docs/schemas/<name>.json`.
    pub name: &'static str,
    /// Value of its `schema` field; `None` for lines that have none.
    pub schema: Option<&'static str>,
    /// The JSON Schema as embedded.
    pub json_schema: &'static str,
    generate: fn() -> Schema,
}

/// A violation of a JSON Schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// JSON pointer of the offending value; empty for the whole document.
    pub pointer: String,
    /// The offending value.
    pub found: Value,
    /// What is wrong.
    pub message: String,
}

/// An embedded JSON Schema that is none.
#[derive(Debug, thiserror::Error)]
#[error("embedded JSON Schema of {name}: {message}")]
pub struct JsonSchemaError {
    /// Name of the document.
    pub name: &'static str,
    /// What is wrong with its schema.
    pub message: String,
}

macro_rules! stored {
    ($name:literal, $schema:expr, $type:ty) => {
        StoredDocument {
            name: $name,
            schema: $schema,
            json_schema: include_str!(concat!("../../docs/schemas/", $name, ".json")),
            generate: generate::<$type>,
        }
    };
}

/// Every stored document with a JSON Schema.
pub const STORED_DOCUMENTS: [StoredDocument; 11] = [
    stored!("certificate", Some(CERTIFICATE_SCHEMA), Certificate),
    stored!("manifest", Some(MANIFEST_SCHEMA), Manifest),
    stored!("protocol", Some(PROTOCOL_SCHEMA), Protocol),
    stored!("arm-start", Some(ARM_START_SCHEMA), ArmStart),
    stored!("calibration", Some(CALIBRATION_SCHEMA), Calibration),
    stored!("engagement", Some(ENGAGEMENT_SCHEMA), Engagement),
    stored!("resources", Some(RESOURCES_SCHEMA), Resources),
    stored!("import", Some(IMPORT_SCHEMA), ImportReport),
    stored!("panel-header", Some(PANEL_SCHEMA), PanelHeader),
    stored!("panel-case", None, PanelCase),
    stored!("record", None, Record),
];

fn generate<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<T>()
}

impl StoredDocument {
    /// The document of this name.
    pub fn named(name: &str) -> Option<&'static StoredDocument> {
        STORED_DOCUMENTS
            .iter()
            .find(|document| document.name == name)
    }

    /// The document whose `schema` field has this value.
    pub fn of_schema(schema: &str) -> Option<&'static StoredDocument> {
        STORED_DOCUMENTS
            .iter()
            .find(|document| document.schema == Some(schema))
    }

    /// The JSON Schema that follows from the types now, as text of its file.
    pub fn generated(&self) -> String {
        let schema = (self.generate)();
        format!("{:#}\n", schema.as_value())
    }

    /// Everything in which `value` violates the embedded JSON Schema, in the order of the fields.
    ///
    /// # Errors
    /// [`JsonSchemaError`] where the embedded schema itself is wrong.
    pub fn violations(&self, value: &Value) -> Result<Vec<Violation>, JsonSchemaError> {
        let wrong = |message: String| JsonSchemaError {
            name: self.name,
            message,
        };
        let schema: Value =
            serde_json::from_str(self.json_schema).map_err(|error| wrong(error.to_string()))?;
        let validator =
            jsonschema::validator_for(&schema).map_err(|error| wrong(error.to_string()))?;
        let violations = validator.iter_errors(value).map(|error| Violation {
            pointer: error.instance_path().to_string(),
            found: error.instance().clone().into_owned(),
            message: error.masked().to_string(),
        });
        Ok(violations.collect())
    }
}

#[cfg(test)]
mod tests;
