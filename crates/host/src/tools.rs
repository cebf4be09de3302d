//! Tools as a program sees them: the tools of a host behind [`ToolExecutor`], and the types of
//! `bowline-tools` for a program's own tools.

mod host_executor;
mod item_schema;

pub use bowline_tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolArgumentsError, ToolExecutor, ToolSchema,
    Toolbox, signature,
};
pub use host_executor::HostExecutor;
pub(crate) use host_executor::{build_tool_call, to_refused_error};
pub(crate) use item_schema::{own_schema, visible_schema};
