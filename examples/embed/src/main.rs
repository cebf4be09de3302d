//! An agent framework with two MCP servers, one role, and a tool of its own.
use std::sync::Arc;

use bowline_host::tools::{ExecuteContext, ToolExecutor as _, Toolbox};
use bowline_host::{Host, Principal, Role, RoleAllowlist, Router, Server, SpawnOptions, ToolOutput};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any program that speaks MCP over its standard streams; here the one that Bowline brings.
    let program = std::env::args().nth(1).ok_or("usage: embed PATH-OF-BOWLINE-FIXTURE")?;
    let demo = Server::command("demo", &program, ["--toolset", "demo"]);
    // Any name will do: this server is `basic`, as in a config file.
    let basic = Server::command("Basic", &program, ["--toolset", "conformance"]);

    // The role may use all of one server and one tool of the other.
    let roles = RoleAllowlist::from_entries([("agent", ["demo.*", "basic.echo"])]).deny_others();
    let host = Host::builder().policy(&roles).build()?;

    // A name that no server has is for the framework itself.
    let own = Toolbox::default().with("ask", "Asks.", &json!({"type": "object"}), |_, _| async {
        Ok(ToolOutput::from_text("the user says yes"))
    });
    let agent = Principal::new("agent-1", Role::Named("agent".into()));
    let router = Router::new(host, agent).with_fallback(Arc::new(own));
    for server in [demo, basic] {
        println!("offers {:?}", router.add_server(server, SpawnOptions::default()).await?);
    }
    for name in ["demo__add", "mcp_demo_add", "add", "basic__echo", "ask", "basic__fail"] {
        let arguments = json!({"a": 2, "b": 3, "message": "hi"}).into();
        match router.execute(name, arguments, &ExecuteContext::default()).await {
            Ok(output) => println!("{name}: {}", output.text()),
            Err(error) => println!("{name}: {error}"),
        }
    }
    router.host().shutdown().await;
    Ok(())
}
