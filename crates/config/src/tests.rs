//! Parses whole files into values or exact error texts.

mod broker_tests;
mod executor_tests;
mod key_tests;
mod queue_tests;
mod rule_tests;
mod secret_tests;

use std::path::Path;

use bowline_core::call::Effect;
use bowline_core::era::EraSetting;
use bowline_host::pins::PinMode;
use bowline_host::spec::{ChildLimits, Isolation, ToolRule};
use bowline_link::http::HttpTransport;

use super::*;

fn parse_toml(text: &str, env: &EnvVars) -> Result<Config, String> {
    parse_config(text, Path::new("/etc/b/bowline.toml"), env).map_err(|error| error.report())
}

fn parse_json(text: &str) -> Result<Config, String> {
    parse_config(text, Path::new("/etc/b/mcp.json"), &EnvVars::default())
        .map_err(|error| error.report())
}

/// A file with the basic keys of servers.
const WHOLE: &str = r#"
[gateway]
listen = ["127.0.0.1:0", "[::1]:8080"]

[servers.files]
command = "npx"
args = ["-y", "server-filesystem@1.0.0", "${HOME}/code"]
env = { ROOT = "${ROOT:-/srv}", EMPTY = "" }
cwd = "work"
inherit_env = ["GITHUB_TOKEN"]
timeout = "60s"
start_timeout = "5s"
lazy = true
isolation = "shared"
restart = { budget = 2, window = "1m", backoff = "10ms..1s" }
breaker = { failures = 3, rest = "10s" }
[servers.files.tools.write_file]
effect = "write"
[servers.files.tools."odd name"]
effect = "read"
"#;

#[test]
fn complete_file_parses_to_values() {
    let config = parse_toml(WHOLE, &EnvVars::from_pairs([("HOME", "/home/a")])).unwrap();
    let rule = |effect| ToolRule {
        effect: Some(effect),
        ..ToolRule::default()
    };
    let expected = ServerConfig {
        name: Arc::from("files"),
        upstream: UpstreamConfig::Child(ChildConfig {
            command: "npx".into(),
            args: ["-y", "server-filesystem@1.0.0", "/home/a/code"]
                .map(str::to_owned)
                .into(),
            env: [
                ("ROOT".into(), "/srv".into()),
                ("EMPTY".into(), String::new()),
            ]
            .into(),
            inherit_env: vec!["GITHUB_TOKEN".into()],
            cwd: Some("/etc/b/work".into()),
            limits: ChildLimits::default(),
            sandbox: ChildConfig::new("npx".into(), Vec::new()).sandbox,
        }),
        era_setting: EraSetting::Auto,
        isolation: Isolation::Shared,
        call_timeout: Duration::from_secs(60),
        start_timeout: Duration::from_secs(5),
        install_timeout: Some(Duration::from_secs(300)),
        drain_timeout: Duration::from_secs(30),
        lazy: true,
        idle_stop: None,
        ping: Some(Duration::from_secs(30)),
        relist: Some(Duration::from_secs(60)),
        calls_max: 256,
        queue_max: 256,
        list_max: 32_768,
        result_max: 8 << 20,
        restart: RestartConfig {
            budget: 2,
            window: Duration::from_secs(60),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
        },
        breaker: BreakerConfig {
            failures: 3,
            open_time: Duration::from_secs(10),
        },
        pin: PinMode::Warn,
        cache: true,
        check_output: true,
        redact_results: true,
        argv_secrets: ArgvSecrets::Refuse,
        tools: [
            ("write_file".into(), rule(Effect::Write)),
            ("odd name".into(), rule(Effect::Read)),
        ]
        .into(),
        secrets: ServerSecrets::default(),
    };
    assert_eq!(config.servers, [expected]);
    let listen = ["127.0.0.1:0", "[::1]:8080"].map(|address| address.parse().unwrap());
    assert_eq!(config.listen, listen);
    assert_eq!(
        config.path.as_deref(),
        Some(Path::new("/etc/b/bowline.toml"))
    );
    assert_eq!(
        (config.broken_servers, config.warnings),
        (Vec::new(), Vec::new())
    );
}

