//! From protocol, panels and records to verdicts and certificates.
