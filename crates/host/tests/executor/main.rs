//! Executors: requests and servers in another network.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod cuts;
mod gateway;
mod process;
mod reference;
mod servant;
