//! `bowline run` and `bowline connect`: a client gets the gateway as an MCP server, and a run token
//! as the only secret.

mod print_args;
mod queued_after_run;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, bowline_binary, fixture_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A client that exits at end of input, with the exit code read from stdin.
const EXITING_CLIENT: &str = "#!/bin/sh\nread code\nexit ${code:-0}\n";

/// A client that prints arguments and session token.
const PRINTING_CLIENT: &str = "#!/bin/sh\nfor one in \"$@\"; do echo \"$one\"; done\n\
                       echo \"token=$BOWLINE_SESSION_TOKEN\"\n";

/// Creates a PATH directory with shell scripts as clients.
fn install_clients(script: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in ["claude", "codex"] {
        let file = dir.path().join(name);
        std::fs::write(&file, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, mode).unwrap();
    }
    dir
}

/// The command `bowline run`.
fn run_command(state: &Path, path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(bowline_binary());
    command
        .arg("--state")
        .arg(state)
        .arg("run")
        .args(args)
        .env("PATH", format!("{}:/usr/bin:/bin", path.display()))
        .env_remove("BOWLINE_PROXY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running client.
#[derive(Debug)]
struct ClientRun {
    child: Child,
    _clients: TempDir,
    token: String,
}

impl ClientRun {
    fn start(gateway: &Gateway, args: &[&str], more: impl FnOnce(&mut Command)) -> Self {
        let clients = install_clients(EXITING_CLIENT);
        let mut command = run_command(&gateway.state_dir(), clients.path(), args);
        command.stdin(Stdio::piped());
        more(&mut command);
        let child = command.spawn().unwrap();
        let mut this = Self {
            child,
            _clients: clients,
            token: String::new(),
        };
        wait_until("the client runs", || {
            let environ = this.read_environ();
            let mine = environ
                .iter()
                .find_map(|pair| pair.strip_prefix("BOWLINE_SESSION_TOKEN="));
            this.token = mine.unwrap_or_default().to_owned();
            mine.is_some()
        });
        this
    }

    /// Reads a file of `/proc/PID`, split at NUL bytes.
    fn read_proc(&self, file: &str) -> Vec<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        let bytes = std::fs::read(path).unwrap_or_default();
        let texts = bytes.split(|byte| *byte == 0).filter(|one| !one.is_empty());
        let texts = texts.map(|one| String::from_utf8_lossy(one).into_owned());
        texts.collect()
    }

    fn read_environ(&self) -> Vec<String> {
        self.read_proc("environ")
    }

    /// Makes the client exit with this code and returns the exit code of `run`.
    fn end_client(&mut self, code: i32) -> Option<i32> {
        let mut input = self.child.stdin.take().unwrap();
        writeln!(input, "{code}").unwrap();
        self.child.wait().unwrap().code()
    }
}

/// Lists the tokens of the gateway.
fn list_tokens(gateway: &Gateway) -> Vec<Value> {
    let listed = gateway.get_api("/api/v1/tokens");
    listed["tokens"].as_array().unwrap().clone()
}

/// Status of an `initialize` with this token.
fn initialize_status(gateway: &Gateway, token: &str, path: &str) -> u16 {
    let token = format!("Bearer {token}");
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "it", "version": "1"},
    }});
    let body = hello.to_string();
    let mut http = HttpConnection::connect(gateway.address);
    http.post(path, &[("Authorization", &token)], body.as_bytes())
        .status
}

fn output_parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Finds a file below `dir` with this text.
fn find_text_in_files(dir: &Path, text: &str) -> Option<PathBuf> {
    std::fs::read_dir(dir).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return find_text_in_files(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        let found = bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        found.then_some(path)
    })
}

