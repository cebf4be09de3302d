//! The embeddable host library: catalog, call path, supervisors, outbox. Spawns every task.

pub mod access_guard;
pub mod allowlist;
pub mod audit;
mod authorizer;
#[cfg(feature = "broker")]
pub mod broker;
pub mod builder;
pub mod callpath;
#[cfg(feature = "policy-cel")]
pub mod conditions;
mod denials;
pub mod dial;
pub mod events;
pub mod expose;
pub mod host;
mod in_process_link;
mod local_reply;
pub mod notification_fanout;
pub mod offload;
pub mod outbox;
pub mod ports;
pub mod redaction;
pub mod router;
pub mod session_state;
pub mod spawn_options;
mod subscription_sync;
pub mod supervisor;
pub mod tools;

pub use access_guard::{AccessGuard, GuardDecision};
pub use bowline_catalog::{catalog, manifest, pins, server_card, spec};
pub use bowline_tools::ToolOutput;
pub use builder::{BuildError, HostBuilder};
pub use callpath::output_schema::UncheckedTool;
pub use dial::MissingFeature;
#[cfg(feature = "broker")]
pub use host::{AdoptError, AdoptReport};
pub use host::{
    ApplyReport, ChangedServer, DISCOVER_MAX, DiscoveryEntry, DiscoveryError, FRESH_LIST_WAIT,
    FailedList, Host, HostLimits, HostPorts, RefreshReport, ServerDiscovery,
};
pub use router::Router;
pub use spawn_options::{SpawnError, SpawnOptions};
/// Short name of [`ServerSpec`] for embedding programs.
pub use spec::ServerSpec as Server;
pub use spec::{NameClash, ServerSpec};
pub use tools::{ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolSchema};
// Re-exports from lower crates, so that embedding programs depend on this crate alone: the crates
// whose types stand in ports, the modules of `bowline-core`, and the names that most programs use.
pub use bowline_api as api;
#[cfg(feature = "executor")]
pub use bowline_executor as executor;
pub use bowline_journal as journal;
pub use bowline_link as link;
pub use bowline_runtime as runtime;

pub use bowline_core::{
    accounts, backoff, breaker, budget, cache, call, client_handle, era, error, lane, load,
    log_level, policy, rate_limiter, redact, restart_budget, run, secret_header, shares,
    task_table, time, trace,
};

pub use bowline_catalog::result_secrets::ResultSecrets;
pub use bowline_core::BoxFuture;
pub use bowline_core::backoff::Backoff;
pub use bowline_core::breaker::BreakerPolicy;
pub use bowline_core::call::{
    CallReply, CallRequest, ContextSet, Effect, EndpointScope, Principal, Role, Route,
};
pub use bowline_core::era::{Era, EraSetting};
pub use bowline_core::error::{CallError, ExecutionStatus, FailureClass, FailureOrigin};
pub use bowline_core::peer_role::PeerRole;
pub use bowline_core::pins::PinAcceptance;
pub use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, RoleAllowlist, RoleRules};
pub use bowline_core::restart_budget::RestartPolicy;
pub use bowline_core::run::AgentRun;
#[cfg(feature = "journal-sqlite")]
pub use bowline_journal::SqliteJournal;
pub use bowline_journal::{Journal, JournalError, MemoryJournal};
pub use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
pub use bowline_link::http::upstream_credentials::{
    CredentialError, NoCredentials, UpstreamCredentials,
};
pub use bowline_runtime::{
    Clock, ClockReading, CredentialSource, SystemClock, TaskSpawner, TaskTracker,
};
pub use bytes::Bytes;
