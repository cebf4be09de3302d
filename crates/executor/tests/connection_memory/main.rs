//! Memory of tunnel streams, measured in a separate process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    reason = "tests, of which some share their helpers with others"
)]

#[path = "../connection/fake_worker.rs"]
mod fake_worker;
mod flood;
mod many;
#[path = "../connection/scripted_executor.rs"]
mod scripted_executor;

/// Serializes the tests, as each measures the memory of the whole process.
static TURN: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1);
