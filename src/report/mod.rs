//! Sinks for results and progress.
