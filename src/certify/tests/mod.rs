//! Certificates of hand-made evidence.

mod beside;
mod engaged;
mod incomplete;
mod properties;
mod published;
mod stored;
mod verdicts;
mod world;
