//! Measured programs: started, given an address, and terminated after the measurement.

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

use super::bench_tools::{BOWLINE, BenchTools, GatewayProgram};
use crate::process;

const READY_SECONDS_MAX: u64 = 20;
const STOP_SECONDS_MAX: u64 = 6;
/// Pause between two checks of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
const TOKEN_BYTES: usize = 32;

/// A program under measurement; dropping terminates the process.
#[derive(Debug)]
pub(super) struct BenchTarget {
    pub(super) name: &'static str,
    pub(super) url: String,
    /// Name under which the tool `echo` is called.
    pub(super) tool: &'static str,
    pub(super) header: Option<String>,
    child: Child,
    folder: PathBuf,
    /// Helper processes; their CPU time counts towards this target.
    helpers: Vec<HelperProcess>,
    /// The backend, terminated after this target.
    _backend: Option<Box<Self>>,
}

/// A helper process of a target; dropping terminates the process.
#[derive(Debug)]
pub(super) struct HelperProcess(pub(super) Child);

impl Drop for HelperProcess {
    fn drop(&mut self) {
        process::terminate(&mut self.0, STOP_SECONDS_MAX);
    }
}

impl BenchTarget {
    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Returns the process ids of the target and its helpers, the target first.
    pub(super) fn pids(&self) -> Vec<String> {
        let beside = self.helpers.iter().map(|beside| beside.0.id());
        std::iter::once(self.child.id())
            .chain(beside)
            .map(|pid| pid.to_string())
            .collect()
    }

    /// Sets the name and adds helper processes.
    pub(super) fn with_helpers(mut self, name: &'static str, beside: Vec<HelperProcess>) -> Self {
        self.name = name;
        self.helpers.extend(beside);
        self
    }

    /// Returns the listen address and the owner token.
    pub(super) fn address_and_token(&self) -> Result<(SocketAddr, &str)> {
        let at = self.url.trim_start_matches("http://");
        let at = at.trim_end_matches("/mcp").parse()?;
        let header = self.header.as_deref().unwrap_or_default();
        Ok((at, header.rsplit(' ').next().unwrap_or_default()))
    }

    /// Returns the folder with the target's files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the `mcpbench` options that describe how to call this target.
    pub(super) fn load_options(&self) -> Vec<String> {
        load_options_for(&self.url, self.tool, self.header.as_deref())
    }
}

pub(super) fn load_options_for(url: &str, tool: &str, header: Option<&str>) -> Vec<String> {
    let mut words = ["--url", url, "--tool", tool].map(str::to_owned).to_vec();
    if let Some(header) = header {
        words.extend(["--header".to_owned(), header.to_owned()]);
    }
    words
}

impl Drop for BenchTarget {
    fn drop(&mut self) {
        process::terminate(&mut self.child, STOP_SECONDS_MAX);
    }
}

/// Starts the backend, called without a gateway.
pub(super) fn start_backend(tools: &BenchTools) -> Result<BenchTarget> {
    start_backend_with_tools(tools, 0)
}

/// Starts the backend with `tool_count` additional tools.
pub(super) fn start_backend_with_tools(
    tools: &BenchTools,
    tool_count: usize,
) -> Result<BenchTarget> {
    let port = process::free_port()?;
    let mut command = Command::new(&tools.mcpbench);
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--tools", &tool_count.to_string()]);
    start_program(tools, "direct", &command, port, None)
}

