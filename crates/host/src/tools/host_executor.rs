//! The tools of a host, run on behalf of a principal.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Principal, RequestMessage};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::{BoxFuture, name};
use bowline_tools::ToolOutput;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::{
    ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolSchema, visible_schema,
};
use crate::host::Host;

/// JSON-RPC id of calls without an id.
const CALL_ID: &[u8] = b"1";

/// Runs the tools of a host by their visible names (`server__tool`), on behalf of a principal.
///
/// The principal is bound here and not part of a call: a holder of the executor, such as a model
/// loop filling in names and arguments, cannot act as a different principal.
#[derive(Clone, Debug)]
pub struct HostExecutor {
    host: Host,
    principal: Arc<Principal>,
}

impl Host {
    /// Returns an executor acting as `principal`.
    #[must_use]
    pub fn as_executor(&self, principal: impl Into<Arc<Principal>>) -> HostExecutor {
        HostExecutor {
            host: self.clone(),
            principal: principal.into(),
        }
    }
}

impl ToolExecutor for HostExecutor {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: ToolArguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let call = build_tool_call(
                &self.host,
                &self.principal,
                EndpointScope::All,
                name,
                &arguments,
                context,
            )?;
            let reply = self.host.call(call).await.map_err(|error| match error {
                // From the catalog: a server that does not know its tool responds with its own
                // error, which is a reply.
                CallError::UnknownTool { .. } | CallError::UnknownServer { .. } => {
                    ExecuteError::unknown_tool(name)
                }
                error => error.into(),
            })?;
            let server = name::visible_server(name).unwrap_or(name);
            ToolOutput::from_reply(&reply)
                .map_err(|error| to_refused_error(&self.host, server, error).into())
        })
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let items = self.host.visible_tools(&self.principal);
        items.iter().map(visible_schema).collect()
    }
}

/// Returns the error for an error response of a server, without the server's known secrets.
pub(crate) fn to_refused_error(host: &Host, server: &str, error: Bytes) -> CallError {
    let error = match (host.server(server), std::str::from_utf8(&error)) {
        (Ok(supervisor), Ok(text)) => match supervisor.spec().secrets.redact_text(text) {
            Cow::Owned(redacted) => redacted.into(),
            Cow::Borrowed(_) => error,
        },
        (Err(_), _) | (_, Err(_)) => error,
    };
    CallError::Refused {
        server: server.into(),
        error,
    }
}

/// Builds the call of a tool by its name in a scope.
pub(crate) fn build_tool_call(
    host: &Host,
    principal: &Arc<Principal>,
    scope: EndpointScope,
    tool: &str,
    arguments: &ToolArguments,
    context: &ExecuteContext,
) -> Result<CallRequest, ExecuteError> {
    arguments
        .check_object()
        .map_err(|source| ExecuteError::Arguments {
            tool: tool.into(),
            source,
        })?;
    let mut params = Vec::from(&b"{\"name\":"[..]);
    let start = params.len();
    write_string(&mut params, tool);
    let name_at = start..params.len();
    params.extend_from_slice(b",\"arguments\":");
    params.extend_from_slice(arguments.raw());
    params.push(b'}');
    Ok(CallRequest {
        principal: Arc::clone(principal),
        scope,
        subject: CallSubject::Tool(tool.into()),
        name_at,
        wants_task: false,
        deadline: context.timeout.map(|wait| host.clock().now().plus(wait)),
        run: context.run.clone(),
        idempotency_key: None,
        stateless: None,
        message: RequestMessage {
            params: params.into(),
            progress_at: None,
            id: Bytes::from_static(CALL_ID),
            client: context.caller.clone(),
            trace: context.trace.clone(),
            era: Era::Legacy,
        },
    })
}
