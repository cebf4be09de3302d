//! The gateway's side: joined executors, dialled executors, and requests through both.

mod connection_recovery;
mod dial_loop;
mod executor_client;
mod joining;
