//! The tools of any executor, cut down by the role of who asks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bowline_core::call::{Kind, Principal, Role, Scope};
use bowline_core::era::Era;
use bowline_core::error::{Execution, Failure};
use bowline_core::policy::{Policy, RoleAllowlist, Thing};
use bowline_core::{hex::hex, name};
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Ask, From, Item};
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::params::Given;
use super::{Backend, Job, manifest, run, says_repeatable};
use crate::broker::{Manifest, OFFER_BYTES_MAX, failures};
use crate::inprocess::contained;
use crate::ports::Clock;
use crate::tools::{ExecuteContext, ExecuteError, ToolExecutor, ToolSchema};

/// The tools of an executor, each caller with what the role allows that the hub stamped on it.
///
/// An entry of the allowlist without a dot is the whole name of a tool; one with a dot is
/// `server.tool`, for names like `server__tool`.
#[derive(Debug)]
pub struct ExecutorBackend {
    executor: Arc<dyn ToolExecutor>,
    /// Made of the entries that are whole names.
    whole: Policy,
    /// Made of those that are a server and its tool.
    parts: Policy,
    clock: Arc<dyn Clock>,
}

impl ExecutorBackend {
    /// Returns a backend for these tools and roles.
    #[must_use]
    pub fn new(
        executor: Arc<dyn ToolExecutor>,
        allowlist: &RoleAllowlist,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            executor,
            whole: Policy::from(&allowlist.only(|entry| !entry.as_str().contains('.'))),
            parts: Policy::from(&allowlist.only(|entry| entry.as_str().contains('.'))),
            clock,
        }
    }

    /// Returns the tools; none where the executor panics over it.
    fn tools(&self) -> Vec<ToolSchema> {
        let tools = catch_unwind(AssertUnwindSafe(|| self.executor.tools()));
        tools.unwrap_or_else(|_panic| {
            tracing::error!("an executor panicked when it was asked for its tools");
            Vec::new()
        })
    }

    /// Returns the tools as an offer of one server; those beyond what fits into one are left out.
    pub(in crate::broker) fn offer(&self, server: &str) -> Bytes {
        let mut out = Vec::from(&b"[{\"name\":"[..]);
        write_string(&mut out, server);
        out.extend_from_slice(b",\"tools\":[");
        let start = out.len();
        for tool in self.tools() {
            let definition = tool.definition();
            if out.len() + definition.len() > OFFER_BYTES_MAX {
                tracing::warn!(server, tool = %tool.name(), "no room in the offer");
                continue;
            }
            if out.len() > start {
                out.push(b',');
            }
            out.extend_from_slice(definition);
        }
        out.extend_from_slice(b"]}]");
        out.into()
    }

    fn may(&self, from: &From, tool: &str) -> bool {
        let role = from.role.clone().map_or(Role::None, Role::Named);
        let who = Principal::new(&from.session_id, role);
        let allows = |policy: &Policy, server, name| {
            let thing = Thing {
                kind: Kind::Tool,
                server,
                name,
                arguments: None,
            };
            policy.decide(&who, &Scope::All, thing).allows()
        };
        let parts = tool.split_once(name::SEPARATOR);
        let parts = parts.or_else(|| tool.split_once('.'));
        allows(&self.whole, tool, tool)
            || parts.is_some_and(|(server, own)| allows(&self.parts, server, own))
    }

    async fn execute(&self, job: &Job) -> Answer {
        let Ask::Call {
            tool, arguments, ..
        } = &job.ask
        else {
            return Answer::Failed(failures::bad_request(&"it is no call"));
        };
        if let Err(failure) = self.check(job) {
            return Answer::Failed(failure);
        }
        let given = match Given::read(tool, arguments) {
            Ok(given) => given,
            Err(failure) => return Answer::Failed(failure),
        };
        let said = job.ask.context();
        let trace = said.and_then(|said| said.trace.as_deref().cloned());
        let context = ExecuteContext {
            timeout: Some(self.clock.now().until(job.deadline)),
            caller: job.sink.clone(),
            run: said.and_then(run),
            trace: trace.map(Arc::new),
        };
        let call = call_id();
        tracing::debug!(call, %tool, caller = %job.from.session_id, "a call came over the broker");
        match contained(&*self.executor, tool, given.arguments(), &context).await {
            Some(Ok(output)) => Answer::Output {
                result: output.raw().clone(),
                again: false,
                era: Era::Legacy,
            },
            Some(Err(error)) => failed(tool, error),
            None => {
                tracing::error!(call, %tool, "a tool panicked");
                let reason = format!("tool `{tool}` panicked");
                Answer::Failed(failures::tool_failed(reason, Execution::Unknown))
            }
        }
    }
}

impl Backend for ExecutorBackend {
    fn manifest<'a>(
        &'a self,
        from: &'a From,
        _principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<Manifest, Failure>> {
        Box::pin(async move {
            let tools = self.tools();
            let seen = tools.iter().filter(|tool| self.may(from, tool.name()));
            Ok(manifest(seen.map(item).collect()))
        })
    }

    fn check(&self, job: &Job) -> Result<(), Failure> {
        match &job.ask {
            Ask::Manifest => Ok(()),
            Ask::Call { tool, .. } if self.may(&job.from, tool) => Ok(()),
            Ask::Call { tool, .. } => Err(failures::not_allowed(tool, job.from.role.as_deref())),
            Ask::Mcp { method, .. } => Err(failures::only_tools(method)),
        }
    }

    fn is_repeatable(&self, job: &Job) -> bool {
        let Ask::Call { tool, .. } = &job.ask else {
            return true;
        };
        let tools = self.tools();
        let tool = tools.iter().find(|one| one.name() == tool);
        tool.is_some_and(|tool| says_repeatable(tool.definition()))
    }

    fn run<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Answer> {
        Box::pin(self.execute(job))
    }
}

fn item(tool: &ToolSchema) -> Item {
    Item {
        name: Arc::clone(tool.name()),
        server: None,
        tool: None,
        repeatable: says_repeatable(tool.definition()),
        definition: tool.definition().clone(),
    }
}

fn failed(tool: &str, error: ExecuteError) -> Answer {
    use bowline_core::error::CallError;
    Answer::Failed(match error {
        ExecuteError::Call(CallError::Refused { error, .. }) => {
            let era = Era::Legacy;
            return Answer::Rpc { error, era };
        }
        ExecuteError::Call(error) => error.to_failure(),
        ExecuteError::UnknownTool { .. } => failures::unknown_tool(tool),
        ExecuteError::Arguments { .. } | ExecuteError::AmbiguousTool { .. } => {
            failures::bad_request(&error)
        }
        ExecuteError::Failed { reason, execution } => failures::tool_failed(reason, execution),
    })
}

/// Returns a name for one execution, for the log. Not a key: where there is no random number, two
/// may be alike.
fn call_id() -> String {
    let mut random = [0; 16];
    let _unlikely = getrandom::fill(&mut random);
    format!("mcp-{}", hex(&random))
}
