//! The stored types: protocol, panel case, record, manifest, calibration, engagement and
//! certificate; their schema names, versions and digests.
//!
//! Stored types are apart from live ones: nothing here runs a model or touches a file system,
//! and every JSON document names its schema and version.

mod certificate;
mod checkpoint;
mod digest;
mod engaged;
mod evidence;
mod json_schema;
mod identity;
mod import;
mod manifest;
mod panel;
mod protocol;
mod protocol_check;
mod protocol_file;
mod protocol_lock;
mod protocol_panel;
mod protocol_rules;
mod record;
mod resources;
mod server;
mod shard;
mod statement;
mod strict;
mod task;
mod tree;

pub use certificate::*;
pub use checkpoint::*;
pub use digest::*;
pub use engaged::{ExpectedStorage, all_unit_scales, stored_tokens};
pub use evidence::*;
pub use identity::*;
pub use import::*;
pub use json_schema::{JsonSchemaError, STORED_DOCUMENTS, StoredDocument, Violation};
pub use manifest::*;
pub use panel::*;
pub use protocol::*;
pub use protocol_check::{AA_ARM, ProtocolError};
pub use protocol_file::{builtin_protocol, builtin_protocols};
pub use protocol_lock::{locked_digest, locked_otherwise, locked_protocols};
pub use protocol_rules::{LARGEST_ALPHA, RuleName};
pub use record::*;
pub use resources::*;
pub use server::*;
pub use shard::{Shard, ShardError};
pub use statement::*;
pub use strict::parse_strict;
pub use task::*;
pub use tree::{TreeDifference, tree_differences};
