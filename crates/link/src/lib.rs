//! How bytes travel: one link per live connection to a server.

mod desk;
pub mod http;
pub mod link;
mod peer;
#[cfg(target_os = "linux")]
pub mod reaper;
pub mod stderr;
pub mod stdio;

pub use bowline_wire::mcp::Revision;
pub use link::{
    Answer, BoxFuture, Exit, Link, LinkError, LinkEvent, NotSent, Rename, Request, ServerInfo,
    Spawner,
};
pub use stderr::{LogLine, Stamps, StderrLimits, StderrLog};
pub use stdio::{ClientInfo, ConnectError, Reaper, StdioLimits, StdioSpec, connect};
