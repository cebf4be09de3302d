//! Tools across machines: peers, mailboxes and served requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod broker_client;
mod fake_peer;
mod federation;
mod hub;
mod ledger;
mod peer_link;
mod policy_escapes;
mod remote_tools;
mod scripted_broker;
mod serve;
mod serve_host;
mod serve_limits;
mod serve_rig;
mod serve_roles;
mod server_offer;
mod supervise;