#[test]
fn absent_keys_have_defaults() {
    let config = parse_toml("[servers.a]\ncommand = \"./run\"\n", &EnvVars::default()).unwrap();
    assert_eq!(config.listen, ["127.0.0.1:7331".parse().unwrap()]);
    let server = &config.servers[0];
    assert_eq!(server.upstream.describe(), "/etc/b/./run");
    assert_eq!(server.isolation, Isolation::Auto);
    assert_eq!(server.call_timeout, Duration::from_secs(300));
    assert_eq!(server.start_timeout, Duration::from_secs(30));
    assert!(!server.lazy);
    assert_eq!((server.restart.budget, server.breaker.failures), (5, 5));
    assert_eq!(parse_toml("", &EnvVars::default()).unwrap().servers, []);
}

#[test]
fn unknown_key_shows_line_and_suggestion() {
    let text = "[servers.files]\ncommand = \"npx\"\nlasy = true\n";
    assert_eq!(
        parse_toml(text, &EnvVars::default()).unwrap_err(),
        "\
error[config]: unknown key `lasy` in [servers.files]
 --> /etc/b/bowline.toml:3:1
  |
3 | lasy = true
  | ^^^^ did you mean `lazy`?
  |
  = help: keys here: command, args, env, cwd, inherit_env, url, headers, transport, via, server, timeout, \
start_timeout, install_timeout, drain_timeout, lazy, idle_stop, ping, relist, era, isolation, max_calls, \
queue, max_list, max_result, limits, sandbox, fs, net, restart, breaker, pin, cache, check_output, \
redact_results, argv_secrets, tools"
    );
}

#[test]
fn planned_key_is_refused_by_name() {
    let text = "[servers.tracker]\ncommand = \"a\"\njournal = \"nats\"\n";
    assert_eq!(
        parse_toml(text, &EnvVars::default()).unwrap_err(),
        "\
error[config]: `journal` in [servers.tracker] is not built yet in this version
 --> /etc/b/bowline.toml:3:1
  |
3 | journal = \"nats\"
  | ^^^^^^^ known, but not built yet
  |
  = help: remove it, or wait for a later version"
    );
}

#[test]
fn every_problem_is_reported_in_file_order() {
    let text = "\
[gatway]
listen = 1
[servers.Bad_Name]
command = 3
timeout = \"soon\"
lazy = \"yes\"
isolation = \"sesion\"
restart = { budget = -1, backof = \"1s..2s\" }
breaker = { failures = 0 }
[servers.ok.tools.t]
effect = \"wriet\"
[executors.office]
url = \"ftp://x\"
";
    let report = parse_toml(text, &EnvVars::default()).unwrap_err();
    let found: Vec<_> = report
        .lines()
        .filter_map(|line| line.strip_prefix("error[config]: "))
        .collect();
    assert_eq!(
        found,
        [
            "unknown key `gatway` in the file",
            "server name `Bad_Name` cannot be used",
            "server `Bad_Name` has neither `command` nor `url`",
            "`command` must be a string",
            "`timeout` must be a duration such as \"500ms\", \"30s\", \"5m\" or \"1h\"",
            "`lazy` must be true or false",
            "`isolation` cannot be \"sesion\"",
            "`budget` must be a whole number, 0 or more",
            "unknown key `backof` in [servers.Bad_Name.restart]",
            "`failures` must be a whole number, 1 or more",
            "server `ok` has neither `command` nor `url`",
            "`effect` cannot be \"wriet\"",
            "executor `office` cannot be reached at this `url`",
        ]
    );
}

#[test]
fn listen_address_requires_port() {
    let report =
        parse_toml("[gateway]\nlisten = \"localhost\"\n", &EnvVars::default()).unwrap_err();
    assert!(
        report.contains("`listen` must be an address with a port"),
        "{report}"
    );
    let open = parse_toml("[gateway]\nlisten = \"0.0.0.0:1\"\n", &EnvVars::default()).unwrap();
    assert_eq!(open.warnings.len(), 1);
}

#[test]
fn unset_variable_breaks_one_server() {
    let text = "\
[servers.a]
command = \"a\"
env = { TOKEN = \"${MISSING_TOKEN}\" }
[servers.b]
command = \"b\"
";
    let config = parse_toml(text, &EnvVars::default()).unwrap();
    assert_eq!(config.servers.len(), 1);
    assert_eq!(&*config.servers[0].name, "b");
    assert_eq!(&*config.broken_servers[0].name, "a");
    assert_eq!(
        config.broken_servers[0].reason,
        "variable `MISSING_TOKEN` is not set (in `env.TOKEN`)"
    );
}

#[test]
fn code_loading_variables_cause_warnings() {
    let text = "[servers.a]\ncommand = \"a\"\nenv = { LD_PRELOAD = \"x\", A = \"b\" }\n\
                inherit_env = [\"NODE_OPTIONS\"]\n";
    let warnings = parse_toml(text, &EnvVars::default()).unwrap().warnings;
    let shown: Vec<_> = warnings
        .iter()
        .map(|warning| warning.message.as_str())
        .collect();
    assert_eq!(
        shown,
        [
            "server `a` gets LD_PRELOAD, which can load code into its process",
            "server `a` gets NODE_OPTIONS, which can load code into its process",
        ]
    );
    assert_eq!(
        warnings[0].position,
        Some(FilePosition {
            line: 3,
            column: 22
        })
    );
}

#[test]
fn foreign_json_file_gets_slugged_names() {
    let config = parse_json(
        r#"{"mcpServers":{
  "My Files":{"type":"stdio","command":"npx","args":["-y"],"env":{"A":"1"},
              "x-bowline":{"lazy":true,"timeout":"5s"}},
  "my-files":{"command":"two"}}}"#,
    )
    .unwrap();
    assert_eq!(&*config.servers[0].name, "my-files");
    assert_eq!(&*config.servers[1].name, "my-files-2");
    assert!(config.servers[0].lazy);
    assert_eq!(config.servers[0].call_timeout, Duration::from_secs(5));
    assert_eq!(
        config.warnings[0].message,
        "server \"My Files\" is called `my-files` here"
    );
}

