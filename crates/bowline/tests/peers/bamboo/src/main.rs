//! A peer of the broker in both roles of the published crate: it calls tools of another mailbox
//! through `McpProxyExecutor`, or serves tools through `serve_mcp_proxy`.
//!
//! The token is in `BAMBOO_TOKEN`. Each response is one line of JSON on stdout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bamboo_agent_core::tools::{
    FunctionCall, FunctionSchema, ToolCall, ToolError, ToolExecutor, ToolResult, ToolSchema,
};
use bamboo_broker::{
    AgentRef, BrokerClient, McpProxyExecutor, ORCHESTRATOR_ID, RoleToolAllowlist, serve_mcp_proxy,
};
use serde_json::{Value, json};

/// One request takes no longer.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let token = std::env::var("BAMBOO_TOKEN").unwrap_or_default();
    let said = match args.as_slice() {
        ["call", endpoint, me, tool, arguments] => {
            call(endpoint, me, &token, ORCHESTRATOR_ID, (tool, arguments)).await
        }
        ["call", endpoint, me, tool, arguments, to] => {
            call(endpoint, me, &token, to, (tool, arguments)).await
        }
        ["serve", endpoint, me, ledger] => serve(endpoint, me, &token, ledger).await,
        ["observe", endpoint, me, mailbox] => observe(endpoint, me, &token, mailbox).await,
        _ => Err(
            "call ENDPOINT ME TOOL ARGUMENTS [TO] | serve ENDPOINT ME FILE | observe \
                  ENDPOINT ME MAILBOX"
                .to_owned(),
        ),
    };
    println!("{}", said.unwrap_or_else(|error| json!({ "error": error })));
}

/// Lists the tools of a mailbox, the orchestrator's unless it is named, and calls one of them.
async fn call(
    endpoint: &str,
    me: &str,
    token: &str,
    to: &str,
    (tool, arguments): (&str, &str),
) -> Result<Value, String> {
    let proxy = McpProxyExecutor::connect(endpoint, me, None, token, to, TIMEOUT);
    let proxy = proxy.await.map_err(|error| error.to_string())?;
    let call = ToolCall {
        id: "call-1".to_owned(),
        tool_type: "function".to_owned(),
        function: FunctionCall {
            name: tool.to_owned(),
            arguments: arguments.to_owned(),
        },
    };
    let result = match proxy.execute(&call).await {
        Ok(result) => json!({ "success": result.success, "text": result.result }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    Ok(json!({ "tools": proxy.list_tools(), "result": result }))
}

/// Asks for something that only the other system's own broker knows.
async fn observe(endpoint: &str, me: &str, token: &str, mailbox: &str) -> Result<Value, String> {
    let agent = agent(me);
    let client = BrokerClient::connect(endpoint, agent, token).await;
    let mut client = client.map_err(|error| error.to_string())?;
    let start = Instant::now();
    let seen = client.observe_host(mailbox, "worker").await;
    let error = seen.err().map(|error| error.to_string());
    Ok(json!({ "error": error, "took_ms": start.elapsed().as_millis() as u64 }))
}

/// Serves two tools until the connection ends.
async fn serve(endpoint: &str, me: &str, token: &str, ledger: &str) -> Result<Value, String> {
    let tools = Arc::new(Tools {
        ledger: ledger.to_owned(),
    });
    let all = Arc::new(RoleToolAllowlist::unrestricted());
    let served = serve_mcp_proxy(endpoint, agent(me), token, tools, all).await;
    served.map_err(|error| error.to_string())?;
    Ok(json!({ "ended": true }))
}

fn agent(me: &str) -> AgentRef {
    AgentRef {
        session_id: me.to_owned(),
        role: None,
    }
}

/// `shout`, which says a text louder, and `fail`, which runs and fails. Each call is a line of the
/// ledger.
struct Tools {
    ledger: String,
}

impl Tools {
    fn note(&self, tool: &str) -> std::io::Result<()> {
        use std::io::Write as _;
        let mut ledger = std::fs::OpenOptions::new();
        writeln!(
            ledger.append(true).create(true).open(&self.ledger)?,
            "{tool}"
        )
    }
}

#[async_trait]
impl ToolExecutor for Tools {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        let name = call.function.name.as_str();
        self.note(name)
            .map_err(|error| ToolError::Execution(error.to_string()))?;
        let arguments: Value = serde_json::from_str(&call.function.arguments)
            .map_err(|error| ToolError::InvalidArguments(error.to_string()))?;
        let text = arguments["text"].as_str().unwrap_or_default();
        match name {
            "shout" => Ok(ToolResult::text(true, text.to_uppercase())),
            "fail" => Ok(ToolResult::text(false, format!("no {text}"))),
            _ => Err(ToolError::NotFound(name.to_owned())),
        }
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let tool = |name: &str, description: &str| ToolSchema {
            schema_type: "function".to_owned(),
            function: FunctionSchema {
                name: name.to_owned(),
                description: description.to_owned(),
                parameters: parameters.clone(),
            },
        };
        vec![
            tool("shout", "Says it louder."),
            tool("fail", "Runs and fails."),
        ]
    }
}
