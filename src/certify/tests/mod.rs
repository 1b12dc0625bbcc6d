//! Certificates of hand-made evidence.

mod baseline;
mod beside;
mod cases;
mod contrast;
mod engaged;
mod incomplete;
mod order;
mod outlook;
mod properties;
mod published;
mod regenerated;
mod resources;
mod stored;
mod verdicts;
mod world;