#[test]
fn run_secret_stays_out_of_argv() {
    let gateway = Gateway::start(&fixture_config("fix", &[]));
    let mcp = format!("http://{}/mcp", gateway.address);
    let mut run = ClientRun::start(&gateway, &["claude", "--", "-p", "hello"], |_| {});
    let config = format!(
        r#"{{"mcpServers":{{"bowline":{{"type":"http","url":"{mcp}","headers":{{"Authorization":"Bearer ${{BOWLINE_SESSION_TOKEN}}"}}}}}}}}"#
    );
    let arguments = run.read_proc("cmdline");
    assert_eq!(
        arguments[2..],
        ["--mcp-config", config.as_str(), "-p", "hello"]
    );
    assert!(run.token.starts_with("bwl_"), "{}", run.token);
    assert!(!arguments.join(" ").contains(&run.token));
    assert_eq!(find_text_in_files(gateway.dir.path(), &run.token), None);

    // The token list shows the run's token without its secret.
    let [listed] = &list_tokens(&gateway)[..] else {
        panic!("one token")
    };
    assert_eq!(listed["principal"], "owner:claude");
    assert_eq!(
        (&listed["run"], &listed["state"]),
        (&json!("claude"), &json!("active"))
    );
    assert_eq!(listed["acts_for_owner"], true);
    assert!(listed["expires_at_ms"].is_u64(), "{listed}");
    let (_, shown, _) = output_parts(&gateway.run_cli(&["token", "ls"]));
    assert!(
        shown.contains("owner:claude") && shown.contains("MCP only"),
        "{shown}"
    );

    // The token opens the owner's MCP endpoint, but not the API.
    let mut session = gateway.open_session_as(&run.token, "/mcp");
    let mut owner = gateway.open_session("/mcp");
    assert_eq!(session.list_tool_names(), owner.list_tool_names());
    assert_eq!(
        session.call_text("fix__echo", &json!({"message": "hi"})),
        "hi"
    );
    let bearer = format!("Bearer {}", run.token);
    for path in ["/api/v1/status", "/api/v1/tokens", "/metrics"] {
        let mut http = HttpConnection::connect(gateway.address);
        assert_eq!(
            http.get(path, &[("Authorization", &bearer)]).status,
            403,
            "{path}"
        );
    }
    let sessions = gateway.get_api("/api/v1/sessions");
    let ours = sessions["sessions"].as_array().unwrap();
    let ours = ours.iter().find(|one| one["principal"] == "owner:claude");
    assert_eq!(ours.unwrap()["role"], "owner's agent");

    assert_eq!(run.end_client(7), Some(7), "the exit code is the client's");
    wait_until("the token is gone", || list_tokens(&gateway).is_empty());
    assert_eq!(initialize_status(&gateway, &run.token, "/mcp"), 401);
}

#[test]
fn run_token_survives_restart_but_not_kill() {
    let mut gateway = Gateway::start(&fixture_config("fix", &[]));
    let first = ClientRun::start(&gateway, &["codex"], |_| {});
    let mut second = ClientRun::start(&gateway, &["codex"], |_| {});
    assert_ne!(first.token, second.token, "one for each run");
    assert_eq!(list_tokens(&gateway).len(), 2);
    send_signal(first.child.id(), "KILL");
    wait_until("its token is gone", || list_tokens(&gateway).len() == 1);
    assert_eq!(initialize_status(&gateway, &first.token, "/mcp"), 401);

    gateway.restart_after_kill();
    assert_eq!(initialize_status(&gateway, &second.token, "/mcp"), 200);
    assert_eq!(list_tokens(&gateway)[0]["acts_for_owner"], true);
    let refused = HttpConnection::connect(gateway.address).get(
        "/api/v1/status",
        &[("Authorization", &format!("Bearer {}", second.token))],
    );
    assert_eq!(refused.status, 403);
    assert_eq!(second.end_client(0), Some(0));
    // The gateway was restarted at another address; `run` still revokes the token.
    wait_until("the other is gone too", || list_tokens(&gateway).is_empty());
    let mut first = first;
    first.child.wait().unwrap();
}

#[test]
fn run_forwards_signals_to_client() {
    let gateway = Gateway::start(&fixture_config("fix", &[]));
    let mut run = ClientRun::start(&gateway, &["claude"], |_| {});
    send_signal(run.child.id(), "TERM");
    let status = run.child.wait().unwrap();
    let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(ended_by, Some(15));
    wait_until("the token is gone", || list_tokens(&gateway).is_empty());
}

