//! Whatever can run tools by name: the host, a router, or tools of one's own.

mod arguments;
mod bound;
mod schema;
pub mod signature;
mod toolbox;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::error::{CallError, Execution};
use bowline_core::run::Run;
use bowline_core::trace::Trace;
use bowline_link::BoxFuture;
use thiserror::Error;

pub use arguments::{Arguments, BadArguments};
pub use bound::HostExecutor;
pub(crate) use bound::{refused, tool_call};
pub use schema::ToolSchema;
pub use toolbox::Toolbox;

use crate::output::ToolOutput;

/// Runs tools by name. An agent's loop needs nothing else, and cannot tell where a tool runs.
///
/// [`HostExecutor`] runs the tools of a host on behalf of one principal,
/// [`Router`](crate::router::Router) adds other spellings, switches and a fallback, and
/// [`Toolbox`] holds functions. Anything that implements it can be served by a host as one more
/// server: [`ServerSpec::in_process`](crate::ServerSpec::in_process).
///
/// ```
/// use bowline_host::BoxFuture;
/// use bowline_host::tools::{
///     Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema,
/// };
/// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
/// use serde_json::json;
///
/// #[derive(Debug)]
/// struct Greeter;
///
/// impl ToolExecutor for Greeter {
///     fn execute<'a>(
///         &'a self,
///         name: &'a str,
///         _arguments: Arguments,
///         _context: &'a ExecuteContext,
///     ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
///         Box::pin(async move {
///             match name {
///                 "greet" => Ok(ToolOutput::of_text("hello")),
///                 _ => Err(ExecuteError::UnknownTool { tool: name.into() }),
///             }
///         })
///     }
///
///     fn tools(&self) -> Vec<ToolSchema> {
///         vec![ToolSchema::new("greet", "Says hello.", &json!({"type": "object"}))]
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let host = Host::builder().build()?;
/// host.spawn(Server::in_process("door", Greeter), SpawnOptions::default()).await?;
/// let tools = host.as_executor(Principal::new("me", Role::Owner));
/// let output = tools.execute("door__greet", json!({}).into(), &ExecuteContext::default()).await?;
/// assert_eq!(output.text(), "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ToolExecutor: fmt::Debug + Send + Sync {
    /// Runs the tool. Dropping the future takes the call back.
    ///
    /// # Errors
    /// [`ExecuteError::UnknownTool`] where this executor has no such tool, and only then; a tool
    /// that ran and failed is an output that says so.
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: Arguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>>;

    /// Returns the tools that can be run now, as far as is known without asking anybody.
    fn tools(&self) -> Vec<ToolSchema>;
}

/// What goes along with one execution. It says nothing of who asks: that is bound to the executor.
#[derive(Clone, Debug, Default)]
pub struct ExecuteContext {
    /// How long the caller waits; the limits of the server hold as well.
    pub timeout: Option<Duration>,
    /// The run that the call is counted in.
    pub run: Option<Arc<Run>>,
    /// Hears what the tool says before it answers, and can be asked by it.
    pub caller: Option<Arc<dyn CallerEnd>>,
    /// Where the call stands in a trace.
    pub trace: Option<Arc<Trace>>,
}

/// Why a tool has no output.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecuteError {
    /// Nobody here has a tool of that name; nobody was asked.
    #[error("no tool named `{tool}`")]
    UnknownTool {
        /// The name asked for.
        tool: Arc<str>,
    },
    /// Several tools have that name; nobody was asked.
    #[error("several tools are named `{tool}`: {}", .candidates.join(", "))]
    AmbiguousTool {
        /// The name asked for.
        tool: Arc<str>,
        /// The names that mean one of them each.
        candidates: Vec<Arc<str>>,
    },
    /// The arguments are no JSON object; nobody was asked.
    #[error("the arguments of `{tool}` cannot be sent")]
    Arguments {
        /// The tool.
        tool: Arc<str>,
        /// What is wrong with them.
        source: BadArguments,
    },
    /// The call was made, or refused, on the road of a host.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The tool could not be run, as its executor says.
    #[error("{reason}")]
    Failed {
        /// Why, as one clause.
        reason: Arc<str>,
        /// Whether it may have done something.
        execution: Execution,
    },
}

impl ExecuteError {
    /// Returns an error for a tool that this executor does not have.
    #[must_use]
    pub fn unknown(tool: &str) -> Self {
        Self::UnknownTool { tool: tool.into() }
    }

    /// Returns an error of a tool that may have done something.
    #[must_use]
    pub fn failed(reason: &str) -> Self {
        Self::Failed {
            reason: reason.into(),
            execution: Execution::Unknown,
        }
    }

    /// Returns what is known about whether the tool ran.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match self {
            Self::UnknownTool { .. } | Self::AmbiguousTool { .. } | Self::Arguments { .. } => {
                Execution::NotStarted
            }
            Self::Call(error) => error.execution(),
            Self::Failed { execution, .. } => *execution,
        }
    }
}
