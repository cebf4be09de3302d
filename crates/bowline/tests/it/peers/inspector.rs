//! The Inspector's command line as a client: one process for each request.

use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::PeerManifest;
use super::clients::wait_for_success;
use super::official_servers::{NAMES, OfficialServers, ServerProgram, remove_asking_tools};

/// The connection target of the Inspector.
enum InspectorTarget<'a> {
    Program(ServerProgram),
    Http(&'a Gateway, String),
    Shim(&'a Gateway, Option<&'a str>),
}

/// The request of the Inspector.
#[derive(Clone, Copy)]
enum InspectorRequest<'a> {
    List,
    Call(&'a str, &'a Value),
}

#[test]
fn inspector_cli_works_over_http_and_stdio() {
    let test = "inspector_cli_works_over_http_and_stdio";
    let Some(peers) = PeerManifest::load(test, &["/inspector"]) else {
        return;
    };
    let world = OfficialServers::new(peers);
    let gateway = world.start_gateway();
    // Each request costs a process, most of it start-up time.
    std::thread::scope(|scope| {
        for names in [&NAMES[..2], &NAMES[2..]] {
            let (world, gateway) = (&world, &gateway);
            scope.spawn(move || {
                for name in names {
                    assert_call_equal(world, gateway, name);
                    if matches!(*name, "everything" | "git") {
                        assert_list_equal(world, gateway, name);
                    }
                }
            });
        }
    });
    for target in [
        InspectorTarget::Http(&gateway, "/mcp".to_owned()),
        InspectorTarget::Shim(&gateway, None),
    ] {
        let all = run_inspector(&world, target, InspectorRequest::List);
        let all = all["result"]["tools"].as_array().unwrap().len();
        assert_eq!(all, 17 + 14 + 9 + 2 + 12);
    }
}

/// Makes one call of a server directly and over every path through the gateway.
fn assert_call_equal(world: &OfficialServers, gateway: &Gateway, name: &str) {
    let calls = world.stable_calls(name, "inspector");
    let (tool, arguments) = match name {
        "everything" | "memory" => &calls[2],
        _ => &calls[0],
    };
    let prefixed = format!("{name}__{tool}");
    let own = InspectorRequest::Call(tool, arguments);
    let together = InspectorRequest::Call(&prefixed, arguments);
    let direct = InspectorTarget::Program(world.server_program(name, "inspector"));
    let direct = run_inspector(world, direct, own);
    assert!(direct["result"]["content"].is_array(), "{direct}");
    let ways = [
        (
            InspectorTarget::Http(gateway, format!("/servers/{name}/mcp")),
            own,
        ),
        (InspectorTarget::Shim(gateway, Some(name)), own),
        (InspectorTarget::Http(gateway, "/mcp".to_owned()), together),
        (InspectorTarget::Shim(gateway, None), together),
    ];
    for (target, ask) in ways {
        assert_eq!(
            run_inspector(world, target, ask),
            direct,
            "{tool} of {name}"
        );
    }
}

/// Lists the tools of a server directly and over both paths through the gateway.
fn assert_list_equal(world: &OfficialServers, gateway: &Gateway, name: &str) {
    let direct = InspectorTarget::Program(world.server_program(name, "inspector"));
    let mut direct = run_inspector(world, direct, InspectorRequest::List);
    // The gateway declares more capabilities than the Inspector, which `everything` takes into
    // account.
    remove_asking_tools(&mut direct["result"]["tools"]);
    for target in [
        InspectorTarget::Http(gateway, format!("/servers/{name}/mcp")),
        InspectorTarget::Shim(gateway, Some(name)),
    ] {
        let mut through = run_inspector(world, target, InspectorRequest::List);
        remove_asking_tools(&mut through["result"]["tools"]);
        assert_eq!(through, direct, "tools of {name}");
    }
}

#[test]
fn auto_mode_inspector_falls_back() {
    let test = "auto_mode_inspector_falls_back";
    let Some(peers) = PeerManifest::load(test, &["/inspector"]) else {
        return;
    };
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let config = gateway.dir.path().join("inspector.json");
    let authorization = format!("Bearer {}", gateway.token);
    let state = gateway.state_dir();
    let text = json!({"mcpServers": {
        "http": {
            "type": "streamable-http",
            "url": format!("http://{}/mcp", gateway.address),
            "headers": {"Authorization": authorization},
            "protocolEra": "auto",
        },
        "stdio": {
            "type": "stdio",
            "command": bowline_binary(),
            "args": ["--state", state, "stdio"],
            "protocolEra": "auto",
        },
    }});
    std::fs::write(&config, text.to_string()).unwrap();
    for name in ["http", "stdio"] {
        let mut command = inspector_command(&peers, gateway.dir.path());
        command
            .arg("--config")
            .arg(&config)
            .args(["--server", name]);
        let answer = parse_output(
            command,
            InspectorRequest::Call("one__echo", &json!({"message": "hi"})),
        );
        assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    }
}

fn run_inspector(
    world: &OfficialServers,
    target: InspectorTarget<'_>,
    ask: InspectorRequest<'_>,
) -> Value {
    let mut command = inspector_command(&world.peers, world.base_dir());
    let (program, args, env) = match target {
        InspectorTarget::Http(gateway, path) => {
            command
                .arg(format!("http://{}{path}", gateway.address))
                .args(["--transport", "http", "--header"])
                .arg(format!("Authorization: Bearer {}", gateway.token));
            return parse_output(command, ask);
        }
        InspectorTarget::Program(program) => {
            let env = program.env_json();
            (program.command, json!(program.args), env)
        }
        InspectorTarget::Shim(gateway, server) => {
            let state = gateway.state_dir();
            let mut args = vec!["--state", state.to_str().unwrap(), "stdio"];
            args.extend(server.into_iter().flat_map(|name| ["--server", name]));
            (bowline_binary(), json!(args), json!({}))
        }
    };
    let entry = json!({"type": "stdio", "command": program, "args": args, "env": env});
    let config = NamedTempFile::new().unwrap();
    let text = json!({"mcpServers": {"it": entry}}).to_string();
    std::fs::write(config.path(), text).unwrap();
    command
        .arg("--config")
        .arg(config.path())
        .args(["--server", "it"]);
    parse_output(command, ask)
}

fn inspector_command(peers: &PeerManifest, home: &Path) -> Command {
    let mut command = Command::new(peers.peer_path("/node"));
    command
        .arg(peers.peer_path("/inspector"))
        .arg("--cli")
        .env("MCP_INSPECTOR_SECRET_STORE", "memory")
        .env("HOME", home);
    command
}

fn parse_output(mut command: Command, ask: InspectorRequest<'_>) -> Value {
    match ask {
        InspectorRequest::List => command.args(["--method", "tools/list"]),
        InspectorRequest::Call(tool, arguments) => command
            .args(["--method", "tools/call", "--tool-name", tool])
            .args(["--tool-args-json", &arguments.to_string()]),
    };
    let child = command
        .args(["--format", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdout, stderr) = wait_for_success("inspector", child);
    serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}\n{stderr}"))
}
