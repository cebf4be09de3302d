//! What is said: JSON-RPC envelopes over raw bytes, the MCP revisions, SSE, canonical JSON.

pub mod broker;
pub mod canonical;
pub mod era;
pub mod execserver;
pub mod executor;
pub mod fold;
mod frame;
pub mod jsonrpc;
pub mod mcp;
mod members;
pub mod object;
pub mod result;
pub mod scan;
pub mod span;
pub mod splice;
pub mod sse;
#[cfg(test)]
mod testing;
mod text;
mod writer;

pub use frame::FrameError;
pub use jsonrpc::{Kind, Message, Refusal};
pub use scan::{Fault, Keys};
pub use span::Span;
