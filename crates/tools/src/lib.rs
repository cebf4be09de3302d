//! Tools that run inside the process: any [`ToolExecutor`] runs tools by name, with
//! [`ToolArguments`] in and a [`ToolOutput`] out, both byte for byte as their writer wrote them.

mod arguments;
mod execute_caught;
pub mod signature;
mod tool_output;
mod tool_schema;
mod toolbox;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::run::AgentRun;
use bowline_core::trace::CallTrace;
use thiserror::Error;

pub use arguments::{ToolArguments, ToolArgumentsError};
pub use execute_caught::execute_caught;
pub use tool_output::ToolOutput;
pub use tool_schema::ToolSchema;
pub use toolbox::Toolbox;

/// Runs tools by name. An agent loop needs nothing else, and does not depend on where a tool runs.
///
/// [`Toolbox`] holds functions. In `bowline-host`, `HostExecutor` runs the tools of a host on
/// behalf of a principal, `Router` adds name forms, disabling and a fallback, and
/// `ServerSpec::in_process` serves any implementation as an in-process server.
///
/// ```
/// use bowline_core::BoxFuture;
/// use bowline_tools::{
///     ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolOutput, ToolSchema,
/// };
/// use serde_json::json;
///
/// #[derive(Debug)]
/// struct Greeter;
///
/// impl ToolExecutor for Greeter {
///     fn execute<'a>(
///         &'a self,
///         name: &'a str,
///         _arguments: ToolArguments,
///         _context: &'a ExecuteContext,
///     ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
///         Box::pin(async move {
///             match name {
///                 "greet" => Ok(ToolOutput::from_text("hello")),
///                 _ => Err(ExecuteError::UnknownTool { tool: name.into() }),
///             }
///         })
///     }
///
///     fn list_tools(&self) -> Vec<ToolSchema> {
///         vec![ToolSchema::new("greet", "Says hello.", &json!({"type": "object"}))]
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let context = ExecuteContext::default();
/// let output = Greeter.execute("greet", json!({}).into(), &context).await?;
/// assert_eq!(output.text(), "hello");
/// # Ok::<(), ExecuteError>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ToolExecutor: fmt::Debug + Send + Sync {
    /// Runs a tool. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`ExecuteError::UnknownTool`] only if this executor has no such tool; a tool that ran and
    /// failed gives an output with `is_error`.
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: ToolArguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>>;

    /// Returns the currently known tools, without any request.
    fn list_tools(&self) -> Vec<ToolSchema>;
}

/// Context of an execution. The principal is bound to the executor.
#[derive(Clone, Debug, Default)]
pub struct ExecuteContext {
    /// The caller's timeout; server limits apply as well.
    pub timeout: Option<Duration>,
    /// The run charged for the call.
    pub run: Option<Arc<AgentRun>>,
    /// Client handle for notifications and server requests.
    pub caller: Option<Arc<dyn ClientHandle>>,
    /// Trace context.
    pub trace: Option<Arc<CallTrace>>,
}

/// Characters of a server's error message in the text of an error.
const SERVER_MESSAGE_CHARS_MAX: usize = 300;

/// Why a tool has no output.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecuteError {
    /// Unknown tool; nothing was sent.
    #[error("no tool named `{tool}`")]
    UnknownTool {
        /// The requested name.
        tool: Arc<str>,
    },
    /// Several tools match; nothing was sent.
    #[error("several tools are named `{tool}`: {}", .candidates.join(", "))]
    AmbiguousTool {
        /// The requested name.
        tool: Arc<str>,
        /// The unambiguous names.
        candidates: Vec<Arc<str>>,
    },
    /// Arguments other than a JSON object; nothing was sent.
    #[error("the arguments of `{tool}` cannot be sent")]
    Arguments {
        /// The tool.
        tool: Arc<str>,
        /// The error.
        source: ToolArgumentsError,
    },
    /// The call failed in the host or at the server.
    #[error("{}", display_call_error(.0))]
    Call(CallError),
    /// The executor could not run the tool.
    #[error("{reason}")]
    Failed {
        /// The reason, a single clause.
        reason: Arc<str>,
        /// Execution status.
        execution: ExecutionStatus,
    },
}

impl From<CallError> for ExecuteError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// Returns the text of a call error; an error response of a server with its message and code.
fn display_call_error(error: &CallError) -> String {
    let CallError::Refused { error: object, .. } = error else {
        return error.to_string();
    };
    let Ok(RpcErrorText { message, code }) = serde_json::from_slice(object) else {
        return error.to_string();
    };
    let message: String = message
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(SERVER_MESSAGE_CHARS_MAX)
        .collect();
    format!("{error}: {message} (code {code})")
}

/// The members of a JSON-RPC error that people read.
#[derive(serde::Deserialize)]
struct RpcErrorText {
    message: String,
    code: i64,
}

impl ExecuteError {
    /// Creates the error for an unknown tool.
    #[must_use]
    pub fn unknown_tool(tool: &str) -> Self {
        Self::UnknownTool { tool: tool.into() }
    }

    /// Creates the error of a tool that may have run.
    #[must_use]
    pub fn outcome_unknown(reason: &str) -> Self {
        Self::Failed {
            reason: reason.into(),
            execution: ExecutionStatus::Unknown,
        }
    }

    /// Returns the execution status.
    #[must_use]
    pub fn execution(&self) -> ExecutionStatus {
        match self {
            Self::UnknownTool { .. } | Self::AmbiguousTool { .. } | Self::Arguments { .. } => {
                ExecutionStatus::NotStarted
            }
            Self::Call(error) => error.execution_status(),
            Self::Failed { execution, .. } => *execution,
        }
    }
}
