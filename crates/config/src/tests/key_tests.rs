//! The lifecycle, limit and telemetry keys.

use bowline_core::cache::CacheLimits;
use bowline_core::era::Era;
use bowline_core::policy::FeaturePattern;
use bowline_core::rate_limiter::RateLimits;
use bowline_core::shares::{ShareLimits, SharedResource};

use super::*;

const TOML: &str = r#"
[limits]
principal_calls = 10
starts = 3
first_list_wait = "2s"
stop_wait = "9s"
[telemetry]
otlp = "http://127.0.0.1:4318"
service_name = "gate"
sample = 0.25
[servers.a]
command = "uvx"
args = ["tool==1.0"]
install_timeout = "10m"
drain_timeout = "1m"
idle_stop = "15m"
ping = "off"
relist = "90s"
era = "modern"
max_calls = 8
queue = 0
max_list = 7
max_result = "16MiB"
limits = { memory = "2GiB", processes = 256, file = "512MB", open_files = 1024 }
pin = "block"
cache = false
check_output = false
[servers.a.tools.t]
effect = "write"
idempotent = true
timeout = "5s"
invalidates = ["get_*", "list"]
[cache]
entries = 9
bytes = "1MiB"
per_tool = 3
ttl_max = "1m"
[audit]
calls = false
payload = true
max_bytes = "2MiB"
keep = 7
denials_max_bytes = "3MiB"
min_age = "2d"
max_age = "90d"
"#;

const JSON: &str = r#"{
"x-bowline": {
  "limits": {"principal_calls": 10, "starts": 3, "first_list_wait": "2s", "stop_wait": "9s"},
  "telemetry": {"otlp": "http://127.0.0.1:4318", "service_name": "gate", "sample": 0.25},
  "cache": {"entries": 9, "bytes": "1MiB", "per_tool": 3, "ttl_max": "1m"},
  "audit": {"calls": false, "payload": true, "max_bytes": "2MiB", "keep": 7,
    "denials_max_bytes": "3MiB", "min_age": "2d", "max_age": "90d"}
},
"mcpServers": {"a": {"command": "uvx", "args": ["tool==1.0"], "x-bowline": {
  "install_timeout": "10m", "drain_timeout": "1m", "idle_stop": "15m", "ping": "off", "relist": "90s", "era": "modern",
  "max_calls": 8, "queue": 0, "max_list": 7, "max_result": "16MiB", "pin": "block", "cache": false, "check_output": false,
  "limits": {"memory": "2GiB", "processes": 256, "file": "512MB", "open_files": 1024},
  "tools": {"t": {"effect": "write", "idempotent": true, "timeout": "5s",
    "invalidates": ["get_*", "list"]}}
}}}
}"#;

#[test]
fn lifecycle_and_limits_parse_from_both_syntaxes() {
    let config = parse_toml(TOML, &EnvVars::default()).unwrap();
    let same = parse_json(JSON).unwrap();
    assert_eq!(
        (&config.servers, config.limits),
        (&same.servers, same.limits)
    );
    assert_eq!(config.telemetry, same.telemetry);
    let seconds = Duration::from_secs;
    let limits = HostLimits {
        principal_calls_max: 10,
        starts_max: 3,
        first_list_wait: seconds(2),
        stop_wait: seconds(9),
        cache: CacheLimits {
            entries_max: 9,
            bytes_max: 1 << 20,
            per_tool_max: 3,
            ttl_max: seconds(60),
            ..CacheLimits::default()
        },
        ..HostLimits::default()
    };
    assert_eq!(config.limits, limits);
    assert_eq!(
        config.telemetry.otlp.unwrap().to_string(),
        "http://127.0.0.1:4318/"
    );
    assert_eq!(
        (
            config.telemetry.service_name.as_str(),
            config.telemetry.sample
        ),
        ("gate", 0.25)
    );
    let server = &config.servers[0];
    assert_eq!(server.install_timeout, Some(seconds(600)));
    assert_eq!(
        (server.drain_timeout, server.idle_stop),
        (seconds(60), Some(seconds(900)))
    );
    assert_eq!(
        (server.ping, server.calls_max, server.queue_max),
        (None, 8, 0)
    );
    assert_eq!((server.relist, server.list_max), (Some(seconds(90)), 7));
    assert_eq!(server.result_max, 16 << 20);
    assert_eq!(server.era_setting, EraSetting::Only(Era::Modern));
    let rule = ToolRule {
        effect: Some(Effect::Write),
        idempotent: Some(true),
        timeout: Some(seconds(5)),
        invalidates: ["*.get_*", "*.list"]
            .map(|glob| FeaturePattern::parse(glob).unwrap())
            .into(),
        ..ToolRule::default()
    };
    assert_eq!(server.pin, PinMode::Block);
    assert!(!server.cache && !server.check_output);
    assert_eq!(server.tools, [("t".to_owned(), rule)].into());
    let UpstreamConfig::Child(child) = &server.upstream else {
        panic!("{server:?}");
    };
    let limits = ChildLimits {
        memory_bytes_max: Some(2 << 30),
        processes_max: Some(256),
        file_bytes_max: Some(512_000_000),
        open_files_max: Some(1024),
    };
    assert_eq!(child.limits, limits);
}

