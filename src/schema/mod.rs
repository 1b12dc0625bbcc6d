//! The stored types: protocol, panel case, record, manifest, calibration, engagement and
//! certificate; their schema names, versions and digests.
//!
//! Stored types are apart from live ones: nothing here runs a model or touches a file system,
//! and every JSON document names its schema and version.

mod certificate;
mod digest;
mod evidence;
mod manifest;
mod panel;
mod protocol;
mod record;

pub use certificate::*;
pub use digest::*;
pub use evidence::*;
pub use manifest::*;
pub use panel::*;
pub use protocol::*;
pub use record::*;
