//! The gateway under a flood: one server, an owner, a low principal and a bystander.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Cores;
use crate::client::Client;
use crate::process;

/// How long the gateway may take to end.
const STOP_SECONDS_MAX: u64 = 10;

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
[principals.reader]
role = "reader"
[principals.bob]
role = "worker"
"#;

/// A running gateway; dropping it ends it.
#[derive(Debug)]
pub(super) struct Gateway {
    child: Child,
    folder: PathBuf,
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
        let folder = root.join(format!("target/floods-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let server = format!(
            "[servers.lab]\ncommand = {}\nargs = [\"fixture\"]\n",
            json!(binary)
        );
        let file = folder.join("bowline.toml");
        fs::write(&file, server + RULES)?;
        let mut command = cores.command(binary);
        command
            .args(["up", "--json", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file)
            .arg("--state")
            .arg(folder.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("stderr"))?);
        let mut child = command.spawn().context("could not start the gateway")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).context("no ready line")?;
        let word = |key: &str| ready.get(key).and_then(Value::as_str).unwrap_or_default();
        let address = word("mcp").trim_start_matches("http://");
        let address = address.trim_end_matches("/mcp").parse()?;
        let owner = fs::read_to_string(word("token_file"))?.trim().to_owned();
        let mut gateway = Self {
            child,
            folder,
            address,
            owner,
            mallory: String::new(),
            reader: String::new(),
            bob: String::new(),
        };
        gateway.mallory = gateway.token("mallory")?;
        gateway.reader = gateway.token("reader")?;
        gateway.bob = gateway.token("bob")?;
        Ok(gateway)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn token(&self, principal: &str) -> Result<String> {
        let mut api = Client::connect(self.address, &self.owner)?;
        let made = api.tell("POST", "/api/v1/tokens", &json!({"principal": principal}))?;
        let token = made.get("token").and_then(Value::as_str);
        Ok(token
            .with_context(|| format!("no token: {made}"))?
            .to_owned())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        process::end(&mut self.child, STOP_SECONDS_MAX);
        let _ = fs::remove_dir_all(&self.folder);
    }
}