#[test]
fn audit_keys_parse_from_both_syntaxes() {
    let toml = parse_toml(TOML, &EnvVars::default()).unwrap();
    let json = parse_json(JSON).unwrap();
    let audit = AuditConfig {
        calls: false,
        payload: true,
        max_bytes: 2 << 20,
        keep: 7,
        denials_max_bytes: 3 << 20,
        min_age: Duration::from_secs(2 * 86_400),
        max_age: Some(Duration::from_secs(90 * 86_400)),
    };
    assert_eq!((toml.audit, json.audit), (audit, audit));
}

#[test]
fn only_installers_get_install_timeout() {
    for (command, expected) in [
        ("npx", Some(300)),
        ("/usr/bin/docker", Some(300)),
        ("node", None),
        ("npx.sh", None),
    ] {
        let text = format!("[servers.a]\ncommand = \"{command}\"\n");
        let config = parse_toml(&text, &EnvVars::default()).unwrap();
        let timeout = config.servers[0].install_timeout;
        assert_eq!(timeout, expected.map(Duration::from_secs), "{command}");
    }
    let off = "[servers.a]\ncommand = \"npx\"\ninstall_timeout = \"off\"\n";
    assert_eq!(
        parse_toml(off, &EnvVars::default()).unwrap().servers[0].install_timeout,
        None
    );
}

#[test]
fn out_of_bounds_value_names_bounds() {
    for (lines, message) in [
        (
            "max_calls = 0",
            "`max_calls` must be a whole number from 1 to 65536",
        ),
        (
            "queue = 70000",
            "`queue` must be a whole number from 0 to 65536",
        ),
        (
            "limits = { memory = \"1MiB\" }",
            "`memory` must be a size from 16MiB to 16TiB such as \"512MB\" or \"2GiB\"",
        ),
        (
            "limits = { file = 5 }",
            "`file` must be a size from 0B to 16TiB such as \"512MB\" or \"2GiB\"",
        ),
        (
            "limits = { open_files = 3 }",
            "`open_files` must be a whole number from 16 to 1048576",
        ),
        (
            "limits = { procesess = 3 }",
            "unknown key `procesess` in [servers.a.limits]",
        ),
        (
            "ping = \"never\"",
            "`ping` must be \"off\" or a duration such as \"30s\", \"5m\" or \"1h\"",
        ),
        ("era = \"old\"", "`era` cannot be \"old\""),
        ("idle_stop = 5", "`idle_stop` must be \"off\" or a duration"),
        (
            "tools = { t = { timeout = \"0s\" } }",
            "`timeout` must be a duration",
        ),
        (
            "tools = { t = { idempotent = 1 } }",
            "`idempotent` must be true or false",
        ),
        (
            "[telemetry]\nsample = 1.5",
            "`sample` must be a number from 0.0 to 1.0",
        ),
        (
            "[telemetry]\nsample = nan",
            "`sample` must be a number from 0.0 to 1.0",
        ),
        (
            "[telemetry]\notlp = \"x\"",
            "`otlp` must be an address such as",
        ),
        (
            "[telemetry]\nservice_name = \"\"",
            "`service_name` must be a name of 1 to 255",
        ),
        (
            "[limits]\nstarts = 0",
            "`starts` must be a whole number from 1 to 1024",
        ),
        ("[limits]\nstart = 1", "unknown key `start` in [limits]"),
    ] {
        let text = format!("[servers.a]\ncommand = \"a\"\n{lines}\n");
        let report = parse_toml(&text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(message), "{lines}: {report}");
    }
    let text = "[servers.a]\nurl = \"http://a/\"\nlimits = { processes = 3 }\n";
    let report = parse_toml(text, &EnvVars::default()).unwrap_err();
    assert!(report.contains("`limits` has no use"), "{report}");
}

#[test]
fn cache_and_pin_values_have_bounds() {
    for (lines, message) in [
        (
            "tools = { t = { invalidates = [\"\"] } }",
            "`` names no tool",
        ),
        ("pin = \"on\"", "`pin` cannot be \"on\""),
        (
            "[cache]\nentries = -1",
            "`entries` must be a whole number from 0 to 1000000",
        ),
    ] {
        let text = format!("[servers.a]\ncommand = \"a\"\n{lines}\n");
        let report = parse_toml(&text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(message), "{lines}: {report}");
    }
}

