//! Backends that run tools for broker requests: a host, or any tool executor.

mod executor_backend;
mod peer_call;

use std::fmt;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::Principal;
use bowline_core::error::FailureReport;
use bowline_core::run::AgentRun;
use bowline_wire::object;
use sha2::{Digest as _, Sha256};

use crate::frames::{BrokerRequest, BrokerResponse, CallerContext, ManifestItem, MessageSender};
use crate::{PeerManifest, ServeRequest};

pub use executor_backend::ExecutorBackend;
pub use peer_call::build_call;

/// One request to run.
#[derive(Clone, Debug)]
pub struct BackendRequest {
    /// The request as received, with its sender and deadline.
    pub incoming: ServeRequest,
    /// The parsed body.
    pub request: BrokerRequest,
    /// The idempotency key; absent for a live request, unique only within a connection.
    pub key: Option<Arc<str>>,
}

/// Runs tools for peers and authorizes each sender.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns the tools that the sender may use.
    fn manifest<'a>(
        &'a self,
        from: &'a MessageSender,
        principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<PeerManifest, FailureReport>>;

    /// Refuses a request of an unauthorized sender before the ledger records anything. [`run`]
    /// authorizes again.
    ///
    /// [`run`]: Self::run
    ///
    /// # Errors
    /// The sender may not run the request.
    fn authorize(&self, job: &BackendRequest) -> Result<(), FailureReport>;

    /// Whether running the request twice has the effect of running once; `false` if unknown.
    fn is_repeatable(&self, job: &BackendRequest) -> bool;

    /// Runs a request. Dropping the future cancels the request.
    fn run<'a>(&'a self, job: &'a BackendRequest) -> BoxFuture<'a, BrokerResponse>;
}

/// Returns the agent run named in the context. The peer enforces the run's limit.
fn run_from_context(context: &CallerContext) -> Option<Arc<AgentRun>> {
    let id = context.run.as_deref()?;
    Some(Arc::new(AgentRun::new(id, u64::MAX)))
}

/// Whether the tool annotations say read-only or idempotent.
pub(super) fn is_marked_repeatable(definition: &[u8]) -> bool {
    let Some(hints) = object::field(definition, "annotations") else {
        return false;
    };
    let hints = hints.slice(definition);
    let has_hint = |key| object::field(hints, key).is_some_and(|at| at.slice(hints) == b"true");
    has_hint("readOnlyHint") || has_hint("idempotentHint")
}

/// Bits of an integer that every JSON reader keeps exact.
const REVISION_BITS: u32 = 53;

/// Builds a manifest with a revision derived from the contents.
#[must_use]
pub fn build_manifest(items: Vec<ManifestItem>) -> PeerManifest {
    let mut hash = Sha256::new();
    for item in &items {
        for part in [item.name.as_bytes(), &item.definition] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update([u8::from(item.is_repeatable)]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first = digest.first_chunk().copied().unwrap_or_default();
    let revision = u64::from_be_bytes(first) >> (u64::BITS - REVISION_BITS);
    PeerManifest {
        revision,
        items,
        servers: Vec::new(),
    }
}
