//! Clients of a hub, and serving over one, against a scripted hub.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod broker_client;
mod ledger;
mod remote_tools;
mod serve;
mod serve_limits;
mod serve_roles;
mod supervise;
