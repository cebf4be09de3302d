//! Tools across machines: the frames of the broker, and the names of its mailboxes.

pub mod frames;
#[cfg(test)]
#[path = "../../wire/src/testing/fuzz.rs"]
#[allow(
    dead_code,
    reason = "the corpus of JSON-RPC messages is for bowline-wire"
)]
mod fuzz;
pub mod mailbox;
