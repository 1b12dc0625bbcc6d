//! What several test binaries share. Each uses a part of it.
#![allow(dead_code)]

pub mod decoding;
pub mod dishonest;
pub mod engines;
pub mod fixture;
pub mod models;
pub mod oracle;
