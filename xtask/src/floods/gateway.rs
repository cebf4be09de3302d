//! The gateway under a flood: one server, an owner, a low principal and a bystander.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Cores;
use crate::gateway::RunningGateway;

/// Principals other than the owner: the flooders may do next to nothing.
const RULES: &str = r#"
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

/// A running gateway, and the tokens of those who use it.
#[derive(Debug)]
pub(super) struct Gateway {
    running: RunningGateway,
    pub(super) address: SocketAddr,
    pub(super) owner: String,
    /// May call nothing, once an hour.
    pub(super) mallory: String,
    /// May call the tool with large results.
    pub(super) reader: String,
    /// Floods nothing.
    pub(super) bob: String,
}

impl Gateway {
    pub(super) fn start(root: &Path, binary: &Path, cores: Cores) -> Result<Self> {
        let server = format!(
            "[servers.lab]\ncommand = {}\nargs = [\"fixture\"]\n",
            json!(binary)
        );
        let running = RunningGateway::start(root, cores.command(binary), &(server + RULES))?;
        Ok(Self {
            address: running.address,
            owner: running.owner.clone(),
            mallory: create_token(&running, "mallory")?,
            reader: create_token(&running, "reader")?,
            bob: create_token(&running, "bob")?,
            running,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.running.pid()
    }
}

fn create_token(gateway: &RunningGateway, principal: &str) -> Result<String> {
    let mut api = gateway.api()?;
    let made = api.tell("POST", "/api/v1/tokens", &json!({"principal": principal}))?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}
