//! Statistics through the public interface, against figures that others computed.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod golden;
mod published;
