//! Who runs the tools that are asked for over a broker: a host, or any executor.

use std::fmt;
use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_core::caller::CallerEnd;
use bowline_core::policy::RoleAllowlist;
use bowline_core::time::Now;
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Ask, From};

use crate::broker::Manifest;
use crate::executor::ToolExecutor;
use crate::host::Host;

/// One request to be carried out.
#[derive(Clone, Debug)]
pub struct Job {
    /// Who asks: stamped by the hub.
    pub from: From,
    /// The same as a principal of ours, where we are the hub.
    pub principal: Option<Arc<Principal>>,
    /// What is wanted.
    pub ask: Ask,
    /// The idempotency key: the id of the message.
    pub key: Arc<str>,
    /// When it must be over.
    pub deadline: Now,
    /// Hears what the tool says before it answers.
    pub sink: Option<Arc<dyn CallerEnd>>,
}

/// Runs tools for peers; decides by who asks.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns what this caller may use.
    fn manifest(&self, job: &Job) -> Manifest;

    /// Whether running it twice is like running it once; `false` where it is not known.
    fn is_repeatable(&self, job: &Job) -> bool;

    /// Carries out a call. Dropping the future takes it back.
    fn run<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Answer>;
}

/// The tools of a host, each caller as a principal of its own.
#[derive(Debug)]
pub struct HostBackend {
    /// The host.
    pub host: Host,
}

/// The tools of an executor, cut down by the role of who asks.
#[derive(Debug)]
pub struct ExecutorBackend {
    /// Has the tools.
    pub executor: Arc<dyn ToolExecutor>,
    /// Who may use which.
    pub allowlist: RoleAllowlist,
}
