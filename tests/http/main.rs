//! `qualify` on servers, through the binary, against servers of our own.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod engines;
mod misbehaves;
mod mock;
mod parts;
mod runs;
#[path = "../support/server.rs"]
mod server;
mod tls;
mod whole;
