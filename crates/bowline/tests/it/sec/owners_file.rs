//! Only the owner's file decides about started commands and environments.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use bowline_testkit::gateway::{
    Gateway, HttpConnection, bowline_binary, fixture_config, server_config,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::bearer_header;

fn server_status(gateway: &Gateway, name: &str) -> Value {
    gateway.wait_for_state(name, "ready")
}

/// Reads `cmdline` or `environ` of a process.
fn read_proc(status: &Value, what: &str) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{}/{what}", status["pid"])).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let parts = text.trim_end_matches('\0').split('\0');
    parts.map(str::to_owned).collect()
}

#[test]
fn sec_37_no_request_starts_unconfigured_command() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let before = server_status(&gateway, "one")["pid"].clone();
    let marker = gateway.dir.path().join("marker");
    let other = gateway.dir.path().join("other.toml");
    std::fs::write(&other, server_config("evil", "/bin/touch".as_ref(), &[])).unwrap();
    let entry = json!({"command": "/bin/touch", "args": [marker], "config": other, "path": other});
    let body = json!({
        "name": "evil", "command": "/bin/touch", "args": [marker], "config": other, "path": other,
        "server": "evil", "tool": "x", "servers": {"evil": entry}, "mcpServers": {"evil": entry},
    });
    let bearer = bearer_header(&gateway);
    for method in ["POST", "PUT", "PATCH"] {
        for path in [
            "/api/v1/reload",
            "/api/v1/reload?config=other.toml",
            "/api/v1/servers",
            "/api/v1/servers/evil",
            "/api/v1/servers/evil/start",
            "/api/v1/servers/evil/reload",
            "/api/v1/servers/one/config",
            "/api/v1/config",
            "/api/v1/call",
        ] {
            let mut http = HttpConnection::connect(gateway.address);
            let headers = [
                ("Authorization", bearer.as_str()),
                ("Content-Type", "application/json"),
            ];
            http.send_request(method, path, &headers, body.to_string().as_bytes());
            let answer = http.read_response();
            let is_reload = method == "POST" && path.starts_with("/api/v1/reload");
            assert_eq!(
                answer.status == 200,
                is_reload,
                "{method} {path}: {}",
                answer.text()
            );
        }
    }
    let servers = gateway.get_api("/api/v1/servers");
    assert_eq!(servers["servers"].as_array().unwrap().len(), 1, "{servers}");
    assert_eq!(server_status(&gateway, "one")["pid"], before);
    assert!(!marker.exists());
}

#[test]
fn sec_37_world_writable_config_is_not_applied() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let before = server_status(&gateway, "one")["pid"].clone();
    let path = gateway.dir.path().join("bowline.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::write(&path, fixture_config("two", &[])).unwrap();
    let refused = gateway.run_cli(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("can be written by everyone") && said.contains("chmod o-w"),
        "{said}"
    );
    wait_until("the refusal is told", || {
        gateway.get_api("/api/v1/status")["config_error"].is_string()
    });
    assert_eq!(server_status(&gateway, "one")["pid"], before);
}

#[test]
fn sec_38_arguments_are_passed_literally() {
    let dir = tempfile::TempDir::new().unwrap();
    let marker = dir.path().join("marker");
    let odd = format!(
        "--ledger={}/a; touch {m} $(touch {m}) `touch {m}` | & > \n \"'\\ *?~ -x",
        dir.path().display(),
        m = marker.display().to_string().replace('/', "_"),
    );
    let args = [odd.as_str(), "--toolset", "demo"];
    let gateway = Gateway::start(&fixture_config("one", &args));
    let seen = read_proc(&server_status(&gateway, "one"), "cmdline");
    assert!(seen.ends_with(&args.map(str::to_owned)), "{seen:?}");
    assert!(!marker.exists());
    let written = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(written, 1, "the one file that the argument names");
}

#[test]
fn sec_39_server_gets_only_named_credentials() {
    let config = [
        fixture_config("one", &[]),
        format!(
            "{}inherit_env = [\"GITHUB_TOKEN\"]\n",
            fixture_config("two", &[])
        ),
    ];
    let gateway = Gateway::start_with_command(&config.concat(), |command| {
        command
            .env("GITHUB_TOKEN", "github-canary")
            .env("AWS_ACCESS_KEY_ID", "aws-canary")
            .env("AWS_SECRET_ACCESS_KEY", "aws-canary")
            .env("SSH_AUTH_SOCK", "/run/ssh-canary")
            .env("LD_PRELOAD", "");
    });
    let has = |name: &str, key: &str| {
        let start = format!("{key}=");
        let variables = read_proc(&server_status(&gateway, name), "environ");
        variables
            .iter()
            .any(|variable| variable.starts_with(&start))
    };
    for key in [
        "GITHUB_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "SSH_AUTH_SOCK",
        "LD_PRELOAD",
    ] {
        assert!(!has("one", key), "{key}");
        assert_eq!(has("two", key), key == "GITHUB_TOKEN", "{key}");
    }
    assert!(has("one", "PATH"));
}

/// The warnings of `bowline check`.
fn check_warnings(config: &str) -> String {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("bowline.toml");
    std::fs::write(&path, config).unwrap();
    let output = Command::new(bowline_binary())
        .arg("check")
        .arg("--config")
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn sec_39_code_loading_variables_are_warned_about() {
    for key in ["LD_PRELOAD", "NODE_OPTIONS", "PYTHONPATH", "BASH_ENV"] {
        let said = check_warnings(&format!(
            "[servers.a]\ncommand = \"a\"\nenv = {{ {key} = \"x\" }}\n"
        ));
        let expected = format!("server `a` gets {key}, which can load code into its process");
        assert!(
            said.contains(&expected) && said.contains("bowline.toml:3:"),
            "{said}"
        );
    }
}

#[test]
fn sec_40_unpinned_package_warning_names_pin() {
    let npx = "[servers.a]\ncommand = \"npx\"\nargs = [\"-y\", \"@a/files\", \"/srv\"]\n";
    let said = check_warnings(npx);
    assert!(said.contains("pin it: `@a/files@1.2.3`"), "{said}");
    let uvx = "[servers.a]\ncommand = \"uvx\"\nargs = [\"mcp-time\"]\n";
    let said = check_warnings(uvx);
    assert!(said.contains("pin it: `mcp-time==1.2.3`"), "{said}");
    let pinned = "[servers.a]\ncommand = \"npx\"\nargs = [\"-y\", \"@a/files@2.0.1\"]\n";
    assert_eq!(check_warnings(pinned), "");
}
