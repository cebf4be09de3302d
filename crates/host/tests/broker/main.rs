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
#[path = "../../../broker/tests/broker/scripted_broker.rs"]
#[allow(dead_code, reason = "most of the scripted hub is for bowline-broker")]
mod scripted_broker;
mod serve_host;
#[path = "../../../broker/tests/broker/serve_rig.rs"]
#[allow(dead_code, reason = "most of the rig is for bowline-broker")]
mod serve_rig;
mod server_offer;
