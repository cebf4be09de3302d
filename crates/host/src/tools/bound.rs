//! The tools of a host, run on behalf of one principal.

use std::sync::Arc;

use bowline_core::call::{Call, Principal, Scope, Subject};
use bowline_core::error::CallError;
use bowline_core::name;
use bowline_link::BoxFuture;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::{Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema};
use crate::host::Host;
use crate::output::ToolOutput;

/// The id of calls that nobody numbered.
const CALL_ID: &[u8] = b"1";

/// Runs the tools of a host by their names among those of all servers (`server__tool`), on behalf
/// of one principal.
///
/// The principal is bound here and not part of a call: whoever holds the executor acts as it and
/// cannot say otherwise, be it a model's loop that fills in names and arguments.
#[derive(Clone, Debug)]
pub struct HostExecutor {
    host: Host,
    principal: Arc<Principal>,
}

impl Host {
    /// Returns an executor that acts as `principal`.
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
        arguments: Arguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            let call = tool_call(
                &self.host,
                (&self.principal, Scope::All),
                name,
                (&arguments, context),
            )?;
            let reply = self.host.call(call).await.map_err(|error| match error {
                // Said by the catalog: a server that does not know its tool answers in its own
                // words, which are a reply.
                CallError::UnknownTool { .. } | CallError::UnknownServer { .. } => {
                    ExecuteError::unknown(name)
                }
                error => error.into(),
            })?;
            let server = name::server_of(name).unwrap_or(name);
            ToolOutput::of_reply(&reply).map_err(|error| refused(server, error).into())
        })
    }

    fn tools(&self) -> Vec<ToolSchema> {
        let items = self.host.tools_seen(&self.principal);
        items.iter().map(ToolSchema::visible).collect()
    }
}

/// Says that a server answered with an error.
pub(crate) fn refused(server: &str, error: Bytes) -> CallError {
    CallError::Refused {
        server: server.into(),
        error,
    }
}

/// Writes a call of a tool by its name in a scope.
pub(crate) fn tool_call(
    host: &Host,
    (principal, scope): (&Arc<Principal>, Scope),
    tool: &str,
    (arguments, context): (&Arguments, &ExecuteContext),
) -> Result<Call, ExecuteError> {
    arguments
        .check()
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
    Ok(Call {
        principal: Arc::clone(principal),
        scope,
        subject: Subject::Tool(tool.into()),
        params: params.into(),
        name_at,
        makes_task: false,
        progress_at: None,
        id: Bytes::from_static(CALL_ID),
        deadline: context.timeout.map(|wait| host.clock().now().plus(wait)),
        caller: context.caller.clone(),
        trace: context.trace.clone(),
        run: context.run.clone(),
        key: None,
        stateless: None,
    })
}
