//! Writes that outlive an outage.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod queueing;
mod restart;
mod rig;
mod telling;
