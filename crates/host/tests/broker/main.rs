//! Tools across machines: peers, mailboxes and what is served over them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod client;
mod hub;
mod policy;
mod remote;
mod script;
mod federation;
mod peer;
mod peer_link;
