//! A gateway process with a temporary configuration and state directory, for measurements.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::blocking_client::BlockingClient;
use crate::process;

/// Longest time for the gateway to exit.
const STOP_SECONDS_MAX: u64 = 10;

/// A running gateway; dropping terminates the process and removes the directory.
#[derive(Debug)]
pub(crate) struct RunningGateway {
    child: Child,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    /// The owner token.
    pub(crate) owner_token: String,
}

impl RunningGateway {
    /// Starts the gateway named by `command` with `config` as the configuration file.
    pub(crate) fn start(root: &Path, mut command: Command, config: &str) -> Result<Self> {
        let folder = root.join(format!("target/gateway-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let file = folder.join("bowline.toml");
        fs::write(&file, config)?;
        command
            .args(["up", "--json", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file)
            .arg("--state")
            .arg(folder.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("stderr"))?);
        let mut child = command.spawn().context("could not start the gateway")?;
        let ready = read_ready_line(&mut child);
        let (address, owner) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                process::terminate(&mut child, STOP_SECONDS_MAX);
                let log = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                return Err(error.context(log));
            }
        };
        Ok(Self {
            child,
            folder,
            address,
            owner_token: owner,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process ids of active servers by server name.
    pub(crate) fn server_pids(&self) -> Result<BTreeMap<String, u32>> {
        let status = self.api_client()?.call_api("GET", "/api/v1/servers")?;
        let servers = status.get("servers").and_then(Value::as_array);
        let pids = servers.into_iter().flatten().filter_map(|server| {
            let name = server.get("name")?.as_str()?.to_owned();
            let pid = u32::try_from(server.get("pid")?.as_u64()?).ok()?;
            let active = server.get("active")?.as_bool()?;
            active.then_some((name, pid))
        });
        Ok(pids.collect())
    }

    /// Returns a client of the API with the owner token.
    pub(crate) fn api_client(&self) -> Result<BlockingClient> {
        BlockingClient::connect(self.address, &self.owner_token)
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        process::terminate(&mut self.child, STOP_SECONDS_MAX);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the address and the owner token from the gateway's ready line.
fn read_ready_line(child: &mut Child) -> Result<(SocketAddr, String)> {
    let stdout = child.stdout.take().context("no standard output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let ready: Value = serde_json::from_str(&line).context("no ready line")?;
    let word = |key: &str| ready.get(key).and_then(Value::as_str).unwrap_or_default();
    let address = word("mcp").trim_start_matches("http://");
    let address = address.trim_end_matches("/mcp").parse()?;
    let owner = fs::read_to_string(word("token_file"))?.trim().to_owned();
    Ok((address, owner))
}

/// Builds the gateway and the test server beside it as packages have them, and returns the path of
/// the gateway's binary.
pub(crate) fn build_dist(root: &Path) -> Result<PathBuf> {
    eprintln!("building bowline");
    process::run_inherited(
        Command::new("cargo")
            .args(["build", "--quiet", "--profile", "dist"])
            .args(["--package", "bowline", "--package", "bowline-fixture"])
            .current_dir(root),
    )?;
    Ok(process::target_folder(root).join("dist/bowline"))
}
