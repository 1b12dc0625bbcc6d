//! Certificates of hand-made evidence.

mod baseline;
mod beside;
mod builtin;
mod cases;
mod contradictory;
mod contrast;
mod engaged;
mod incomplete;
mod order;
mod outlook;
mod properties;
mod published;
mod regenerated;
mod resources;
mod served;
mod stored;
mod verdicts;
mod world;
