//! Functions of the program as tools.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bowline_core::BoxFuture;
use serde_json::Value;

use crate::{ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolOutput, ToolSchema};

type ExecuteResult = Result<ToolOutput, ExecuteError>;
type ToolFn =
    dyn Fn(ToolArguments, ExecuteContext) -> BoxFuture<'static, ExecuteResult> + Send + Sync;

/// Functions of the program as tools. A later tool replaces an earlier tool of the same name.
///
/// ```
/// use bowline_tools::{ExecuteContext, ToolExecutor as _, ToolOutput, Toolbox};
/// use serde_json::json;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let tools = Toolbox::default().with(
///     "shout",
///     "Says it louder.",
///     &json!({"type": "object", "properties": {"text": {"type": "string"}}}),
///     |arguments, _context| async move {
///         let text = arguments.to_value()["text"].as_str().unwrap_or_default().to_uppercase();
///         Ok(ToolOutput::from_text(&text))
///     },
/// );
/// let context = ExecuteContext::default();
/// let output = tools.execute("shout", json!({"text": "hi"}).into(), &context).await?;
/// assert_eq!(output.text(), "HI");
/// # Ok::<(), bowline_tools::ExecuteError>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: Vec<(ToolSchema, Arc<ToolFn>)>,
}

impl Toolbox {
    /// Adds a tool by name, description, input schema and function.
    #[must_use]
    pub fn with<F, R>(self, name: &str, description: &str, input: &Value, run: F) -> Self
    where
        F: Fn(ToolArguments, ExecuteContext) -> R + Send + Sync + 'static,
        R: Future<Output = ExecuteResult> + Send + 'static,
    {
        self.with_schema(ToolSchema::new(name, description, input), run)
    }

    /// Adds a tool with a complete schema.
    #[must_use]
    pub fn with_schema<F, R>(mut self, schema: ToolSchema, run: F) -> Self
    where
        F: Fn(ToolArguments, ExecuteContext) -> R + Send + Sync + 'static,
        R: Future<Output = ExecuteResult> + Send + 'static,
    {
        self.tools
            .retain(|(other, _)| other.name() != schema.name());
        let run = move |arguments, context| -> BoxFuture<'static, ExecuteResult> {
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
        arguments: ToolArguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, ExecuteResult> {
        let tool = self
            .tools
            .iter()
            .find(|(schema, _)| **schema.name() == *name);
        match tool {
            Some((_, run)) => run(arguments, context.clone()),
            None => Box::pin(std::future::ready(Err(ExecuteError::unknown_tool(name)))),
        }
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
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
