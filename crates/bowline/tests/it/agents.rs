//! `bowline run` and `bowline connect`: a client gets the gateway as one of its servers and a
//! token of its own, and nothing else that is secret.

mod printed;
mod queued;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, Http, Session, bowline, eventually, fixture, lives, signal};

/// What a client is that ends when its input does, with the code that it reads.
const CLIENT: &str = "#!/bin/sh\nread code\nexit ${code:-0}\n";

/// A client that says how it was started.
const TELLING: &str = "#!/bin/sh\nfor one in \"$@\"; do echo \"$one\"; done\n\
                       echo \"token=$BOWLINE_SESSION_TOKEN\"\n";

/// A directory for PATH with clients that are shell scripts.
fn clients(script: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in ["claude", "codex"] {
        let file = dir.path().join(name);
        std::fs::write(&file, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, mode).unwrap();
    }
    dir
}

/// `bowline run` as somebody types it.
fn command(state: &Path, path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(bowline());
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

/// A client that runs.
#[derive(Debug)]
struct Run {
    child: Child,
    _clients: TempDir,
    token: String,
}

impl Run {
    fn start(gateway: &Gateway, args: &[&str], more: impl FnOnce(&mut Command)) -> Self {
        let clients = clients(CLIENT);
        let mut command = command(&gateway.state(), clients.path(), args);
        command.stdin(Stdio::piped());
        more(&mut command);
        let child = command.spawn().unwrap();
        let mut this = Self {
            child,
            _clients: clients,
            token: String::new(),
        };
        eventually("the client runs", || {
            let environ = this.environ();
            let mine = environ
                .iter()
                .find_map(|pair| pair.strip_prefix("BOWLINE_SESSION_TOKEN="));
            this.token = mine.unwrap_or_default().to_owned();
            mine.is_some()
        });
        this
    }

    /// What the kernel says of the process, text by text.
    fn proc(&self, file: &str) -> Vec<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        let bytes = std::fs::read(path).unwrap_or_default();
        let texts = bytes.split(|byte| *byte == 0).filter(|one| !one.is_empty());
        let texts = texts.map(|one| String::from_utf8_lossy(one).into_owned());
        texts.collect()
    }

    fn environ(&self) -> Vec<String> {
        self.proc("environ")
    }

    /// Has the client end with this code, and returns the one that `run` ended with.
    fn end(&mut self, code: i32) -> Option<i32> {
        let mut input = self.child.stdin.take().unwrap();
        writeln!(input, "{code}").unwrap();
        self.child.wait().unwrap().code()
    }
}

/// The tokens that are listed.
fn tokens(gateway: &Gateway) -> Vec<Value> {
    let listed = gateway.api("/api/v1/tokens");
    listed["tokens"].as_array().unwrap().clone()
}

/// What an attempt with this token to begin a session is answered with.
fn status_for(gateway: &Gateway, token: &str, path: &str) -> u16 {
    let token = format!("Bearer {token}");
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "it", "version": "1"},
    }});
    let body = hello.to_string();
    let mut http = Http::connect(gateway.address);
    http.post(path, &[("Authorization", &token)], body.as_bytes())
        .status
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Whether a text stands in any file below a directory.
fn stands_in(dir: &Path, text: &str) -> Option<PathBuf> {
    std::fs::read_dir(dir).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return stands_in(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        let found = bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        found.then_some(path)
    })
}

