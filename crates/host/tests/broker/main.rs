//! Tools across machines: peers, mailboxes and what is served over them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod client;
mod federation;
mod hub;
mod ledger;
mod peer;
mod peer_link;
mod policy;
mod post;
mod remote;
mod script;
mod serve;
mod serve_host;
mod serve_limits;
mod serve_roles;
mod supervise;
mod wares;
