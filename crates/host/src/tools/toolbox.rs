//! Tools that are functions of the program itself.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bowline_link::BoxFuture;
use serde_json::Value;

use super::{Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema};
use crate::output::ToolOutput;

type Outcome = Result<ToolOutput, ExecuteError>;
type Function = dyn Fn(Arguments, ExecuteContext) -> BoxFuture<'static, Outcome> + Send + Sync;

/// Functions of the program, as tools. Of two with one name the later counts.
///
/// ```
/// use bowline_host::tools::{ExecuteContext, ToolExecutor as _, Toolbox};
/// use bowline_host::ToolOutput;
/// use serde_json::json;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let tools = Toolbox::default().with(
///     ("shout", "Says it louder."),
///     &json!({"type": "object", "properties": {"text": {"type": "string"}}}),
///     |arguments, _context| async move {
///         let text = arguments.value()["text"].as_str().unwrap_or_default().to_uppercase();
///         Ok(ToolOutput::of_text(&text))
///     },
/// );
/// let context = ExecuteContext::default();
/// let output = tools.execute("shout", json!({"text": "hi"}).into(), &context).await?;
/// assert_eq!(output.text(), "HI");
/// # Ok::<(), bowline_host::tools::ExecuteError>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: Vec<(ToolSchema, Arc<Function>)>,
}

impl Toolbox {
    /// Adds a tool by its name and description, what it takes, and what it does.
    #[must_use]
    pub fn with<F, R>(self, (name, says): (&str, &str), input: &Value, run: F) -> Self
    where
        F: Fn(Arguments, ExecuteContext) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.with_schema(ToolSchema::new(name, says, input), run)
    }

    /// Adds a tool that says more of itself.
    #[must_use]
    pub fn with_schema<F, R>(mut self, schema: ToolSchema, run: F) -> Self
    where
        F: Fn(Arguments, ExecuteContext) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.tools
            .retain(|(other, _)| other.name() != schema.name());
        let run = move |arguments, context| -> BoxFuture<'static, Outcome> {
            Box::pin(run(arguments, context))
        };
        self.tools.push((schema, Arc::new(run)));
        self
    }
}

impl ToolExecutor for Toolbox {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: Arguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Outcome> {
        let tool = self
            .tools
            .iter()
            .find(|(schema, _)| **schema.name() == *name);
        match tool {
            Some((_, run)) => run(arguments, context.clone()),
            None => Box::pin(std::future::ready(Err(ExecuteError::unknown(name)))),
        }
    }

    fn tools(&self) -> Vec<ToolSchema> {
        self.tools
            .iter()
            .map(|(schema, _)| schema.clone())
            .collect()
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.tools.iter().map(|(schema, _)| schema.name());
        f.debug_list().entries(names).finish()
    }
}