#[test]
fn json_problem_shows_line_and_column() {
    assert_eq!(
        parse_json("{\"mcpServers\": {\n  \"a\": {\"comand\": \"x\", \"command\": \"x\"}\n}}")
            .unwrap_err(),
        "\
error[config]: unknown key `comand` in mcpServers.a
 --> /etc/b/mcp.json:2:9
  |
2 |   \"a\": {\"comand\": \"x\", \"command\": \"x\"}
  |         ^^^^^^^^ did you mean `command`?
  |
  = help: keys here: command, args, env, cwd, url, headers, type, x-bowline"
    );
    let report =
        parse_json("{\"mcpServers\": {\"a\": {\"type\": \"htp\", \"url\": \"http://a/\"}}}")
            .unwrap_err();
    assert!(report.contains("did you mean \"http\"?"), "{report}");
    let report = parse_json("{\"servers\": {}}").unwrap_err();
    assert!(report.contains("unknown key `servers`"), "{report}");
    assert!(
        parse_json("{}")
            .unwrap_err()
            .contains("the file has no `mcpServers`")
    );
}

#[test]
fn server_debug_hides_expanded_values() {
    let env = EnvVars::from_pairs([("KEY", "hunter2")]);
    let text = "[servers.a]\ncommand = \"a\"\nargs = [\"${KEY}\"]\nenv = { K = \"${KEY}\" }\n";
    let shown = format!("{:?}", parse_toml(text, &env).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn world_writable_file_is_refused_with_fix() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bowline.toml");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let report = load_config(Some(&path), &EnvVars::default())
        .unwrap_err()
        .report();
    assert!(
        report.ends_with(&format!("fix: chmod o-w {}", path.display())),
        "{report}"
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        load_config(Some(&path), &EnvVars::default()).unwrap().path,
        Some(path)
    );
}

#[test]
fn missing_or_oversized_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    assert!(matches!(
        load_config(Some(&path), &EnvVars::default()),
        Err(ConfigError::Read { .. })
    ));
    std::fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    assert!(matches!(
        load_config(Some(&path), &EnvVars::default()),
        Err(ConfigError::NotText { .. })
    ));
}

