//! What is measured: a running program with an address, started and ended by us.

use std::{
    fs,
    io::{Read, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::tools::Tools;
use crate::process;

const READY_SECONDS_MAX: u64 = 20;
const STOP_SECONDS_MAX: u64 = 6;
/// How long to look away between two looks at a process.
const LOOK: Duration = Duration::from_millis(25);
const TOKEN_BYTES: usize = 32;

/// A program under measurement; dropping it ends it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) url: String,
    /// The name under which the tool `echo` is called.
    pub(super) tool: &'static str,
    pub(super) header: Option<String>,
    child: Child,
    folder: PathBuf,
    /// What carries for this one: its work is counted as this one's.
    beside: Vec<Beside>,
    /// What this one forwards to, ended after it.
    _behind: Option<Box<Self>>,
}

/// A process that works for a target; dropping it ends it.
#[derive(Debug)]
pub(super) struct Beside(pub(super) Child);

impl Drop for Beside {
    fn drop(&mut self) {
        process::end(&mut self.0, STOP_SECONDS_MAX);
    }
}

impl Target {
    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Everything that works for it: the gateway first.
    pub(super) fn pids(&self) -> Vec<String> {
        let beside = self.beside.iter().map(|beside| beside.0.id());
        std::iter::once(self.child.id())
            .chain(beside)
            .map(|pid| pid.to_string())
            .collect()
    }

    /// The same target under another name, with what carries for it.
    pub(super) fn named(mut self, name: &'static str, beside: Vec<Beside>) -> Self {
        self.name = name;
        self.beside.extend(beside);
        self
    }

    /// Where it listens, and what its owner proves it by.
    pub(super) fn address(&self) -> Result<(SocketAddr, &str)> {
        let at = self.url.trim_start_matches("http://");
        let at = at.trim_end_matches("/mcp").parse()?;
        let header = self.header.as_deref().unwrap_or_default();
        Ok((at, header.rsplit(' ').next().unwrap_or_default()))
    }

    /// Where its files are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The options of `mcpbench` that say how to call this target.
    pub(super) fn options(&self) -> Vec<String> {
        options(&self.url, self.tool, self.header.as_deref())
    }
}

pub(super) fn options(url: &str, tool: &str, header: Option<&str>) -> Vec<String> {
    let mut words = ["--url", url, "--tool", tool].map(str::to_owned).to_vec();
    if let Some(header) = header {
        words.extend(["--header".to_owned(), header.to_owned()]);
    }
    words
}

impl Drop for Target {
    fn drop(&mut self) {
        process::end(&mut self.child, STOP_SECONDS_MAX);
    }
}

/// The backend itself, called without anything between.
pub(super) fn direct(tools: &Tools) -> Result<Target> {
    serving(tools, 0)
}

/// The backend with so many tools more.
pub(super) fn serving(tools: &Tools, tool_count: usize) -> Result<Target> {
    let port = process::free_port()?;
    let mut command = Command::new(&tools.mcpbench);
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--tools", &tool_count.to_string()]);
    plain(tools, "direct", &command, port, None)
}

/// The floor for HTTP to HTTP in Rust: parses the message, renames the tool, and nothing else.
pub(super) fn relay(tools: &Tools) -> Result<Target> {
    let behind = direct(tools)?;
    let port = process::free_port()?;
    let upstream = behind.url.trim_end_matches("/mcp").to_owned();
    let mut command = Command::new(&tools.mcpbench);
    command.args(["relay", "--parse", "--upstream", &upstream]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    plain(tools, "relay", &command, port, Some(Box::new(behind)))
}

/// A bare reverse proxy before the backend: what HTTP to HTTP costs elsewhere.
pub(super) fn nginx(tools: &Tools, nginx: &Path) -> Result<Target> {
    let behind = direct(tools)?;
    let port = process::free_port()?;
    let folder = tools.folder("nginx")?;
    let config = folder.join("nginx.conf");
    let upstream = behind
        .url
        .trim_start_matches("http://")
        .trim_end_matches("/mcp");
    fs::write(
        &config,
        nginx_config(&folder, port, upstream, tools.is_root),
    )?;
    let mut command = Command::new(nginx);
    command
        .arg("-p")
        .arg(&folder)
        .arg("-c")
        .arg(&config)
        .args(["-e", "stderr"]);
    plain(tools, "nginx", &command, port, Some(Box::new(behind)))
}

/// The floor: HTTP to one stdio child with ids remapped, and nothing else.
pub(super) fn bridge(tools: &Tools) -> Result<Target> {
    let port = process::free_port()?;
    let child = format!("{} stdio", tools.mcpbench.display());
    let mut command = Command::new(&tools.mcpbench);
    command.args([
        "bridge",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--cmd",
        &child,
    ]);
    plain(tools, "bridge", &command, port, None)
}

/// The product, with one stdio child that offers `tool_count` tools more.
pub(super) fn bowline(tools: &Tools, name: &'static str, tool_count: usize) -> Result<Target> {
    started(tools, name, &one_child(tools, tool_count), None)
}

/// The product with this configuration, which has a server `b`.
pub(super) fn bowline_with(tools: &Tools, config: &str) -> Result<Target> {
    started(tools, "bowline", config, None)
}

/// The product before a backend that speaks HTTP.
pub(super) fn bowline_http(tools: &Tools) -> Result<Target> {
    let behind = direct(tools)?;
    let config = format!("[servers.b]\nurl = {:?}\n", behind.url);
    started(tools, "bowline", &config, Some(Box::new(behind)))
}

/// The product before `servers` servers that offer `tool_count` tools each and three more.
pub(super) fn bowline_many(tools: &Tools, servers: usize, tool_count: usize) -> Result<Target> {
    let behind = serving(tools, tool_count)?;
    let base = behind.url.trim_end_matches("/mcp");
    let names = (0..servers).map(|nth| match nth {
        0 => "b".to_owned(),
        nth => format!("s{nth}"),
    });
    let config: String = names
        .map(|name| format!("[servers.{name}]\nurl = \"{base}/{name}/mcp\"\n"))
        .collect();
    started(
        tools,
        "bowline, 10 servers",
        &config,
        Some(Box::new(behind)),
    )
}

pub(super) fn started(
    tools: &Tools,
    name: &'static str,
    config: &str,
    behind: Option<Box<Target>>,
) -> Result<Target> {
    let prepared = prepare(tools, name, config)?;
    let command = prepared.command(tools);
    run(tools, name, prepared, &command, behind)
}

/// The product as a worker of `hub`, which knows it by this token; its tools are those of the hub.
pub(super) fn worker(tools: &Tools, hub: &Target, token: &str) -> Result<Target> {
    let prepared = prepare(tools, "worker", "")?;
    let file = prepared.folder.join("hub-token");
    private(&file, token)?;
    let mut command = Command::new(&tools.bowline);
    command.args(["worker", "join", hub.url.trim_end_matches("/mcp"), "--json"]);
    command.arg("--token-file").arg(file);
    command.args(["--listen", &format!("127.0.0.1:{}", prepared.port)]);
    command.arg("--state").arg(prepared.folder.join("state"));
    run(tools, "through a worker", prepared, &command, None)
}

/// Starts a gateway and waits for its first right call.
pub(super) fn run(
    tools: &Tools,
    name: &'static str,
    prepared: Prepared,
    command: &Command,
    behind: Option<Box<Target>>,
) -> Result<Target> {
    let mut command = under_limits(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(prepared.folder.join("stderr"))?);
    let mut child = command.spawn().context("could not start bowline")?;
    let line = match process::ready_line(&mut child, READY_SECONDS_MAX) {
        Ok(line) => line,
        Err(error) => {
            process::end(&mut child, STOP_SECONDS_MAX);
            let said = fs::read_to_string(prepared.folder.join("stderr")).unwrap_or_default();
            bail!("{error:#}; bowline said: {}", said.trim());
        }
    };
    let ready: Value = serde_json::from_str(&line).context("the ready line is not JSON")?;
    let text = |key: &str| {
        let value = ready.get(key).and_then(Value::as_str).map(str::to_owned);
        value.with_context(|| format!("the ready line has no `{key}`: {line}"))
    };
    let token = fs::read_to_string(text("token_file")?).context("read the token file")?;
    let target = Target {
        name,
        url: text("mcp")?,
        tool: "b__echo",
        header: Some(bearer(token.trim())),
        child,
        folder: prepared.folder,
        beside: Vec::new(),
        _behind: behind,
    };
    wait_for_call(tools, &target)?;
    Ok(target)
}

/// Everything `up` needs, made beforehand so that a start can be measured from outside.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) folder: PathBuf,
    pub(super) port: u16,
    pub(super) header: String,
}

/// A configuration of one stdio child.
pub(super) fn one_child(tools: &Tools, tool_count: usize) -> String {
    format!(
        "[servers.b]\ncommand = {:?}\nargs = [\"stdio\", \"--tools\", \"{tool_count}\"]\n",
        tools.mcpbench
    )
}

pub(super) fn prepare(tools: &Tools, name: &str, config: &str) -> Result<Prepared> {
    let folder = tools.folder(name)?;
    fs::write(folder.join("bowline.toml"), config)?;
    let state = folder.join("state");
    fs::create_dir(&state)?;
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let token = random_hex()?;
    private(&state.join("token"), &token)?;
    Ok(Prepared {
        folder,
        port: process::free_port()?,
        header: bearer(&token),
    })
}

/// Writes a file that is nobody else's.
fn private(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    Ok(writeln!(options.open(path)?, "{text}")?)
}

impl Prepared {
    pub(super) fn command(&self, tools: &Tools) -> Command {
        let mut command = Command::new(&tools.bowline);
        command.args([
            "up",
            "--listen",
            &format!("127.0.0.1:{}", self.port),
            "--json",
        ]);
        command.arg("--state").arg(self.folder.join("state"));
        command
            .arg("--config")
            .arg(self.folder.join("bowline.toml"));
        command
    }
}

/// Starts a program that listens on a port it was told, and waits for its first right call.
fn plain(
    tools: &Tools,
    name: &'static str,
    command: &Command,
    port: u16,
    behind: Option<Box<Target>>,
) -> Result<Target> {
    let folder = tools.folder(name)?;
    let mut command = under_limits(command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(folder.join("stderr"))?);
    let child = command
        .spawn()
        .with_context(|| format!("could not start {name}"))?;
    let url = format!("http://127.0.0.1:{port}/mcp");
    let target = Target {
        name,
        url,
        tool: "echo",
        header: None,
        child,
        folder,
        beside: Vec::new(),
        _behind: behind,
    };
    wait_for_call(tools, &target)?;
    Ok(target)
}

/// The same program with as many open files as the machine allows: a thousand sessions with
/// their own connections do not fit into the usual 1,024.
pub(super) fn under_limits(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec \"$0\" \"$@\""]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

fn wait_for_call(tools: &Tools, target: &Target) -> Result<()> {
    let start = process::now();
    let mut said = String::new();
    while start.elapsed().as_secs() < READY_SECONDS_MAX {
        let mut probe = Command::new(&tools.mcpbench);
        probe.arg("probe").args(target.options());
        said = process::quiet(&mut probe).unwrap_or_else(|error| format!("{error:#}"));
        if said.contains("call: Ok") {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    let words = fs::read_to_string(target.folder.join("stderr")).unwrap_or_default();
    bail!(
        "{} never answered a call: {} {}",
        target.name,
        said.trim(),
        words.trim()
    )
}

fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn nginx_config(folder: &Path, port: u16, upstream: &str, is_root: bool) -> String {
    // Workers of a root master change to a user that may not enter our folder.
    let user = if is_root { "user root;\n" } else { "" };
    let folder = folder.display();
    format!(
        "{user}daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 100000000;\n\
         client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n\
         fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n\
         scgi_temp_path {folder}/scgi;\n\
         upstream backend {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}\n\
         server {{\n    listen 127.0.0.1:{port};\n    location / {{\n\
         proxy_pass http://backend;\n      proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}
