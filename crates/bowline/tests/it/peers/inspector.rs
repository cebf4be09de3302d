//! The Inspector's command line, which is a client of its own: one process for each request.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::Peers;
use super::clients::finish;
use super::world::{NAMES, Program, World, take_asking};
use crate::harness::{Gateway, bowline, fixture};

/// Where the Inspector connects to.
enum Target<'a> {
    Program(Program),
    Http(&'a Gateway, String),
    Shim(&'a Gateway, Option<&'a str>),
}

/// What it asks there.
#[derive(Clone, Copy)]
enum Ask<'a> {
    List,
    Call(&'a str, &'a Value),
}

#[test]
fn inspector_cli_works_over_http_and_stdio() {
    let test = "inspector_cli_works_over_http_and_stdio";
    let Some(peers) = Peers::of(test, &["/inspector"]) else {
        return;
    };
    let world = World::new(peers);
    let gateway = world.gateway();
    // Each request costs a process of its own, and most of that is start-up.
    std::thread::scope(|scope| {
        for names in [&NAMES[..2], &NAMES[2..]] {
            let (world, gateway) = (&world, &gateway);
            scope.spawn(move || {
                for name in names {
                    call(world, gateway, name);
                    if matches!(*name, "everything" | "git") {
                        list(world, gateway, name);
                    }
                }
            });
        }
    });
    for target in [
        Target::Http(&gateway, "/mcp".to_owned()),
        Target::Shim(&gateway, None),
    ] {
        let all = inspect(&world, target, Ask::List);
        let all = all["result"]["tools"].as_array().unwrap().len();
        assert_eq!(all, 17 + 14 + 9 + 2 + 12);
    }
}

/// Makes one call of a server directly and in every way through the gateway.
fn call(world: &World, gateway: &Gateway, name: &str) {
    let calls = world.calls(name, "inspector");
    let (tool, arguments) = match name {
        "everything" | "memory" => &calls[2],
        _ => &calls[0],
    };
    let prefixed = format!("{name}__{tool}");
    let own = Ask::Call(tool, arguments);
    let together = Ask::Call(&prefixed, arguments);
    let direct = Target::Program(world.program(name, "inspector"));
    let direct = inspect(world, direct, own);
    assert!(direct["result"]["content"].is_array(), "{direct}");
    let ways = [
        (Target::Http(gateway, format!("/servers/{name}/mcp")), own),
        (Target::Shim(gateway, Some(name)), own),
        (Target::Http(gateway, "/mcp".to_owned()), together),
        (Target::Shim(gateway, None), together),
    ];
    for (target, ask) in ways {
        assert_eq!(inspect(world, target, ask), direct, "{tool} of {name}");
    }
}

/// Lists the tools of a server directly and in both ways through the gateway.
fn list(world: &World, gateway: &Gateway, name: &str) {
    let direct = Target::Program(world.program(name, "inspector"));
    let mut direct = inspect(world, direct, Ask::List);
    // The gateway can be asked for more than the Inspector, which `everything` heeds.
    take_asking(&mut direct["result"]["tools"]);
    for target in [
        Target::Http(gateway, format!("/servers/{name}/mcp")),
        Target::Shim(gateway, Some(name)),
    ] {
        let mut through = inspect(world, target, Ask::List);
        take_asking(&mut through["result"]["tools"]);
        assert_eq!(through, direct, "tools of {name}");
    }
}

#[test]
fn an_inspector_that_may_choose_falls_back_as_well() {
    let test = "an_inspector_that_may_choose_falls_back_as_well";
    let Some(peers) = Peers::of(test, &["/inspector"]) else {
        return;
    };
    let gateway = Gateway::up(&fixture("one", &[]));
    let config = gateway.dir.path().join("inspector.json");
    let authorization = format!("Bearer {}", gateway.token);
    let state = gateway.state();
    let text = json!({"mcpServers": {
        "http": {
            "type": "streamable-http",
            "url": format!("http://{}/mcp", gateway.address),
            "headers": {"Authorization": authorization},
            "protocolEra": "auto",
        },
        "stdio": {
            "type": "stdio",
            "command": bowline(),
            "args": ["--state", state, "stdio"],
            "protocolEra": "auto",
        },
    }});
    std::fs::write(&config, text.to_string()).unwrap();
    for name in ["http", "stdio"] {
        let mut command = inspector(&peers, gateway.dir.path());
        command
            .arg("--config")
            .arg(&config)
            .args(["--server", name]);
        let answer = answer(command, Ask::Call("one__echo", &json!({"message": "hi"})));
        assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    }
}

fn inspect(world: &World, target: Target<'_>, ask: Ask<'_>) -> Value {
    let mut command = inspector(&world.peers, world.path());
    let (program, args, env) = match target {
        Target::Http(gateway, path) => {
            command
                .arg(format!("http://{}{path}", gateway.address))
                .args(["--transport", "http", "--header"])
                .arg(format!("Authorization: Bearer {}", gateway.token));
            return answer(command, ask);
        }
        Target::Program(program) => {
            let env = program.env();
            (program.command, json!(program.args), env)
        }
        Target::Shim(gateway, server) => {
            let state = gateway.state();
            let mut args = vec!["--state", state.to_str().unwrap(), "stdio"];
            args.extend(server.into_iter().flat_map(|name| ["--server", name]));
            (bowline().to_owned(), json!(args), json!({}))
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
    answer(command, ask)
}

fn inspector(peers: &Peers, home: &Path) -> Command {
    let mut command = Command::new(peers.path("/node"));
    command
        .arg(peers.path("/inspector"))
        .arg("--cli")
        .env("MCP_INSPECTOR_SECRET_STORE", "memory")
        .env("HOME", home);
    command
}

fn answer(mut command: Command, ask: Ask<'_>) -> Value {
    match ask {
        Ask::List => command.args(["--method", "tools/list"]),
        Ask::Call(tool, arguments) => command
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
    let (stdout, stderr) = finish("inspector", child);
    serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}\n{stderr}"))
}
