//! Tools across machines: peers, mailboxes and served requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod fake_peer;
mod federation;
mod hub;
mod peer_link;
mod policy_escapes;
mod real_hub;
mod serve_host;
mod server_offer;
