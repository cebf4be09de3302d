//! The body of a reply: what came of a request.

use std::sync::Arc;

use bowline_core::error::Failure;
use bytes::Bytes;

use super::FrameError;

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `{"manifest":[..],"revision":N}`.
    Manifest {
        /// The tools.
        items: Vec<Item>,
        /// Which manifest it is.
        revision: u64,
    },
    /// The tool ran: `{"result":{"success":..,"result":TEXT,"output":{..}}}`, or from peers that
    /// know no more `output` the text alone. Live answers have `output` only.
    Output {
        /// The whole result of `tools/call`.
        result: Bytes,
        /// Whether it came out of the journal of whoever ran it.
        again: bool,
    },
    /// The server answered with a JSON-RPC error, whole:
    /// `{"error":TEXT,"failure":{..,"rpc":{..}}}`.
    Rpc {
        /// The error object.
        error: Bytes,
    },
    /// The request could not be served: `{"error":TEXT,"failure":{class, execution, ..}}`.
    Failed(Failure),
}

/// One tool of a manifest:
/// `{"kind":"function","function":{name, description, parameters},"server","tool","effect",..}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The name by which it is called.
    pub name: Arc<str>,
    /// Its server.
    pub server: Option<Arc<str>>,
    /// The server's own name of it.
    pub tool: Option<Arc<str>>,
    /// Whether running it twice is like running it once.
    pub repeatable: bool,
    /// Its MCP definition, whole; made from `function` where there is no other.
    pub definition: Bytes,
}

/// How much an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Everything, for peers that know only the first names.
    Whole,
    /// What our own peers need.
    Brief,
}

impl Answer {
    /// Reads a body.
    ///
    /// # Errors
    /// It is no such body.
    pub fn read(body: &Bytes) -> Result<Self, FrameError> {
        let _ = body;
        Err(FrameError::Member("result"))
    }

    /// Writes a body.
    pub fn write(&self, said: Said, out: &mut Vec<u8>) {
        let _ = (said, out);
    }
}
