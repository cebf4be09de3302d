//! How bytes travel: one link per live connection to a server.

mod desk;
pub mod executor;
mod flood;
pub mod http;
mod limits;
pub mod link;
mod marks;
mod message_limits;
mod modern;
mod peer;
mod processes;
#[cfg(target_os = "linux")]
pub mod reaper;
pub mod sandbox;
pub mod stderr;
pub mod stdio;
pub mod websocket;

pub use bowline_wire::mcp::Revision;
pub use desk::{ASKED_MAX, Unfit, ability, relayed};
pub use limits::ChildLimits;
pub use link::{
    Answer, BoxFuture, Exit, KeyHeader, Link, LinkError, LinkEvent, NoAnswer, NotSent, OnBehalf,
    Rename, Request, ServerInfo, Spawner,
};
pub use marks::{Ended, Instance, MARK_VARIABLE, end_instances};
pub use message_limits::{LARGE_BYTES_MAX, LargeLimits};
pub use modern::Filter;
pub use processes::{Processes, Usage};
pub use stderr::{LogLine, Stamps, StderrLimits, StderrLog};
pub use stdio::{
    ClientInfo, ConnectError, Opening, Process, Reaper, Seat, Spawn, StdioLimits, StdioSpec,
    connect, connect_over,
};
