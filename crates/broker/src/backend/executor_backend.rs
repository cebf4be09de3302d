//! Serves the tools of any executor, restricted by the sender's role.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::{EndpointScope, FeatureKind, Principal, Role};
use bowline_core::era::Era;
use bowline_core::error::{ExecutionStatus, FailureReport};
use bowline_core::policy::{Policy, PolicyTarget, RoleAllowlist};
use bowline_core::{hex::to_hex, name};
use bowline_runtime::Clock;
use bowline_tools::{ExecuteContext, ExecuteError, ToolExecutor, ToolSchema, execute_caught};
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::peer_call::tool_arguments;
use super::{Backend, BackendRequest, build_manifest, is_marked_repeatable, run_from_context};
use crate::frames::{BrokerRequest, BrokerResponse, ManifestItem, MessageSender};
use crate::{OFFER_BYTES_MAX, PeerManifest, failures};

/// Serves the tools of an executor; the role stamped by the hub limits each sender.
///
/// An allowlist entry without a dot is a full tool name; an entry with a dot is `server.tool`, for
/// names like `server__tool`.
#[derive(Debug)]
pub struct ExecutorBackend {
    executor: Arc<dyn ToolExecutor>,
    /// Policy from the entries without a dot.
    tool_policy: Policy,
    /// Policy from the `server.tool` entries.
    server_tool_policy: Policy,
    clock: Arc<dyn Clock>,
}

