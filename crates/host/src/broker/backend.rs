//! Who runs the tools that are asked for over a broker: a host, or any executor.

mod executor;
mod host;
mod mcp;
mod params;

use std::fmt;
use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_core::caller::CallerEnd;
use bowline_core::error::Failure;
use bowline_core::run::Run;
use bowline_core::time::Now;
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Ask, Context, From, Item};
use bowline_wire::object;
use sha2::{Digest as _, Sha256};

use crate::broker::Manifest;

pub use executor::ExecutorBackend;
pub use host::{Credentials, Guests, HostBackend, TracePlacer};

/// One request to be carried out.
#[derive(Clone, Debug)]
pub struct Job {
    /// Who asks: stamped by the hub.
    pub from: From,
    /// The same as a principal of ours, where we are the hub.
    pub principal: Option<Arc<Principal>>,
    /// What is wanted.
    pub ask: Ask,
    /// The idempotency key; absent for a live request, whose id names it on its connection only.
    pub key: Option<Arc<str>>,
    /// When it must be over.
    pub deadline: Now,
    /// Hears what the tool says before it answers.
    pub sink: Option<Arc<dyn CallerEnd>>,
}

/// Runs tools for peers; decides by who asks.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns what this caller may use.
    fn manifest<'a>(
        &'a self,
        from: &'a From,
        principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<Manifest, Failure>>;

    /// Refuses what this caller may not do, before anything is written down of it. [`run`] decides
    /// again.
    ///
    /// [`run`]: Self::run
    ///
    /// # Errors
    /// It may not.
    fn check(&self, job: &Job) -> Result<(), Failure>;

    /// Whether running it twice is like running it once; `false` where it is not known.
    fn is_repeatable(&self, job: &Job) -> bool;

    /// Carries out a call. Dropping the future takes it back.
    fn run<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Answer>;
}

/// Returns the run that a peer says its call belongs to. Its ceiling is counted by the peer.
fn run(context: &Context) -> Option<Arc<Run>> {
    let id = context.run.as_deref()?;
    Some(Arc::new(Run::new(id, u64::MAX)))
}

/// Whether the hints of a tool say that it reads only, or that once is as good as twice.
pub(super) fn says_repeatable(definition: &[u8]) -> bool {
    let Some(hints) = object::field(definition, "annotations") else {
        return false;
    };
    let hints = hints.of(definition);
    let says = |key| object::field(hints, key).is_some_and(|at| at.of(hints) == b"true");
    says("readOnlyHint") || says("idempotentHint")
}

/// Numbers that every reader of JSON keeps exact.
const REVISION_BITS: u32 = 53;

/// Returns a manifest under a revision that is another whenever anything of it is.
fn manifest(items: Vec<Item>) -> Manifest {
    let mut hash = Sha256::new();
    for item in &items {
        for part in [item.name.as_bytes(), &item.definition] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update([u8::from(item.repeatable)]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first = digest.first_chunk().copied().unwrap_or_default();
    let revision = u64::from_be_bytes(first) >> (u64::BITS - REVISION_BITS);
    Manifest {
        revision,
        items,
        servers: Vec::new(),
    }
}