#[test]
fn server_secrets_are_labelled_by_origin() {
    let text = r#"
[servers.child]
command = "a"
args = ["--token", "arg-canary-1", "${FROM_ENV}", "/srv/${HOME}"]
env = { ANY = "env-canary-1", NODE_ENV = "production", REF = "x-${FROM_ENV}" }
inherit_env = ["INHERITED"]
[servers.remote]
url = "https://h.example/mcp?k=query-canary"
headers = { Authorization = "Bearer header-canary" }
"#;
    let env = EnvVars::from_pairs([
        ("FROM_ENV", "from-canary"),
        ("INHERITED", "inherited-canary"),
        ("HOME", "/tmp"),
    ]);
    let config = parse_toml(text, &env).unwrap();
    let clean = |server: usize, text: &str| {
        let redactor = config.servers[server].secrets.redactor();
        redactor.redact_text(text).into_owned()
    };
    assert_eq!(
        clean(
            0,
            "arg-canary-1 env-canary-1 inherited-canary production /tmp"
        ),
        "‹argument 2› ‹env ANY› ‹env INHERITED› production /tmp"
    );
    assert_eq!(clean(0, "a from-canary"), "a ‹argument 3›");
    assert_eq!(clean(0, "x-from-canary"), "‹env REF›");
    assert_eq!(
        clean(1, "header-canary, Bearer header-canary, query-canary"),
        "‹header authorization›, ‹header authorization›, ‹url›"
    );
    assert!(!format!("{config:?}").contains("canary"));
}

#[test]
fn refused_file_is_hidden_in_debug() {
    let text = "[servers.a]\ncommand = \"a\"\nenv = { K = \"canary-1\" }\nlasy = true\n";
    let error = parse_config(text, Path::new("/x.toml"), &EnvVars::default()).unwrap_err();
    assert!(!format!("{error:?}").contains("canary-1"));
}

#[test]
fn principal_rates_parse() {
    let lines = "[limits]\nprincipal_requests_per_s = 5\nprincipal_requests_burst = 6\n\
                 principal_bytes_burst = \"2MiB\"\n";
    let config = parse_toml(lines, &EnvVars::default()).unwrap();
    let mut rates = RateLimits::default();
    (rates.requests.per_s, rates.requests.burst) = (5, 6);
    rates.bytes.burst = 2 << 20;
    assert_eq!(config.limits.rates, rates);
    for (line, message) in [
        (
            "principal_requests_per_s = 0",
            "`principal_requests_per_s` must be",
        ),
        (
            "principal_bytes_per_s = \"3B\"",
            "`principal_bytes_per_s` must be",
        ),
    ] {
        let report = parse_toml(&format!("[limits]\n{line}\n"), &EnvVars::default()).unwrap_err();
        assert!(report.contains(message), "{report}");
    }
}

#[test]
fn principal_share_is_at_most_half() {
    let lines = "[limits]\nsessions = 100\nprincipal_sessions = 80\nbody_bytes = \"8MiB\"\n\
                 principal_streams = 7\nunproven_connections = 32\naddress_connections = 9\n";
    let text = format!("{lines}[servers.a]\ncommand = \"a\"\n");
    let config = parse_toml(&text, &EnvVars::default()).unwrap();
    let shares = config.limits.shares;
    let sessions = shares.get(SharedResource::Sessions);
    assert_eq!((sessions.total, sessions.per_principal), (100, 50));
    let bodies = shares.get(SharedResource::BodyBytes);
    assert_eq!((bodies.total, bodies.per_principal), (8 << 20, 4 << 20));
    assert_eq!(shares.get(SharedResource::Streams).per_principal, 7);
    let untouched = ShareLimits::default().get(SharedResource::JournalBytes);
    assert_eq!(shares.get(SharedResource::JournalBytes), untouched);
    let connections = ConnectionLimits {
        unauthenticated_max: 32,
        address_max: 9,
    };
    assert_eq!(config.connections, connections);
    let warned: Vec<_> = config.warnings.iter().map(|one| &one.message).collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("`principal_sessions` is more than half of the 100"));
    for (line, message) in [
        ("streams = 0", "`streams` must be a whole number from 1 to"),
        ("body_bytes = 5", "`body_bytes` must be"),
    ] {
        let text = format!("[limits]\n{line}\n");
        let report = parse_toml(&text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(message), "{report}");
    }
}

#[test]
fn every_shared_resource_has_two_keys() {
    for resource in SharedResource::ALL {
        let value = match resource.is_bytes() {
            true => "\"2MiB\"",
            false => "2",
        };
        let name = resource.name();
        let text = format!("[limits]\n{name} = {value}\nprincipal_{name} = {value}\n");
        parse_toml(&text, &EnvVars::default()).unwrap_or_else(|report| panic!("{report}"));
    }
}
