//! Wire formats: JSON-RPC over raw bytes, MCP revisions and eras, SSE,
//! canonical JSON.

pub mod canonical;
pub mod case_fold;
pub mod era;
mod frame_error;
pub mod jsonrpc;
pub mod mcp;
pub mod object;
pub mod object_editor;
pub mod object_members;
pub mod object_writer;
pub mod scan;
pub mod splice;
pub mod sse;
mod string_literal;
#[cfg(test)]
mod testing;
pub mod tool_result;

pub use frame_error::FrameError;
pub use jsonrpc::{MessageError, MessageKind, RpcMessage};
pub use object_editor::{MemberList, ObjectEditor};
pub use scan::{JsonError, KeyPolicy};
pub use splice::ByteSpan;
