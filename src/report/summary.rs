//! What a run comes to.

use std::io::{self, Write};

use serde::Serialize;

use crate::schema::{Certificate, ObjectiveName, Protocol};

/// Schema name of the JSON summary.
pub const SUMMARY_SCHEMA: &str = "kvassay.summary/1";

/// Certificates of a run, and what was required of them.
pub struct Summary<'a> {
    /// Run directory as the user named it.
    pub run: &'a str,
    /// Folder of the certificates; `None` where they are printed only.
    pub stored: Option<&'a str>,
    /// Protocol that the run was judged under.
    pub protocol: &'a Protocol,
    /// Objectives that every recipe had to hold; empty for a survey.
    pub required: &'a [ObjectiveName],
    /// Exit code of the command.
    pub exit: u8,
    /// One certificate per candidate arm, in the order of the arms.
    pub certificates: &'a [Certificate],
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    run: &'a str,
    required: &'a [ObjectiveName],
    exit: u8,
    certificates: &'a [Certificate],
}

impl Summary<'_> {
    /// Writes one JSON document and a line feed.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let document = Document {
            schema: SUMMARY_SCHEMA,
            run: self.run,
            required: self.required,
            exit: self.exit,
            certificates: self.certificates,
        };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }
}
