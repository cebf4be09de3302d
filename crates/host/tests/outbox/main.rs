//! Writes that outlive an outage.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod asking;
mod broken;
mod care;
mod chaos;
mod keys;
mod order;
mod poison;
mod queueing;
mod recovery;
mod replay;
mod restart;
mod rig;
mod telling;
mod unseen;
mod views;
