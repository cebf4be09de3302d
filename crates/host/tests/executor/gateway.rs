//! The gateway's side: who joins, who is dialled, and requests through them.

mod client;
mod dialling;
mod joining;
mod mcp;
mod recovery;
mod rig;
