//! The body of a request: what is wanted.

use std::sync::Arc;

use bytes::Bytes;

use super::FrameError;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `{"op":"manifest"}`: what the caller may use.
    Manifest,
    /// `{"op":"call","tool":..,"arguments":..}`: run a tool.
    Call {
        /// Its name among those of the manifest, or that of the server where one is named.
        tool: Arc<str>,
        /// The server, where the tool is meant by the server's own name.
        server: Option<Arc<str>>,
        /// What it is given.
        arguments: Arguments,
    },
}

/// The arguments of a call, exactly as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// One JSON object: it came as such, or as a string that holds one.
    Object(Bytes),
    /// All parameters of `tools/call`, `_meta` included (our own peers only: member `params`).
    Params(Bytes),
    /// There were none.
    None,
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// It is no such body, or the arguments are not JSON.
    pub fn read(body: &Bytes) -> Result<Self, FrameError> {
        let _ = body;
        Err(FrameError::Member("op"))
    }

    /// Writes a body. Arguments go out as an object.
    pub fn write(&self, out: &mut Vec<u8>) {
        let _ = out;
    }
}
