//! Certificates of hand-made evidence.

mod beside;
mod incomplete;
mod outlook;
mod properties;
mod published;
mod stored;
mod verdicts;
mod world;
