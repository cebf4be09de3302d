//! The flooded gateway: one server, an owner, two flooders with few rights, a bystander.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::CoreLayout;
use crate::process;
use crate::running_gateway::RunningGateway;

/// Roles and principals except the owner; the flooders have almost no rights.
const PRINCIPALS_CONFIG: &str = r#"
[roles.nothing]
allow = []
rate = { calls = 1, per = "1h" }
[roles.reader]
allow = ["lab.big"]
[roles.worker]
allow = ["lab.add"]
[principals.mallory]
role = "nothing"
to = ["hub"]
[principals.reader]
role = "reader"
[principals.bob]
role = "worker"
"#;

/// A running gateway and the tokens of its principals.
#[derive(Debug)]
pub(super) struct FloodGateway {
    running: RunningGateway,
    pub(super) address: SocketAddr,
    pub(super) owner_token: String,
    /// Allowed no tool, and one call an hour.
    pub(super) mallory_token: String,
    /// Allowed only the tool with large results.
    pub(super) reader_token: String,
    /// The bystander.
    pub(super) bob_token: String,
}

impl FloodGateway {
    pub(super) fn start(root: &Path, binary: &Path, cores: CoreLayout) -> Result<Self> {
        let server = format!(
            "[servers.lab]\ncommand = {}\n",
            json!(process::fixture_binary(binary))
        );
        let running = RunningGateway::start(
            root,
            cores.gateway_command(binary),
            &(server + PRINCIPALS_CONFIG),
        )?;
        Ok(Self {
            address: running.address,
            owner_token: running.owner_token.clone(),
            mallory_token: create_token(&running, "mallory")?,
            reader_token: create_token(&running, "reader")?,
            bob_token: create_token(&running, "bob")?,
            running,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.running.pid()
    }
}

fn create_token(gateway: &RunningGateway, principal: &str) -> Result<String> {
    let mut api = gateway.api_client()?;
    let made =
        api.call_api_with_body("POST", "/api/v1/tokens", &json!({"principal": principal}))?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}