#[test]
fn run_exports_no_server_credential() {
    let config = format!(
        "{}inherit_env = [\"TRACKER_TOKEN\", \"LANG\"]\nenv = {{ KEY = \"${{FORGE_KEY}}\" }}\n\
         [clients.codex]\nkeep_env = [\"FORGE_KEY\"]\n",
        fixture_config("fix", &[])
    );
    let secrets = |command: &mut Command| {
        command
            .env("TRACKER_TOKEN", "tracker-canary")
            .env("FORGE_KEY", "forge-canary")
            .env("LANG", "C.UTF-8")
            .env("BOWLINE_CONFIG_X", "ours");
    };
    let gateway = Gateway::start_with_command(&config, secrets);
    let claude = ClientRun::start(&gateway, &["claude"], secrets);
    let seen = claude.read_environ().join("\n");
    assert!(!seen.contains("canary") && !seen.contains("ours"), "{seen}");
    assert!(seen.contains("LANG=C.UTF-8"), "{seen}");
    let ours: Vec<_> = seen
        .lines()
        .filter(|one| one.starts_with("BOWLINE_"))
        .collect();
    assert_eq!(ours, [format!("BOWLINE_SESSION_TOKEN={}", claude.token)]);
    let codex = ClientRun::start(&gateway, &["codex"], secrets);
    let seen = codex.read_environ().join("\n");
    assert!(seen.contains("FORGE_KEY=forge-canary") && !seen.contains("tracker-canary"));
    for mut run in [claude, codex] {
        run.end_client(0);
    }
}

#[test]
fn run_view_is_role_profile_and_contexts() {
    let config = format!(
        "{}[roles.reader]\nallow = [\"fix.echo\", \"fix.add\"]\n\
         [profiles.calm]\nallow = [\"fix.echo\"]\n[context.quiet]\nhide = [\"fix.echo\"]\n",
        fixture_config("fix", &[])
    );
    let gateway = Gateway::start(&config);
    let seen = |args: &[&str]| -> Vec<String> {
        let mut run = ClientRun::start(&gateway, args, |_| {});
        let url = run.read_proc("cmdline").join(" ");
        let path = if url.contains("/mcp/calm") {
            "/mcp/calm"
        } else {
            "/mcp"
        };
        let tools = gateway.open_session_as(&run.token, path).list_tool_names();
        run.end_client(0);
        tools
    };
    let ann = ["codex", "--principal", "ann", "--role", "reader"];
    assert_eq!(seen(&ann), ["fix__echo", "fix__add"]);
    let quiet = [&ann[..], &["--context", "quiet"]].concat();
    assert_eq!(seen(&quiet), ["fix__add"]);
    assert_eq!(seen(&["claude", "--profile", "calm"]), ["fix__echo"]);
    let owner = seen(&["claude"]);
    assert!(owner.len() > 2, "{owner:?}");
    assert!(!seen(&["claude", "--context", "quiet"]).contains(&"fix__echo".to_owned()));
    wait_until("all tokens are gone", || list_tokens(&gateway).is_empty());

    let clients = install_clients(PRINTING_CLIENT);
    for (args, code, word) in [
        (
            &["claude", "--profile", "clam"][..],
            2,
            "did you mean `calm`?",
        ),
        (&["claude", "--context", "quite"], 2, "quiet"),
        (&["claude", "--principal", "ann"], 2, "a role is needed"),
        (&["claude", "--role", "reader"], 2, "--principal"),
        (&["claude", "--name", "a.b"], 2, "1 to 32"),
        (&["cloud"], 2, "claude or codex"),
    ] {
        let output = run_command(&gateway.state_dir(), clients.path(), args)
            .output()
            .unwrap();
        let (exit, stdout, stderr) = output_parts(&output);
        assert_eq!(exit, Some(code), "{args:?}: {stderr}");
        assert!(
            stderr.contains(word) && stdout.is_empty(),
            "{args:?}: {stderr}"
        );
    }
    assert!(list_tokens(&gateway).is_empty());
}

/// A state directory and a config file, without a gateway.
fn config_without_gateway(config: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("bowline.toml");
    std::fs::write(&file, config).unwrap();
    (dir, file)
}

#[test]
fn run_starts_gateway_that_outlives_client() {
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture_config("fix", &[])
    );
    let (dir, file) = config_without_gateway(&config);
    let clients = install_clients(PRINTING_CLIENT);
    let state = dir.path().join("state");
    let args = [
        "--config",
        file.to_str().unwrap(),
        "codex",
        "--name",
        "knot",
        "--",
        "exec",
        "x",
    ];
    let (code, stdout, stderr) =
        output_parts(&run_command(&state, clients.path(), &args).output().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    let run: Value =
        serde_json::from_slice(&std::fs::read(state.join("run.json")).unwrap()).unwrap();
    let url = run["mcp"].as_str().unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines[..6],
        [
            "-c",
            &format!("mcp_servers.knot.url=\"{url}\""),
            "-c",
            "mcp_servers.knot.bearer_token_env_var=\"BOWLINE_SESSION_TOKEN\"",
            "exec",
            "x",
        ]
    );
    assert!(lines[6].starts_with("token=bwl_"), "{stdout}");
    let pid = u32::try_from(run["pid"].as_u64().unwrap()).unwrap();
    assert!(is_alive(pid));
    send_signal(pid, "TERM");
    wait_process_exit("the end of the gateway", pid);
}

