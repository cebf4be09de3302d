//! The executor keys, at the gateway and at the executor.

use bowline_core::egress::EgressRule;
use bowline_host::executor::frames::SecretHeader;

use super::*;

const GATEWAY: &str = r#"
[executors.office]
url = "wss://executor.example:8790"
protocol = "exec-server"
token = "${TOKEN}"
[principals.lab]
executors = ["office", "lab-*"]
[servers.tracker]
url = "https://tracker.example/mcp"
headers = { Authorization = "Bearer ${executor:tracker}", X-Plain = "${TOKEN}" }
via = "executor:office"
[servers.files]
via = "executor:office"
[servers.notes]
via = "executor:lab-2"
server = "files"
"#;

fn test_env() -> EnvVars {
    EnvVars::from_pairs([("TOKEN", "canary")])
}

#[test]
fn executor_keys_parse_from_both_syntaxes() {
    let config = parse_toml(GATEWAY, &test_env()).unwrap();
    let office = &config.executors["office"];
    assert_eq!(office.url.to_string(), "https://executor.example:8790/");
    assert_eq!(office.protocol, ExecutorProtocol::ExecServer);
    assert_eq!(office.token.as_ref().unwrap().expand().unwrap(), "canary");
    let names: Vec<_> = config.policy.executors["lab"]
        .iter()
        .map(|pattern| pattern.as_str().to_owned())
        .collect();
    assert_eq!(names, ["office", "lab-*"]);
    assert!(config.policy.peers.is_empty() && config.policy.principals.is_empty());
    let UpstreamConfig::Remote(tracker) = &config.servers[0].upstream else {
        panic!("{config:?}");
    };
    let fill = SecretHeader {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "tracker".into(),
        after: "".into(),
    };
    let via = ViaConfig {
        executor: "office".into(),
        secret_headers: vec![fill],
    };
    assert_eq!(tracker.via.as_ref(), Some(&via));
    assert_eq!(tracker.headers.len(), 1);
    let placed = |executor: &str, server: &str| {
        UpstreamConfig::Placed(PlacementConfig {
            executor: executor.into(),
            server: server.into(),
        })
    };
    assert_eq!(config.servers[1].upstream, placed("office", "files"));
    assert_eq!(config.servers[2].upstream, placed("lab-2", "files"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(!format!("{config:?}").contains("canary"));
    let same = r#"{"x-bowline": {
      "executors": {"office": {"url": "wss://executor.example:8790",
        "protocol": "exec-server", "token": "${TOKEN}"}},
      "principals": {"lab": {"executors": ["office", "lab-*"]}}
    }, "mcpServers": {
      "tracker": {"url": "https://tracker.example/mcp", "x-bowline": {"via": "executor:office"},
        "headers": {"Authorization": "Bearer ${executor:tracker}", "X-Plain": "${TOKEN}"}},
      "files": {"x-bowline": {"via": "executor:office"}},
      "notes": {"x-bowline": {"via": "executor:lab-2", "server": "files"}}
    }}"#;
    let same = parse_config(same, Path::new("/etc/b/mcp.json"), &test_env()).unwrap();
    assert_eq!(same.executors, config.executors);
    assert_eq!(same.policy, config.policy);
    assert_eq!(same.servers, config.servers);
}