/// Starts the HTTP-to-HTTP floor in Rust: parses the message and renames the tool, nothing more.
pub(super) fn start_relay(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = start_backend(tools)?;
    let port = process::free_port()?;
    let upstream = behind.url.trim_end_matches("/mcp").to_owned();
    let mut command = Command::new(&tools.mcpbench);
    command.args(["relay", "--parse", "--upstream", &upstream]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    start_program(tools, "relay", &command, port, Some(Box::new(behind)))
}

/// Starts a bare reverse proxy before the backend: the usual cost of HTTP to HTTP.
pub(super) fn start_nginx(tools: &BenchTools, nginx: &Path) -> Result<BenchTarget> {
    let behind = start_backend(tools)?;
    let port = process::free_port()?;
    let folder = tools.new_folder("nginx")?;
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
    start_program(tools, "nginx", &command, port, Some(Box::new(behind)))
}

/// Starts the stdio floor: HTTP to one stdio child with remapped ids, nothing more.
pub(super) fn start_bridge(tools: &BenchTools) -> Result<BenchTarget> {
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
    start_program(tools, "bridge", &command, port, None)
}

/// Starts the gateway with one stdio child that offers `tool_count` additional tools.
pub(super) fn start_bowline(
    tools: &BenchTools,
    name: &'static str,
    tool_count: usize,
) -> Result<BenchTarget> {
    start_bowline_child(tools, tools.gateway(name), tool_count)
}

/// Starts a gateway before one stdio server.
pub(super) fn start_bowline_child(
    tools: &BenchTools,
    program: GatewayProgram<'_>,
    tool_count: usize,
) -> Result<BenchTarget> {
    start_gateway(tools, program, &child_config(tools, tool_count), None)
}

/// Starts the gateway with this configuration, which must contain a server `b`.
pub(super) fn start_bowline_with_config(tools: &BenchTools, config: &str) -> Result<BenchTarget> {
    start_gateway(tools, tools.gateway(BOWLINE), config, None)
}

/// Starts a gateway before an HTTP backend.
pub(super) fn start_bowline_http(
    tools: &BenchTools,
    program: GatewayProgram<'_>,
) -> Result<BenchTarget> {
    let behind = start_backend(tools)?;
    let config = format!("[servers.b]\nurl = {:?}\n", behind.url);
    start_gateway(tools, program, &config, Some(Box::new(behind)))
}

/// Starts the gateway before `servers` servers, each with `tool_count` plus three tools.
pub(super) fn start_bowline_many_servers(
    tools: &BenchTools,
    servers: usize,
    tool_count: usize,
) -> Result<BenchTarget> {
    let behind = start_backend_with_tools(tools, tool_count)?;
    let base = behind.url.trim_end_matches("/mcp");
    let names = (0..servers).map(|nth| match nth {
        0 => "b".to_owned(),
        nth => format!("s{nth}"),
    });
    let config: String = names
        .map(|name| format!("[servers.{name}]\nurl = \"{base}/{name}/mcp\"\n"))
        .collect();
    start_gateway(
        tools,
        tools.gateway("bowline, 10 servers"),
        &config,
        Some(Box::new(behind)),
    )
}

pub(super) fn start_gateway(
    tools: &BenchTools,
    program: GatewayProgram<'_>,
    config: &str,
    behind: Option<Box<BenchTarget>>,
) -> Result<BenchTarget> {
    let prepared = prepare_gateway(tools, program.name, config)?;
    let command = prepared.up_command(program.binary);
    run_gateway(tools, program.name, prepared, &command, behind)
}

/// Starts the gateway as a worker of `hub`, authenticated by `token`; its tools are the hub's.
pub(super) fn start_worker(
    tools: &BenchTools,
    hub: &BenchTarget,
    token: &str,
) -> Result<BenchTarget> {
    let prepared = prepare_gateway(tools, "worker", "")?;
    let file = prepared.folder.join("hub-token");
    write_private_file(&file, token)?;
    let mut command = Command::new(&tools.bowline);
    command.args(["worker", "join", hub.url.trim_end_matches("/mcp"), "--json"]);
    command.arg("--token-file").arg(file);
    command.args(["--listen", &format!("127.0.0.1:{}", prepared.port)]);
    command.arg("--state").arg(prepared.folder.join("state"));
    run_gateway(tools, "through a worker", prepared, &command, None)
}

/// Starts a gateway and waits for the first successful call.
pub(super) fn run_gateway(
    tools: &BenchTools,
    name: &'static str,
    prepared: PreparedGateway,
    command: &Command,
    behind: Option<Box<BenchTarget>>,
) -> Result<BenchTarget> {
    let mut command = with_open_file_limit(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(prepared.folder.join("stderr"))?);
    let mut child = command.spawn().context("could not start bowline")?;
    let line = match process::read_ready_line(&mut child, READY_SECONDS_MAX) {
        Ok(line) => line,
        Err(error) => {
            process::terminate(&mut child, STOP_SECONDS_MAX);
            let log = fs::read_to_string(prepared.folder.join("stderr")).unwrap_or_default();
            bail!("{error:#}; bowline said: {}", log.trim());
        }
    };
    let ready: Value = serde_json::from_str(&line).context("the ready line is not JSON")?;
    let text = |key: &str| {
        let value = ready.get(key).and_then(Value::as_str).map(str::to_owned);
        value.with_context(|| format!("the ready line has no `{key}`: {line}"))
    };
    let token = fs::read_to_string(text("token_file")?).context("read the token file")?;
    let target = BenchTarget {
        name,
        url: text("mcp")?,
        tool: "b__echo",
        header: Some(bearer_header(token.trim())),
        child,
        folder: prepared.folder,
        helpers: Vec::new(),
        _backend: behind,
    };
    wait_for_call(tools, &target)?;
    Ok(target)
}

/// Inputs of `bowline up`, prepared in advance so that the start can be measured alone.
#[derive(Debug)]
pub(super) struct PreparedGateway {
    pub(super) folder: PathBuf,
    pub(super) port: u16,
    pub(super) header: String,
}

/// Returns a configuration with one stdio child.
pub(super) fn child_config(tools: &BenchTools, tool_count: usize) -> String {
    format!(
        "[servers.b]\ncommand = {:?}\nargs = [\"stdio\", \"--tools\", \"{tool_count}\"]\n",
        tools.mcpbench
    )
}

pub(super) fn prepare_gateway(
    tools: &BenchTools,
    name: &str,
    config: &str,
) -> Result<PreparedGateway> {
    let folder = tools.new_folder(name)?;
    fs::write(folder.join("bowline.toml"), config)?;
    let state = folder.join("state");
    fs::create_dir(&state)?;
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let token = random_hex()?;
    write_private_file(&state.join("token"), &token)?;
    Ok(PreparedGateway {
        folder,
        port: process::free_port()?,
        header: bearer_header(&token),
    })
}

/// Writes a file that only the owner can read.
fn write_private_file(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    Ok(writeln!(options.open(path)?, "{text}")?)
}

impl PreparedGateway {
    pub(super) fn up_command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
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

/// Starts a program on a given port and waits for the first successful call.
fn start_program(
    tools: &BenchTools,
    name: &'static str,
    command: &Command,
    port: u16,
    behind: Option<Box<BenchTarget>>,
) -> Result<BenchTarget> {
    let folder = tools.new_folder(name)?;
    let mut command = with_open_file_limit(command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(folder.join("stderr"))?);
    let child = command
        .spawn()
        .with_context(|| format!("could not start {name}"))?;
    let url = format!("http://127.0.0.1:{port}/mcp");
    let target = BenchTarget {
        name,
        url,
        tool: "echo",
        header: None,
        child,
        folder,
        helpers: Vec::new(),
        _backend: behind,
    };
    wait_for_call(tools, &target)?;
    Ok(target)
}

/// Wraps a command so that the open-file limit is the maximum: a thousand sessions with dedicated
/// connections exceed the usual 1,024.
pub(super) fn with_open_file_limit(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec \"$0\" \"$@\""]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

fn wait_for_call(tools: &BenchTools, target: &BenchTarget) -> Result<()> {
    let start = process::now();
    let mut output = String::new();
    while start.elapsed().as_secs() < READY_SECONDS_MAX {
        let mut probe = Command::new(&tools.mcpbench);
        probe.arg("probe").args(target.load_options());
        output = process::run_captured(&mut probe).unwrap_or_else(|error| format!("{error:#}"));
        if output.contains("call: Ok") {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    let log = fs::read_to_string(target.folder.join("stderr")).unwrap_or_default();
    bail!(
        "{} never answered a call: {} {}",
        target.name,
        output.trim(),
        log.trim()
    )
}

fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn bearer_header(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn nginx_config(folder: &Path, port: u16, upstream: &str, is_root: bool) -> String {
    // Workers of a root master switch to a user that cannot enter the folder.
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
