//! What streams through an executor hold in memory, measured in a process of their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    reason = "tests, of which some share their helpers with others"
)]

mod flood;
mod many;
#[path = "../executor/script.rs"]
mod script;
#[path = "../executor/worker.rs"]
mod worker;

/// One at a time: they look at the memory of the whole process.
static TURN: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1);

/// Returns the memory of this process that is in use, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}