#[test]
fn argv_never_contains_the_secret_and_it_ends_with_the_run() {
    let gateway = Gateway::up(&fixture("fix", &[]));
    let mcp = format!("http://{}/mcp", gateway.address);
    let mut run = Run::start(&gateway, &["claude", "--", "-p", "hello"], |_| {});
    let config = format!(
        r#"{{"mcpServers":{{"bowline":{{"type":"http","url":"{mcp}","headers":{{"Authorization":"Bearer ${{BOWLINE_SESSION_TOKEN}}"}}}}}}}}"#
    );
    let arguments = run.proc("cmdline");
    assert_eq!(
        arguments[2..],
        ["--mcp-config", config.as_str(), "-p", "hello"]
    );
    assert!(run.token.starts_with("bwl_"), "{}", run.token);
    assert!(!arguments.join(" ").contains(&run.token));
    assert_eq!(stands_in(gateway.dir.path(), &run.token), None);

    // It is shown to people, without its secret.
    let [listed] = &tokens(&gateway)[..] else {
        panic!("one token")
    };
    assert_eq!(listed["principal"], "owner:claude");
    assert_eq!(
        (&listed["run"], &listed["state"]),
        (&json!("claude"), &json!("active"))
    );
    assert_eq!(listed["acts_for_owner"], true);
    assert!(listed["expires_at_ms"].is_u64(), "{listed}");
    let (_, shown, _) = told(&gateway.cli(&["token", "ls"]));
    assert!(
        shown.contains("owner:claude") && shown.contains("MCP only"),
        "{shown}"
    );

    // It opens what the owner has over MCP, and nothing of the API.
    let mut session = gateway.session_as(&run.token, "/mcp");
    let mut owner = gateway.session("/mcp");
    assert_eq!(session.tools(), owner.tools());
    assert_eq!(session.text("fix__echo", &json!({"message": "hi"})), "hi");
    let bearer = format!("Bearer {}", run.token);
    for path in ["/api/v1/status", "/api/v1/tokens", "/metrics"] {
        let mut http = Http::connect(gateway.address);
        assert_eq!(
            http.get(path, &[("Authorization", &bearer)]).status,
            403,
            "{path}"
        );
    }
    let sessions = gateway.api("/api/v1/sessions");
    let ours = sessions["sessions"].as_array().unwrap();
    let ours = ours.iter().find(|one| one["principal"] == "owner:claude");
    assert_eq!(ours.unwrap()["role"], "owner's agent");

    assert_eq!(run.end(7), Some(7), "the exit code is the client's");
    eventually("the token is gone", || tokens(&gateway).is_empty());
    assert_eq!(status_for(&gateway, &run.token, "/mcp"), 401);
}

#[test]
fn the_token_of_a_run_that_was_killed_goes_and_one_survives_a_restart_of_the_gateway() {
    let mut gateway = Gateway::up(&fixture("fix", &[]));
    let first = Run::start(&gateway, &["codex"], |_| {});
    let mut second = Run::start(&gateway, &["codex"], |_| {});
    assert_ne!(first.token, second.token, "one for each run");
    assert_eq!(tokens(&gateway).len(), 2);
    signal(first.child.id(), "KILL");
    eventually("its token is gone", || tokens(&gateway).len() == 1);
    assert_eq!(status_for(&gateway, &first.token, "/mcp"), 401);

    gateway.restart_after_kill();
    assert_eq!(status_for(&gateway, &second.token, "/mcp"), 200);
    assert_eq!(tokens(&gateway)[0]["acts_for_owner"], true);
    let refused = Http::connect(gateway.address).get(
        "/api/v1/status",
        &[("Authorization", &format!("Bearer {}", second.token))],
    );
    assert_eq!(refused.status, 403);
    assert_eq!(second.end(0), Some(0));
    // The gateway is another by now, at another place: it is told all the same.
    eventually("the other is gone too", || tokens(&gateway).is_empty());
    let mut first = first;
    first.child.wait().unwrap();
}

#[test]
fn a_signal_reaches_the_client_itself() {
    let gateway = Gateway::up(&fixture("fix", &[]));
    let mut run = Run::start(&gateway, &["claude"], |_| {});
    signal(run.child.id(), "TERM");
    let status = run.child.wait().unwrap();
    let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(ended_by, Some(15));
    eventually("the token is gone", || tokens(&gateway).is_empty());
}

#[test]
fn no_credential_of_a_server_is_exported_to_the_client() {
    let config = format!(
        "{}inherit_env = [\"TRACKER_TOKEN\", \"LANG\"]\nenv = {{ KEY = \"${{FORGE_KEY}}\" }}\n\
         [clients.codex]\nkeep_env = [\"FORGE_KEY\"]\n",
        fixture("fix", &[])
    );
    let secrets = |command: &mut Command| {
        command
            .env("TRACKER_TOKEN", "tracker-canary")
            .env("FORGE_KEY", "forge-canary")
            .env("LANG", "C.UTF-8")
            .env("BOWLINE_CONFIG_X", "ours");
    };
    let gateway = Gateway::up_as(&config, secrets);
    let claude = Run::start(&gateway, &["claude"], secrets);
    let seen = claude.environ().join("\n");
    assert!(!seen.contains("canary") && !seen.contains("ours"), "{seen}");
    assert!(seen.contains("LANG=C.UTF-8"), "{seen}");
    let ours: Vec<_> = seen
        .lines()
        .filter(|one| one.starts_with("BOWLINE_"))
        .collect();
    assert_eq!(ours, [format!("BOWLINE_SESSION_TOKEN={}", claude.token)]);
    let codex = Run::start(&gateway, &["codex"], secrets);
    let seen = codex.environ().join("\n");
    assert!(seen.contains("FORGE_KEY=forge-canary") && !seen.contains("tracker-canary"));
    for mut run in [claude, codex] {
        run.end(0);
    }
}

