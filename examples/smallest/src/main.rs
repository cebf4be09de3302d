//! The smallest program that embeds the host: one MCP server over stdio, one call.
use bowline_host::{Host, Principal, Role, Server, SpawnOptions};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = std::env::args().nth(1).ok_or("usage: smallest PATH-OF-BOWLINE-FIXTURE")?;
    let host = Host::builder().build()?;
    let demo = Server::command("demo", &program, ["--toolset", "demo"]);
    host.spawn(demo, SpawnOptions::default()).await?;
    let owner = Principal::new("me", Role::Owner);
    let output = host.call_tool(&owner, "demo", "add", json!({"a": 2, "b": 3})).await?;
    println!("{}", output.text());
    // A server over HTTP needs the feature `http`.
    let far = Server::from_json(&json!({"name": "far", "url": "http://127.0.0.1:9/mcp"}))?;
    if let Err(error) = host.spawn(far, SpawnOptions::default()).await {
        println!("{error}");
    }
    host.shutdown().await;
    Ok(())
}