#[test]
fn executor_offer_keys_parse() {
    let text = r#"
[executor]
allow = ["tracker.example:443", "10.1.0.0/16:*"]
[executor.servers.tracker]
allow = ["[fd00::1]:80"]
[executor.secrets.tracker]
value = "${TOKEN}"
to = ["tracker.example:443"]
[executor.secrets.any]
value = "plain"
to = ["10.1.0.0/16:*"]
[servers.files]
command = "files"
"#;
    let config = parse_toml(text, &test_env()).unwrap();
    let servant = &config.executor_offer;
    let rules = |texts: &[&str]| -> Vec<EgressRule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let first = ["tracker.example:443", "10.1.0.0/16:*"];
    assert_eq!(servant.allow, rules(&first));
    assert_eq!(servant.servers["tracker"], rules(&["[fd00::1]:80"]));
    let tracker = &servant.secrets["tracker"];
    assert_eq!(tracker.value.expand().unwrap(), "canary");
    assert_eq!(tracker.to.rules(), rules(&first[..1]));
    assert_eq!(servant.secrets["any"].to.rules(), rules(&first[1..]));
    assert!(!format!("{config:?}").contains("canary"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let unset = parse_toml(text, &EnvVars::default()).unwrap();
    let message = &unset.warnings[0].message;
    assert!(message.contains("`executor.secrets.tracker`"), "{message}");
}

#[test]
fn invalid_executor_keys_are_refused_with_help() {
    for (text, expected) in [
        (
            "[executors.a]\nurl = \"ftp://h\"",
            "cannot be reached at this `url`",
        ),
        ("[executors.a]\nurll = \"ws://h\"", "did you mean `url`?"),
        (
            "[executors.a]\nprotocol = \"exec\"",
            "`protocol` cannot be \"exec\"",
        ),
        (
            "[executors.a]\nprotocol = \"bowlin\"",
            "did you mean \"bowline\"?",
        ),
        ("\n[executors.A_b]\nurl = \"ws://h\"", "rename it to `a-b`"),
        ("\n[executors.a]\n", "executor `a` has no `url`"),
        (
            "[principals.a]\nexecutors = [\"a.b\"]",
            "`a.b` names no executor",
        ),
        ("[executor]\nalow = []", "did you mean `allow`?"),
        (
            "[executor]\nallow = [\"https://h/x\"]",
            "`https://h/x` names no place",
        ),
        ("[executor.servers.a]\nallow = [\"h\"]", "ends with a port"),
        (
            "[executor.secrets.a]\nvalu = \"x\"",
            "did you mean `value`?",
        ),
        ("\n[executor.secrets.a]\n", "secret `a` has no `value`"),
        (
            "\n[executor.secrets.a]\nvalue = \"x\"",
            "secret `a` has no `to`",
        ),
        (
            "[servers.a]\nvia = \"office\"",
            "did you mean \"executor:office\"?",
        ),
        (
            "[servers.a]\nvia = \"exector:office\"",
            "did you mean \"executor:\"?",
        ),
        (
            "[servers.a]\nvia = \"executor:Office\"",
            "like that of a server",
        ),
    ] {
        let report = parse_toml(text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(expected), "{text}\n{report}");
        assert!(report.contains("bowline.toml:2:"), "{report}");
    }
}

#[test]
fn invalid_via_keys_are_refused_with_help() {
    for (lines, expected) in [
        (
            "command = \"a\"\nvia = \"executor:x\"",
            "keep `command` in the config of the executor",
        ),
        ("command = \"a\"\nserver = \"b\"", "`server` and no `via`"),
        (
            "url = \"https://h\"\nserver = \"b\"\nvia = \"executor:x\"",
            "both `url` and `server`",
        ),
        (
            "via = \"executor:x\"\nargs = [\"b\"]",
            "started by an executor, so `args`",
        ),
        (
            "via = \"executor:x\"\nheaders = { A = \"b\" }",
            "and has no headers",
        ),
        (
            "via = \"executor:x\"\nserver = \"B\"",
            "`server` cannot be \"B\"",
        ),
        (
            "url = \"https://h\"\nheaders = { A = \"${executor:b}\" }",
            "server with `via`",
        ),
        (
            "command = \"a\"\nargs = [\"${executor:b}\"]",
            "server with `via`",
        ),
        (
            "url = \"https://h/${executor:b}\"\nvia = \"executor:x\"",
            "server with `via`",
        ),
        (
            "url = \"https://h\"\nvia = \"executor:x\"\nheaders = { A = \"${HOME}${executor:b}\" }",
            "stands alone in a header",
        ),
        (
            "url = \"https://h\"\nvia = \"executor:x\"\nheaders = { A = \"${executor:b c}\" }",
            "names no secret",
        ),
    ] {
        let text = format!("[servers.a]\n{lines}\n");
        let report = parse_toml(&text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(expected), "{text}\n{report}");
    }
}

#[test]
fn unencrypted_remote_executor_causes_warning() {
    let text = "[executors.a]\nurl = \"ws://h.example:1\"\n[executors.b]\nurl = \"ws://[::1]:1\"\n";
    let config = parse_toml(text, &EnvVars::default()).unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(|one| &one.message).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("not encrypted"), "{warnings:?}");
}