#[test]
fn a_run_for_a_principal_sees_its_role_its_profile_and_its_contexts_and_no_more() {
    let config = format!(
        "{}[roles.reader]\nallow = [\"fix.echo\", \"fix.add\"]\n\
         [profiles.calm]\nallow = [\"fix.echo\"]\n[context.quiet]\nhide = [\"fix.echo\"]\n",
        fixture("fix", &[])
    );
    let gateway = Gateway::up(&config);
    let seen = |args: &[&str]| -> Vec<String> {
        let mut run = Run::start(&gateway, args, |_| {});
        let url = run.proc("cmdline").join(" ");
        let path = if url.contains("/mcp/calm") {
            "/mcp/calm"
        } else {
            "/mcp"
        };
        let tools = gateway.session_as(&run.token, path).tools();
        run.end(0);
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
    eventually("all tokens are gone", || tokens(&gateway).is_empty());

    let clients = clients(TELLING);
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
        let output = command(&gateway.state(), clients.path(), args)
            .output()
            .unwrap();
        let (exit, stdout, stderr) = told(&output);
        assert_eq!(exit, Some(code), "{args:?}: {stderr}");
        assert!(
            stderr.contains(word) && stdout.is_empty(),
            "{args:?}: {stderr}"
        );
    }
    assert!(tokens(&gateway).is_empty());
}

/// A state directory, and a config file beside it, without a gateway.
fn nowhere(config: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("bowline.toml");
    std::fs::write(&file, config).unwrap();
    (dir, file)
}

#[test]
fn a_gateway_is_started_where_none_runs_and_outlives_the_client() {
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture("fix", &[])
    );
    let (dir, file) = nowhere(&config);
    let clients = clients(TELLING);
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
    let (code, stdout, stderr) = told(&command(&state, clients.path(), &args).output().unwrap());
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
    assert!(lives(pid));
    signal(pid, "TERM");
    eventually("the gateway is gone", || !lives(pid));
}

#[test]
fn without_a_gateway_the_client_goes_to_its_direct_endpoint_and_it_is_said_loudly() {
    // Somebody else has the port, so that no gateway can be started.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let plain = format!("[gateway]\nlisten = \"{address}\"\n");
    let direct = format!(
        "{plain}[clients.claude]\ndirect = \"https://tools.example/mcp\"\n\
         direct_token = \"${{DIRECT}}\"\n"
    );
    let clients = clients(TELLING);
    let run = |config: &str, args: &[&str], switch: Option<&str>| {
        let (dir, file) = nowhere(config);
        let args = [&["--config", file.to_str().unwrap()], args].concat();
        let mut command = command(&dir.path().join("state"), clients.path(), &args);
        command.env("DIRECT", "direct-secret");
        if let Some(value) = switch {
            command.env("BOWLINE_PROXY", value);
        }
        told(&command.output().unwrap())
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
        // What a role would narrow, nothing narrows there.
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
fn a_profile_may_forbid_a_client_and_one_that_is_not_there_is_named() {
    let gateway = Gateway::up(&format!(
        "{}[clients.claude]\nenabled = false\n",
        fixture("fix", &[])
    ));
    let scripts = clients(TELLING);
    // The config of the gateway counts, wherever one stands when one types it.
    let output = command(&gateway.state(), scripts.path(), &["claude"])
        .current_dir(scripts.path())
        .output();
    let (code, stdout, stderr) = told(&output.unwrap());
    assert_eq!((code, stdout.as_str()), (Some(6), ""), "{stderr}");
    assert!(
        stderr.contains("[clients.claude] enabled = false"),
        "{stderr}"
    );

    let empty = TempDir::new().unwrap();
    let output = command(&gateway.state(), empty.path(), &["codex"]).output();
    let (code, _, stderr) = told(&output.unwrap());
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("npm install -g @openai/codex"), "{stderr}");
    assert!(tokens(&gateway).is_empty());
}

#[test]
fn a_session_of_a_run_is_its_own_and_ends_with_it() {
    let gateway = Gateway::up(&fixture("fix", &[]));
    let mut run = Run::start(&gateway, &["claude"], |_| {});
    let session = Session::open(gateway.address, "/mcp", Some(&run.token));
    let mut stream = session.listen();
    run.end(0);
    // The stream ends when the token does; what is left of it is read until then.
    let mut rest = Vec::new();
    let _ended = stream.stream.read_to_end(&mut rest);
    assert!(tokens(&gateway).is_empty());
}