#[test]
fn ten_thousand_malformed_files_never_panic() {
    const TOML: &str = "[gateway]\nlisten = \"127.0.0.1:0\"\n[servers.a]\ncommand = \"x\"\n\
        argv_secrets = \"allow\"\nargs = [\"${HOME}\", \"${file:y}\"]\nenv = { K = \"${V:-d}\" }\ntimeout = \"5s\"\n\
        restart = { budget = 5, window = \"5m\", backoff = \"100ms..5s\" }\n\
        [servers.a.tools.t]\neffect = \"read\"\n";
    const JSON: &str = r#"{"mcpServers":{"My Files":{"command":"x","args":["${HOME}"],
        "env":{"K":"v"},"x-bowline":{"timeout":"5s","lazy":true}}}}"#;
    let seed = 0xb0f1;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..10_000 {
        let (text, name) = if round % 2 == 0 {
            (TOML, "bowline.toml")
        } else {
            (JSON, "mcp.json")
        };
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                2 => bytes.insert(at, *b"\"{}[]=$\n.".get(random.usize(..9)).unwrap()),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        // Any input yields a config or a report.
        if let Err(error) =
            parse_config(&text, name.as_ref(), &EnvVars::from_pairs([("HOME", "/h")]))
        {
            assert!(!error.report().is_empty(), "seed {seed} round {round}");
        }
    }
}

#[test]
fn remote_server_has_transport_and_headers() {
    let text = "\
[servers.a]
url = \"https://${HOST}/mcp\"
headers = { Authorization = \"Bearer ${KEY}\", X-Team = \"blue\" }
transport = \"sse\"
isolation = \"principal\"
";
    let env = EnvVars::from_pairs([("HOST", "tracker.example"), ("KEY", "hunter2")]);
    let config = parse_toml(text, &env).unwrap();
    let server = &config.servers[0];
    assert_eq!(server.isolation, Isolation::Principal);
    let UpstreamConfig::Remote(remote) = &server.upstream else {
        panic!("{server:?}");
    };
    assert_eq!(remote.url.to_string(), "https://tracker.example/mcp");
    assert_eq!(remote.transport, HttpTransport::Sse);
    let named: Vec<_> = remote.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(named, ["authorization", "x-team"]);
    let (_, secret) = &remote.headers[0];
    assert_eq!(secret.expand().unwrap(), "Bearer hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
    let text = r#"{"mcpServers":{"a":{"type":"sse","url":"http://127.0.0.1:1/sse"}}}"#;
    let config = parse_json(text).unwrap();
    let UpstreamConfig::Remote(remote) = &config.servers[0].upstream else {
        panic!("{config:?}");
    };
    assert_eq!(remote.transport, HttpTransport::Sse);
}

#[test]
fn file_header_is_read_at_each_use() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "one\n").unwrap();
    let text = "[servers.a]\nurl = \"http://[::1]:1/\"\nheaders = { X-Key = \"${file:key}\" }\n";
    let path = directory.path().join("bowline.toml");
    let config = parse_config(text, &path, &EnvVars::default()).unwrap();
    let UpstreamConfig::Remote(remote) = &config.servers[0].upstream else {
        panic!("{config:?}");
    };
    let (_, key) = &remote.headers[0];
    assert!(!key.is_fixed());
    assert_eq!(key.expand().unwrap(), "one");
    std::fs::write(&file, "two\n").unwrap();
    assert_eq!(key.expand().unwrap(), "two");
    std::fs::remove_file(&file).unwrap();
    let error = key.expand().unwrap_err();
    assert!(
        error.contains("cannot be read") && !error.contains("two"),
        "{error}"
    );
}

#[test]
fn invalid_url_is_refused_with_reason() {
    for (lines, reason) in [
        ("url = \"tracker.example\"", "the address is not valid"),
        ("url = \"ftp://a/\"", "neither http nor https"),
        ("url = \"https://u:p@a/\"", "holds a user name or password"),
        (
            "url = \"http://a/\"\nheaders = { X-Key = \"k\" }",
            "over https only",
        ),
        (
            "url = \"http://a/\"\ncommand = \"b\"",
            "both `command` and `url`",
        ),
        ("url = \"http://a/\"\nargs = [\"b\"]", "`args` has no use"),
        (
            "command = \"a\"\nheaders = { X-Key = \"k\" }",
            "`headers` go nowhere",
        ),
        (
            "url = \"https://a/\"\nheaders = { Host = \"k\" }",
            "is set by the gateway",
        ),
        (
            "url = \"https://a/\"\nheaders = { \"a b\" = \"k\" }",
            "is no header name",
        ),
        (
            "url = \"https://a/\"\nheaders = { A = \"1\", a = \"2\" }",
            "is given twice",
        ),
    ] {
        let text = format!("[servers.a]\n{lines}\n");
        let report = parse_toml(&text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(reason), "{lines}: {report}");
    }
}