#[test]
fn run_without_gateway_warns_and_goes_direct() {
    // The port is taken, so no gateway can start.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let plain = format!("[gateway]\nlisten = \"{address}\"\n");
    let direct = format!(
        "{plain}[clients.claude]\ndirect = \"https://tools.example/mcp\"\n\
         direct_token = \"${{DIRECT}}\"\n"
    );
    let clients = install_clients(PRINTING_CLIENT);
    let run = |config: &str, args: &[&str], switch: Option<&str>| {
        let (dir, file) = config_without_gateway(config);
        let args = [&["--config", file.to_str().unwrap()], args].concat();
        let mut command = run_command(&dir.path().join("state"), clients.path(), &args);
        command.env("DIRECT", "direct-secret");
        if let Some(value) = switch {
            command.env("BOWLINE_PROXY", value);
        }
        output_parts(&command.output().unwrap())
    };
    for switch in [None, Some("0"), Some("false"), Some("off")] {
        let (code, stdout, stderr) = run(&direct, &["claude"], switch);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(
            stdout.contains(r#""url":"https://tools.example/mcp""#),
            "{stdout}"
        );
        assert!(
            stdout.contains("Bearer ${BOWLINE_SESSION_TOKEN}"),
            "{stdout}"
        );
        assert!(stdout.ends_with("token=direct-secret\n"), "{stdout}");
        assert!(
            stderr.contains("DIRECTLY") && !stderr.contains("direct-secret"),
            "{stderr}"
        );
    }
    for switch in [None, Some("off")] {
        let (code, stdout, stderr) = run(&direct, &["codex"], switch);
        assert_eq!((code, stdout.as_str()), (Some(4), ""), "{stderr}");
        assert!(stderr.contains("no direct endpoint"), "{stderr}");
        assert!(stderr.contains("[clients.codex] direct"), "{stderr}");
        // The direct endpoint cannot apply a role, so narrowing options are refused.
        let narrowed = ["claude", "--principal", "ann", "--role", "reader"];
        let (code, stdout, stderr) = run(&direct, &narrowed, switch);
        assert_eq!((code, stdout.as_str()), (Some(4), ""), "{stderr}");
        assert!(stderr.contains("nothing narrows"), "{stderr}");
    }
    let (code, _, stderr) = run(&plain, &["claude"], None);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(
        stderr.contains(&address.to_string()),
        "why there is no gateway: {stderr}"
    );
}

#[test]
fn run_refuses_forbidden_and_unknown_profiles() {
    let gateway = Gateway::start(&format!(
        "{}[clients.claude]\nenabled = false\n",
        fixture_config("fix", &[])
    ));
    let scripts = install_clients(PRINTING_CLIENT);
    // `run` uses the gateway's config in every working directory.
    let output = run_command(&gateway.state_dir(), scripts.path(), &["claude"])
        .current_dir(scripts.path())
        .output();
    let (code, stdout, stderr) = output_parts(&output.unwrap());
    assert_eq!((code, stdout.as_str()), (Some(6), ""), "{stderr}");
    assert!(
        stderr.contains("[clients.claude] enabled = false"),
        "{stderr}"
    );

    let empty = TempDir::new().unwrap();
    let output = run_command(&gateway.state_dir(), empty.path(), &["codex"]).output();
    let (code, _, stderr) = output_parts(&output.unwrap());
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("npm install -g @openai/codex"), "{stderr}");
    assert!(list_tokens(&gateway).is_empty());
}

#[test]
fn run_session_is_private_and_ends_with_run() {
    let gateway = Gateway::start(&fixture_config("fix", &[]));
    let mut run = ClientRun::start(&gateway, &["claude"], |_| {});
    let session = Session::open(gateway.address, "/mcp", Some(&run.token));
    let mut stream = session.open_stream();
    run.end_client(0);
    // The stream ends with the token; the test reads the remaining bytes.
    let mut rest = Vec::new();
    let _ended = stream.stream.read_to_end(&mut rest);
    assert!(list_tokens(&gateway).is_empty());
}
