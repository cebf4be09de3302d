//! The outbox: writes that survive an outage.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod chaos;
mod faults;
mod keys;
mod never_started;
mod notifications;
mod operator;
mod order;
mod poison;
mod queueing;
mod recovery;
mod replay;
mod restart;
mod rig;
mod server_requests;
mod views;
