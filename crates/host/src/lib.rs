//! What happens: catalog, call path and supervisors; starts every task. The library others embed.

pub mod accounts;
mod address;
pub mod allowlist;
pub mod audience;
pub mod audit;
pub mod beacon;
pub mod broker;
pub mod builder;
pub mod callpath;
pub mod card;
pub mod catalog;
pub mod credential;
mod decide;
mod denials;
pub mod dial;
pub mod events;
pub mod executor;
pub mod expose;
pub mod guard;
pub mod host;
mod inprocess;
pub mod manifest;
pub mod memory;
pub mod offload;
pub mod outbox;
pub mod output;
pub mod pins;
pub mod ports;
pub mod redaction;
mod reply;
pub mod router;
pub mod spawn;
pub mod spec;
mod standing;
pub mod supervisor;
pub mod tasks;
pub mod tools;
mod who;

pub use bowline_link::BoxFuture;
pub use builder::{BuildError, HostBuilder};
pub use callpath::checked::Unchecked;
pub use host::{
    AdoptError, Adopted, Applied, Changed, DISCOVER_MAX, Discovered, DiscoveredEntry,
    DiscoveredError, FRESH_LIST_WAIT, FailedList, Host, HostLimits, Ports, Refreshed, Undiscovered,
};
pub use output::ToolOutput;
pub use router::Router;
pub use spawn::{SpawnError, SpawnOptions};
/// A server and how it is treated; short for those who embed the host.
pub use spec::ServerSpec as Server;
pub use spec::{NameClash, ServerSpec};
pub use tools::{Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema};
// What a program needs of the rooms below, so that it depends on this one alone.
pub use bowline_core::call::{Contexts, Principal, Role};
pub use bowline_core::error::CallError;
pub use bowline_core::policy::{Otherwise, Pattern, Policy, RoleAllowlist, RoleRules};