impl ExecutorBackend {
    /// Returns a backend for `executor`, restricted by `allowlist`.
    #[must_use]
    pub fn new(
        executor: Arc<dyn ToolExecutor>,
        allowlist: &RoleAllowlist,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            executor,
            tool_policy: Policy::from(
                &allowlist.retain_patterns(|entry| !entry.as_str().contains('.')),
            ),
            server_tool_policy: Policy::from(
                &allowlist.retain_patterns(|entry| entry.as_str().contains('.')),
            ),
            clock,
        }
    }

    /// Returns the tools; empty if the executor panics.
    fn list_tools(&self) -> Vec<ToolSchema> {
        let tools = catch_unwind(AssertUnwindSafe(|| self.executor.list_tools()));
        tools.unwrap_or_else(|_panic| {
            tracing::error!("tool executor panicked while listing tools");
            Vec::new()
        })
    }

    /// Writes the tools as an offer of one server; tools beyond the size limit are left out.
    pub(crate) fn write_offer(&self, server: &str) -> Bytes {
        let mut out = Vec::from(&b"[{\"name\":"[..]);
        write_string(&mut out, server);
        out.extend_from_slice(b",\"tools\":[");
        let start = out.len();
        for tool in self.list_tools() {
            let definition = tool.definition();
            if out.len() + definition.len() > OFFER_BYTES_MAX {
                tracing::warn!(server, tool = %tool.name(), "tool does not fit into the offer");
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

    fn is_allowed(&self, from: &MessageSender, tool: &str) -> bool {
        let role = from.role.clone().map_or(Role::None, Role::Named);
        let principal = Principal::new(&from.session_id, role);
        let allows = |policy: &Policy, server, name| {
            let target = PolicyTarget {
                kind: FeatureKind::Tool,
                server,
                name,
                arguments: None,
            };
            policy
                .decide(&principal, &EndpointScope::All, target)
                .is_allowed()
        };
        let parts = tool.split_once(name::SEPARATOR);
        let parts = parts.or_else(|| tool.split_once('.'));
        allows(&self.tool_policy, tool, tool)
            || parts.is_some_and(|(server, own)| allows(&self.server_tool_policy, server, own))
    }

    async fn execute_call(&self, job: &BackendRequest) -> BrokerResponse {
        let BrokerRequest::Call {
            tool, arguments, ..
        } = &job.request
        else {
            return BrokerResponse::Failed(failures::bad_request(&"it is no call"));
        };
        if let Err(failure) = self.authorize(job) {
            return BrokerResponse::Failed(failure);
        }
        let arguments = match tool_arguments(tool, arguments) {
            Ok(arguments) => arguments,
            Err(failure) => return BrokerResponse::Failed(failure),
        };
        let context_meta = job.request.context();
        let trace = context_meta.and_then(|context_meta| context_meta.trace.as_deref().cloned());
        let context = ExecuteContext {
            timeout: Some(self.clock.now().duration_until(job.incoming.deadline)),
            caller: job.incoming.client.clone(),
            run: context_meta.and_then(run_from_context),
            trace: trace.map(Arc::new),
        };
        let call = random_call_id();
        let caller = &job.incoming.sender.session_id;
        tracing::debug!(call, %tool, %caller, "broker call received");
        match execute_caught(&*self.executor, tool, arguments, &context).await {
            Some(Ok(output)) => BrokerResponse::Output {
                result: output.raw().clone(),
                from_journal: false,
                era: Era::Legacy,
            },
            Some(Err(error)) => to_failed_response(tool, error),
            None => {
                tracing::error!(call, %tool, "tool panicked");
                let reason = format!("tool `{tool}` panicked");
                BrokerResponse::Failed(failures::tool_failed(reason, ExecutionStatus::Unknown))
            }
        }
    }
}

impl Backend for ExecutorBackend {
    fn manifest<'a>(
        &'a self,
        from: &'a MessageSender,
        _principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<PeerManifest, FailureReport>> {
        Box::pin(async move {
            let tools = self.list_tools();
            let allowed = tools
                .iter()
                .filter(|tool| self.is_allowed(from, tool.name()));
            Ok(build_manifest(allowed.map(to_item).collect()))
        })
    }

    fn authorize(&self, job: &BackendRequest) -> Result<(), FailureReport> {
        match &job.request {
            BrokerRequest::Manifest => Ok(()),
            BrokerRequest::Call { tool, .. } if self.is_allowed(&job.incoming.sender, tool) => {
                Ok(())
            }
            BrokerRequest::Call { tool, .. } => Err(failures::not_allowed(
                tool,
                job.incoming.sender.role.as_deref(),
            )),
            BrokerRequest::Mcp { method, .. } => Err(failures::only_tools(method)),
        }
    }

    fn is_repeatable(&self, job: &BackendRequest) -> bool {
        let BrokerRequest::Call { tool, .. } = &job.request else {
            return true;
        };
        let tools = self.list_tools();
        let tool = tools.iter().find(|one| one.name() == tool);
        tool.is_some_and(|tool| is_marked_repeatable(tool.definition()))
    }

    fn run<'a>(&'a self, job: &'a BackendRequest) -> BoxFuture<'a, BrokerResponse> {
        Box::pin(self.execute_call(job))
    }
}

fn to_item(tool: &ToolSchema) -> ManifestItem {
    ManifestItem {
        name: Arc::clone(tool.name()),
        server: None,
        tool: None,
        is_repeatable: is_marked_repeatable(tool.definition()),
        definition: tool.definition().clone(),
    }
}

fn to_failed_response(tool: &str, error: ExecuteError) -> BrokerResponse {
    use bowline_core::error::CallError;
    BrokerResponse::Failed(match error {
        ExecuteError::Call(CallError::Refused { error, .. }) => {
            let era = Era::Legacy;
            return BrokerResponse::RpcError { error, era };
        }
        ExecuteError::Call(error) => error.to_failure_report(),
        ExecuteError::UnknownTool { .. } => failures::unknown_tool(tool),
        ExecuteError::Arguments { .. } | ExecuteError::AmbiguousTool { .. } => {
            failures::bad_request(&error)
        }
        ExecuteError::Failed { reason, execution } => failures::tool_failed(reason, execution),
    })
}

/// Returns a random id for one execution, for the log only: without entropy two ids may be equal.
fn random_call_id() -> String {
    let mut random = [0; 16];
    let _unlikely = getrandom::fill(&mut random);
    format!("mcp-{}", to_hex(&random))
}
