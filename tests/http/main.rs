//! `qualify` on servers, through the binary: a whole run against servers of our own.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod mock;
#[path = "../support/server.rs"]
mod server;
mod whole;
